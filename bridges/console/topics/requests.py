"""Topics over HTTP: list, create, describe, change, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import structlog
from aiohttp import web
from msgspec import Meta, Struct
from msgspec.structs import asdict

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.turns import gathered
from bridges.auth import Operation
from bridges.catalog.topics import config as topic_config
from bridges.catalog.topics.topic import Topic, TopicKind
from bridges.console import paging, transactions
from bridges.console.handlers import Handlers, route
from bridges.console.history.pictures import rounded
from bridges.console.history.rings import Span
from bridges.console.history.sampling import WAYS
from bridges.console.host import Host
from bridges.console.page import Page, chosen
from bridges.console.paging import WHOLE, ListQuery, SortedQuery
from bridges.console.topics.sizes import Size, Sizes, in_use
from bridges.errors import LogError
from bridges.http import rows
from bridges.http.access import principal_of
from bridges.http.errors import RequestError
from bridges.log.damage.skipping import skip
from bridges.log.partition.partition_log import PartitionLog

if TYPE_CHECKING:
    from bridges.catalog.topics.lineage import PartitionInfo
    from bridges.log.compaction.cleaner import CleanerView
    from bridges.log.partition.partition_log import Appended
    from bridges.log.remote.readable import ReadableLog

_log = structlog.get_logger("anabranch.console")

_OLDEST = 10_000
"""Most partitions whose oldest record is remembered."""


_PARTITION = "/api/topics/{topic}/partitions/{partition}"
_SEES = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_Value = str | int | float | bool


class TopicQuery(SortedQuery, frozen=True, kw_only=True):
    """The query of a list of topics."""

    sort: Literal[
        "name", "partitions", "created", "records", "bytes", "records_in", "bytes_in", "records_out", "bytes_out"
    ] = "name"
    history: Annotated[bool, Meta(description="Of a page: with what went in and out in the last hour.")] = False


class NewTopic(Struct, frozen=True, kw_only=True):
    """A topic to make. ``names``: what protocols call it, by protocol."""

    name: str
    partitions: int | None = None
    config: dict[str, _Value] | None = None
    names: dict[str, str] | None = None
    validate_only: bool = False


class TopicChange(Struct, frozen=True, kw_only=True):
    """A larger number of partitions, and changes of the configuration; null removes a key."""

    partitions: int | None = None
    config: dict[str, _Value | None] | None = None


class Skip(Struct, frozen=True):
    """The offset of a batch; ``force``: also if it can be read."""

    offset: int
    force: bool = False


class End(Struct, frozen=True):
    """Decision about a transaction: whether its records become visible."""

    commit: bool


class TopicHandlers(Handlers):
    """Handlers of ``/api/topics`` and the paths below it, except records."""

    def __init__(self, node: Host) -> None:
        super().__init__(node)
        self._oldest: dict[int, tuple[int, int | None]] = {}
        """By stream: the start of a log, and the timestamp of its first record."""

    @route("GET /api/topics", "Topics, by name; or a page of them", query=TopicQuery)
    async def list(self, request: web.Request, query: TopicQuery) -> web.StreamResponse:
        """List all topics in alphabetical order, or a page of them (:mod:`bridges.console.paging`).

        Record counts cover the partitions in use, at all nodes except those in ``unanswered``. A page has rates; with
        ``history`` also the traffic of the last hour.
        """
        page = query.page
        sizes = self._node.topic_sizes
        by_size = page.sort in ("records", "bytes")
        others = await sizes.elsewhere([*self._node.catalog.topics] if by_size else [])
        topics = self._sorted_by(request, page, others)
        found, total = await chosen(topics, page, descending=page.sort == "name" and page.descending)
        if not by_size:
            others = await sizes.elsewhere([name for _, name, _ in found])

        def row(one: tuple[float, str, str]) -> Iterator[dict[str, object] | None]:
            topic = self._node.catalog.topics.get(one[1])
            if topic is None:
                return iter(())  # deleted meanwhile
            return self._summary(topic, others) if page.whole else self._row(topic, others, query.history)

        return await paging.send(request, page, "topics", found, row, total, others.as_json())

    def _sorted_by(self, request: web.Request, page: Page, others: Sizes) -> Iterator[tuple[float, str, str] | None]:
        value = _SORTS[page.sort]
        for name, topic in [*self._node.catalog.topics.items()]:
            if not page.finds(name) or not self._access.topic(request, Operation.DESCRIBE, name):
                yield None
            elif value is None:
                yield 0.0, name, ""
            else:
                yield page.keyed(value(self._node, topic, others)), name, ""

    def _row(self, topic: Topic, others: Sizes, history: bool) -> Iterator[dict[str, object] | None]:
        name, recorder = topic.name, self._node.recorder
        for row in self._summary(topic, others):
            if row is not None:
                row["rates"] = recorder.rates(name)
                row["internal"] = topic.kind is not TopicKind.USER
                if history:
                    row["history"] = {
                        way: None if (points := recorder.flow(name, way, Span.HOUR)) is None else _fewer(points)
                        for way in ("bytes_in", "bytes_out")
                    }
            yield row

    @route("POST /api/topics", "Make a topic", body=NewTopic, status=201)
    async def create(self, request: web.Request, body: NewTopic) -> web.StreamResponse:
        name, partitions = body.name, body.partitions
        self._access.require_topic(request, Operation.CREATE, name)
        if partitions is None:
            partitions = int(self._node.static_config.get("num.partitions", "1"))
        config = {key: _config_text(value) for key, value in (body.config or {}).items()}
        if body.validate_only:
            self._node.catalog.check_new_topic(name, partitions, config, body.names)
            return web.json_response({"name": name, "validate_only": True})
        topic = await self._node.catalog.create_topic(name, partitions, config, body.names)
        return await self._details(request, topic, status=201)

    @route("GET /api/topics/{topic}", "One topic and its partitions, or a page of these", *_SEES, query=ListQuery)
    async def describe(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """Describe a topic, with the offsets of every partition."""
        return await self._details(request, self._topic(request), query.page)

    @route("PATCH /api/topics/{topic}", "More partitions, other configuration", *_SEES, body=TopicChange)
    async def alter(self, request: web.Request, body: TopicChange) -> web.StreamResponse:
        topic = self._topic(request)
        catalog = self._node.catalog
        changes = {key: None if value is None else _config_text(value) for key, value in (body.config or {}).items()}
        total = len(topic.partitions)
        if changes:
            self._access.require_topic(request, Operation.ALTER_CONFIGS, topic.name)
        if body.partitions is not None:
            self._access.require_topic(request, Operation.ALTER, topic.name)
            total = body.partitions
        # Check both changes before either is made: a request is refused as a whole.
        catalog.check_config(topic.name, changes)
        if total != len(topic.partitions):
            catalog.check_partitions(topic.name, total)
            await catalog.add_partitions(topic.name, total)
        if changes:
            await catalog.set_config(topic.name, changes)
        return await self._details(request, topic)

    @route("DELETE /api/topics/{topic}", "Delete a topic", Operation.DELETE)
    async def delete(self, request: web.Request) -> web.Response:
        topic = self._topic(request)
        await self._node.catalog.delete_topic(topic.name)
        return web.json_response({"deleted": topic.name})

    @route("DELETE /api/topics/{topic}/records", "Delete all records that a topic has now", Operation.DELETE)
    async def empty(self, request: web.Request) -> web.Response:
        """Delete the records of all partitions, at all nodes. ``deleted``: how many, counted in offsets."""
        topic = self._topic(request)
        deleted = await self._node.topic_trims.empty(topic)
        _log.warning("a topic was emptied", topic=topic.name, deleted=deleted, user=str(principal_of(request)))
        return web.json_response({"topic": topic.name, "deleted": deleted})

    @route("GET /api/topic-configs", "The keys of topics' configuration, and what each means here")
    async def configs(self, request: web.Request) -> web.Response:
        """List all keys, each with the value of a new topic without it (``default``).

        A key without ``effect`` is kept and shown, as tools written for Kafka expect, and changes nothing.
        """
        node = self._node
        found = [
            {
                "key": key,
                "type": one.type.name.lower(),
                "default": topic_config.resolve(key, {}, node.catalog.node_config, node.static_config).value,
                "effect": one.honoured,
                "meaning": one.doc,
            }
            for key, one in topic_config.TOPIC_CONFIGS.items()
        ]
        return web.json_response({"configs": found})

    @route(f"POST {_PARTITION}/skip", "Have readers skip a batch that cannot be read", Operation.DELETE, body=Skip)
    async def skip(self, request: web.Request, body: Skip) -> web.Response:
        """Have readers skip a batch.

        The answer has the skipped offsets, ``first`` to ``end`` - 1, and why they could not be read.
        """
        log = self._partition(request, self._topic(request))
        (first, end), reason = await skip(self._node.logs, log, body.offset, force=body.force)
        return web.json_response({"partition": log.partition, "first": first, "end": end, "reason": reason})

    @route(f"GET {_PARTITION}/transactions", "Open transactions of a partition", Operation.DESCRIBE)
    async def transactions(self, request: web.Request) -> web.Response:
        """List the open transactions of a partition, the first one that holds back the last stable offset first.

        Each has ``producer_id`` and the fields of :func:`bridges.console.transactions.opened`; the partition has
        ``last_stable_offset`` and ``end_offset``.
        """
        log = self._partition(request, self._topic(request))
        await log.ready()
        told = await transactions.opened(self._node, self._access, request, log)
        return web.json_response(
            {
                "partition": log.partition,
                "last_stable_offset": log.last_stable_offset,
                "end_offset": log.high_watermark,
                "open": len(log.state.transactions.open),
                "transactions": told,
            }
        )

    @route(
        f"POST {_PARTITION}/transactions/{{producer}}/end",
        "End an open transaction of a producer",
        Operation.DELETE,
        body=End,
    )
    async def end_transaction(self, request: web.Request, body: End) -> web.Response:
        """End an open transaction that has no coordinator any more.

        The answer has the ``offset`` of its marker, and the partition's new ``last_stable_offset``.
        """
        topic, commit = self._topic(request), body.commit
        log = self._partition(request, topic)
        producer = request.match_info["producer"]
        if not producer.isascii() or not producer.isdigit() or len(producer) > 19:
            raise RequestError(f"{producer!r} is no producer's id")
        await log.ready()
        first = log.state.transactions.open.get(int(producer))
        if first is None:
            raise RequestError(f"{topic.name}-{log.partition} has no open transaction of producer {producer}", 404)
        ended: Appended = await awaited(lambda done: log.append_marker(int(producer), -1, commit, done))
        _log.warning(
            "a transaction was ended by an operator",
            topic=topic.name,
            partition=log.partition,
            producer_id=int(producer),
            first_offset=first,
            committed=commit,
        )
        return web.json_response(
            {"partition": log.partition, "offset": ended.base, "last_stable_offset": log.last_stable_offset}
        )

    # --- answers ----------------------------------------------------------------------------------------------------

    def _topic(self, request: web.Request) -> Topic:
        return self._node.catalog.topic(request.match_info["topic"])

    def _partition(self, request: web.Request, topic: Topic) -> PartitionLog:
        """Return the log of the partition that a request names. Raises RequestError."""
        number = request.match_info["partition"]
        log = self._node.logs.get(topic.name, int(number)) if number.isascii() and number.isdigit() else None
        if log is None:
            raise RequestError(f"topic {topic.name!r} has no partition {number}", 404)
        return log

    def _summary(self, topic: Topic, others: Sizes) -> Iterator[dict[str, object] | None]:
        records, size = others.of.get(topic.name, Size())
        node = self._node
        for number, partition in enumerate(topic.partitions):
            if number % rows.STEP == rows.STEP - 1:
                yield None
            log = node.logs.find_used(topic.name, partition.index)
            if log is not None and log.is_open:
                records += log.high_watermark - log.log_start_offset
                size += log.size_bytes
        traffic = {
            front.name: {
                "records_in": seen.records_in,
                "bytes_in": seen.bytes_in,
                "records_out": seen.records_out,
                "bytes_out": seen.bytes_out,
            }
            for front in node.metrics.fronts.values()
            if (seen := front.topics.get(topic.name)) is not None
        }
        yield {
            "name": topic.name,
            "id": str(topic.topic_id),
            "partitions": len(topic.partitions),
            "created_ms": topic.created_ms,
            "records": records,
            "bytes": size,
            "importing": _importing(topic),
            "traffic": traffic,
        }

    async def _details(
        self, request: web.Request, topic: Topic, page: Page = WHOLE, status: int = 200
    ) -> web.StreamResponse:
        node = self._node
        wanted = topic.partitions[page.skip : page.skip + page.limit]
        found = [(info, node.logs.to_read(topic.name, info.index)) for info in wanted]
        logs = [(info, log) for info, log in found if log is not None]
        await gathered(log.refresh() for _, log in logs)
        effective = {
            key: topic_config.resolve(key, topic.config, node.catalog.node_config, node.static_config)
            for key in topic_config.TOPIC_CONFIGS
        }
        head: dict[str, object] = {
            "name": topic.name,
            "id": str(topic.topic_id),
            "created_ms": topic.created_ms,
            "names": topic.names,
            "importing": _importing(topic),
            "config": topic.config,
            "without_effect": [key for key, one in topic_config.TOPIC_CONFIGS.items() if not one.honoured],
            "effective_config": {key: value.value for key, value in effective.items()},
            "partition_count": len(topic.partitions),
            "kind": topic.kind.value,
            "epoch": topic.epoch,
        }
        if page.whole:
            partitions = (self._partition_row(topic, info, log) for info, log in logs)
            return await rows.answer(request, "partitions", partitions, head=head, status=status)
        for _, log in logs:
            await self._find_oldest(log)
        head["rates"] = node.recorder.rates(topic.name)
        return await paging.answer(
            "partitions",
            logs,
            lambda one: iter([self._partition_row(topic, *one)]),
            page,
            len(topic.partitions),
            head,
        )

    async def _find_oldest(self, log: ReadableLog) -> None:
        """Learn the timestamp of the first record: again only when the log's start has moved."""
        start = log.log_start_offset
        if start == log.high_watermark or self._oldest.get(log.stream_id, (-1, None))[0] == start:
            return
        if len(self._oldest) >= _OLDEST:
            self._oldest.clear()
        with suppress(LogError):  # it stays unknown until the log can be read
            found = await log.find_timestamp(0)
            self._oldest[log.stream_id] = (start, None if found is None else found[1])

    def _partition_row(self, topic: Topic, info: PartitionInfo, log: ReadableLog) -> dict[str, object]:
        """Return the row of a partition.

        ``keys`` are fractions of the key space. ``oldest_ms`` is the timestamp of the first record, in pages.
        ``retained_from_ms`` is a time from the log's index: retention drops the first 64 KiB so long after it. Only the
        owner knows it, and what was skipped.
        """
        start, oldest = self._oldest.get(log.stream_id, (-1, None))
        index = log.state.index if isinstance(log, PartitionLog) and log.high_watermark else None
        return {
            "partition": info.index,
            "start_offset": log.log_start_offset,
            "end_offset": log.high_watermark,
            "last_stable_offset": log.last_stable_offset,
            "bytes": log.size_bytes,
            "epoch": self._node.logs.leader_epoch(topic.name, info.index),
            "stream_id": info.stream_id,
            "active": info.is_active,
            "keys": info.keys.doubles,
            "made_epoch": info.made_epoch,
            "sealed_epoch": info.sealed_epoch,
            "parents": info.parents,
            "children": info.children,
            "oldest_ms": oldest if start == log.log_start_offset < log.high_watermark else None,
            "retained_from_ms": None if index is None else index.time_at(log.log_start_offset),
            "skipped": [{"first": first, "end": end} for first, end in log.skipped],
            "compaction": _compaction(self._node.cleaner.views.get((topic.name, info.index))),
        }


