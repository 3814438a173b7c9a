"""What the load generator of compose/ says of what it reads."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "compose" / "load"))

from judge import Judge


def written(*numbers: int, failed: tuple[int, ...] = ()) -> Judge:
    judge = Judge()
    for number in numbers:
        judge.sent(0, number)
        judge.told(0, number, "timed out" if number in failed else None)
    return judge


def test_what_comes_in_order_is_right_and_offsets_may_have_gaps() -> None:
    judge = written(0, 1, 2)
    assert [judge.given(0, offset, number) for offset, number in ((0, 0), (5, 1), (6, 2))] == [True] * 3
    assert (judge.acknowledged, judge.read, judge.unread(), judge.faults) == (3, 3, 0, [])


def test_partitions_are_judged_apart() -> None:
    judge = written(0)
    judge.sent(1, 0)
    judge.told(1, 0, None)
    assert judge.given(0, 0, 0)
    assert judge.given(1, 0, 0)
    assert judge.faults == []


def test_a_record_that_is_passed_over_is_lost_when_it_was_acknowledged_before() -> None:
    judge = written(0, 1, 2)
    judge.given(0, 0, 0)
    judge.given(0, 1, 2)
    assert judge.lost == 1
    assert judge.faults == ["partition 0: number 1 was acknowledged and is not there"]


def test_a_record_that_is_passed_over_is_lost_when_it_is_acknowledged_later() -> None:
    judge = written(0)
    judge.sent(0, 1)
    judge.sent(0, 2)
    judge.given(0, 0, 0)
    judge.given(0, 1, 2)
    assert judge.lost == 0
    judge.told(0, 1, None)
    assert judge.lost == 1


def test_a_record_that_failed_may_be_there_or_not() -> None:
    for given in ((0, 1, 2), (0, 2)):
        judge = written(0, 1, 2, failed=(1,))
        for offset, number in enumerate(given):
            judge.given(0, offset, number)
        assert (judge.lost, judge.doubled, judge.failed) == (0, 0, 1)


def test_a_report_of_failure_may_come_after_the_record_was_passed_over() -> None:
    judge = written(0)
    judge.sent(0, 1)
    judge.given(0, 0, 0)
    judge.given(0, 1, 2)
    judge.told(0, 1, "timed out")
    assert judge.lost == 0


def test_one_number_at_two_offsets_is_doubled() -> None:
    judge = written(0, 1)
    judge.given(0, 0, 0)
    judge.given(0, 1, 1)
    judge.given(0, 2, 1)
    assert judge.doubled == 1
    assert judge.faults == ["partition 0: number 1 comes again at offset 2"]


def test_an_offset_that_is_given_again_is_counted_and_no_fault() -> None:
    judge = written(0, 1)
    judge.given(0, 0, 0)
    judge.given(0, 1, 1)
    assert not judge.given(0, 0, 0)
    assert (judge.again, judge.read, judge.faults) == (1, 2, [])
