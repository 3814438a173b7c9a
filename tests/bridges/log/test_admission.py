"""What a topic demands holds for every batch that is appended to it, whoever sends it and in whatever format."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import crc32c
import pytest

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.sliced import SLICE_RECORDS, Sliced, SlicedWorks
from bridges.catalog.topics.rules import UNBOUNDED, TopicRules
from bridges.catalog.topics.topic import TopicNotFound
from bridges.errors import (
    BatchTooLarge,
    DecompressedTooLarge,
    KeyMissing,
    LogDeleted,
    LogError,
    RecordsRefused,
    TimeOutOfBounds,
    TopicInternal,
)
from bridges.formats import APPEND_TIME, FORMATS, FormatId, decode, format_of
from bridges.formats import kafka as kafka_format
from bridges.formats.codecs.compression import PIECE
from bridges.formats.kafka import check_batch, encode, parse_header
from bridges.formats.producer import EventStamp, ProducerStamp, SeqNoStamp
from bridges.formats.records import Buffer, Record, StoredBatch
from bridges.log.interfaces import note
from bridges.log.partition import admission
from bridges.log.partition.admission import Admission, check
from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
from sbp_document.wire.record_batch import FORMAT_FLAG
from tests.bridges.log.log_lab import World
from tests.kit.waiting import until

FOREVER = 2**63 - 1
HOUR = 3_600_000
NOW = 1_700_000_000_000
PLAIN = TopicRules(1_048_588, False, FOREVER, HOUR, False)
"""What a topic demands of which nobody has configured anything."""
COMPACTED = TopicRules(1_048_588, False, FOREVER, FOREVER, True)


def batch(*records: Record, **options: int) -> Batch:
    payload = memoryview(encode(records or (Record(b"k", b"v", timestamp=NOW),), **options))
    header = parse_header(payload)
    return Batch(payload, header.record_count, int(FormatId.KAFKA), header.max_timestamp)


def foreign(kind: int, *records: Record) -> Batch:
    """The same in another protocol's format."""
    builder = FORMATS[kind].builder(0, len(records))
    for offset, record in enumerate(records):
        record.offset = offset
        builder.add(record)
    return Batch(builder.finish(), len(records), kind, max(one.timestamp for one in records))


def claiming(one: Batch, max_timestamp: int) -> Batch:
    """The same batch with another highest timestamp in its header and a good checksum."""
    struct.pack_into(">q", one.payload, 35, max_timestamp)
    struct.pack_into(">I", one.payload, 17, crc32c.crc32c(one.payload[21:]))
    one.max_timestamp = max_timestamp
    return one


def taken(one: Batch, rules: TopicRules = PLAIN, **options: int) -> Batch:
    """The batch as it is appended in the end, however long it is looked at. Raises LogError."""
    work = check(one, rules, NOW, **options)
    for _ in work or ():
        pass
    return one


def refused(one: Batch, rules: TopicRules, kind: type[LogError], **options: int) -> list[int]:
    """The records that are named as the reason."""
    with pytest.raises(kind) as caught:
        taken(one, rules, **options)
    return caught.value.indexes if isinstance(caught.value, RecordsRefused) else []


# --- Kafka's batches ------------------------------------------------------------------------------------------------


def test_a_good_batch_is_taken_as_it_is() -> None:
    one = batch(producer_id=7, producer_epoch=1, base_sequence=30)
    before = bytes(one.payload)
    assert check(one, PLAIN, NOW) is None
    assert bytes(one.payload) == before
    assert one.append_time_ms == -1


def test_the_size_limit_is_that_of_the_batch_as_sent() -> None:
    one = batch(Record(None, bytes(1000), timestamp=NOW))
    taken(one, TopicRules(len(one.payload), False, FOREVER, FOREVER, False))
    refused(one, TopicRules(len(one.payload) - 1, False, FOREVER, FOREVER, False), BatchTooLarge)


def test_compacted_topics_name_the_records_without_a_key() -> None:
    keyed, bare = Record(b"k", b"v", timestamp=NOW), Record(None, b"v", timestamp=NOW)
    taken(batch(keyed, keyed), COMPACTED)
    for codec in (0, 1):
        assert refused(batch(keyed, bare, keyed, bare, codec=codec), COMPACTED, KeyMissing) == [1, 3]


def test_timestamps_too_far_from_the_clock_are_named() -> None:
    rules = TopicRules(1_048_588, False, 1000, 500, False)
    times = [NOW - 1001, NOW - 1000, NOW + 500, NOW + 501]
    one = batch(*(Record(None, b"v", timestamp=time) for time in times))
    assert refused(one, rules, TimeOutOfBounds) == [0, 3]


