"""Admission: the check of a batch against its topic's configuration, whoever sends it, once, below all fronts, before
the append (docs/protocols/kafka.md, rules 24, 25 and 26).

A front hands its batches to the log and knows none of these rules. Checks of the header are done at once, and suffice
for most batches. Where records must be checked, the first slice of a short batch is checked here, and the rest off the
event loop (anabranch_kit/run/sliced.py). Meanwhile, later batches of the same writer to the same partition wait, so
that nothing overtakes; other writers' batches do not wait. If a batch is refused whose writer is known only by its last
number, the batches that wait behind it are refused, too.

The demands are Kafka's, and apply to Kafka's batches as in a broker. They apply to other formats only where an operator
has configured them, for the topic or the node: Kafka's defaults do not concern other clients, who may send larger
messages. For those formats the size limit applies to each record, as it was sent, because the front chooses how records
form a batch. With ``message.timestamp.type=LogAppendTime`` a flag of the batch says that its records have the time of
their append (:data:`bridges.formats.base.APPEND_TIME`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.sliced import SLICE_RECORDS, Sliced, SlicedWorks, advance, at_once
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.topics.config import MAX_MESSAGE_BYTES
from bridges.catalog.topics.rules import UNBOUNDED, TopicRules
from bridges.catalog.topics.topic import TopicNotFound
from bridges.errors import (
    BatchInvalid,
    BatchTooLarge,
    KeyMissing,
    LogDeleted,
    LogError,
    LogUnavailable,
    TimeOutOfBounds,
    TopicInternal,
)
from bridges.formats import FORMAT_MASK, FormatId, format_of
from bridges.formats.base import APPEND_TIME, FIRST_OF_FRONTS
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.kafka import CONTROL, Header, heads, parse_header, set_log_append_time, set_max_timestamp
from bridges.formats.pieces import STEP
from bridges.formats.producer import LedgerKind
from bridges.formats.records import StoredBatch
from bridges.formats.ydb import next_message, parse_head
from bridges.log.interfaces import NOT_APPENDED
from bridges.log.partition.time_search import CLOCK_SKEW_MS

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.log.interfaces import AppendDone, Batch
    from bridges.log.partition.partition_log import PartitionLog

_KAFKA = int(FormatId.KAFKA)
_NOTE = int(FormatId.LEDGER_NOTE)
_YDB = int(FormatId.YDB)
_GLANCED_AT = 4 * SLICE_RECORDS
_GLANCE = 20
"""Cost of checking a batch apart from its records, in records."""

_Go = Callable[["Batch", "AppendDone"], None]
_Waiting = tuple["Batch", "AppendDone", _Go, Sliced[None] | None]


class Admission:
    """The admission of a node's appends. ``rules`` returns those of a topic; it may raise LogError."""

    __slots__ = ("_barrier", "_inflated_bytes", "_left", "_tasks", "_works", "queues", "rules")

    def __init__(
        self,
        rules: Callable[[str], TopicRules],
        works: SlicedWorks,
        barrier: Barrier,
        inflated_bytes: int = DEFAULT_LIMIT,
    ) -> None:
        self.rules = rules
        self._works = works
        self._barrier = barrier
        self._inflated_bytes = inflated_bytes
        self._left = _GLANCED_AT
        self._tasks = TaskSet()
        #: By log and writer: batches whose records are being checked, and those that wait behind; empty otherwise.
        self.queues: dict[tuple[PartitionLog, Hashable], deque[_Waiting]] = {}

    def admits(self, log: PartitionLog, batch: Batch, done: AppendDone, go: _Go) -> bool:
        """Return whether ``batch`` may be appended now. If not, ``done`` gets the error, or ``go`` is called once it
        may be."""
        if batch.import_epoch >= 0:
            return True  # the original cluster checked it; the log takes it only while it is being imported
        work = None
        try:
            rules = self.rules(log.topic)
            header: Header | None = batch.header  # type: ignore[assignment]  # as Batch says
            if (
                header is not None
                and len(batch.payload) <= rules.glance_bytes
                and not self.queues
                and header.base_timestamp <= header.max_timestamp
                and (ahead := header.max_timestamp - now_ms()) <= CLOCK_SKEW_MS
                and ahead <= rules.after_max_ms
            ):
                batch.admitted, batch.header = True, None  # the result of :func:`look` for nearly every batch
                return True
            work = check(batch, rules, now_ms(), self._inflated_bytes)
            if work is not None and self._may_glance(batch.count):
                ended, _ = advance(work)
                if ended:
                    work = None
                else:
                    # Begin again when its turn comes: a decompressor takes a thousand times the memory of such a batch.
                    work.close()
                    work = check(batch, rules, now_ms(), self._inflated_bytes)
        except TopicNotFound:
            done(NOT_APPENDED, LogDeleted(f"{log.topic}-{log.partition} was deleted"))
            return False
        except LogError as error:
            done(NOT_APPENDED, error.with_traceback(None))
            return False
        except Exception as error:  # noqa: BLE001 - logged, counted and answered
            self._barrier.caught("batch check", error, topic=log.topic, partition=log.partition)
            done(NOT_APPENDED, LogError("the batch could not be checked"))
            return False
        if work is None:
            batch.admitted, batch.header = True, None  # not needed while the batch is in flight
            if not self.queues:
                return True
        writer = _writer(batch)
        queue = self.queues.get((log, writer))
        if queue is None:
            if work is None:
                return True
            queue = self.queues[log, writer] = deque()
            self._tasks.spawn(self._drain(log, writer, queue))
        queue.append((batch, done, go, work))
        return False

    async def check(self, topic: str, batch: Batch) -> None:
        """Check a batch before it is appended, for a front that needs the result first, such as one that appends
        several batches or none. Raises LogError."""
        work = check(batch, self.rules(topic), now_ms(), self._inflated_bytes)
        if work is not None:
            await self._works.finish(work, batch.count)
        batch.admitted = True

    def _may_glance(self, records: int) -> bool:
        """Return whether the first slice of a batch may be checked in this turn of the event loop: a request may have
        any number of batches."""
        if self._left <= 0:
            return False
        if self._left == _GLANCED_AT:
            asyncio.get_running_loop().call_soon(self._refill)
        self._left -= _GLANCE + min(records, SLICE_RECORDS)
        return True

    def _refill(self) -> None:
        self._left = _GLANCED_AT

    async def _drain(self, log: PartitionLog, writer: Hashable, queue: deque[_Waiting]) -> None:
        try:
            while queue:
                batch, done, go, work = queue[0]
                refusal = None if work is None else await self._refusal(batch, work)
                batch.admitted = True
                queue.popleft()
                if refusal is None:
                    self._barrier.call("append", go, batch, done)
                    continue
                self._barrier.call("append answer", done, NOT_APPENDED, refusal)
                if batch.producer is not None and batch.producer.kind != LedgerKind.KAFKA:
                    # The ledger knows this writer only by its last number. With a later number in the log, the refused
                    # batch would count as written. Kafka's ledger detects the gap.
                    while queue:
                        self._barrier.call("append answer", queue.popleft()[1], NOT_APPENDED, refusal)
        finally:
            del self.queues[log, writer]
            for _, done, _, _ in queue:  # the node stops without having drained
                self._barrier.call("append answer", done, NOT_APPENDED, LogUnavailable("the node is stopping"))

    async def _refusal(self, batch: Batch, work: Sliced[None]) -> LogError | None:
        try:
            await self._works.finish(work, batch.count)
        except LogError as error:
            return error.with_traceback(None)
        except Exception as error:  # noqa: BLE001 - logged and counted; the client gets an answer
            self._barrier.caught("batch check", error)
            return LogError("the batch could not be checked")
        return None

    async def close(self) -> None:
        """Refuse the batches that still wait."""
        await self._tasks.close()


