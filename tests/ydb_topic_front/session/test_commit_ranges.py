"""Commits in any order move the position over what has no hole in front."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ydb_topic_front.session.commit_ranges import MOST_RANGES, CommitRanges
from ydb_topic_front.wire.statuses import YdbError


@given(st.lists(st.integers(1, 5), min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_ranges_in_any_order(sizes: list[int], random: object) -> None:
    ranges, start = [], 10
    for size in sizes:
        ranges.append((start, start + size))
        start += size
    random.shuffle(ranges)  # type: ignore[attr-defined]
    commits = CommitRanges(10)
    confirmed: set[int] = set()
    for begin, end in ranges:
        before = commits.position
        moved = commits.add(begin, end)
        confirmed.update(range(begin, end))
        position = 10
        while position in confirmed:
            position += 1
        assert commits.position == position
        assert moved == (position > before)
    assert len(commits) == 0


def test_what_was_confirmed_before_is_refused() -> None:
    commits = CommitRanges(5)
    assert not commits.add(7, 9)
    for start, end in ((4, 6), (5, 5), (6, 5), (-1, 3), (8, 10), (6, 8), (7, 9), (6, 20)):
        with pytest.raises(YdbError):
            commits.add(start, end)
    assert commits.add(5, 7)
    assert commits.position == 9
    with pytest.raises(YdbError):
        commits.add(8, 10)


def test_others_move_the_position() -> None:
    commits = CommitRanges(0)
    assert commits.moved(10)
    assert not commits.moved(8)
    assert not commits.add(0, 4), "below what the other has committed"
    assert commits.position == 10
    assert commits.add(4, 12), "what this one had not committed yet may overlap the other's"
    assert commits.position == 12
    with pytest.raises(YdbError):
        commits.add(3, 5)
    assert not commits.add(15, 20)
    assert commits.moved(14)
    assert commits.position == 14
    assert commits.moved(16)
    assert commits.position == 20


def test_holes_are_bounded() -> None:
    commits = CommitRanges(0)
    for number in range(MOST_RANGES):
        commits.add(2 * number + 1, 2 * number + 2)
    with pytest.raises(YdbError):
        commits.add(2 * MOST_RANGES + 1, 2 * MOST_RANGES + 2)
    assert commits.add(0, 1)
    assert commits.position == 2


def test_holes_that_others_passed_may_still_be_filled() -> None:
    commits = CommitRanges(0)
    assert not commits.add(10, 20)
    assert not commits.add(30, 40)
    assert commits.moved(35)
    assert commits.position == 40, "from the middle of what this session has committed to its end"
    assert not commits.add(0, 5), "below the position lies what this session has read and not confirmed yet"
    for start, end in ((0, 1), (4, 7), (12, 13), (19, 21), (25, 31), (39, 41)):
        with pytest.raises(YdbError):
            commits.add(start, end)
    assert not commits.add(5, 10)
    assert not commits.add(20, 30)
    assert len(commits) == 0
    assert commits.add(40, 41)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 8)), max_size=40))
def test_a_commit_is_refused_only_for_what_this_session_committed(
    steps: list[tuple[bool, int, int]],
) -> None:
    commits, own, position = CommitRanges(3), {0, 1, 2}, 3
    for by_others, start, size in steps:
        before = position
        if by_others:
            position = max(position, start)
            moved = position > before
        else:
            added = set(range(start, start + size))
            if added & own:
                with pytest.raises(YdbError):
                    commits.add(start, start + size)
                continue
            own |= added
        while position in own:
            position += 1
        if by_others:
            assert commits.moved(start) == moved
        else:
            assert commits.add(start, start + size) == (position > before)
        assert commits.position == position


def test_ranges_that_others_passed_make_room_for_new_ones() -> None:
    commits = CommitRanges(0)
    for number in range(MOST_RANGES):
        commits.add(2 * number + 1, 2 * number + 2)
    assert commits.moved(1001)
    assert len(commits) == MOST_RANGES
    assert not commits.add(2 * MOST_RANGES + 1, 2 * MOST_RANGES + 2)
    assert len(commits) == MOST_RANGES - 500
    assert not commits.add(0, 1), "holes are there to be filled, also where it is forgotten what lies between"
