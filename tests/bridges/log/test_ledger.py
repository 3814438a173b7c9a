"""The ledger: Kafka's rules 29-33 against a model that remembers everything, and what tables of all kinds do."""

from __future__ import annotations

import gc
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.errors import OutOfOrderSequence, ProducerFenced
from bridges.formats.producer import LedgerKind, ProducerStamp, SeqNoStamp
from bridges.log.ledger.ledger import SLICE, KindLimits, Ledger, LedgerOptions
from bridges.log.ledger.rules import BATCHES_KEPT, KafkaRule, Repeated, Unproven, WrittenBatch, kafka_producer
from bridges.log.ledger.table import LedgerTable
from sbp_back.errors import DecodeError

LAST = 2**31 - 1
SECTION = struct.Struct(">BI")


class Producers(LedgerTable):
    """The Kafka producers of a ledger, by their ids."""

    __slots__ = ()

    def __init__(self, limit: int = 100_000, rows: dict[bytes, bytes] | None = None) -> None:
        super().__init__(KafkaRule(), limit, rows)

    def known(self, stamp: ProducerStamp) -> int | None:
        found = self.check(stamp.key, stamp)
        if found is None or found is Unproven.WRITER:
            return None
        assert isinstance(found, Repeated)
        assert found.end_offset == found.base_offset + stamp[3]
        return found.base_offset

    def take(self, stamp: ProducerStamp, base: int, now_ms: int) -> bytes | None:
        return self.record(stamp.key, stamp, base, now_ms)

    def ids(self) -> list[int]:
        return [int.from_bytes(key, "big", signed=True) for key in self.writers()]


def key(producer_id: int) -> bytes:
    return ProducerStamp(producer_id, 0, 0, 1).key


def write(ledger: Producers, *stamps: tuple[int, int, int, int], base: int = 0) -> int:
    for stamp in map(ProducerStamp._make, stamps):
        assert ledger.known(stamp) is None
        ledger.take(stamp, base, now_ms=1000)
        base += stamp.record_count
    return base


def read_back(data: bytes, *, stale: bool = False) -> Producers:
    """Producers as a ledger has them that was made from a snapshot's pieces."""
    restored = Ledger()
    for _ in restored.restoring(data, stale=stale):
        pass
    table = restored.table(LedgerKind.KAFKA)
    return Producers(rows={one: row for one in table.writers() if (row := table.row(one)) is not None})


def told(ledger: Producers, durable: dict[bytes, bytes | None] | None = None) -> bytes:
    """A snapshot of producers, as that of a ledger has them."""
    capture = ledger.capture(durable or {})
    pieces = [SECTION.pack(LedgerKind.KAFKA, len(piece)) + piece for piece in capture.pieces()]
    capture.close()
    return b"".join(pieces)


def test_a_repeated_batch_is_answered_with_its_offset() -> None:
    ledger = Producers()
    write(ledger, (1, 0, 0, 10), (1, 0, 10, 5), base=100)
    assert ledger.known(ProducerStamp(1, 0, 0, 10)) == 100
    assert ledger.known(ProducerStamp(1, 0, 10, 5)) == 110


def test_the_sixth_batch_back_is_out_of_order() -> None:
    ledger = Producers()
    write(ledger, *[(1, 0, i, 1) for i in range(BATCHES_KEPT + 1)])
    assert ledger.known(ProducerStamp(1, 0, 1, 1)) == 1
    with pytest.raises(OutOfOrderSequence):
        ledger.known(ProducerStamp(1, 0, 0, 1))


