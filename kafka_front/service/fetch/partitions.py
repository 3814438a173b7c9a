"""The node's partitions for Fetch requests: who may read them, errors of positions, batches in Kafka's format."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from anabranch_kit.run.task_set import TaskSet
from bridges.auth import Operation
from bridges.errors import BatchInvalid, LogError
from bridges.formats import FORMAT_MASK, FormatId
from bridges.formats.records import Buffer, StoredBatch
from bridges.log.gathering import GatherDone, Wish, gather
from bridges.log.partition.partition_log import PartitionLog, Phase
from kafka_front.service.fetch.list_offsets import epoch_error
from kafka_front.service.fetch.places import Key
from kafka_front.service.fetch.sessions import FetchedPartition
from kafka_front.service.leader_hints import LeaderHints
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

KAFKA = int(FormatId.KAFKA)
_BATCH_HEAD = struct.Struct(">qi4xb")
_BEFORE_LENGTH = 12
"""Bytes of a record batch that its length field does not count."""
_MAGIC = 2
_NO_RECORDS: Buffer = b""
_TRANSLATED_AT_ONCE = 400
"""Records and kilobytes of other protocols that are translated for one partition of a request after its first batch."""
_TRANSLATED_LATER = 4_000
"""The same limit when translation runs off the event loop, because the first batch takes long. It is higher: with one
batch for each answer, the round trips to the client and to a thread would set the pace of readers of short batches."""
_AT_ONCE = 1_000
"""Most partitions of one request worked on in one turn of the event loop; a longer request takes several turns."""


class Slot:
    """One partition of a request, and its part of the answer."""

    __slots__ = ("asked", "data", "end", "key", "limit", "log", "unknown")

    def __init__(self, key: Key, asked: FetchedPartition) -> None:
        self.key = key
        self.asked = asked
        self.log: PartitionLog | None = None
        self.unknown = False
        # Offset up to which the client may read, and the end of the answer's records (-1: it has none).
        self.limit = 0
        self.end = -1
        self.data = FetchResponse.PartitionData(
            partition_index=asked.partition,
            high_watermark=-1,
            aborted_transactions=None,
            records=_NO_RECORDS,
        )

    def refuse(self, code: ErrorCode) -> None:
        self.log = None
        self.data.error_code = code
        self.data.high_watermark = -1
        self.data.last_stable_offset = -1
        self.data.log_start_offset = -1


class Partitions:
    """The node's partitions as Fetch requests use them."""

    def __init__(self, service: KafkaService) -> None:
        self._logs = service.logs
        self._topics = service.catalog.topics
        self.by_id = service.catalog.by_id
        self._brokers = service.brokers
        self._rack = service.rack
        self._access = service.access
        self._translator = service.translator
        self._barrier = service.logs.barrier
        self._tasks = TaskSet()
        self.metrics = service.metrics
        self.hints = LeaderHints(service)
        self.count_error = service.metrics.kind(APIS[ApiKey.FETCH].name).failed
        self.loop = service.loop
        self.max_bytes = service.fetch_max_bytes
        self.max_wait_ms = service.fetch_max_wait_ms
        self.at_once = _AT_ONCE
        self.quota = service.node.quotas.fetch

    @property
    def is_sure(self) -> bool:
        """Return whether this node certainly owns its open logs."""
        return self._logs.is_sure

    def resolve(self, slot: Slot, ctx: Context, readable: dict[str, bool]) -> None:
        """Find the slot's log, or set the error; ``readable`` caches the authorizer's answers by topic for one
        request."""
        asked = slot.asked
        name = asked.topic
        if not isinstance(slot.key[0], str):
            topic = self.by_id.get(asked.topic_id)
            if topic is None:
                # The topic that the session has read by this id is gone; a topic of the same name is another one.
                anew = name in self._topics
                slot.refuse(ErrorCode.INCONSISTENT_TOPIC_ID if anew else ErrorCode.UNKNOWN_TOPIC_ID)
                slot.unknown = True
                return
            name = asked.topic = topic.name
        allowed = readable.get(name)
        if allowed is None:
            allowed = readable[name] = self._access.topic(ctx, Operation.READ, name)
        if not allowed:
            slot.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return
        slot.log = self._logs.get(name, asked.partition)
        if slot.log is None:
            slot.refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            slot.unknown = True
        else:
            ctx.connection.client.read(name, asked.partition)

    def nearer(self, ctx: Context, request: FetchRequest, log: PartitionLog) -> int:
        """Return the node of the client's rack from which it should read a log of this node, -1 for this node
        (KIP-392)."""
        rack = request.rack_id
        return self._brokers.nearest(rack, log.topic, log.partition) if rack and rack != self._rack else -1

    def let_go(self, ctx: Context, request: FetchRequest) -> None:
        """Note that the client reads the partitions no more that a session has to forget."""
        for topic in request.forgotten_topics_data:
            found = self.by_id.get(topic.topic_id)
            for partition in topic.partitions:
                ctx.connection.client.let_go(topic.topic if found is None else found.name, partition)

    def position_error(self, asked: FetchedPartition, log: PartitionLog) -> ErrorCode | None:
        """Return the error of reading ``log`` at the asked position and epoch, or None (rules 18 and 44)."""
        if log.phase is not Phase.OPEN:
            gone = log.phase is Phase.DELETED
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if gone else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if asked.leader_epoch >= 0 and (code := epoch_error(asked.leader_epoch, log)) is not None:
            return code
        if log.log_start_offset <= asked.fetch_offset <= log.high_watermark:
            return None
        return ErrorCode.OFFSET_OUT_OF_RANGE

    def translates(
        self, stream_id: int, batches: list[StoredBatch], done: Callable[[list[StoredBatch], LogError | None], None]
    ) -> bool:
        """Return whether the first of ``batches``, in another protocol's format, takes long to translate.

        If so, the batches are translated off the event loop, and ``done`` is called later with them, the first in
        Kafka's format.
        """
        try:
            if self._translator.payload(stream_id, batches[0], FormatId.KAFKA, batches[1:]) is not None:
                return False
        except BatchInvalid:
            return False  # found again when the batches are served
        self._tasks.spawn(self._translate(stream_id, batches, done))
        return True

    async def _translate(
        self, stream_id: int, batches: list[StoredBatch], done: Callable[[list[StoredBatch], LogError | None], None]
    ) -> None:
        told: list[StoredBatch] = []
        spent = 0
        for number, batch in enumerate(batches):
            if batch.flags & FORMAT_MASK == KAFKA:
                told.append(batch)
                continue
            if spent >= _TRANSLATED_LATER:
                break
            try:
                payload = await self._translator.translate(stream_id, batch, FormatId.KAFKA, batches[number + 1 :])
            except LogError as error:
                if not told:
                    done([], error)
                    return
                break  # the next request begins with it, and gets the error
            except Exception as error:  # noqa: BLE001 - logged and counted; the client gets an answer
                self._barrier.caught("translation", error)
                if not told:
                    done([], BatchInvalid(f"the batch at offset {batch.base_offset} cannot be translated"))
                    return
                break
            told.append(batch._replace(flags=KAFKA, payload=payload))
            spent += batch.end_offset - batch.base_offset + len(payload) // 1024
        done([*told, *batches[len(told) :]], None)

    def gather(self, wishes: Iterable[Wish], room: int, done: GatherDone, begun: bool = False) -> None:
        """Read several partitions at once. ``begun``: the answer has data already, so that nothing must be read without
        room."""
        gather(self._logs.client, wishes, room, done, begun)

    def payloads(self, log: PartitionLog, batches: list[StoredBatch]) -> tuple[list[Buffer], BatchInvalid | None]:
        """Return the leading batches in Kafka's format, and the error of the first batch that cannot be translated.
        Stops early at a batch of another protocol for which no translation time is left."""
        parts: list[Buffer] = []
        enough = self._translator.spent + _TRANSLATED_AT_ONCE
        for number, batch in enumerate(batches):
            try:
                if batch.flags & FORMAT_MASK == KAFKA:
                    parts.append(self.checked(batch))
                    continue
                log.reading.locatable = False
                if parts and self._translator.spent >= enough:
                    break
                told = self._translator.payload(log.stream_id, batch, FormatId.KAFKA, batches[number + 1 :])
                if told is None:
                    break
                parts.append(told)
            except BatchInvalid as invalid:
                return parts, invalid
        return parts, None

    def checked(self, batch: StoredBatch) -> Buffer:
        """Return the bytes of a batch stored in Kafka's format.

        Raises BatchInvalid if its head does not match the batch: an SBP client may have stored anything, and after a
        wrong length a reader could read nothing more.
        """
        payload = batch.payload
        try:
            if _BATCH_HEAD.unpack_from(payload) == (batch.base_offset, len(payload) - _BEFORE_LENGTH, _MAGIC):
                return payload
        except struct.error:
            pass
        raise BatchInvalid(f"the batch at offset {batch.base_offset} is not what it says it is")
