"""Many deadlines: their order, against a plain dictionary, and on one timer."""

from __future__ import annotations

import asyncio
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.deadlines import STEP_SECONDS, DeadlineQueue, Deadlines
from tests.kit.waiting import until

LARGEST = 2**63 - 1
DELAYS = st.one_of(st.integers(-3, 50), st.sampled_from([-(2**63), LARGEST]))

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), st.integers(0, 5), st.integers(0, 50), DELAYS),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0), st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 50), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_same_as_a_dictionary(steps: list[tuple[str, int, int, int]]) -> None:
    deadlines: DeadlineQueue[int] = DeadlineQueue()
    model: dict[int, int] = {}
    latest = -1
    for action, key, now, after in steps:
        if action == "arm":
            deadlines.set(key, now, after)
            model[key] = max(now, latest) + max(after, 1)
        elif action == "cancel":
            deadlines.remove(key)
            model.pop(key, None)
        else:
            latest = max(latest, now)
            popped = deadlines.pop_due(now)
            due = {k for k, at in model.items() if at <= now}
            nearest = min((model[k] for k in due), default=None)
            if popped is None:
                assert not due
            else:
                assert model.pop(popped) == nearest
        assert len(deadlines) == len(model)
        assert deadlines.next == min(model.values(), default=None)
        assert [deadlines.get(k) for k in range(6)] == [model.get(k) for k in range(6)]


@given(st.lists(st.tuples(st.integers(0, 9), DELAYS), max_size=30), st.integers(0, 100), DELAYS, st.integers(0, 100))
def test_whoever_arms_again_what_he_works_off_comes_to_an_end(
    armed: list[tuple[int, int]], now: int, again: int, earlier: int
) -> None:
    deadlines: DeadlineQueue[int] = DeadlineQueue()
    for key, after in armed:
        deadlines.set(key, 0, after)
    known = len(deadlines)
    steps = 0
    while (due := deadlines.pop_due(now)) is not None:
        steps += 1
        assert steps <= known
        # A caller whose clock went back cannot set a deadline into the time that is worked off, either.
        deadlines.set(due, now - earlier, again)
    assert deadlines.next is None or deadlines.next > now


def test_equal_deadlines_come_in_the_order_they_were_set() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    for key in "cab":
        deadlines.set(key, 0, 7)
    assert [deadlines.pop_due(7) for _ in range(4)] == ["c", "a", "b", None]


@pytest.mark.parametrize("after", [5, 86_400_000])
def test_moving_a_deadline_often_leaves_nothing_behind(after: int) -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    for now in range(10_000):
        deadlines.set("member", now, after)
    assert len(deadlines) == len(deadlines._slots) == 1
    assert len(deadlines._heap) < 100


def test_what_was_removed_is_let_go_of_at_once() -> None:
    deadlines: DeadlineQueue[_Key] = DeadlineQueue()
    key = _Key()
    gone = weakref.ref(key)
    deadlines.set(key, 0, 86_400_000)
    deadlines.remove(key)
    del key
    assert gone() is None


class _Key:
    pass


class Waiter:
    def __init__(self, when: float = 0.0) -> None:
        self.when = when
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

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired, Barrier())
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
    slots = [int(waiter.when / STEP_SECONDS) for waiter in order]
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

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired, Barrier())
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

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired, Barrier())
    waiter = Waiter()
    deadlines.add(waiter, loop.time())
    await finished.wait()
    assert waiter.expired == 3
    assert len(deadlines) == 0


async def test_clear_forgets_all() -> None:
    loop = asyncio.get_running_loop()
    waiters = [Waiter(), Waiter()]
    deadlines: Deadlines[Waiter] = Deadlines(loop, lambda waiter: None, Barrier())
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

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired, Barrier())
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

    deadlines: Deadlines[Waiter] = Deadlines(loop, expired, Barrier())
    deadlines.add(Waiter(), loop.time() - 60)
    start = loop.time()
    await until(lambda: rounds >= 3)
    assert loop.time() - start >= 2 * STEP_SECONDS
    deadlines.clear()