def _writer(batch: Batch) -> Hashable:
    """Return the lane of a batch: batches of one lane must not overtake one another."""
    if batch.lane is not None:
        return batch.lane
    stamp = batch.producer
    return None if stamp is None else (stamp.kind, stamp.key)


def check(batch: Batch, rules: TopicRules, now_ms: int, inflated_bytes: int = DEFAULT_LIMIT) -> Sliced[None] | None:
    """Check a batch's header, and return the remaining work on its records: None if it may be appended.

    Applies the topic's type of timestamps. Raises TopicInternal, BatchTooLarge, KeyMissing, TimeOutOfBounds,
    BatchInvalid; so does the work.
    """
    if rules.internal and not batch.own:
        raise TopicInternal("the topic is internal to a protocol: only that protocol writes to it")
    kind = batch.flags & FORMAT_MASK
    if kind == _KAFKA:
        return _look_at_kafka(batch, rules, now_ms, inflated_bytes)
    if kind == _NOTE:
        return None
    if kind >= FIRST_OF_FRONTS:
        _take_at_its_word(batch)
    return _look_at_other(batch, rules, now_ms, inflated_bytes)


def _take_at_its_word(batch: Batch) -> None:
    """Check that a front's claims agree with what its own format says of the batch: the log reads that after a restart,
    and would no longer recognise repetitions. Raises BatchInvalid."""
    info = format_of(batch.flags).describe(batch.payload)
    if (info.producer, info.transaction) != (batch.producer, batch.transaction):
        raise BatchInvalid("the batch is of another writer or transaction than its format says")
    batch.max_timestamp = info.max_timestamp


