"""A missed deadline says what was waited for, and a wait ends as soon as it may."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.waiting import until, until_asked, wait_until


async def test_a_wait_ends_in_the_turn_in_which_its_condition_holds() -> None:
    loop = asyncio.get_running_loop()
    came: list[int] = []
    loop.call_soon(came.append, 7)
    assert await until(lambda: came) == [7]
    seen = len(came)
    loop.call_soon(came.append, 8)
    loop.call_later(30, came.append, 9)
    await until(lambda: len(came) > seen)
    assert came == [7, 8]


async def test_a_missed_deadline_says_what_was_waited_for() -> None:
    held = ["mine"]
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: .*lambda: not held.*'held': \['mine'\]"):
        await until(lambda: not held, seconds=0.01)
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: the lock of \['mine'\]"):
        await until(lambda: not held, lambda: f"the lock of {held}", seconds=0.01)
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: the lock"):
        wait_until(lambda: not held, "the lock", seconds=0.01, pause=0.001)


async def test_a_question_is_asked_until_its_answer_holds() -> None:
    answers = iter(range(10))

    async def ask() -> int:
        return next(answers)

    assert await until_asked(ask) == 1
    assert await until_asked(ask, lambda answer: answer == 4) == 4
    with pytest.raises(AssertionError, match=r"not within 0 s; the last answer: 5"):
        await until_asked(ask, lambda answer: answer > 8, seconds=0)


def test_what_is_done_meanwhile_may_bring_it_about_or_fail() -> None:
    came: list[int] = []
    assert wait_until(lambda: len(came) == 3, pause=0, meanwhile=lambda: came.append(1))
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: False, pause=0, meanwhile=lambda: 1 / 0)