@pytest.mark.parametrize("compacted", [False, True])
def test_log_append_time_replaces_the_batch_timestamp_and_skips_the_bounds(compacted: bool) -> None:
    one = taken(batch(Record(b"k", b"v", timestamp=5)), TopicRules(1_048_588, True, 1000, 500, compacted))
    assert (one.max_timestamp, one.append_time_ms) == (NOW, NOW)
    assert parse_header(one.payload).attributes & 0x08
    assert parse_header(one.payload).max_timestamp == NOW


def test_the_time_of_a_large_batch_is_written_in_steps_of_its_checksum() -> None:
    rules = TopicRules(64 << 20, True, FOREVER, FOREVER, False)
    one = batch(Record(b"k", bytes(5 << 20), timestamp=5))
    work = check(one, rules, NOW)
    assert work is not None
    assert len(list(work)) == 5
    assert (one.max_timestamp, one.append_time_ms) == (NOW, NOW)
    assert check_batch(memoryview(one.payload)).max_timestamp == NOW


def test_what_is_told_from_the_header_alone_is_what_the_rules_say() -> None:
    assert PLAIN.glance_bytes == PLAIN.max_message_bytes
    assert COMPACTED.glance_bytes == INTERNAL.glance_bytes == -1
    assert TopicRules(9, True, FOREVER, FOREVER, False).glance_bytes == -1
    assert TopicRules(9, False, 5, FOREVER, False).glance_bytes == -1


UNTIMED = TopicRules(1_048_588, False, FOREVER, FOREVER, False)


@pytest.mark.parametrize("rules", [PLAIN, UNTIMED], ids=["bounded", "unbounded"])
@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize("claim", [NOW + HOUR + 1, 1 << 62])
def test_a_highest_timestamp_that_no_record_has_is_put_right(rules: TopicRules, codec: int, claim: int) -> None:
    honest = batch(Record(None, b"a", timestamp=NOW - 5), Record(None, b"b", timestamp=3), codec=codec)
    one = taken(claiming(honest, claim), rules)
    assert one.max_timestamp == NOW - 5
    stored = check_batch(memoryview(one.payload))
    assert stored.max_timestamp == NOW - 5, "what is stored says the same, and its checksum is good"


def test_a_highest_timestamp_below_the_first_record_is_put_right() -> None:
    honest = batch(Record(None, b"a", timestamp=NOW - 5), Record(None, b"b", timestamp=NOW))
    assert taken(claiming(honest, -1)).max_timestamp == NOW


def test_honest_times_far_ahead_are_kept_where_the_topic_allows_them() -> None:
    one = batch(Record(None, b"a", timestamp=NOW + 400 * 24 * HOUR))
    before = bytes(one.payload)
    assert taken(one, UNTIMED).max_timestamp == NOW + 400 * 24 * HOUR
    assert bytes(one.payload) == before
    assert refused(one, PLAIN, TimeOutOfBounds) == [0]


def test_records_within_the_allowed_skew_are_not_looked_at() -> None:
    assert check(batch(Record(None, b"a", timestamp=NOW + HOUR), codec=4), PLAIN, NOW) is None


# --- other formats --------------------------------------------------------------------------------------------------

OTHERS = [FormatId.YDB, FormatId.PRAVEGA, FORMAT_FLAG]


def old(key: bytes | None = None, size: int = 1) -> Record:
    return Record(key, bytes(size), timestamp=5)


@pytest.mark.parametrize("kind", OTHERS)
def test_kafka_s_own_defaults_are_none_of_other_protocols_business(kind: int) -> None:
    one = foreign(kind, old(size=2_000_000), Record(None, b"", timestamp=NOW + 400 * 24 * HOUR))
    assert check(one, PLAIN, NOW) is None
    assert one.flags == kind


@pytest.mark.parametrize("kind", OTHERS)
def test_what_was_configured_holds_for_every_format(kind: int) -> None:
    size = TopicRules(2000, False, FOREVER, FOREVER, False, max_record_bytes=2000)
    taken(foreign(kind, *(old(size=500) for _ in range(100))), size)
    refused(foreign(kind, old(), old(size=50_000)), size, BatchTooLarge)
    named = refused(foreign(kind, old(), old()), COMPACTED, KeyMissing)
    assert named == [0, 1]


