"""Cutting ranges for tasks and admitting offsets to micro-batches, by the rules of Spark's connector for Kafka."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pipeline.core.errors import OffsetsGone, UnreadableBatch
from spark_pipeline.core.ranges import OffsetRange, Patience, TopicPartition, admit, between, split, total

A, B, C = (TopicPartition("t", number) for number in range(3))

RANGES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1 << 40), st.integers(-5, 100_000)).map(
        lambda one: OffsetRange("t", one[0], one[1], one[1] + one[2])
    ),
    max_size=8,
)


@given(RANGES, st.none() | st.integers(1, 100), st.none() | st.integers(1000, 50_000))
def test_pieces_are_the_whole_and_as_large_as_they_may_be(
    ranges: list[OffsetRange], least: int | None, most: int | None
) -> None:
    pieces = split(ranges, least, most)
    again: list[OffsetRange] = []
    for piece in pieces:
        assert piece.count > 0
        assert most is None or piece.count <= most
        if again and again[-1].part == piece.part and again[-1].end == piece.start:
            again[-1] = OffsetRange(piece.topic, piece.partition, again[-1].start, piece.end)
        else:
            again.append(piece)
    whole = [one for one in ranges if one.count]
    joined: list[OffsetRange] = []
    for one in whole:  # ranges of a partition that happen to touch are one in `again`
        if joined and joined[-1].part == one.part and joined[-1].end == one.start:
            joined[-1] = OffsetRange(one.topic, one.partition, joined[-1].start, one.end)
        else:
            joined.append(one)
    assert again == joined


@pytest.mark.parametrize(
    ("sizes", "least", "most", "expected"),
    [
        ([100], None, None, [100]),
        ([100], 4, None, [25, 25, 25, 25]),
        ([300, 100], 4, None, [100, 100, 100, 100]),
        ([300, 100, 0], 2, None, [300, 100]),  # there are as many already
        ([1000, 1], 3, None, [333, 333, 334, 1]),  # the small one is not cut, nor left out
        ([2], 10, None, [1, 1]),  # no piece is empty
        ([10], None, 4, [3, 3, 4]),
        ([10, 3], 6, 4, [3, 3, 2, 2, 3]),
    ],
)
def test_ranges_are_cut_into_pieces_within_the_bounds(
    sizes: list[int], least: int | None, most: int | None, expected: list[int]
) -> None:
    ranges = [OffsetRange("t", number, 7, 7 + size) for number, size in enumerate(sizes)]
    assert [piece.count for piece in split(ranges, least, most)] == expected


@pytest.mark.parametrize("bounds", [(0, None), (None, 0)])
def test_a_bound_is_at_least_one(bounds: tuple[int | None, int | None]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        split([], *bounds)


def test_each_partition_gives_in_proportion_and_none_starves() -> None:
    start, end = {A: 10, B: 0, C: 5}, {A: 1010, B: 3000, C: 6}
    assert admit(start, end, 400) == {A: 10 + 99, B: 299, C: 6}
    assert admit(start, end, 4001) == end
    assert admit(start, end, 1) == {A: 11, B: 1, C: 6}, "at least one offset of each that has any"


def test_a_partition_that_lost_its_end_does_not_go_back() -> None:
    assert admit({A: 100}, {A: 40}, 10) == {A: 100}
    assert admit({A: 100, B: 0}, {A: 40, B: 50}, 10) == {A: 100, B: 10}
    assert total({A: 100, B: 0}, {A: 40, B: 50}) == 50


@given(
    st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 1 << 50)),
    st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 1 << 50)),
    st.integers(0, 1 << 40),
)
def test_what_is_admitted_lies_between(start: dict, end: dict, limit: int) -> None:  # type: ignore[type-arg]
    until = admit(start, end, limit)
    assert until.keys() == end.keys()
    for part, offset in until.items():
        low = start.get(part, end[part])
        assert low <= offset <= max(low, end[part])
        assert offset > low or end[part] <= low, "everybody who has something gets on"
    assert total(start, until) <= max(limit, len(end)) + len(end)


def test_ranges_between_positions() -> None:
    assert between({A: 1, B: 5}, {B: 9, A: 1, C: 4}) == [OffsetRange("t", 1, 5, 9)]


def test_a_batch_waits_for_enough_but_not_for_ever() -> None:
    patience = Patience(100, 1000)
    assert not patience.waits(1, 50), "the first goes at once"
    assert patience.waits(99, 1049)
    assert not patience.waits(99, 1050)
    assert not patience.waits(100, 1051), "there is enough"
    assert patience.waits(0, 2050), "counted from the last one"
    assert not patience.waits(0, 2051)


def test_errors_travel_between_processes() -> None:
    for error in (OffsetsGone("t", 1, 5, 9), UnreadableBatch("t", 1, 5, "damaged")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
