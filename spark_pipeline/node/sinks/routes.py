"""Routes of sinks: begin an attempt, append to it, commit or abort a batch of a query."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec import Struct

from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation
from bridges.errors import BatchInvalid, BatchTooLarge, LogError
from bridges.formats.base import FormatId
from bridges.formats.codecs.compression import Compression
from bridges.formats.kafka import (
    CONTROL,
    HEADER_SIZE,
    RECORD_MIN,
    TRANSACTIONAL,
    check_batch,
    check_count,
)
from bridges.formats.producer import InTransaction, ProducerStamp
from bridges.http.access import principal_of
from bridges.http.bodies import object_of
from bridges.http.errors import RequestError
from bridges.http.memory import memory_of
from bridges.http.visits import visit
from bridges.log.partition.partition_log import Batch
from spark_pipeline.node.core import rows, text, whole
from spark_pipeline.node.sinks.attempts import BatchName, Key

if TYPE_CHECKING:
    from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
    from spark_pipeline.node.core import PipelineCore
    from spark_pipeline.node.sinks.attempts import Attempt

_HEAD_BYTES = 256 * 1024
"""Longest JSON object in front of batches."""
_BATCHES = 2_000
"""Most batches of one request."""
_ATTEMPTS = 10_000
"""Most attempts that a commit names."""
_QUERY = 200
_NAMED = ("query", "target", "batch")
"""The keys of a body that name a batch."""
_TOPICS = 10
"""Most topics that the answer to ``begin`` describes."""
PARTITIONS = 1_000
"""Most partitions of a topic in the answer to ``begin``; for a larger topic the client asks ``/v1/describe``."""
_CHORE_MS = 1_000


class WriteHandlers:
    """The routes ``/v1/sink/...``."""

    def __init__(self, core: PipelineCore) -> None:
        self._core = core
        self.writes = core.writes
        limits = core.node.limits
        self._limits = WriteLimits(limits.batch_records, limits.batch_inflated_bytes)
        self._appending = TaskSet()

    # --- life -------------------------------------------------------------------------------------------------------

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        """Load the attempts before the first request; wait for running appends and close after the last request."""
        await self.writes.load()
        self._core.node.every(_CHORE_MS, self.writes.expire, "expiry of sinks' transactions")
        yield
        await self._appending.drain()
        await self.writes.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Begin an attempt of a task.

        Body: ``query``, ``target`` (the topic of all rows, "" if each row names its own), ``batch``, ``task``,
        ``nonce`` (any text that no other attempt has), ``timeout_ms``, ``skip_lower`` (leave out a batch lower than the
        last one), and ``topics`` (names) to describe. Answers with the attempt's ``producer`` and ``epoch``, or
        ``committed`` if nothing is left to write. ``topics`` in the answer has by name [partitions that take records,
        most bytes of a batch]; ``/v1/describe`` says more, and describes topics that are left out here.
        """
        body = await self._core.json(request, {*_NAMED, "task", "nonce", "timeout_ms", "topics", "skip_lower"})
        names = [text(name, "a topic's name") for name in rows(body.get("topics", []), "topics", _TOPICS)]
        batch = self._batch(request, body)
        attempt = await self.writes.begin(
            _owner(request),
            batch,
            whole(body.get("task"), "task"),
            text(body.get("nonce"), "nonce", 100),
            whole(body.get("timeout_ms"), "timeout_ms", 1),
            skip_lower=body.get("skip_lower") is True,
        )
        if attempt is None:
            return await self._core.answer(request, {"committed": True})
        producer, epoch = attempt.key
        topics = {name: told for name in names if (told := self._describe_topic(request, name)) is not None}
        content = {"committed": False, "producer": producer, "epoch": epoch, "topics": topics}
        return await self._core.answer(request, content)

    def _describe_topic(self, request: web.Request, name: str) -> tuple[list[int], int] | None:
        core = self._core
        topic = core.node.catalog.topics.get(name)
        if topic is None or len(topic.partitions) > PARTITIONS or not core.access.topic(request, Operation.WRITE, name):
            return None
        active = [one.index for one in topic.partitions if one.is_active]
        return active, core.node.logs.admission.rules(name).max_message_bytes

    async def append(self, request: web.Request) -> web.StreamResponse:
        """Append batches to an attempt; answer with ``offsets``, a list of [first, end], when all are durable.

        Body: see ``write_batches``; its object has ``producer``, ``epoch`` and ``batches``, a list of [topic,
        partition, bytes]. The path may name the ``query``, by which the node finds the query's owner.
        """
        core = self._core
        head, payloads = await core.framed(request, core.settings.request_bytes, _HEAD_BYTES, _sizes)
        head = object_of(head, {"producer", "epoch", "batches"})
        if (query := request.query.get("query")) is not None:
            self._lead(request, query)
        attempt = self.writes.attempts.open(_owner(request), _key([head.get("producer"), head.get("epoch")]))
        batches = await self._check_batches(request, attempt, head["batches"], payloads)
        # The batches' memory counts until the logs release it, even if the client disconnects.
        memory = memory_of(request)
        memory.hold()
        task = self._appending.spawn(self._append(attempt, batches))
        task.add_done_callback(lambda _: memory.release())
        appended = await asyncio.shield(task)
        with visit(core.node.clients, core.node.metrics.name, request, query or "") as client:
            for to, batch in batches:
                client.wrote(to.topic, to.partition, batch.count, len(batch.payload))
        return await core.answer(request, {"offsets": [(at.base, at.end) for at in appended]})

    async def _append(self, attempt: Attempt, batches: list[tuple[PartitionLog, Batch]]) -> list[Appended]:
        appended = await self.writes.append(attempt, batches)
        for (to, batch), at in zip(batches, appended, strict=True):
            if not at.duplicate:
                self._core.node.metrics.topic(to.topic).appended(1, batch.count, len(batch.payload))
        return appended

    async def _check_batches(
        self, request: web.Request, attempt: Attempt, told: list[Any], payloads: list[memoryview]
    ) -> list[tuple[PartitionLog, Batch]]:
        core = self._core
        producer, epoch = attempt.key
        checked: list[tuple[PartitionLog, Batch]] = []
        allowed: set[str] = set()
        async for (topic, partition, _), payload in in_turns(zip(told, payloads, strict=True)):
            if topic not in allowed:
                core.access.require_topic(request, Operation.WRITE, topic)
                allowed.add(topic)
            to = core.log(topic, partition)
            try:
                batch = accept(payload, producer, epoch, self._limits)
                await core.node.logs.admission.check(topic, batch)
            except LogError as error:
                raise type(error)(f"{topic}-{partition}: {error}") from error
            checked.append((to, batch))
        return checked

    async def commit(self, request: web.Request) -> web.StreamResponse:
        """Commit a batch of a query; answer when the decision is durable.

        Body: ``query``, ``target``, ``batch``, ``attempts``, a list of [producer, epoch], ``once`` (the query has no
        other batch), ``rows`` and ``digest`` (a text) of all rows, if repetitions are to be compared with them. In the
        answer, ``already`` says that the batch was committed before, ``visible`` that readers see it by now, which they
        will in any case.
        """
        body = await self._core.json(request, {*_NAMED, "attempts", "once", "rows", "digest"})
        keys = [_key(row) for row in rows(body.get("attempts"), "attempts", _ATTEMPTS)]
        content = ""
        if body.get("digest") is not None:  # else the client has an earlier release, or wants no comparison
            content = f"{whole(body.get('rows'), 'rows')} {text(body['digest'], 'digest', 64)}"
        done = await self.writes.commit(
            _owner(request),
            self._batch(request, body),
            keys,
            once=body.get("once") is True,
            content=content,
        )
        return await self._core.answer(request, {"already": done.already, "visible": done.visible})

    async def abort(self, request: web.Request) -> web.StreamResponse:
        """Abort attempts of a batch, unless it is ``committed``, which the answer says.

        Body: ``query``, ``target``, ``batch``, ``attempts`` (null: all attempts of the client's principal).
        """
        body = await self._core.json(request, {*_NAMED, "attempts"})
        told = body.get("attempts")
        keys = None if told is None else [_key(row) for row in rows(told, "attempts", _ATTEMPTS)]
        committed = await self.writes.abort(_owner(request), self._batch(request, body), keys)
        return await self._core.answer(request, {"committed": committed})

    def _batch(self, request: web.Request, body: Mapping[str, Any]) -> BatchName:
        """Return the batch that a body names, if the client may write to its target. Raises RequestError.

        A batch has the same name for every principal, so only a principal with access may use it.
        """
        told = body.get("target", "")
        target = told if told == "" else text(told, "target", _QUERY * 2)
        if target:
            self._core.access.require_topic(request, Operation.WRITE, target)
        name = BatchName(text(body.get("query"), "query", _QUERY), target, whole(body.get("batch"), "batch"))
        self._lead(request, name.query)
        return name

    def _lead(self, request: web.Request, query: str) -> None:
        """Raise RequestError, with the owner's address, if another node owns the query; NotOwner without an owner."""
        self._core.lead(request, self.writes.queries.owner(query), f"query {query}")


