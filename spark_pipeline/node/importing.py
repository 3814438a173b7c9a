"""Routes of a migration: importing topics, batches at their original offsets, positions, the hand-over.

Every request can be repeated. A writer names its run of the migration by ``epoch``: a later run fences earlier ones.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aiohttp import web

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import gathered, portions
from bridges.auth import Operation
from bridges.catalog.progress import Committed
from bridges.catalog.topics.topic import Topic, TopicExists, TopicNotFound
from bridges.errors import AppendConditionFailed, ImportFenced
from bridges.http.errors import RequestError
from bridges.http.memory import memory_of
from bridges.http.visits import visit
from spark_pipeline.node.core import Pieces, length_of, rows, text, whole
from spark_pipeline.node.import_ends import owner_elsewhere, settle
from spark_pipeline.node.intake import ImportConflict, Intake
from spark_pipeline.node.intake_forms import form_of

if TYPE_CHECKING:
    from bridges.log.partition.partition_log import PartitionLog
    from spark_pipeline.node.core import PipelineCore

_MIGRATION = re.compile(r"[A-Za-z0-9._-]{1,100}")
_PIECE = 1024 * 1024
"""Bytes of a body that are read in one piece, unless a batch is larger."""
_POSITIONS = 5_000
"""Most positions of a group in one request."""
_ENDS = 100_000
"""Most partition ends of one topic in a request."""
_HANDED_OVER = 1_000
"""Most topics that one request may hand over."""
_ORIGIN = 4_000


class ImportHandlers:
    """The routes ``/v1/imports`` and below."""

    def __init__(self, core: PipelineCore) -> None:
        self._core = core
        self._catalog = core.node.catalog
        self._logs = core.node.logs
        self._access = core.access

    # --- topics -----------------------------------------------------------------------------------------------------

    async def describe(self, request: web.Request) -> web.StreamResponse:
        """Answer with a topic's run, the time of its hand-over, and its partitions' offsets."""
        _, topic = await self._own(request, Operation.DESCRIBE)
        logs = [self._core.log_to_read(topic.name, one.index) for one in topic.partitions]
        await gathered(log.refresh() for log in logs)
        bounds = [[log.log_start_offset, log.last_stable_offset, log.high_watermark] for log in logs]
        return await self._core.answer(request, _state(topic, bounds))

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Create the topic, or continue the one that this migration has created before; answer with the new run's
        epoch.

        Body: ``partitions``, and ``config`` and ``origin`` for a new topic. ``origin`` describes the source in the
        migration's words; a migration that gives another origin for an existing topic is refused, because it brings
        other data. Earlier runs may not write from now on.
        """
        migration, name = await self._migration(request), request.match_info["topic"]
        self._access.require_topic(request, Operation.CREATE, name)
        self._access.require_topic(request, Operation.WRITE, name)
        body = await self._core.json(request, {"partitions", "config", "origin"})
        partitions = whole(body.get("partitions"), "partitions", 1, 1_000_000)
        config = body.get("config") or {}
        if not isinstance(config, dict) or not all(isinstance(value, str) for value in config.values()):
            raise RequestError("config is not an object of texts")
        origin = "" if "origin" not in body else text(body["origin"], "origin", _ORIGIN)
        try:
            topic = self._catalog.topic(name)
        except TopicNotFound:
            topic = await self._catalog.create_topic(name, partitions, config, migration=migration, origin=origin)
        else:
            if topic.imported is None:
                raise TopicExists(f"topic {name!r} exists: a migration fills only topics that it has made itself")
            if origin and topic.imported.origin not in ("", origin) and topic.imported.migration == migration:
                raise TopicExists(
                    f"topic {name!r} is filled by {migration!r} with something else: with {topic.imported.origin}, not "
                    f"with {origin}. Give this one another name, and topics of its own"
                )
            topic = await self._catalog.take_import(name, migration)
            if partitions > len(topic.partitions):
                topic = await self._catalog.add_partitions(name, partitions, migration)
        return await self._core.answer(request, _state(topic, (await settle(self._core.node, topic)).bounds))

    # --- records ----------------------------------------------------------------------------------------------------

    async def append(self, request: web.Request) -> web.StreamResponse:
        """Append whole batches at their original offsets; answer when all are durable, with the log's ``end``.

        Body: consecutive batches of Kafka's format 2, which contain their offsets, or batches of the stored ``format``
        that the query names, behind heads (:mod:`spark_pipeline.core.frames`). Batches that are in the log
        already are compared.
        """
        log, epoch = await self._place(request)
        form = form_of(request.query.get("format", ""))
        await log.ready()
        intake = Intake(log, epoch, form)
        try:
            async for piece in self._pieces(request, intake):
                await intake.take(piece)
            await intake.finish()
        finally:
            await intake.wait_until_quiet()  # until then the body is held
            if intake.appended:
                traffic = self._core.node.metrics.topic(log.topic)
                traffic.appended(intake.appended, intake.offsets, intake.bytes)
                with visit(self._core.node.clients, self._core.node.metrics.name, request) as client:
                    client.wrote(log.topic, log.partition, intake.offsets, intake.bytes)
        return await self._core.answer(
            request,
            {
                "end": log.high_watermark,
                "appended": intake.appended,
                "compared": intake.compared,
                "bytes": intake.bytes,
            },
        )

    async def bounds(self, request: web.Request) -> web.StreamResponse:
        """Set the bounds of a partition's log.

        Body: ``end``, up to which missing offsets are filled without records; ``start``, below which the log is
        trimmed.
        """
        log, epoch = await self._place(request)
        body = await self._core.json(request, {"start", "end"})
        start = whole(body.get("start", 0), "start")
        end = max(start, whole(body.get("end", 0), "end"))
        await log.ready()
        intake = Intake(log, epoch)
        await intake.fill(end)
        await intake.finish()
        if start > log.log_start_offset:
            await log.trim(start, epoch)
        return await self._core.answer(request, {"start": log.log_start_offset, "end": log.high_watermark})

    async def _place(self, request: web.Request) -> tuple[PartitionLog, int]:
        """Return the log that a request writes to, and the epoch of its run.

        Raises RequestError, also to lead the client to the node that owns the partition; ImportFenced.
        """
        _, topic = await self._own(request, Operation.WRITE)
        try:
            number = int(request.match_info["partition"])
            epoch = int(request.query["epoch"])
        except (KeyError, ValueError):
            raise RequestError("partition and epoch are whole numbers") from None
        log = self._core.log(topic.name, number)
        self._core.lead(request, owner_elsewhere(self._core.node, topic.name, number), f"{topic.name}-{number}")
        if epoch < 0 or epoch != log.import_epoch:
            # The log checks this with every append, too; here it is refused before the body is read.
            raise log.not_importing(max(0, epoch))
        return log, epoch

    async def _pieces(self, request: web.Request, intake: Intake) -> AsyncIterator[bytearray]:
        """Yield the body as it arrives. Raises RequestError."""
        settings = self._core.settings
        size = length_of(request, settings.request_bytes)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.request_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                await memory_of(request).admit(Kind.REQUESTS, size)
            pieces = Pieces(request)
            while size:
                wanted = min(size, max(_PIECE, intake.missing))
                block, have = intake.buffer(wanted)
                async with asyncio.timeout_at(deadline):
                    await pieces.fill(block, have)
                size -= wanted
                yield block
        except TimeoutError:
            raise RequestError("the body did not arrive within pipeline.request_ms", 408) from None

    # --- positions of groups ----------------------------------------------------------------------------------------

    async def positions(self, request: web.Request) -> web.StreamResponse:
        """Set a group's positions. Body: ``group``, ``positions``: rows of topic, partition, offset, metadata.

        A position that a consumer has committed here is kept, and listed in ``kept``. A position above the high
        watermark would send the group's consumers elsewhere, so it is not set but listed in ``ahead``.
        """
        migration = await self._migration(request)
        body = await self._core.json(request, {"group", "positions"})
        group = text(body.get("group"), "group")
        self._access.require_group(request, Operation.READ, group)
        now = now_ms()
        progress = self._core.node.progress
        wanted: list[tuple[str, int, Committed]] = []
        expected: dict[tuple[str, int], int | None] = {}
        kept: list[list[Any]] = []
        ahead: list[list[Any]] = []
        for row in rows(body.get("positions"), "positions", _POSITIONS):
            name, number, offset, metadata = _position(row)
            self._imported(name, migration)
            log = self._core.log_to_read(name, number)
            await log.refresh()
            there = progress.committed(group, name, number)
            if there is not None and there.front != progress.name:
                kept.append([name, number, there.offset])
            elif offset > log.high_watermark:
                ahead.append([name, number, offset])
            else:
                expected[name, number] = None if there is None else there.offset
                wanted.append((name, number, Committed(offset, -1, metadata, now)))
        if wanted:
            differing = await progress.commit_if(group, expected, wanted)
            if differing:
                raise RequestError(f"group {group!r} commits positions here at this moment", 409)
        return await self._core.answer(request, {"set": len(wanted), "kept": kept, "ahead": ahead})

    # --- the end ----------------------------------------------------------------------------------------------------

    async def cutover(self, request: web.Request) -> web.StreamResponse:
        """Hand topics over, all in one step, if every partition has the expected end and no transaction is open.

        Body: ``topics``: by name a list of the ends of all partitions; ``abort_open``: whether open transactions are
        aborted first, with markers behind these ends. Topics that were handed over before stay so.
        """
        migration = await self._migration(request)
        body = await self._core.json(request, {"topics", "abort_open"})
        ends = await _ends(body.get("topics"))
        abort_open = body.get("abort_open") is True
        epochs: dict[str, int] = {}
        aborted = 0
        for name, expected in ends.items():
            self._access.require_topic(request, Operation.ALTER, name)
            topic = self._imported(name, migration)
            if topic.import_epoch < 0:
                continue
            # A new run fences every writer of the topic, so that the checked ends cannot change.
            topic = await self._catalog.take_import(name, migration)
            epochs[name] = topic.import_epoch
            if len(expected) != len(topic.partitions):
                raise RequestError(f"topic {topic.name!r} has {len(topic.partitions)} partitions", 409)
            found = await settle(self._core.node, topic, expected, abort_open=abort_open)
            if found.wrong:
                raise RequestError(found.wrong, 409)
            aborted += found.aborted
        topics = await self._catalog.hand_over(list(ends), migration, epochs)
        handed = {one.name: one.imported.handed_over_ms for one in topics if one.imported is not None}
        return await self._core.answer(request, {"handed_over": handed, "transactions_aborted": aborted})

    async def abort(self, request: web.Request) -> web.StreamResponse:
        """Give a migration up.

        Body: ``topics``, their names, and ``delete``: false keeps the topics as they are and opens them to all writers.
        Topics that no longer belong to the migration are left alone.
        """
        migration = await self._migration(request)
        body = await self._core.json(request, {"topics", "delete"})
        names = [text(one, "a topic's name") for one in rows(body.get("topics"), "topics", _HANDED_OVER)]
        if not isinstance(body.get("delete"), bool):
            raise RequestError("delete is neither true nor false")
        done: list[str] = []
        for name in names:
            self._access.require_topic(request, Operation.DELETE if body["delete"] else Operation.ALTER, name)
            topic = self._catalog.topics.get(name)
            if topic is None or topic.imported is None or topic.imported.migration != migration:
                continue
            if topic.import_epoch < 0:
                continue
            if body["delete"]:
                await self._catalog.delete_topic(name, migration)
            else:
                topic = await self._catalog.take_import(name, migration)
                await settle(self._core.node, topic, abort_open=True)
                await self._catalog.hand_over([name], migration, {name: topic.import_epoch})
            done.append(name)
        return await self._core.answer(request, {"deleted" if body["delete"] else "left": done})

    # --- words ------------------------------------------------------------------------------------------------------

    async def _migration(self, request: web.Request) -> str:
        """Return the migration's name, once this node knows of topics and runs that began at other nodes."""
        name = request.match_info["migration"]
        if not _MIGRATION.fullmatch(name):
            raise RequestError("a migration's name has 1 to 100 letters, digits, dots, underscores and hyphens")
        if self._core.node.db.changes.shared:
            await self._core.node.db.changes.catch_up()
        return name

    async def _own(self, request: web.Request, operation: Operation) -> tuple[str, Topic]:
        migration, name = await self._migration(request), request.match_info["topic"]
        self._access.require_topic(request, operation, name)
        return migration, self._imported(name, migration)

    def _imported(self, name: str, migration: str) -> Topic:
        """Return a topic that the migration has created. Raises TopicNotFound, ImportFenced."""
        topic = self._catalog.topic(name)
        if topic.imported is None or topic.imported.migration != migration:
            raise ImportFenced(f"topic {name!r} is not one of migration {migration!r}")
        return topic


