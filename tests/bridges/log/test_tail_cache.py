"""The tail cache: contiguous batches, one budget, oldest first."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.formats.records import StoredBatch
from bridges.log.partition.tail_cache import OVERHEAD as OVERHEAD
from bridges.log.partition.tail_cache import Tail, TailCache

ALL = 1 << 62


def batch(base: int, count: int, size: int) -> StoredBatch:
    return StoredBatch(base, base + count, 1, bytes(size))


operations = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(1, 100), st.booleans()), min_size=1, max_size=400
)


@given(operations, st.integers(0, 20_000))
def test_it_never_exceeds_its_budget_and_never_answers_wrongly(ops, budget) -> None:  # type: ignore[no-untyped-def]
    cache = TailCache(budget)
    tails = [Tail(cache) for _ in range(3)]
    model: list[list[StoredBatch]] = [[], [], []]
    ends = [0, 0, 0]
    for which, count, size, clear in ops:
        if clear and size % 10 == 0:
            tails[which].clear()
            model[which].clear()
        item = batch(ends[which], count, size)
        ends[which] += count
        tails[which].append(item)
        model[which].append(item)
        assert cache.total <= budget
    for tail, items, end in zip(tails, model, ends, strict=True):
        assert tail.read(end, 100) is None
        for offset in range(end):
            found = tail.read(offset, 150)
            if found is None:
                continue
            start = next(i for i, b in enumerate(items) if b.base_offset <= offset < b.end_offset)
            assert found == items[start : start + len(found)]
            assert len(found) == 1 or sum(len(b.payload) for b in found) <= 150
            assert tail.bytes_from(offset, 0, ALL) == len(found[0].payload)
            assert tail.bytes_from(offset, 1 << 40, ALL) == sum(len(b.payload) for b in items[start:])
            limit = (offset + 1 + end) // 2
            below = [b for b in items[start:] if b.base_offset < limit]
            assert tail.bytes_from(offset, 1 << 40, limit) == sum(len(b.payload) for b in below)
            size = sum(len(b.payload) for b in found)
            assert tail.measure(offset, 150, end) == (found[0].base_offset, found[-1].end_offset, size, len(found))
            first = found[0]
            assert tail.measure(offset, 150, first.base_offset + 1) == (
                first.base_offset,
                first.end_offset,
                len(first.payload),
                1,
            )
            following = items[start + len(found) :]
            if following:
                assert sum(len(b.payload) for b in found) + len(following[0].payload) > 150


def test_a_budget_that_fits_keeps_everything() -> None:
    cache = TailCache(10 * (100 + OVERHEAD))
    tail = Tail(cache)
    for i in range(10):
        tail.append(batch(i, 1, 100))
    assert tail.read(0, 10_000) == [batch(i, 1, 100) for i in range(10)]
    tail.append(batch(10, 1, 100))
    assert tail.read(0, 100) is None
    assert tail.read(1, 100) == [batch(1, 1, 100)]


def test_cleared_batches_give_their_room_back_in_turn() -> None:
    cache = TailCache(300 + 2 * OVERHEAD)
    first, second = Tail(cache), Tail(cache)
    first.append(batch(0, 1, 200))
    first.clear()
    second.append(batch(0, 1, 100))
    assert cache.total == 300 + 2 * OVERHEAD
    second.append(batch(1, 1, 100))
    assert cache.total == 200 + 2 * OVERHEAD
    assert second.read(0, 1000) == [batch(0, 1, 100), batch(1, 1, 100)]


@pytest.mark.parametrize("size", [10, 1000, 40_000, 60_000, 99_999])
def test_what_a_batch_keeps_alive_is_counted_or_let_go(size: int) -> None:
    budget = 3_000_000
    cache = TailCache(budget)
    tail = Tail(cache)
    frames: list[weakref.ref[Frame]] = []
    for base in range(200):
        frame = Frame(100_000)
        frames.append(weakref.ref(frame))
        tail.append(StoredBatch(base, base + 1, 1, memoryview(frame)[:size]))
        del frame
    assert cache.total <= budget
    alive = sum(len(frame) for frame in (ref() for ref in frames) if frame is not None)
    assert alive <= budget
    found = tail.read(199, 10)
    assert found is not None
    assert len(found[0].payload) == size


class Frame(bytearray):
    """What batches are views of; weak references to it can be had."""