def register(app: web.Application, core: PipelineCore) -> None:
    handlers = WriteHandlers(core)
    app.cleanup_ctx.append(handlers.running)
    for name in ("begin", "append", "commit", "abort"):
        app.router.add_post(f"/v1/sink/{name}", getattr(handlers, name))


def _owner(request: web.Request) -> str:
    """Return the principal that owns the request's attempts: no other principal may end or continue them."""
    return str(principal_of(request))


def _key(row: Any) -> Key:
    if not isinstance(row, list) or len(row) != 2:
        raise RequestError("an attempt is a list of producer and epoch")
    return whole(row[0], "a producer"), whole(row[1], "an epoch", most=2**15 - 1)


def _sizes(head: Any) -> list[int]:
    """Return the bytes of each batch that follows ``head``. Raises RequestError."""
    if not isinstance(head, dict):
        raise RequestError("the batches' head is not a JSON object")
    sizes = []
    for row in rows(head.get("batches"), "batches", _BATCHES):
        if not isinstance(row, list) or len(row) != 3:
            raise RequestError("a batch is a list of topic, partition and size")
        text(row[0], "a topic's name")
        whole(row[1], "a partition")
        sizes.append(whole(row[2], "a batch's size", 1))
    return sizes


class WriteLimits(Struct, frozen=True):
    """The limits for every batch, whatever its topic allows."""

    records: int
    inflated_bytes: int


