"""Transactions over HTTP: those that the node's fronts coordinate, by transactional id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, cast

import structlog
from aiohttp import web
from msgspec import Meta, Struct

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import in_order, in_turns, sorting
from bridges.auth import Operation
from bridges.catalog.views.transactions import KeepsIds, TransactionDirectory, TransactionView
from bridges.console import paging
from bridges.console.handlers import Handlers, route
from bridges.console.host import Host
from bridges.console.page import Page, chosen
from bridges.console.paging import ListQuery
from bridges.http.access import Access, principal_of
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.log.partition.partition_log import PartitionLog

_log = structlog.get_logger("anabranch.console")

_TOLD = 500
"""Most open transactions of a partition in an answer."""
_MOST_HELD = 10_000
"""Most open transactions that are compared for how many records they hold back."""
_Others = Mapping[tuple[str, str], TransactionView]
"""Transactions that other nodes coordinate, by transactional id and front."""


class IdsQuery(ListQuery, frozen=True, kw_only=True):
    """The query of a list of transactional ids."""

    open: Annotated[bool, Meta(description="Only those with an open transaction.")] = False


class OpenQuery(ListQuery, frozen=True, kw_only=True):
    """The query of a list of open transactions."""

    hanging: Annotated[bool, Meta(description="Only those that nobody coordinates.")] = False


class Forget(Struct, frozen=True, kw_only=True):
    """The name of an id, or with ``prefix`` the beginning of names; ``idle_ms``: for how long they were unused."""

    name: str
    prefix: bool = False
    idle_ms: Annotated[int, Meta(ge=0)] = 0


class TransactionHandlers(Handlers):
    """Handlers of ``/api/transactions`` and the paths below it."""

    @route("GET /api/transactions", "Transactional ids", query=IdsQuery)
    async def list(self, request: web.Request, query: IdsQuery) -> web.StreamResponse:
        """List all transactional ids in alphabetical order, or a page of them (:mod:`bridges.console.paging`)."""
        page = query.page
        others = await self._read_others()
        names = self._names(request, query.open, page, others)
        found, total = await chosen(names, page, descending=page.descending)
        return await paging.send(request, page, "transactions", found, partial(self._describe, others=others), total)

    @route(
        "GET /api/open-transactions",
        "Open transactions of all partitions in use, those that hold back most first",
        query=OpenQuery,
    )
    async def list_open(self, request: web.Request, query: OpenQuery) -> web.StreamResponse:
        """List the open transactions of all partitions in use at this node, those that hold back most records first.

        All, or a page of them (:mod:`bridges.console.paging`).
        """
        found: list[tuple[int, dict[str, object]]] = []
        async for log in in_turns(self._node.logs):
            if log.high_watermark == log.last_stable_offset or not log.is_open:
                continue
            if self._node.catalog.stream_of(log.topic, log.partition) is None:
                continue  # a front's internal log
            if not self._access.topic(request, Operation.DESCRIBE, log.topic):
                continue
            for one in await opened(self._node, self._access, request, log):
                if not (query.hanging and one["coordinated"]):
                    held = log.high_watermark - cast("int", one["first_offset"])
                    head = {"topic": log.topic, "partition": log.partition, "held": held}
                    found.append((held, head | one))
            if len(found) >= _MOST_HELD:
                break
        found.sort(key=itemgetter(0), reverse=True)
        return await paging.listed(
            request,
            query.page,
            "transactions",
            [one for _, one in found],
            lambda one: f"{one['topic']} {one['producer_id']}",
            lambda one: one,
            as_they_are=True,
        )

    async def _read_others(self) -> _Others:
        return {
            (view.transactional_id, front): view
            for front, directory in self._node.transaction_directories().items()
            for view in await directory.read_others()
        }

    def _views(self, others: _Others) -> Iterator[tuple[tuple[str, str], TransactionView]]:
        for front, directory in self._node.transaction_directories().items():
            for view in directory.transactions():
                if (view.transactional_id, front) not in others:
                    yield (view.transactional_id, front), view
        yield from others.items()

    def _names(
        self, request: web.Request, only_open: bool, page: Page, others: _Others
    ) -> Iterator[tuple[str, str] | None]:
        for name, view in self._views(others):
            wanted = (view.started_ms is not None or not only_open) and page.finds(name[0])
            shown = wanted and self._access.transaction(request, Operation.DESCRIBE, name[0])
            yield name if shown else None

    def _describe(self, one: tuple[str, str], others: _Others) -> Iterator[dict[str, object]]:
        found = others.get(one) or self._node.transaction_directories()[one[1]].view(one[0])
        if found is not None:
            yield as_json(one[1], found, now_ms())

    @route(
        "GET /api/transactions/{transaction}",
        "One of them, and what its open transaction has written to",
        Operation.DESCRIBE,
        query=ListQuery,
    )
    async def describe(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """Describe a transactional id, with the groups and ``partitions`` of its open transaction.

        All partitions, or a page of them (:mod:`bridges.console.paging`).
        """
        front, _, view = await self._find(request.match_info["transaction"])

        def partitions() -> Iterator[tuple[str, int] | None]:
            for topic in sorting([*view.places]):
                if topic is None or not self._access.topic(request, Operation.DESCRIBE, topic):
                    yield None
                    continue
                for partition in sorted(view.places.get(topic, ())):
                    yield topic, partition

        groups = [one async for one in in_order([*view.groups]) if self._access.group(request, Operation.DESCRIBE, one)]
        head = {**as_json(front, view, now_ms()), "groups": groups}
        return await paging.listed(
            request,
            query.page,
            "partitions",
            [one async for one in in_turns(partitions()) if one is not None],
            itemgetter(0),
            lambda one: {"topic": one[0], "partition": one[1]},
            head=head,
            as_they_are=True,
        )

    @route("POST /api/transactions/{transaction}/abort", "Abort what is open of it", Operation.WRITE)
    async def abort(self, request: web.Request) -> web.Response:
        """Abort the open transaction of a transactional id: its records are never shown, and its producer is fenced.

        The answer has the id's state after the decision; markers may still be on their way.
        """
        name = request.match_info["transaction"]
        front, directory, before = await self._find(name)
        view = await directory.abort(name)
        _log.warning(
            "a transaction was aborted by an operator",
            transactional_id=name,
            producer_id=before.producer_id,
            user=str(principal_of(request)),
        )
        return web.json_response(as_json(front, view, now_ms()))

    @route("POST /api/transactions/forget", "Forget transactional ids of which nothing is open", body=Forget)
    async def forget(self, request: web.Request, body: Forget) -> web.Response:
        """Forget transactional ids without an open transaction, and return their number (``forgotten``)."""
        name = body.name

        def takes(one: str) -> bool:
            if not (one.startswith(name) if body.prefix else one == name):
                return False
            return self._access.transaction(request, Operation.WRITE, one)

        if not body.prefix:
            self._access.require_transaction(request, Operation.WRITE, name)
        directories = self._node.transaction_directories().values()
        keep = [one for one in directories if isinstance(one, KeepsIds)]
        count = sum([await one.forget(takes, now_ms() + 1 - body.idle_ms) for one in keep])
        if count:
            user = str(principal_of(request))
            _log.warning("transactional ids were forgotten", name=name, prefix=body.prefix, count=count, user=user)
        return web.json_response({"forgotten": count})

    async def _find(self, name: str) -> tuple[str, TransactionDirectory, TransactionView]:
        for front, directory in self._node.transaction_directories().items():
            view = await directory.find(name)
            if view is not None:
                return front, directory, view
        raise RequestError(f"there is no transactional id {name!r}", 404)


async def opened(node: Host, access: Access, request: web.Request, log: PartitionLog) -> list[dict[str, object]]:
    """Return the first open transactions of a partition.

    Each has ``producer_id``; ``first_offset``; ``appended_ms``, when it began, or, if nobody coordinates it, the latest
    time at which that offset may have been appended; ``coordinated``, whether a front of any node knows it; and
    ``transaction``, the front's view of it, None if the client may not see it.
    """
    some = dict(islice(log.state.transactions.open.items(), _TOLD))
    known: dict[int, tuple[str, TransactionView]] = {}
    for front, directory in node.transaction_directories().items():
        async for view in in_turns(directory.writing_to(log.topic, log.partition)):
            if view is not None and view.producer_id in some:
                known[view.producer_id] = front, view
        if len(known) < len(some):
            for view in await directory.read_others():
                if view.started_ms is not None and log.partition in view.places.get(log.topic, ()):
                    known.setdefault(view.producer_id, (front, view))
    now, index = now_ms(), log.state.index

    def row(producer: int, first: int) -> dict[str, object]:
        found = known.get(producer)
        began = None if found is None else found[1].started_ms
        shown = found is not None and access.transaction(request, Operation.DESCRIBE, found[1].transactional_id)
        return {
            "producer_id": producer,
            "first_offset": first,
            "appended_ms": index.time_at(first) if began is None else began,
            "coordinated": found is not None,
            "transaction": as_json(*found, now) if found is not None and shown else None,
        }

    return [row(producer, first) for producer, first in some.items()]


def as_json(front: str, view: TransactionView, now_ms: int) -> dict[str, object]:
    """Return the row of a transactional id. ``topics`` is the number of topics that its open transaction writes to."""
    return {
        "transactional_id": view.transactional_id,
        "front": front,
        "state": view.state,
        "producer_id": view.producer_id,
        "epoch": view.epoch,
        "timeout_ms": view.timeout_ms,
        "started_ms": view.started_ms,
        "open_ms": view.open_ms(now_ms),
        "topics": len(view.places),
    }
