"""Health, metrics and status of the node over HTTP; its promises, its users, and the jobs that report to it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from anabranch_kit.run.turns import portions
from bridges.auth import Operation
from bridges.console import paging
from bridges.console.handlers import Handlers, route
from bridges.console.paging import ListQuery
from bridges.http.access import principal_of
from bridges.metric_text import NAMING, rendered
from bridges.metrics import FrontMetrics

_ON_THE_NODE = (Operation.DESCRIBE, Operation.CREATE, Operation.ALTER, Operation.ALTER_CONFIGS)
_UNTOLD = "the reason is in the log, and told to who may look at the node"


class _Scrape(Struct, frozen=True):
    alone: Annotated[str, Meta(description="Metrics of the worker that is asked only.")] | None = None


class StatusHandlers(Handlers):
    """Handlers of requests about the node itself."""

    @route("GET /healthz", "Whether the process can do its work")
    async def health(self, request: web.Request) -> web.Response:
        """Answer 200 as long as the process can do its work; 503 with the reason when it cannot and should be replaced.

        Every client that was let in may see the status. The reason contains names and paths, so it needs DESCRIBE on
        the node.
        """
        failure = self._node.life.failure
        told = failure
        if failure is not None and (self._is_stranger(request) or not self._access.node(request, Operation.DESCRIBE)):
            told = _UNTOLD
        body = {"healthy": failure is None, "phase": self._node.life.phase.value, "failure": told}
        return web.json_response(body, status=200 if failure is None else 503)

    @route("GET /readyz", "Whether the node accepts clients")
    async def ready(self, request: web.Request) -> web.Response:
        """Answer 200 while the node accepts clients, 503 while it starts or drains."""
        node = self._node
        ready = node.life.failure is None and node.life.is_serving
        return web.json_response({"ready": ready, "phase": node.life.phase.value}, status=200 if ready else 503)

    @route(
        "GET /metrics",
        "Metrics for Prometheus; of the first of several workers those of all",
        query=_Scrape,
        content="text/plain",
    )
    async def metrics(self, request: web.Request, query: _Scrape) -> web.StreamResponse:
        """Return the node's metrics.

        Samples that name topics, groups, transactional ids or jobs are left out unless the client may describe these.
        The first of several workers returns the metrics of all, unless the query has ``alone``.
        """
        shows, heads = partial(self._shows, request), {"Content-Type": CONTENT_TYPE_LATEST}
        scrape_workers = self._node.scrape_workers
        if scrape_workers is None or query.alone is not None:
            return web.Response(body=await rendered(self._node.metrics, shows), headers=heads)
        response = web.StreamResponse(headers=heads)
        parts = scrape_workers(shows)
        try:
            await response.prepare(request)
            async for part in parts:
                await response.write(part)
        finally:
            await parts.aclose()
        await response.write_eof()
        return response

    def _shows(self, request: web.Request, labels: Mapping[str, str]) -> bool:
        if NAMING.isdisjoint(labels):
            return True
        topic, group, transaction = (labels.get(name) for name in ("topic", "group", "transactional_id"))
        if self._is_stranger(request):
            return False
        allowed = topic is None or self._access.topic(request, Operation.DESCRIBE, topic)
        if group is not None:
            allowed = allowed and self._access.group(request, Operation.DESCRIBE, group)
        if transaction is not None:
            allowed = allowed and self._access.transaction(request, Operation.DESCRIBE, transaction)
        if "job" in labels:
            allowed = allowed and self._access.node(request, Operation.DESCRIBE)
        return allowed

    def _is_stranger(self, request: web.Request) -> bool:
        """Return whether the client has not logged in although logins are required: it was let in for health and
        metrics.

        The authorizer is not asked, whatever it allows to such clients.
        """
        return self._node.authenticator.required and principal_of(request).is_anonymous

    @route("GET /api/me", "Who asks, and what it may do with the node")
    async def me(self, request: web.Request) -> web.Response:
        """Return who asks: the user (None without a login), and what it may do with the node.

        ``restricted``: there may be more topics and groups than this client sees.
        """
        principal = principal_of(request)
        allowed = [one.value for one in _ON_THE_NODE if self._access.node(request, one)]
        body = {
            "user": None if principal.is_anonymous else principal.name,
            "logins": self._node.authenticator.required,
            "node": allowed,
            "restricted": len(allowed) < len(_ON_THE_NODE),
        }
        return web.json_response(body, headers={"Cache-Control": "no-store"})

    @route("GET /api/status", "Version, addresses, and the work of each protocol", Operation.DESCRIBE)
    async def status(self, request: web.Request) -> web.Response:
        node = self._node
        fronts = [await _describe_front(front) for front in [*node.metrics.fronts.values()]]
        return web.json_response(
            {
                **node.describe(),
                "nodes": len(node.cluster.nodes),
                "phase": node.life.phase.value,
                "failure": node.life.failure,
                "topics": len(node.catalog.topics),
                "partitions": node.catalog.partition_count,
                "groups": len(node.progress.listed),
                "fronts": fronts,
            }
        )

    @route("GET /api/promises", "The promises that the node does not make", Operation.DESCRIBE)
    async def promises(self, request: web.Request) -> web.Response:
        """Return ``durability`` and the promises that the node does not make (``not_promised``).

        Each is a ``sentence``, with whether a setting gives it up (``chosen``).
        """
        node = self._node
        missing = [{"sentence": sentence, "chosen": chosen} for sentence, chosen in node.not_promised]
        return web.json_response({"durability": node.describe()["durability"], "not_promised": missing})

    @route("GET /api/users", "Names of users", Operation.DESCRIBE, query=ListQuery)
    async def users(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """List the users of the node's file by name, with their SCRAM mechanisms, never a password."""
        users = [(name, sorted(user.scram)) for name, user in self._node.authenticator.users.items()]
        return await paging.listed(
            request, query.page, "users", users, itemgetter(0), lambda one: {"user": one[0], "scram": one[1]}
        )

    @route("GET /api/jobs", "Jobs of the data pipeline that have reported", Operation.DESCRIBE, query=ListQuery)
    async def jobs(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """List all known jobs by front, in the order of :meth:`JobDirectory.jobs`."""
        found = [
            (front, view) for front, directory in self._node.job_directories().items() for view in directory.jobs()
        ]
        return await paging.listed(
            request,
            query.page,
            "jobs",
            found,
            lambda one: f"{one[1].kind} {one[1].name}",
            lambda one: {"front": one[0], **one[1].as_json()},
            as_they_are=True,
        )


async def _describe_front(front: FrontMetrics) -> dict[str, object]:
    came = went = 0
    async for some in portions([*front.topics.values()]):
        for topic in some:
            came += topic.records_in
            went += topic.records_out
    return {
        "name": front.name,
        "connections": front.connections,
        "requests": sum(kind.count for kind in front.kinds.values()),
        "errors": sum(sum(kind.errors.values()) for kind in front.kinds.values()),
        "records_in": came,
        "records_out": went,
    }
