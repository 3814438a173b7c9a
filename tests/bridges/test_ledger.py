"""The producer ledger against Kafka's rules 29-33 and a model that remembers everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.errors import OutOfOrderSequence, ProducerFenced
from bridges.ledger import BATCHES_KEPT, Ledger, ProducerStamp
from sbp_back.errors import DecodeError

LAST = 2**31 - 1


def write(ledger: Ledger, *stamps: tuple[int, int, int, int], base: int = 0) -> int:
    for stamp in map(ProducerStamp._make, stamps):
        assert ledger.check(stamp) is None
        ledger.record(stamp, base, now_ms=1000)
        base += stamp.record_count
    return base


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
    assert set(ledger.producers) == {1, 3}
    assert ledger.expire(35) == 1
    assert set(ledger.producers) == {3}


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
    restored = Ledger()
    restored.restore(ledger.snapshot(below))
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
        ledger.restore(data)
    except DecodeError:
        assert not ledger.producers
