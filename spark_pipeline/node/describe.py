"""Routes that prepare a reader: topics, their partitions and streams, positions, aborted ranges.

Answers come in pages of bounded size. A page is made in one turn of the event loop, so its facts about topics, and
about the positions of the node's own partitions, were true at one moment; the positions of other nodes' partitions were
fetched during the request. Clients match topic names with patterns themselves, so that an expensive pattern costs only
its own client.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from aiohttp import web

from bridges.auth import Operation
from bridges.auth.tickets import MOST_STREAMS
from bridges.catalog.config_types import ConfigSource
from bridges.catalog.topics.config import TOPIC_CONFIGS
from bridges.catalog.topics.topic import ChangeKind
from bridges.errors import LogError, LogUnavailable
from bridges.http.access import principal_of
from bridges.http.errors import RequestError, error_body, status_of
from bridges.log.partition.partition_log import PartitionLog
from bridges.log.transactions.partition_transactions import MOST_TOLD
from bridges.version import VERSION
from spark_pipeline.node.core import rows, text, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridges.catalog.topics.lineage import PartitionInfo
    from bridges.catalog.topics.topic import Change
    from bridges.log.remote.readable import ReadableLog
    from spark_pipeline.node.core import PipelineCore

NAMES = 2_000
"""Most topic names on a page."""
TOPICS = 25
"""Most topics described on a page."""
PARTITIONS = 1_000
"""Most partitions on a page, and most positions in one answer."""
SEARCHES = 100
"""Most timestamps searched by one request."""
_SEARCHED_TOGETHER = 8
_OPENED_TOGETHER = 64
TOPICS_LOOKED_AT = 200
_SENTENCES = 10
_SKIPPED = 1_000
"""Most spans declared lost by operators in a partition's positions."""


class Names:
    """The names of all listed topics in order; sorted again after a change."""

    def __init__(self, core: PipelineCore) -> None:
        self._catalog = core.node.catalog
        self._sorted: list[str] | None = None
        self._catalog.on_change.append(self._changed)

    def _changed(self, change: Change) -> None:
        if change.kind in (ChangeKind.CREATED, ChangeKind.DELETED):
            self._sorted = None

    def after(self, name: str, most: int) -> list[str]:
        """Return at most ``most`` names behind ``name``."""
        names = self._sorted
        if names is None:
            names = self._sorted = sorted(self._catalog.topics)
        start = bisect_right(names, name)
        return names[start : start + most]


