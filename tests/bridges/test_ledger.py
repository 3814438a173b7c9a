"""The producer ledger against Kafka's rules 29-33 and a model that remembers everything."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.errors import OutOfOrderSequence, ProducerFenced
from bridges.formats.producer import ProducerStamp
from bridges.log.ledger import BATCHES_KEPT, SLICE, Ledger, WrittenBatch
from sbp_back.errors import DecodeError

LAST = 2**31 - 1


def write(ledger: Ledger, *stamps: tuple[int, int, int, int], base: int = 0) -> int:
    for stamp in map(ProducerStamp._make, stamps):
        assert ledger.check(stamp) is None
        ledger.record(stamp, base, now_ms=1000)
        base += stamp.record_count
    return base


def copied(ledger: Ledger, below: int) -> Ledger:
    """A ledger made from a snapshot of this one."""
    capture = ledger.capture(below, ledger.producer_ids())
    data = b"".join(capture.pieces())
    capture.close()
    restored = Ledger()
    for _ in restored.restoring(data):
        pass
    return restored


def test_a_repeated_batch_is_answered_with_its_offset() -> None:
    ledger = Ledger()
    write(ledger, (1, 0, 0, 10), (1, 0, 10, 5), base=100)
    assert ledger.check(ProducerStamp(1, 0, 0, 10)) == 100
    assert ledger.check(ProducerStamp(1, 0, 10, 5)) == 110


def test_the_sixth_batch_back_is_out_of_order() -> None:
    ledger = Ledger()
    write(ledger, *[(1, 0, i, 1) for i in range(BATCHES_KEPT + 1)])
    assert ledger.check(ProducerStamp(1, 0, 1, 1)) == 1
    with pytest.raises(OutOfOrderSequence):
        ledger.check(ProducerStamp(1, 0, 0, 1))


def test_gaps_and_partial_repeats_are_out_of_order() -> None:
    ledger = Ledger()
    write(ledger, (1, 0, 0, 10))
    for first, count in ((11, 1), (0, 5), (5, 5), (0, 11)):
        with pytest.raises(OutOfOrderSequence):
            ledger.check(ProducerStamp(1, 0, first, count))


def test_epochs() -> None:
    ledger = Ledger()
    write(ledger, (1, 3, 0, 2))
    with pytest.raises(ProducerFenced):
        ledger.check(ProducerStamp(1, 2, 2, 1))
    with pytest.raises(OutOfOrderSequence):
        ledger.check(ProducerStamp(1, 4, 2, 1))
    write(ledger, (1, 4, 0, 1), base=2)
    with pytest.raises(ProducerFenced):
        ledger.check(ProducerStamp(1, 3, 0, 2))


def test_an_unknown_producer_may_start_anywhere() -> None:
    ledger = Ledger()
    write(ledger, (1, 7, 500, 1))
    assert ledger.check(ProducerStamp(1, 7, 501, 1)) is None


def test_sequences_wrap() -> None:
    ledger = Ledger()
    write(ledger, (1, 0, LAST - 1, 4), (1, 0, 2, 1))
    assert ledger.check(ProducerStamp(1, 0, LAST - 1, 4)) == 0
    ledger = Ledger()
    write(ledger, (1, 0, LAST, 1), (1, 0, 0, 1))


def test_idle_producers_expire_and_the_longest_idle_makes_room() -> None:
    ledger = Ledger(max_producers=2)
    for pid, when in ((1, 10), (2, 20), (1, 30)):
        stamp = ProducerStamp(pid, 0, when, 1)
        ledger.record(stamp, when, when)
    ledger.record(ProducerStamp(3, 0, 0, 1), 40, 40)
    assert ledger.producer_ids() == [1, 3]
    assert ledger.expire(35) == 1
    assert ledger.producer_ids() == [3]


def test_what_could_not_be_stored_is_taken_back() -> None:
    ledger = Ledger()
    end = write(ledger, (1, 0, 0, 3))
    stamp = ProducerStamp(1, 0, 3, 2)
    ledger.record(stamp, end, 0)
    ledger.forget(stamp, end)
    assert ledger.check(stamp) is None
    assert ledger.check(ProducerStamp(1, 0, 0, 3)) == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=40), st.integers(0, 60))
def test_a_snapshot_vouches_for_exactly_what_lies_below_it(writes: list[tuple[int, int]], below: int) -> None:
    ledger = Ledger()
    sequence: dict[int, int] = {}
    base = 0
    written = []
    for pid, count in writes:
        stamp = ProducerStamp(pid, 0, sequence.get(pid, 0), count)
        sequence[pid] = sequence.get(pid, 0) + count
        ledger.record(stamp, base, base)
        written.append((stamp, base))
        base += count
    restored = copied(ledger, below)
    for stamp, at in written:
        if at >= below:
            restored.record(stamp, at, at)
    for pid, count in sequence.items():
        assert restored.check(ProducerStamp(pid, 0, count, 1)) is None
    for pid in sequence:
        mine = [(stamp, at) for stamp, at in written if stamp.producer_id == pid]
        in_flight = [at for _, at in mine if at >= below]
        if len(in_flight) <= BATCHES_KEPT:
            for stamp, at in mine[-BATCHES_KEPT:]:
                assert restored.check(stamp) == at


@given(st.binary(max_size=64))
def test_damaged_snapshots_raise_only_the_typed_error(data: bytes) -> None:
    ledger = Ledger()
    try:
        for _ in ledger.restoring(data):
            pass
    except DecodeError:
        assert not len(ledger)


@given(st.data())
def test_a_capture_is_the_state_of_its_instant_whatever_is_written_while_it_is_read_out(data: st.DataObject) -> None:
    """Two ledgers are given the same; one is read out meanwhile, in slices of which each sees more writing."""
    ledger, twin = Ledger(), Ledger()
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
                one.record(stamp, now, now)
                if refused:
                    one.forget(stamp, now)
            if not refused:
                sequences[pid] = stamp.base_sequence + count

    write_some()
    below = data.draw(st.integers(0, now + 1))
    in_flight = [pid for pid in ledger.producer_ids() if any(b.base_offset >= below for b in known(ledger, pid))]
    expected = [
        (pid, [b for b in known(ledger, pid) if b.base_offset < below])
        for pid in ledger.producer_ids()
        if any(b.base_offset < below for b in known(ledger, pid))
    ]
    capture = ledger.capture(below, in_flight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridges.log.ledger.SLICE", 3)
        pieces = []
        for piece in capture.pieces():
            pieces.append(piece)
            write_some()
            assert ledger.expire(now + 1) == 0, "it would be missing in what is read out"
    capture.close()
    restored = Ledger()
    for _ in restored.restoring(b"".join(pieces)):
        pass
    assert [(pid, known(restored, pid)) for pid in restored.producer_ids()] == expected
    # And the ledger itself is what it would be without having been read out.
    assert [(pid, known(ledger, pid)) for pid in ledger.producer_ids()] == [
        (pid, known(twin, pid)) for pid in twin.producer_ids()
    ]


def test_producers_that_come_while_a_ledger_is_read_out_make_others_go_afterwards() -> None:
    ledger = Ledger(max_producers=4)
    for pid in range(4):
        ledger.record(ProducerStamp(pid, 0, 0, 1), pid, pid)
    capture = ledger.capture(100)
    for pid in (1, 7, 8):
        ledger.record(ProducerStamp(pid, 0, 1, 1), 100 + pid, pid)
    assert b"".join(capture.pieces())
    assert 0 in ledger
    capture.close()
    assert ledger.producer_ids() == [3, 1, 7, 8]


def known(ledger: Ledger, producer_id: int) -> list[WrittenBatch]:
    state = ledger.get(producer_id)
    assert state is not None
    return state.batches


def many(producers: int) -> Ledger:
    ledger = Ledger(max_producers=1 << 30)
    for pid in range(producers):
        ledger.record(ProducerStamp(pid, 0, 0, 1), pid, now_ms=pid)
    return ledger


class Watched(dict[int, bytes]):
    """Counts the rows anybody is handed while walking through it."""

    seen = 0

    def items(self) -> Any:
        for item in super().items():
            Watched.seen += 1
            yield item

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            Watched.seen += 1
            yield key


def test_expiry_looks_only_at_what_expires_and_never_at_more_than_a_slice() -> None:
    ledger = many(5 * SLICE)
    ledger._rows = Watched(ledger._rows)
    for before, expired in ((0, 0), (3, 3), (3, 0), (1 << 60, SLICE)):
        Watched.seen = 0
        assert ledger.expire(before) == expired
        assert Watched.seen <= expired + 1


def test_beginning_to_read_a_ledger_out_looks_at_nobody_but_producers_in_flight_and_then_at_a_slice_at_a_time() -> None:
    ledger = many(5 * SLICE)
    ledger._rows = Watched(ledger._rows)
    Watched.seen = 0
    capture = ledger.capture(5 * SLICE - 1, [5 * SLICE - 1])
    assert Watched.seen == 0
    for number, piece in enumerate(capture.pieces(), 1):
        assert Watched.seen <= number * SLICE
        assert len(piece) <= SLICE * len(many(1)._rows[0])
    assert number == 5
    capture.close()
    assert len(ledger) == 5 * SLICE


def test_restoring_takes_a_step_for_every_slice() -> None:
    ledger = many(3 * SLICE + 1)
    capture = ledger.capture(1 << 60)
    data = b"".join(capture.pieces())
    capture.close()
    restored = Ledger()
    assert sum(1 for _ in restored.restoring(data)) == 3
    assert restored.producer_ids() == ledger.producer_ids()


def test_a_producer_costs_little_memory() -> None:
    """Some 240 bytes with five batches as Python counts them, its place in the table included; objects took 1,000."""
    producers = 20_000
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ledger = Ledger(max_producers=producers)
    for batch in range(BATCHES_KEPT + 1):
        for pid in range(1 << 40, (1 << 40) + producers):
            ledger.record(ProducerStamp(pid, 0, batch, 1), batch * producers, batch)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken / producers < 320


def test_a_stale_producer_may_go_on_anywhere_and_its_known_batches_are_still_recognised() -> None:
    ledger = Ledger()
    write(ledger, (1, 3, 0, 2), (1, 3, 2, 2))
    capture = ledger.capture(100)
    data = b"".join(capture.pieces())
    capture.close()
    for _ in range(2):  # also after another snapshot
        ledger = Ledger()
        for _ in ledger.restoring(data, stale=True):
            pass
        capture = ledger.capture(100)
        data = b"".join(capture.pieces())
        capture.close()
        assert ledger.check(ProducerStamp(1, 3, 2, 2)) == 2
        assert ledger.check(ProducerStamp(1, 3, 9, 1)) is None
        assert ledger.check(ProducerStamp(1, 4, 9, 1)) is None
        with pytest.raises(ProducerFenced):
            ledger.check(ProducerStamp(1, 2, 9, 1))
    stamp = ProducerStamp(1, 3, 9, 1)
    ledger.record(stamp, 50, 1)
    assert [batch.base_offset for batch in known(ledger, 1)] == [0, 2, 50]
    with pytest.raises(OutOfOrderSequence):
        ledger.check(ProducerStamp(1, 3, 11, 1))
    ledger.forget(stamp, 50)
    assert [batch.base_offset for batch in known(ledger, 1)] == [0, 2]