def test_gaps_and_partial_repeats_are_out_of_order() -> None:
    ledger = Producers()
    write(ledger, (1, 0, 0, 10))
    for first, count in ((11, 1), (0, 5), (5, 5), (0, 11)):
        with pytest.raises(OutOfOrderSequence):
            ledger.known(ProducerStamp(1, 0, first, count))


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    ledger = Producers()
    write(ledger, (1, 3, 0, 2))
    with pytest.raises(ProducerFenced):
        ledger.known(ProducerStamp(1, 2, 2, 1))
    with pytest.raises(OutOfOrderSequence):
        ledger.known(ProducerStamp(1, 4, 2, 1))
    write(ledger, (1, 4, 0, 1), base=2)
    with pytest.raises(ProducerFenced):
        ledger.known(ProducerStamp(1, 3, 0, 2))


def test_an_unknown_producer_may_start_anywhere() -> None:
    ledger = Producers()
    write(ledger, (1, 7, 500, 1))
    assert ledger.known(ProducerStamp(1, 7, 501, 1)) is None


def test_sequences_go_on_at_zero_behind_the_highest() -> None:
    ledger = Producers()
    write(ledger, (1, 0, LAST - 1, 4), (1, 0, 2, 1))
    assert ledger.known(ProducerStamp(1, 0, LAST - 1, 4)) == 0
    ledger = Producers()
    write(ledger, (1, 0, LAST, 1), (1, 0, 0, 1))


def test_idle_producers_expire_and_the_longest_idle_makes_room() -> None:
    ledger = Producers(2)
    for pid, when in ((1, 10), (2, 20), (1, 30)):
        stamp = ProducerStamp(pid, 0, when, 1)
        ledger.take(stamp, when, when)
    ledger.take(ProducerStamp(3, 0, 0, 1), 40, 40)
    assert ledger.ids() == [1, 3]
    assert ledger.expire(35) == 1
    assert ledger.ids() == [3]


def test_what_could_not_be_stored_is_taken_back() -> None:
    ledger = Producers()
    end = write(ledger, (1, 0, 0, 3))
    stamp = ProducerStamp(1, 0, 3, 2)
    ledger.take_back(stamp.key, ledger.take(stamp, end, 0))
    assert ledger.known(stamp) is None
    assert ledger.known(ProducerStamp(1, 0, 0, 3)) == 0


def test_taking_back_restores_what_five_later_batches_had_replaced() -> None:
    ledger = Producers()
    end = write(ledger, *[(1, 0, i, 1) for i in range(BATCHES_KEPT)])
    later = [ProducerStamp(1, 0, BATCHES_KEPT + i, 1) for i in range(BATCHES_KEPT)]
    replaced = [(stamp, ledger.take(stamp, end + number, 1)) for number, stamp in enumerate(later)]
    for stamp, row in reversed(replaced):
        ledger.take_back(stamp.key, row)
    assert [ledger.known(ProducerStamp(1, 0, i, 1)) for i in range(BATCHES_KEPT)] == [*range(BATCHES_KEPT)]
    assert ledger.known(later[0]) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=40), st.integers(0, 60))
def test_a_snapshot_vouches_for_exactly_what_lies_below_it(writes: list[tuple[int, int]], below: int) -> None:
    ledger = Producers()
    sequence: dict[int, int] = {}
    base = 0
    written = []
    durable: dict[bytes, bytes | None] = {}
    for pid, count in writes:
        stamp = ProducerStamp(pid, 0, sequence.get(pid, 0), count)
        sequence[pid] = sequence.get(pid, 0) + count
        replaced = ledger.take(stamp, base, base)
        if base >= below:
            durable.setdefault(stamp.key, replaced)
        written.append((stamp, base))
        base += count
    restored = read_back(told(ledger, durable))
    for pid in sequence:
        mine = [(stamp, at) for stamp, at in written if stamp.producer_id == pid and at < below]
        row = restored.row(key(pid))
        batches = [] if row is None else known(restored, pid)
        assert [one.base_offset for one in batches] == [at for _, at in mine[-BATCHES_KEPT:]]
    for stamp, at in written:
        if at >= below:
            restored.take(stamp, at, at)
    for pid, count in sequence.items():
        assert restored.known(ProducerStamp(pid, 0, count, 1)) is None
    for pid in sequence:
        mine = [(stamp, at) for stamp, at in written if stamp.producer_id == pid]
        for stamp, at in mine[-BATCHES_KEPT:]:
            assert restored.known(stamp) == at