def _records(node: Host, topic: Topic, others: Sizes) -> float:
    here = sum(log.high_watermark - log.log_start_offset for log in in_use(node.logs, topic))
    return here + others.of.get(topic.name, Size()).records


def _bytes(node: Host, topic: Topic, others: Sizes) -> float:
    return sum(log.size_bytes for log in in_use(node.logs, topic)) + others.of.get(topic.name, Size()).bytes


def _rate(way: str) -> Callable[[Host, Topic, Sizes], float]:
    return lambda node, topic, others: sum(rates[way] for rates in node.recorder.rates(topic.name).values())


_SORTS: dict[str, Callable[[Host, Topic, Sizes], float] | None] = {
    "name": None,
    "partitions": lambda node, topic, others: len(topic.partitions),
    "created": lambda node, topic, others: topic.created_ms,
    "records": _records,
    "bytes": _bytes,
    **{way: _rate(way) for way in WAYS},
}
"""Sort keys of topics. All partitions of a topic are read in one turn, up to the most that a topic may have."""


def _fewer(points: Sequence[float | None]) -> Sequence[float | None] | None:
    """Return a third of the points, each the mean of three."""
    some = ([one for one in points[place : place + 3] if one is not None] for place in range(0, len(points), 3))
    return rounded([sum(known) / len(known) if known else None for known in some])


def _compaction(view: CleanerView | None) -> dict[str, object] | None:
    return None if view is None else asdict(view)


def _importing(topic: Topic) -> str | None:
    """Return the migration that fills the topic and alone may write to it, None without one."""
    return topic.imported.migration if topic.imported is not None and topic.imported.is_running else None


def _config_text(value: _Value) -> str:
    """Return the text of a configuration's value; numbers and booleans are accepted."""
    return str(value).lower() if isinstance(value, bool) else str(value)
