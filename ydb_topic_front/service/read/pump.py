"""Pump that reads partitions for one stream of a client, as many bytes as it gave credit for, partition by partition.

Bytes that were read count in the node's memory budget until they are encoded as a response. A stream has one response
at a time; between two responses only places are kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run import clock
from anabranch_kit.run.turns import Turns, worked_off
from bridges.errors import (
    BatchInvalid,
    DataCorrupt,
    LogDeleted,
    NotOwner,
    OffsetOutOfRange,
    PeerUnreachable,
    RecordInvalid,
)
from bridges.formats import FORMAT_MASK, FormatId, format_of
from bridges.formats.records import Buffer, StoredBatch
from bridges.formats.ydb import parse_head
from bridges.log.damage.skips import past
from bridges.log.interfaces import Phase
from ydb_topic_front.session.read_data import BatchReader, Place
from ydb_topic_front.session.read_response import ResponseBuilder

if TYPE_CHECKING:
    from bridges.log.remote.readable import ReadableLog
    from bridges.node.front import NodeServices
    from ydb_topic_front.session.partition_reading import PartitionReading

_RESPONSE_BYTES = 1024 * 1024
"""Largest response, unless a single message is larger."""
_UNKNOWN_BATCH = 64 * 1024
_AGAIN_S = 0.1
"""Delay before a partition without an owner is tried again."""
_STEP_MESSAGES = 500
"""Messages worked on in one turn of the event loop: each takes a few microseconds."""


class Credit:
    """Bytes that the client of a session still accepts, on all of its streams; negative after a response larger than
    the credit. ``wake`` is called when there are more."""

    __slots__ = ("_wake", "bytes")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.bytes = 0
        self._wake = wake

    def add(self, size: int) -> None:
        """Accept ``size`` bytes more."""
        self.bytes = min(self.bytes + size, 1 << 62)
        self._wake()


class ReadPump:
    """Encodes the ``ReadResponse`` or ``DirectReadResponse`` messages of one stream, as far as ``credit`` allows.
    ``wake`` is called when there may be one to encode, ``sent`` before one is sent, with the number of its messages,
    and ``ended`` when all of an ended partition was sent."""

    def __init__(
        self,
        node: NodeServices,
        credit: Credit,
        log_of: Callable[[PartitionReading], ReadableLog],
        ended: Callable[[PartitionReading], None],
        wake: Callable[[], None],
        sent: Callable[[PartitionReading, ResponseBuilder, int], None],
    ) -> None:
        self._node = node
        self._log_of = log_of
        self._ended = ended
        self._wake = wake
        self._sent = sent
        self._account = node.budget.account(self._has_room)
        self._hungry: OrderedDict[PartitionReading, None] = OrderedDict()
        self._waiting: dict[ReadableLog, PartitionReading] = {}
        self._waits_at: dict[PartitionReading, ReadableLog] = {}
        self._starved = False
        self._closed = False
        self._busy = asyncio.Lock()
        self._credit = credit

    def close(self) -> None:
        """Remove all waiters and stop."""
        self._closed = True
        for log in self._waiting:
            log.remove_waiter(self)
        self._waiting.clear()
        self._waits_at.clear()
        self._hungry.clear()
        self._account.close()

    def add(self, reading: PartitionReading) -> None:
        """Send a partition's data, beginning now. It leaves the queue when its turn comes and ``may_send`` is False."""
        reading.feed = self
        self._hungry[reading] = None
        self._wake()

    def remove(self, reading: PartitionReading) -> None:
        """Send no more data of a partition. A response that is being made of it is dropped."""
        reading.feed = None
        self._hungry.pop(reading, None)
        log = self._waits_at.pop(reading, None)
        if log is not None:
            del self._waiting[log]
            log.remove_waiter(self)

    async def await_idle(self) -> None:
        """Wait until no response is being made: then no partition that was removed is changed any more."""
        async with self._busy:
            pass

    def _feeds(self, reading: PartitionReading) -> bool:
        return reading.feed is self and reading.may_send

    def log_moved(self, log: ReadableLog) -> None:
        """Queue a partition that was read to its end and may have grown (see
        :class:`bridges.log.interfaces.Waiter`)."""
        reading = self._waiting.pop(log, None)
        log.remove_waiter(self)
        if reading is not None:
            del self._waits_at[reading]
            self.add(reading)

    def _has_room(self) -> None:
        self._starved = False
        self._wake()

    @property
    def ready(self) -> bool:
        """Return whether :meth:`response` may have something to send: there are credit, a queued partition and
        memory."""
        return self._credit.bytes > 0 and bool(self._hungry) and not self._starved

    async def response(self) -> bytes | None:
        """Return the next encoded response, None if the partition whose turn it is has no data. Raises LogError."""
        reading, _ = self._hungry.popitem(last=False)
        if not self._feeds(reading):
            return None
        async with self._busy:
            try:
                return await self._response(reading, self._log_of(reading))
            except (NotOwner, PeerUnreachable):
                # The partition's next owner has the same data; other partitions are read meanwhile.
                self._again_later(reading)
                return None

    def _again_later(self, reading: PartitionReading) -> None:
        def again() -> None:
            if not self._closed and self._feeds(reading):
                self.add(reading)

        asyncio.get_running_loop().call_later(_AGAIN_S, again)

    async def _response(self, reading: PartitionReading, log: ReadableLog) -> bytes | None:
        await log.ready()
        if not self._feeds(reading):
            return None  # the client or the session has let go of the partition
        if not log.is_open:  # another node has become its owner since: its waiters would not be called
            self._again_later(reading)
            return None
        if reading.place.offset < log.log_start_offset:
            reading.place = Place(log.log_start_offset)
        offset = past(log.skipped, reading.place.offset)
        if offset > reading.place.offset:
            reading.place = Place(offset)
        limit = log.committed_limit(offset)
        if offset >= limit:
            self._wait(reading, log)
            return None
        wanted = min(self._credit.bytes, _RESPONSE_BYTES)
        least = log.measure(offset, 1, limit) or _UNKNOWN_BATCH
        if least > _RESPONSE_BYTES:
            least *= 2  # the batch and the encoded response are in memory at the same time
        held = self._account.grant(Kind.READS, max(wanted, least), least)
        if not held:
            self._starved = True
            self._hungry[reading] = None
            self._hungry.move_to_end(reading, last=False)
            self._account.wait(least)
            return None
        self._credit.bytes -= wanted  # other streams of the session must not use it as well
        try:
            return await self._read(reading, log, min(wanted, held))
        except OffsetOutOfRange:
            if offset >= log.log_start_offset:
                raise
            self._hungry[reading] = None  # the log was trimmed meanwhile
            return None
        finally:
            self._account.give(Kind.READS, held)
            self._credit.add(wanted)

    def _wait(self, reading: PartitionReading, log: ReadableLog) -> None:
        """Wait for a partition that was read to its end to grow, or report that it has ended. Raises LogDeleted."""
        if log.final_offset is not None and reading.place.offset >= log.final_offset:
            reading.end = log.final_offset
            self._ended(reading)
            return
        if log.phase is Phase.DELETED:
            raise LogDeleted(f"{log.topic}-{log.partition} was deleted")
        self._waiting[log] = reading
        self._waits_at[reading] = log
        log.add_waiter(self)

    async def _read(self, reading: PartitionReading, log: ReadableLog, wanted: int) -> bytes | None:
        builder = ResponseBuilder(reading.session_id)
        sent = reading.sent
        oldest = reading.not_before_ms
        if reading.max_lag_ms >= 0:
            oldest = max(oldest, clock.now_ms() - reading.max_lag_ms)
        batches = await log.read_committed(reading.place.offset, wanted)
        if not batches:
            self._again_later(reading)  # the expected batches are gone, and the log will report it
            return None
        for number, batch in enumerate(batches):
            if 0 <= batch.written_ms < oldest:
                reading.place = Place(batch.end_offset)
                continue
            try:
                whole = await self._add(reading, log, batches[number:], builder, wanted)
            except BatchInvalid as error:
                if builder.size:
                    break  # the messages before the invalid batch are sent first
                at = max(batch.base_offset, reading.place.offset)
                raise DataCorrupt(f"the batch at offset {at} of {log.topic}-{log.partition}: {error}") from error
            if not whole:
                break
        if not builder.size:
            self._hungry[reading] = None
            return None
        messages = reading.sent - sent
        self._node.metrics.topic(reading.topic).fetched(builder.batches, messages, builder.size)
        direct = reading.direct
        raw, credit = await worked_off(builder.finish(0 if direct is None else direct.last_id + 1))
        if not self._feeds(reading):
            return None  # the client was asked meanwhile to let go of the partition: it gets nothing more here
        self._credit.bytes -= credit
        reading.last_read_ms = clock.now_ms()
        if direct is not None:
            direct.add(reading.place, credit)
        self._sent(reading, builder, messages)
        if self._feeds(reading):
            self._hungry[reading] = None
        return raw

    async def _add(
        self,
        reading: PartitionReading,
        log: ReadableLog,
        batches: Sequence[StoredBatch],
        builder: ResponseBuilder,
        wanted: int,
    ) -> bool:
        """Add the first batch's messages to the response; return False if messages are left. Raises BatchInvalid."""
        batch = batches[0]
        payload, producer, end = batch.payload, None, batch.end_offset
        if batch.flags & FORMAT_MASK != FormatId.YDB:
            try:
                payload = await self._node.translator.translate(log.stream_id, batch, FormatId.YDB, batches[1:])
            except RecordInvalid as error:
                if reading.place.offset >= error.offset:
                    raise
                payload, end = error.before, error.offset
            if name := parse_head(payload).producer_id:
                producer = f"{format_of(batch.flags).name}:{name.decode(errors='replace')}"
        reader = BatchReader(payload, batch.base_offset, batch.end_offset, batch.written_ms, reading.place, producer)
        parts: list[Buffer] = []
        size = 0
        turns = Turns()
        while not (reader.ended or reader.full):
            room = wanted - builder.size - size
            size += reader.take(parts, room, _STEP_MESSAGES, first=not builder.size + size)
            if not (reader.ended or reader.full):
                await turns.rest()
        if size:
            builder.batch(size, parts, reader.tail)
            builder.dated(batch.written_ms, reader.max_created_ms)
            reading.sent += reader.taken
            reading.sent_end = reader.offset
        reading.place = Place(end) if reader.ended else reader.place
        return reader.ended and end == batch.end_offset