@given(st.binary(max_size=64))
def test_damaged_snapshots_raise_only_the_typed_error(data: bytes) -> None:
    for former in (False, True):
        ledger = Ledger()
        try:
            for _ in ledger.restoring(data, former=former):
                pass
        except DecodeError:
            assert not len(ledger)


@given(st.data())
def test_a_capture_is_the_state_of_its_instant_whatever_is_written_while_it_is_read_out(data: st.DataObject) -> None:
    """Two ledgers are given the same; one is read out meanwhile, in slices of which each sees more writing."""
    ledger, twin = Producers(), Producers()
    sequences: dict[int, int] = {}
    now = 0

    def write_some() -> None:
        nonlocal now
        for pid, count, refused in data.draw(
            st.lists(st.tuples(st.integers(1, 30), st.integers(1, 3), st.booleans()), max_size=20)
        ):
            now += 1
            stamp = ProducerStamp(pid, 0, sequences.get(pid, 0), count)
            for one in (ledger, twin):
                replaced = one.take(stamp, now, now)
                if refused:
                    one.take_back(stamp.key, replaced)
            if not refused:
                sequences[pid] = stamp.base_sequence + count

    write_some()
    before = {one: ledger.row(one) for one in ledger.writers()}
    flying = data.draw(st.lists(st.integers(1, 30), max_size=5, unique=True))
    durable: dict[bytes, bytes | None] = {}
    for pid in flying:
        now += 1
        for one in (ledger, twin):
            replaced = one.take(ProducerStamp(pid, 0, sequences.get(pid, 0), 1), now, now)
            durable[key(pid)] = replaced
        sequences[pid] = sequences.get(pid, 0) + 1
    expected = [(one, before[one]) for one in ledger.writers() if one in before]
    capture = ledger.capture(durable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridges.log.ledger.table.SLICE", 3)
        pieces = []
        for piece in capture.pieces():
            pieces.append(SECTION.pack(LedgerKind.KAFKA, len(piece)) + piece if piece else b"")
            write_some()
            assert ledger.expire(now + 1) == 0, "it would be missing in what is read out"
    capture.close()
    restored = read_back(b"".join(pieces))
    assert [(one, restored.row(one)) for one in restored.writers()] == expected
    # And the ledger itself is what it would be without having been read out.
    assert [(pid, known(ledger, pid)) for pid in ledger.ids()] == [(pid, known(twin, pid)) for pid in twin.ids()]


def test_producers_that_come_while_a_ledger_is_read_out_make_others_go_afterwards() -> None:
    ledger = Producers(4)
    for pid in range(4):
        ledger.take(ProducerStamp(pid, 0, 0, 1), pid, pid)
    capture = ledger.capture({})
    for pid in (1, 7, 8):
        ledger.take(ProducerStamp(pid, 0, 1, 1), 100 + pid, pid)
    assert b"".join(capture.pieces())
    assert ledger.row(key(0)) is not None
    capture.close()
    assert ledger.ids() == [3, 1, 7, 8]


def known(ledger: LedgerTable, producer_id: int) -> list[WrittenBatch]:
    row = ledger.row(key(producer_id))
    assert row is not None
    return kafka_producer(key(producer_id), row).batches


def many(producers: int) -> Producers:
    ledger = Producers(1 << 30)
    for pid in range(producers):
        ledger.take(ProducerStamp(pid, 0, 0, 1), pid, now_ms=pid)
    return ledger


class Watched(dict[bytes, bytes]):
    """Counts the rows anybody is handed while walking through it."""

    seen = 0

    def items(self) -> Any:
        for item in super().items():
            Watched.seen += 1
            yield item

    def __iter__(self) -> Iterator[bytes]:
        for one in super().__iter__():
            Watched.seen += 1
            yield one


def test_expiry_looks_only_at_what_expires_and_never_at_more_than_a_slice() -> None:
    ledger = many(5 * SLICE)
    ledger.rows = Watched(ledger.rows)
    for before, expired in ((0, 0), (3, 3), (3, 0), (1 << 60, SLICE)):
        Watched.seen = 0
        assert ledger.expire(before) == expired
        assert Watched.seen <= expired + 1


def test_beginning_to_read_a_ledger_out_looks_at_nobody_but_producers_in_flight_and_then_at_a_slice_at_a_time() -> None:
    ledger = many(5 * SLICE)
    ledger.rows = Watched(ledger.rows)
    Watched.seen = 0
    capture = ledger.capture({key(5 * SLICE - 1): None})
    assert Watched.seen == 0
    for number, piece in enumerate(capture.pieces(), 1):
        assert Watched.seen <= number * SLICE
        assert len(piece) <= SLICE * (4 + 8 + len(many(1).rows[key(0)]))
    assert number == 5
    capture.close()
    assert len(ledger) == 5 * SLICE


def test_restoring_takes_a_step_for_every_slice() -> None:
    ledger = many(3 * SLICE + 1)
    data = told(ledger)
    restored = Ledger()
    assert sum(1 for _ in restored.restoring(data)) == 3
    assert restored.table(LedgerKind.KAFKA).writers() == ledger.writers()


def test_each_kind_has_limits_of_its_own() -> None:
    limits = {LedgerKind.KAFKA: KindLimits(2, 10), LedgerKind.SEQ_NO: KindLimits(5, 1000)}
    ledger = Ledger(LedgerOptions(limits=limits))
    for number in range(10):
        ledger.record(ProducerStamp(number, 0, 0, 1), number, number)
        ledger.record(SeqNoStamp(b"producer %d" % number, range(1, 2)), number, number)
    assert len(ledger.table(LedgerKind.KAFKA)) == 2
    assert len(ledger.table(LedgerKind.SEQ_NO)) == 5
    assert ledger.expire(30) == 2
    assert len(ledger.table(LedgerKind.SEQ_NO)) == 5


def test_a_producer_costs_little_memory() -> None:
    """Some 240 bytes with five batches as Python counts them, its place in the table included; objects took 1,000."""
    producers = 20_000
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ledger = Producers(producers)
    for batch in range(BATCHES_KEPT + 1):
        for pid in range(1 << 40, (1 << 40) + producers):
            ledger.take(ProducerStamp(pid, 0, batch, 1), batch * producers, batch)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken / producers < 320


def test_a_stale_producer_may_go_on_anywhere_and_its_known_batches_are_still_recognised() -> None:
    ledger = Producers()
    write(ledger, (1, 3, 0, 2), (1, 3, 2, 2))
    data = told(ledger)
    for _ in range(2):  # also after another snapshot
        ledger = read_back(data, stale=True)
        data = told(ledger)
        assert ledger.known(ProducerStamp(1, 3, 2, 2)) == 2
        assert ledger.known(ProducerStamp(1, 3, 9, 1)) is None
        assert ledger.known(ProducerStamp(1, 4, 9, 1)) is None
        with pytest.raises(ProducerFenced):
            ledger.known(ProducerStamp(1, 2, 9, 1))
    stamp = ProducerStamp(1, 3, 9, 1)
    replaced = ledger.take(stamp, 50, 1)
    assert [batch.base_offset for batch in known(ledger, 1)] == [0, 2, 50]
    with pytest.raises(OutOfOrderSequence):
        ledger.known(ProducerStamp(1, 3, 11, 1))
    ledger.take_back(stamp.key, replaced)
    assert [batch.base_offset for batch in known(ledger, 1)] == [0, 2]