@pytest.mark.parametrize("kind", [FormatId.YDB])
def test_keys_and_times_of_other_formats_are_those_of_their_records(kind: int) -> None:
    taken(foreign(kind, old(b"k")), COMPACTED)
    bounds = TopicRules(FOREVER, False, 1000, 500, False, False, FOREVER, 1000, 500)
    late, early = Record(None, b"", timestamp=NOW + 501), Record(None, b"", timestamp=NOW - 1001)
    good = Record(None, b"", timestamp=NOW)
    assert refused(foreign(kind, good, late, early), bounds, TimeOutOfBounds) == [1, 2]
    ahead_only = TopicRules(FOREVER, False, FOREVER, 500, False, False, FOREVER, FOREVER, 500)
    assert refused(foreign(kind, good, late, early), ahead_only, TimeOutOfBounds) == [1]
    assert check(foreign(kind, good, early), ahead_only, NOW) is None, "the header tells"
    taken(foreign(kind, good), bounds)


def test_a_ydb_message_counts_as_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FORMATS[FormatId.YDB], "records", lambda *_: pytest.fail("it was decompressed"), raising=False)
    size = TopicRules(2000, False, FOREVER, FOREVER, False, max_record_bytes=2000)
    one = foreign(FormatId.YDB, *(old(size=1500) for _ in range(3)))
    taken(one, size)


@pytest.mark.parametrize("kind", [FormatId.YDB, FORMAT_FLAG])
async def test_log_append_time_holds_for_readers_of_other_formats_and_lookups(kind: int) -> None:
    world = World(rules=TopicRules(FOREVER, True, FOREVER, FOREVER, False))
    log = await world.boot()
    log.append(foreign(kind, old(b"k")), world.done)
    world.writer.acknowledge(1)
    for _ in range(2):
        (stored,) = await log.read_batches(0, 1000)
        assert stored.flags == kind | APPEND_TIME
        assert stored.written_ms > NOW
        assert [one.timestamp for one in decode(stored)] == [stored.written_ms]
        assert await log.find_timestamp(6) == (0, stored.written_ms)
        assert await log.find_timestamp(stored.written_ms + 1) is None
        log = await world.boot()
    created = next(one for one in format_of(kind).records(stored) if one is not None)
    assert created.timestamp in (5, -1), "who reads the batch as it is gets what its writer said"


# --- topics that are somebody's own ---------------------------------------------------------------------------------

INTERNAL = TopicRules(FOREVER, False, FOREVER, FOREVER, False, internal=True)


@pytest.mark.parametrize("kind", [FormatId.KAFKA, *OTHERS])
async def test_only_its_protocol_changes_an_internal_topic(kind: int) -> None:
    world = World(rules=INTERNAL)
    log = await world.boot()
    mine, others = (batch() if kind == FormatId.KAFKA else foreign(kind, old()) for _ in range(2))
    log.append(others, world.done)
    assert isinstance(world.answers[0], TopicInternal)
    mine.own = True
    log.append(mine, world.done)
    log.append(note(EventStamp(bytes(16), 5)), world.done)
    log.append_marker(7, 0, False, world.done)
    world.writer.acknowledge(3)
    assert world.answers[1:] == [0, 1, 2]
    with pytest.raises(TopicInternal):
        await log.trim(1)
    assert await log.trim(1, own=True) == 1
    await world.retain([("t", 0)], lambda _: (1, -1), 1 << 60)
    assert log.log_start_offset == 3


# --- a log that nobody has told anything ----------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True])
async def test_a_front_that_forgets_what_a_topic_demands_cannot_break_it(held: bool) -> None:
    rules = TopicRules(2000, True, FOREVER, FOREVER, True, max_record_bytes=2000)
    world = World(rules=rules)
    log = await world.boot()
    to = await log.hold() if held else log
    wrong = [
        foreign(FormatId.YDB, old(b"k", 50_000)),
        foreign(FormatId.YDB, old()),
        foreign(FormatId.PRAVEGA, old()),
        batch(old()),
        batch(old(b"k", 3000)),
        foreign(FORMAT_FLAG, old()),
    ]
    told: dict[int, type[LogError]] = {}
    for number, one in enumerate(wrong):
        to.append(one, lambda _, error, number=number: told.update({number: type(error)}))  # type: ignore[misc]
    to.append(foreign(FormatId.YDB, old(b"k")), world.done)
    await until(lambda: not world.logs.admission.queues)
    world.writer.acknowledge(1)
    kinds = [told[number] for number in range(len(wrong))]
    assert kinds == [BatchTooLarge, KeyMissing, KeyMissing, KeyMissing, BatchTooLarge, KeyMissing]
    assert world.answers == [0], "nothing of the others is in the log"