class DescribeHandlers:
    """The routes for facts about the node and its topics."""

    def __init__(self, core: PipelineCore) -> None:
        self._core = core
        self._names = Names(core)
        self._searches = asyncio.Semaphore(_SEARCHED_TOGETHER)

    async def node(self, request: web.Request) -> web.StreamResponse:
        """Answer with the node's identity and the address at which its partitions' streams are read."""
        core = self._core
        place = core.node.sbp()
        return await core.answer(
            request,
            {
                "version": VERSION,
                "node_id": core.node.node_id,
                "cluster_id": core.node.cluster_id,
                "sbp": {
                    "pd": [_reachable(request, one.host, one.port) for one in place.pd],
                    "dialect": place.dialect,
                    "flavor": place.flavor,
                    "tls": place.tls,
                    "identity": place.identity,
                    "tickets": place.tickets,
                },
            },
        )

    async def defaults(self, request: web.Request) -> web.StreamResponse:
        """Answer with the configuration, as texts, of a topic that overrides nothing.

        ``configured`` lists the keys that are set for the node. The other keys have Kafka's own defaults, some of which
        apply to Kafka's batches only.
        """
        found = self._core.node.catalog.defaults()
        config = {key: one.value or "" for key, one in found.items()}
        configured = [key for key, one in found.items() if one.source is not ConfigSource.DEFAULT]
        return await self._core.answer(request, {"config": config, "configured": configured})

    async def topics(self, request: web.Request) -> web.StreamResponse:
        """Answer with topic names in alphabetical order, from behind ``after`` on; ``next`` is the next ``after``."""
        core = self._core
        names = self._names.after(request.query.get("after", ""), NAMES)
        may = core.access.topic
        topics = core.node.catalog.topics
        found = [
            {
                "name": name,
                "id": str(topics[name].topic_id),
                "kind": topics[name].kind.value,
                "partitions": len(topics[name].partitions),
            }
            for name in names
            if may(request, Operation.DESCRIBE, name)
        ]
        return await core.answer(request, {"topics": found, "next": names[-1] if len(names) == NAMES else None})

    async def describe(self, request: web.Request) -> web.StreamResponse:
        """Answer with topics in the order of the request, each with some or all of its partitions.

        Body: ``topics`` (names), ``partition`` (of the first topic, to begin with; default 0). ``next`` is [index of
        the topic, partition] to go on with. A topic that does not exist or may not be seen has ``error`` instead.
        """
        core = self._core
        body = await core.json(request, {"topics", "partition"})
        names = [text(name, "a topic's name") for name in rows(body.get("topics"), "topics", NAMES)]
        first = whole(body.get("partition", 0), "partition")
        told: list[dict[str, object]] = []
        room, following = PARTITIONS, None
        for index, name in enumerate(names):
            if room <= 0 or len(told) == TOPICS:
                following = [index, 0]
                break
            start = first if index == 0 else 0
            entry, partitions = self._topic(request, name)
            some = partitions[start : start + room]
            entry["partitions"] = [_partition(one) for one in some]
            told.append(entry)
            room -= 1 + len(some)
            if start + len(some) < len(partitions):
                following = [index, start + len(some)]
                break
        return await core.answer(request, {"topics": told, "next": following})

    def _topic(self, request: web.Request, name: str) -> tuple[dict[str, object], list[PartitionInfo]]:
        core = self._core
        try:
            core.access.require_topic(request, Operation.DESCRIBE, name)
            topic = core.node.catalog.topic(name)
        except (RequestError, LogError) as error:
            return {"name": name, **_failure(error)}, []
        entry: dict[str, object] = {
            "name": name,
            "id": str(topic.topic_id),
            "kind": topic.kind.value,
            "epoch": topic.epoch,
            "created_ms": topic.created_ms,
            "names": topic.names,
            "total": len(topic.partitions),
        }
        if core.access.topic(request, Operation.DESCRIBE_CONFIGS, name):
            entry["overrides"] = topic.config
            effective = core.node.catalog.effective
            entry["config"] = {key: effective(name, key) for key in TOPIC_CONFIGS}
        return entry, topic.partitions

    async def positions(self, request: web.Request) -> web.StreamResponse:
        """Answer with the positions of partitions, in the order of the request.

        Body: ``partitions``, a list of [topic, partition]; or ``topics`` (names) for all of their partitions, from
        ``partition`` of the first topic on (default 0). The positions were true at one moment, those of other nodes'
        partitions at a moment during the request. If any partition may answer later, the whole request fails with 503.

        ``stable`` is the last stable offset, where readers of committed data stop; it is never above
        ``high_watermark``. ``next`` is as in :meth:`describe`. A topic that does not exist or may not be seen is an
        error of the whole request.

        With ``tickets`` the number of ``partitions`` is bounded by what one ticket covers. The answer then has the
        ``ticket`` that permits reading their streams at the address from ``/v1/node``, and its life in ``seconds``;
        null if no ticket is required. Partitions that the client may not read have an error instead of positions.
        """
        core = self._core
        body = await core.json(request, {"partitions", "topics", "partition", "tickets"})
        following: list[int] | None = None
        needed = Operation.DESCRIBE
        if body.get("tickets") is True:
            needed = Operation.READ
            wanted = [_place(row, 2) for row in rows(body.get("partitions"), "partitions", MOST_STREAMS)]
        elif "topics" in body:
            names = [text(name, "a topic's name") for name in rows(body["topics"], "topics", NAMES)]
            wanted, following = self._all_of(request, names, whole(body.get("partition", 0), "partition"))
        else:
            wanted = [_place(row, 2) for row in rows(body.get("partitions"), "partitions", PARTITIONS)]
        found = [self._find_log(request, topic, partition, needed) for topic, partition in wanted]
        logs = [log for log in found if not isinstance(log, Exception)]
        asked = [log for log in dict.fromkeys(logs) if not log.is_current]
        closed = [log for log in asked if isinstance(log, PartitionLog)]
        steps: list[Sequence[ReadableLog]] = [[log for log in asked if not isinstance(log, PartitionLog)]]
        steps += [closed[start : start + _OPENED_TOGETHER] for start in range(0, len(closed), _OPENED_TOGETHER)]
        failures: dict[ReadableLog, LogError | None] = {}
        for some in steps:
            failures.update(zip(some, await asyncio.gather(*map(_refresh, some)), strict=True))
        # A log that moved to another node during the request has no positions here any more.
        for one in logs:
            if not one.is_open and failures.get(one) is None:
                reason = f"{one.topic}-{one.partition} moves to another node, or is opened again"
                failures[one] = LogUnavailable(reason)
        _require_answers([failures.get(log) for log in logs])
        told = []
        for (topic, partition), log in zip(wanted, found, strict=True):
            failure = log if isinstance(log, Exception) else failures.get(log)
            if failure is None and not isinstance(log, Exception):
                told.append({**_positions(log), "topic_id": str(core.node.catalog.topic(topic).topic_id)})
            else:
                assert failure is not None
                told.append({"topic": topic, "partition": partition, **_failure(failure)})
        answer: dict[str, object] = {"partitions": told, "next": following}
        if needed is Operation.READ:
            # The client may read these streams, as was checked for each.
            office, streams = core.node.tickets, {log.stream_id for log in logs if failures.get(log) is None}
            if office is None or not streams:
                answer |= {"ticket": None, "seconds": 0}
            else:
                ticket = office.for_reader(principal_of(request), streams)
                answer |= {"ticket": ticket, "seconds": office.seconds}
        return await core.answer(request, answer)

    def _all_of(
        self, request: web.Request, names: list[str], first: int
    ) -> tuple[list[tuple[str, int]], list[int] | None]:
        """Return a page of the topics' partitions, and the next page's start. Raises RequestError, TopicNotFound."""
        core = self._core
        found: list[tuple[str, int]] = []
        for index, name in enumerate(names):
            if index == TOPICS_LOOKED_AT:
                return found, [index, 0]
            core.access.require_topic(request, Operation.DESCRIBE, name)
            partitions = core.node.catalog.topic(name).partitions
            start = first if index == 0 else 0
            some = partitions[start : start + PARTITIONS - len(found)]
            found += [(name, one.index) for one in some]
            if start + len(some) < len(partitions):
                return found, [index, start + len(some)]
        return found, None

    async def timestamps(self, request: web.Request) -> web.StreamResponse:
        """Answer with the first record, in offset order, that is not older than a given time, in the order of the
        request.

        Body: ``partitions``, a list of [topic, partition, ms since 1970]. Each result has ``offset`` and ``timestamp``,
        null without such a record. If any partition may answer later, the whole request fails with 503.
        """
        core = self._core
        body = await core.json(request, {"partitions"})
        wanted = [_place(row, 3) for row in rows(body.get("partitions"), "partitions", SEARCHES)]
        at = [whole(row[2], "a timestamp", least=-(2**63)) for row in body["partitions"]]
        searches = [self._search(request, *place, ms) for place, ms in zip(wanted, at, strict=True)]
        found = await asyncio.gather(*searches)
        _require_answers(found)
        told: list[dict[str, object]] = []
        for (topic, partition), one in zip(wanted, found, strict=True):
            if isinstance(one, Exception):
                told.append({"topic": topic, "partition": partition, **_failure(one)})
            else:
                offset, timestamp = one or (None, None)
                told.append({"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp})
        return await core.answer(request, {"partitions": told})

    async def _search(
        self, request: web.Request, topic: str, partition: int, at_ms: int
    ) -> tuple[int, int] | RequestError | LogError | None:
        log = self._find_log(request, topic, partition)
        if isinstance(log, Exception):
            return log
        try:
            # Bound the searches that read batches of this node. Other nodes bound their own, and may answer slowly.
            async with self._searches if isinstance(log, PartitionLog) else nullcontext():
                return await log.find_timestamp(at_ms)
        except LogError as error:
            return error

    async def aborted(self, request: web.Request) -> web.StreamResponse:
        """Answer with the aborted transactions that overlap the offsets [start, ``reached``).

        Body: ``topic``, ``partition``, ``start``, ``end``. Each transaction is [producer id, offset of its first batch,
        offset of its marker]. ``reached`` is ``end``, or less if there are many transactions or if the offsets behind
        it are undecided.
        """
        core = self._core
        body = await core.json(request, {"topic", "partition", "start", "end"})
        topic, partition = text(body.get("topic"), "topic"), whole(body.get("partition"), "partition")
        start, end = whole(body.get("start"), "start"), whole(body.get("end"), "end")
        core.access.require_topic(request, Operation.READ, topic)
        reached, found = await core.log_to_read(topic, partition).find_aborted(start, end)
        if len(found) > 2 * MOST_TOLD:  # long transactions: a partial list would look complete
            raise RequestError(f"more than {len(found)} aborted transactions overlap at offset {start}", 507)
        return await core.answer(request, {"reached": reached, "aborted": found})

    def _find_log(
        self, request: web.Request, topic: str, partition: int, needed: Operation = Operation.DESCRIBE
    ) -> ReadableLog | RequestError:
        try:
            self._core.access.require_topic(request, needed, topic)
            return self._core.log_to_read(topic, partition)
        except RequestError as error:
            return error


def register(app: web.Application, core: PipelineCore) -> None:
    handlers = DescribeHandlers(core)
    app.router.add_get("/v1/node", handlers.node)
    app.router.add_get("/v1/defaults", handlers.defaults)
    app.router.add_get("/v1/topics", handlers.topics)
    app.router.add_post("/v1/describe", handlers.describe)
    app.router.add_post("/v1/positions", handlers.positions)
    app.router.add_post("/v1/timestamps", handlers.timestamps)
    app.router.add_post("/v1/aborted", handlers.aborted)


async def _refresh(log: ReadableLog) -> LogError | None:
    try:
        await log.refresh()
    except LogError as error:
        return error
    return None


def _require_answers(found: Sequence[object]) -> None:
    """Raise RequestError (503), for the whole request to be repeated, if a partition may answer later."""
    missing = [one for one in found if isinstance(one, LogError) and one.retriable]
    if missing:
        words = "; ".join(sorted({str(one) for one in missing})[:_SENTENCES])
        raise RequestError(f"{len(missing)} of {len(found)} partitions do not answer: {words}", 503)


def _failure(error: RequestError | LogError) -> dict[str, object]:
    """Return the error of one item of a request, in the form that a request for this item alone would get."""
    return error_body(error, status=error.status if isinstance(error, RequestError) else status_of(error))


def _place(row: Any, columns: int) -> tuple[str, int]:
    if not isinstance(row, list) or len(row) != columns:
        raise RequestError(f"a partition is a list of {columns} items, not {row!r:.100}")
    return text(row[0], "a topic's name"), whole(row[1], "a partition")


def _partition(one: PartitionInfo) -> dict[str, object]:
    return {
        "partition": one.index,
        "stream_id": one.stream_id,
        "state": "active" if one.is_active else "sealed",
        "keys": [f"{one.keys.low:032x}", f"{one.keys.high:032x}"],
        "made_epoch": one.made_epoch,
        "sealed_epoch": one.sealed_epoch,
        "end": one.end,
        "parents": one.parents,
        "children": one.children,
    }


def _positions(log: ReadableLog) -> dict[str, object]:
    return {
        "topic": log.topic,
        "partition": log.partition,
        "stream_id": log.stream_id,
        "start": log.log_start_offset,
        "stable": log.last_stable_offset,
        "high_watermark": log.high_watermark,
        "epoch": log.epoch,
        "end": log.final_offset,
        "bytes": log.size_bytes,
        "skipped": log.skipped[:_SKIPPED],
    }


def _reachable(request: web.Request, host: str, port: int) -> str:
    """Return HOST:PORT; for a listener on every interface, the host by which the client has reached this node."""
    if host in ("", "0.0.0.0", "::"):
        name = None if request.transport is None else request.transport.get_extra_info("sockname")
        host = name[0] if name else "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