def _state(topic: Topic, bounds: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the state of a migration's topic; ``bounds`` are its partitions' offsets."""
    imported = topic.imported
    assert imported is not None
    return {
        "topic": topic.name,
        "migration": imported.migration,
        "epoch": imported.epoch,
        "begun_ms": imported.begun_ms,
        "handed_over_ms": imported.handed_over_ms,
        "origin": imported.origin,
        "partitions": bounds,
    }


def _position(row: Any) -> tuple[str, int, int, str]:
    if not isinstance(row, list) or len(row) != 4 or not isinstance(row[3], str):
        raise RequestError("a position is not a list of topic, partition, offset and metadata")
    return text(row[0], "a topic's name"), whole(row[1], "a partition"), whole(row[2], "an offset"), row[3]


async def _ends(value: Any) -> Mapping[str, list[int]]:
    if not isinstance(value, dict) or not value or len(value) > _HANDED_OVER:
        raise RequestError(f"topics is not an object with 1 to {_HANDED_OVER} names")
    found: dict[str, list[int]] = {}
    for name, ends in value.items():
        told = rows(ends, "the ends of a topic", _ENDS)
        found[name] = []
        async for some in portions(told):
            found[name] += [whole(end, "an end") for end in some]
    return found


@web.middleware
async def _told_as_conflicts(request: web.Request, handler: Any) -> web.StreamResponse:
    """Translate the errors that only imports raise into HTTP statuses."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except ImportConflict as error:
        raise RequestError(str(error), 409, offset=error.offset) from None
    except AppendConditionFailed as error:
        # Another request of the same run appended first. The client repeats this one, and its batches are compared.
        raise RequestError(str(error), 503) from None


def register(app: web.Application, core: PipelineCore) -> None:
    handlers = ImportHandlers(core)
    app.middlewares.append(_told_as_conflicts)
    place = "/v1/imports/{migration}"
    app.router.add_get(place + "/topics/{topic}", handlers.describe)
    app.router.add_post(place + "/topics/{topic}", handlers.begin)
    app.router.add_post(place + "/topics/{topic}/{partition}/batches", handlers.append)
    app.router.add_post(place + "/topics/{topic}/{partition}/bounds", handlers.bounds)
    app.router.add_post(place + "/positions", handlers.positions)
    app.router.add_post(place + "/cutover", handlers.cutover)
    app.router.add_post(place + "/abort", handlers.abort)
