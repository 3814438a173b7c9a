"""Calls that answer by a callback, awaited."""

from __future__ import annotations

import asyncio

import pytest

from anabranch_kit.run.awaited import Settle, awaited


async def test_the_answer_is_the_result_and_an_exception_in_its_place_or_beside_it_is_raised() -> None:
    assert await awaited(lambda settle: settle(1)) == 1
    with pytest.raises(LookupError):
        await awaited(lambda settle: settle(LookupError()))
    with pytest.raises(LookupError):
        await awaited(lambda settle: settle([], LookupError()))


async def test_the_call_is_made_at_once_and_answered_later() -> None:
    callbacks: list[Settle[str]] = []
    answer = awaited(callbacks.append)
    assert not answer.done()
    callbacks[0]("a")
    callbacks[0]("b")
    callbacks[0]("c", LookupError())
    assert await answer == "a", "the first answer counts"


async def test_nobody_minds_an_answer_for_somebody_who_has_gone() -> None:
    callbacks: list[Settle[str]] = []
    waiting: asyncio.Future[str] = awaited(callbacks.append)
    waiting.cancel()
    callbacks[0]("a")
    assert waiting.cancelled()
