"""Many deadlines on one timer."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_back.range_server.longpoll import SLOT_SECONDS, Deadlines


class Waiter:
    def __init__(self, when: float = 0.0) -> None:
        self.when = when
        self.slot = -1
        self.expired = 0


@settings(max_examples=30, deadline=None)
@given(
    plan=st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.booleans()), min_size=1, max_size=60),
)
async def test_each_expires_once_never_early_in_order_unless_removed(plan: list[tuple[int, bool, bool]]) -> None:
    loop = asyncio.get_running_loop()
    order: list[Waiter] = []
    finished = asyncio.Event()

    def expired(waiter: Waiter) -> None:
        assert loop.time() >= waiter.when
        waiter.expired += 1
        order.append(waiter)
        if len(deadlines) == 0:
            finished.set()

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired)
    now = loop.time()
    kept: list[Waiter] = []
    for milliseconds, remove, twice in plan:
        waiter = Waiter(now + milliseconds / 1000)
        deadlines.add(waiter, waiter.when)
        if remove:
            deadlines.remove(waiter)
            if twice:
                deadlines.remove(waiter)
        else:
            kept.append(waiter)
    assert len(deadlines) == len(kept)
    if kept:
        await finished.wait()
    assert sorted(map(id, order)) == sorted(map(id, kept))
    slots = [int(waiter.when / SLOT_SECONDS) for waiter in order]
    assert slots == sorted(slots)
    assert len(deadlines) == 0


async def test_a_waiter_removed_by_another_of_the_same_moment_does_not_expire() -> None:
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()
    waiters = [Waiter(loop.time()) for _ in range(3)]

    def expired(waiter: Waiter) -> None:
        waiter.expired += 1
        deadlines.remove(waiters[1])
        if waiter is waiters[2]:
            finished.set()

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired)
    for waiter in waiters:
        deadlines.add(waiter, waiters[0].when)
    await finished.wait()
    assert [waiter.expired for waiter in waiters] == [1, 0, 1]


async def test_a_waiter_may_wait_again_from_within_its_expiry() -> None:
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()

    def expired(waiter: Waiter) -> None:
        waiter.expired += 1
        if waiter.expired == 3:
            finished.set()
        else:
            deadlines.add(waiter, loop.time())

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired)
    waiter = Waiter()
    deadlines.add(waiter, loop.time())
    await finished.wait()
    assert waiter.expired == 3
    assert len(deadlines) == 0


async def test_clear_forgets_all() -> None:
    loop = asyncio.get_running_loop()
    waiters = [Waiter(), Waiter()]
    deadlines: Deadlines[Waiter] = Deadlines(loop, lambda waiter: None)
    for waiter in waiters:
        deadlines.add(waiter, loop.time() + 100)
    assert deadlines.clear() == waiters
    assert len(deadlines) == 0
    deadlines.remove(waiters[0])
    assert deadlines.clear() == []


async def test_one_that_raises_keeps_no_other_from_its_time() -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def expired(waiter: Waiter) -> None:
        if waiter is first:
            raise RuntimeError("a defect of the waiter's")
        ended.set_result(None)

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired)
    first, second = Waiter(), Waiter()
    now = loop.time()
    for waiter in (first, second):
        deadlines.add(waiter, now)
    await ended


async def test_a_deadline_that_has_passed_is_armed_ahead_of_now() -> None:
    """One that is added again from within its own expiry would otherwise keep the loop to itself."""
    loop = asyncio.get_running_loop()
    rounds = 0

    def expired(waiter: Waiter) -> None:
        nonlocal rounds
        rounds += 1
        deadlines.add(waiter, loop.time() - 60)

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired)
    deadlines.add(Waiter(), loop.time() - 60)
    start = loop.time()
    while rounds < 3:
        await asyncio.sleep(0)
    assert loop.time() - start >= 2 * SLOT_SECONDS
    deadlines.clear()