async def test_what_a_migration_brings_was_looked_at_where_it_was_written() -> None:
    world = World(rules=TopicRules(1, False, 0, 0, True))
    log = await world.boot()
    log.import_epoch = 4
    one = batch(old())
    one.import_epoch = 4
    log.append(one, world.done)
    world.writer.acknowledge(1)
    assert world.answers == [0]


async def test_what_was_looked_at_before_is_not_looked_at_again() -> None:
    world = World(rules=COMPACTED)
    log = await world.boot()
    one = batch(old())
    with pytest.raises(KeyMissing):
        await world.logs.admission.check("t", one)
    assert not one.admitted
    good = batch(old(b"k"))
    await world.logs.admission.check("t", good)
    world.rules = TopicRules(1, False, 0, 0, True)
    log.append(good, world.done)
    world.writer.acknowledge(1)
    assert world.answers == [0]


# --- what a client sizes --------------------------------------------------------------------------------------------


def bomb(count: int, codec: int = 4) -> Batch:
    """Empty records with a key, a few hundred bytes however many."""
    return batch(*[Record(b"", None, timestamp=NOW, offset=0)] * count, codec=codec)


def test_what_inflates_beyond_the_limit_is_refused_where_the_records_matter() -> None:
    one = batch(Record(b"k", bytes(2_000_000), timestamp=NOW), codec=4)
    refused(one, COMPACTED, DecompressedTooLarge, inflated_bytes=1_000_000)


def rules_of(rules: TopicRules) -> Callable[[str], TopicRules]:
    return lambda topic: rules