def _look_at_kafka(batch: Batch, rules: TopicRules, now_ms: int, inflated_bytes: int) -> Sliced[None] | None:
    payload = batch.payload
    if len(payload) > rules.max_message_bytes:
        limit = rules.max_message_bytes
        most = ", of which no more takes effect" if limit == MAX_MESSAGE_BYTES else ""
        raise BatchTooLarge(f"a batch of {len(payload)} bytes exceeds max.message.bytes {limit}{most}")
    header: Header = batch.header or parse_header(payload)  # type: ignore[assignment]  # Kafka's, as Batch says
    if header.attributes & CONTROL:
        return None
    if rules.log_append_time:
        if rules.compacted:
            return _records_of_kafka(batch, header, rules, now_ms, inflated_bytes)
        stamped = _stamped(batch, now_ms)
        if len(payload) > STEP:
            return stamped
        at_once(stamped)
    elif (
        rules.compacted
        or rules.bounds_past
        or (ahead := header.max_timestamp - now_ms) > CLOCK_SKEW_MS
        or ahead > rules.after_max_ms
        or header.max_timestamp < header.base_timestamp
    ):
        return _records_of_kafka(batch, header, rules, now_ms, inflated_bytes)
    return None


def _stamped(batch: Batch, now_ms: int) -> Sliced[None]:
    """Set the time of a Kafka batch's records to now."""
    yield from set_log_append_time(memoryview(batch.payload), now_ms)
    batch.max_timestamp = batch.append_time_ms = now_ms


def _records_of_kafka(
    batch: Batch, header: Header, rules: TopicRules, now_ms: int, inflated_bytes: int
) -> Sliced[None]:
    """Check every record. As in Kafka, the records determine the highest timestamp: a header with another one is
    corrected."""
    records = memoryview(batch.payload)
    keys, times = rules.compacted, not rules.log_append_time
    earliest, latest = now_ms - rules.before_max_ms, now_ms + rules.after_max_ms
    highest = -1
    without_key: list[int] = []
    wrong_time: list[int] = []
    index = 0
    for head in heads(records, inflated_bytes):
        if head is None:
            yield None
            continue
        timestamp, keyed = head
        if keys and not keyed:
            without_key.append(index)
        if timestamp > highest:
            highest = timestamp
        if times and timestamp >= 0 and not earliest <= timestamp <= latest:
            wrong_time.append(index)
        index += 1
        if not index % SLICE_RECORDS:
            yield None
    _refuse(without_key, wrong_time)
    if not times:
        yield from _stamped(batch, now_ms)
    elif highest != header.max_timestamp:
        yield from set_max_timestamp(records, highest)
        batch.max_timestamp = highest


def _refuse(without_key: list[int], wrong_time: list[int]) -> None:
    if without_key:
        raise KeyMissing("a compacted topic takes no record without a key", without_key)
    if wrong_time:
        raise TimeOutOfBounds(
            "the record's timestamp is further from the node's clock than the topic allows", wrong_time
        )


def _look_at_other(batch: Batch, rules: TopicRules, now_ms: int, inflated_bytes: int) -> Sliced[None] | None:
    times = not rules.log_append_time
    too_large = len(batch.payload) > rules.max_record_bytes
    if rules.log_append_time and batch.flags & FORMAT_MASK != FormatId.PRAVEGA:  # whose times are those of the append
        batch.flags |= APPEND_TIME
        batch.max_timestamp = now_ms
    if (
        too_large
        or rules.compacted
        or (times and (rules.record_before_ms != UNBOUNDED.record_before_ms))
        or (times and batch.max_timestamp - now_ms > rules.record_after_ms)
    ):
        return _other_records(batch, rules, now_ms, inflated_bytes, too_large)
    return None


def _other_records(batch: Batch, rules: TopicRules, now_ms: int, inflated_bytes: int, too_large: bool) -> Sliced[None]:
    stored = StoredBatch(0, batch.count, batch.flags, batch.payload, now_ms)
    if too_large:
        for size in _sizes(stored, inflated_bytes):
            if size is None:
                yield None
            elif size > rules.max_record_bytes:
                limit = rules.max_record_bytes
                raise BatchTooLarge(f"a record of {size} bytes exceeds max.message.bytes {limit}")
    keys, times = rules.compacted, not rules.log_append_time
    earliest, latest = now_ms - rules.record_before_ms, now_ms + rules.record_after_ms
    if not keys and (not times or (earliest < 0 and batch.max_timestamp <= latest)):
        return
    without_key: list[int] = []
    wrong_time: list[int] = []
    for record in format_of(batch.flags).records(stored, inflated_bytes):
        if record is None:
            yield None
            continue
        if keys and record.key is None:
            without_key.append(record.offset)
        if times and record.timestamp >= 0 and not earliest <= record.timestamp <= latest:
            wrong_time.append(record.offset)
    _refuse(without_key, wrong_time)


def _sizes(stored: StoredBatch, inflated_bytes: int) -> Iterator[int | None]:
    """Yield the bytes of each record as it was sent. Raises BatchInvalid."""
    if stored.flags & FORMAT_MASK != _YDB:
        for record in format_of(stored.flags).records(stored, inflated_bytes):
            yield None if record is None else record.size
        return
    # Without decompressing them.
    payload = stored.payload
    position, end = parse_head(payload).body, len(payload)
    count = 0
    while (found := next_message(payload, position, end)) is not None:
        yield found[1] - found[0]
        position = found[1]
        count += 1
        if not count % SLICE_RECORDS:
            yield None