def accept(payload: memoryview, producer: int, epoch: int, limits: WriteLimits) -> Batch:
    """Check a batch of an attempt and return it; the topic's rules are still to be checked.

    Raises BatchInvalid, BatchTooLarge.
    """
    header = check_batch(payload)
    if header.record_count * RECORD_MIN > len(payload) - HEADER_SIZE:
        check_count(header, len(payload) - HEADER_SIZE, limits.inflated_bytes)
    if header.record_count > limits.records:
        raise BatchTooLarge(f"a batch of {header.record_count} records exceeds limits.batch_records, {limits.records}")
    if header.attributes & CONTROL or not header.attributes & TRANSACTIONAL:
        raise BatchInvalid("a sink writes transactional batches, which are no control batches")
    if (header.producer_id, header.producer_epoch) != (producer, epoch) or header.base_sequence < 0:
        raise BatchInvalid("a batch needs its attempt's producer id and epoch, and a sequence number")
    if header.codec > Compression.ZSTD:
        raise BatchInvalid(f"compression codec {header.codec} is not known")
    stamp = ProducerStamp(producer, epoch, header.base_sequence, header.record_count)
    count, newest = header.record_count, header.max_timestamp
    batch = Batch(payload, count, int(FormatId.KAFKA), newest, stamp, header=header)
    batch.transaction = InTransaction(producer, epoch)
    return batch