async def test_a_batch_that_waits_holds_no_decompressor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is a thousand times the size of such a batch, which is all that is counted."""
    open_now = 0
    real = kafka_format.inflate

    def inflate(*args: Any) -> Iterator[Buffer | None]:
        nonlocal open_now
        open_now += 1
        try:
            yield from real(*args)
        finally:
            open_now -= 1

    monkeypatch.setattr(kafka_format, "inflate", inflate)
    works = SlicedWorks()
    looks = Admission(rules_of(COMPACTED), works, Barrier())
    log = cast(PartitionLog, Log())
    for number in range(10):
        one = bomb(5000)
        one.lane = number
        assert not looks.admits(log, one, ignored, log.append)
    assert len(looks.queues) == 10
    assert open_now == 0
    await looks.close()
    works.close()


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
async def test_no_turn_of_the_loop_looks_at_more_than_a_slice(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 120_000
    one = bomb(count, codec)
    done: list[tuple[bool, int, int]] = []  # of each step: on the loop, records, bytes inflated
    loop_thread = threading.get_ident()
    records_seen = bytes_seen = 0
    real_heads, real_inflate = kafka_format.heads, kafka_format.inflate

    def heads(*args: Any) -> Iterator[tuple[int, bool] | None]:
        nonlocal records_seen
        for head in real_heads(*args):
            records_seen += head is not None
            yield head

    def inflate(*args: Any) -> Iterator[Buffer | None]:
        nonlocal bytes_seen
        for piece in real_inflate(*args):
            bytes_seen += 0 if piece is None else len(piece)
            yield piece

    def advance(work: Any) -> tuple[bool, Any]:
        nonlocal records_seen, bytes_seen
        records_seen = bytes_seen = 0
        result = real_advance(work)
        done.append((threading.get_ident() == loop_thread, records_seen, bytes_seen))
        return result

    real_advance = vars(admission)["advance"]
    monkeypatch.setattr(admission, "heads", heads)
    monkeypatch.setattr(kafka_format, "inflate", inflate)
    monkeypatch.setattr(admission, "advance", advance)
    monkeypatch.setattr("anabranch_kit.run.sliced.advance", advance)
    works = SlicedWorks()
    log = Log()
    looks = Admission(rules_of(COMPACTED), works, Barrier())
    assert not looks.admits(cast(PartitionLog, log), one, log.done, log.append)
    await asyncio.wait_for(log.told.wait(), 60)
    works.close()
    assert one.admitted
    assert [on_loop for on_loop, _, _ in done] == [True] + [False] * (len(done) - 1)
    assert done[0][2] <= PIECE
    assert all(number <= SLICE_RECORDS for _, number, _ in done)
    assert sum(number for _, number, _ in done[1:]) == count, "begun anew off the loop, where it may hold what it needs"
    if codec != 2:  # librdkafka's raw snappy has one block; ours are small
        assert all(size <= 2 * PIECE for _, _, size in done)
    assert works.steps == len(done) - 1


# --- order ----------------------------------------------------------------------------------------------------------


class Log:
    """Remembers what is appended, and answers at once."""

    topic, partition = "t", 0

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.answers: list[LogError | None] = []
        self.told = asyncio.Event()

    def append(self, batch: Batch, done: Any) -> None:
        self.appended.append(bytes(batch.payload))
        done(Appended(len(self.appended) - 1, len(self.appended)), None)

    def done(self, appended: Appended, error: LogError | None) -> None:
        self.answers.append(error)
        self.told.set()


def ignored(appended: Appended, error: LogError | None) -> None:
    pass


class Looks(Admission):
    """Looks for ten steps at batches whose payload ends with a question mark."""

    __slots__ = ("barrier", "outcome", "works")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works, self.barrier = SlicedWorks(), Barrier()
        self.outcome: dict[bytes, Exception] = {}
        super().__init__(rules_of(UNBOUNDED), self.works, self.barrier)
        monkeypatch.setattr(admission, "check", self._look)

    def _look(self, batch: Batch, *_: Any) -> Sliced[None] | None:
        return self._steps(bytes(batch.payload)) if bytes(batch.payload).endswith(b"?") else None

    def _steps(self, payload: bytes) -> Sliced[None]:
        for _ in range(10):
            yield None
        if payload in self.outcome:
            raise self.outcome[payload]

    def give(self, log: Log, payload: bytes, lane: object = None) -> None:
        one = Batch(payload, 1, 1, lane=cast(Any, lane))
        if self.admits(cast(PartitionLog, log), one, log.done, log.append):
            log.append(one, log.done)

    async def settled(self) -> None:
        await until(lambda: not self.queues)
        self.works.close()


async def test_nothing_of_a_writer_overtakes_a_batch_that_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    log, elsewhere = Log(), Log()
    for payload in (b"1?", b"2", b"3?", b"4"):
        looks.give(log, payload, "one")
    looks.give(log, b"other", "other")
    looks.give(elsewhere, b"elsewhere", "one")
    assert log.appended == [b"other"], "another writer does not wait"
    assert elsewhere.appended == [b"elsewhere"], "nor does another partition"
    await looks.settled()
    assert log.appended == [b"other", b"1?", b"2", b"3?", b"4"]


async def test_a_producer_s_batches_do_not_overtake_one_another_without_being_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch)
    log = Log()
    for payload, producer in ((b"1?", 7), (b"2", 7), (b"other", 8)):
        one = Batch(payload, 1, 1, producer=ProducerStamp(producer, 0, 0, 1))
        if looks.admits(cast(PartitionLog, log), one, log.done, log.append):
            log.append(one, log.done)
    await looks.settled()
    assert log.appended == [b"other", b"1?", b"2"]


async def test_what_waits_behind_a_refused_batch_of_a_writer_known_by_its_last_number_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the later one in the log, the writer would be told that the one before it is there."""
    looks = Looks(monkeypatch)
    looks.outcome = {b"1?": KeyMissing("no key")}
    log = Log()
    for number, (payload, name) in enumerate(((b"1?", b"a"), (b"2", b"a"), (b"3?", b"a"), (b"4?", b"b"))):
        one = Batch(payload, 1, 1, producer=SeqNoStamp(name, [number]))
        if looks.admits(cast(PartitionLog, log), one, log.done, log.append):
            log.append(one, log.done)
    await looks.settled()
    assert log.appended == [b"4?"]
    assert [type(error) for error in log.answers].count(KeyMissing) == 3


async def test_a_refused_batch_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    wrong = KeyMissing("no key", [3])
    looks.outcome = {b"1?": wrong, b"2?": RuntimeError("a defect")}
    log = Log()
    for payload in (b"1?", b"2?", b"3"):
        looks.give(log, payload)
    await looks.settled()
    assert log.appended == [b"3"]
    assert log.answers[0] is wrong
    assert isinstance(log.answers[1], LogError)
    assert log.answers[2] is None
    assert looks.barrier.failures == {"batch check": 1}


async def test_who_appends_to_a_topic_that_is_gone_is_told_so() -> None:
    def none(topic: str) -> TopicRules:
        raise TopicNotFound(topic)

    log = Log()
    looks = Admission(none, SlicedWorks(), Barrier())
    assert not looks.admits(cast(PartitionLog, log), batch(), log.done, log.append)
    assert [type(error) for error in log.answers] == [LogDeleted]


def test_a_topic_without_demands_takes_anything() -> None:
    assert check(batch(old(size=3_000_000)), UNBOUNDED, NOW) is None
    assert [one.value for one in decode(StoredBatch(0, 1, 1, batch().payload))] == [b"v"]
