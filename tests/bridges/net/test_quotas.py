"""Who has used up what he may waits, in order, and nobody else does."""

from __future__ import annotations

import asyncio

import pytest

from anabranch_kit.run.barrier import Barrier
from bridges.auth.quotas import DEFAULT, Entity, QuotaKey, QuotaRules
from bridges.net.quotas import Quotas, Throttle, turn
from tests.kit.clock import Clock

RATE = 1000.0


def quotas(most: int = 10, **rates: float) -> tuple[Quotas, Clock]:
    """Quotas of users by their names; "anybody" is the default."""
    rules, clock = QuotaRules(), Clock()
    for user, rate in rates.items():
        rules.put(Entity(DEFAULT if user == "anybody" else user), QuotaKey.PRODUCE, rate)
    return Quotas(rules, most, Barrier(), clock), clock


async def test_a_bucket_holds_a_second_and_may_be_overdrawn_once() -> None:
    made, clock = quotas(u=RATE)
    bucket = made.produce.bucket("u", "any")
    assert bucket is not None
    assert not bucket.is_blocked
    bucket.take(2 * RATE)
    assert bucket.is_blocked
    assert bucket.seconds == pytest.approx(1.0, abs=0.01)
    clock.now += 1.1
    assert not bucket.is_blocked


async def test_where_no_quota_is_there_is_no_bucket() -> None:
    made, _ = quotas()
    assert not made.in_force
    assert not made.produce.in_force
    assert made.produce.bucket("u", "c") is None
    made.rules.put(Entity("u"), QuotaKey.PRODUCE, RATE)
    made.changed()
    assert made.in_force
    assert made.produce.in_force
    assert not made.fetch.in_force
    assert made.produce.bucket("u", "c") is made.produce.bucket("u", "d"), "connections of a user share it"
    assert made.produce.bucket("v", "c") is None


async def test_who_waits_goes_on_in_the_order_in_which_he_came() -> None:
    made, clock = quotas(u=RATE)
    bucket = made.produce.bucket("u", None)
    assert bucket is not None
    bucket.take(2 * RATE)
    gone: list[int] = []

    async def one(number: int) -> None:
        await turn(bucket, 2 * RATE)
        gone.append(number)

    tasks = [asyncio.create_task(one(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert made.produce.waiting == 3
    for expected in ([0], [0, 1], [0, 1, 2]):
        clock.now += 2.0
        bucket._serve()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert gone == expected
    await asyncio.gather(*tasks)
    assert (made.produce.waiting, made.produce.throttled) == (0, 3)


async def test_one_who_stops_waiting_is_forgotten() -> None:
    made, _ = quotas(u=RATE)
    bucket = made.produce.bucket("u", None)
    assert bucket is not None
    bucket.take(2 * RATE)
    task = asyncio.create_task(turn(bucket, 1))
    await asyncio.sleep(0)
    assert made.produce.waiting == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert made.produce.waiting == 0


async def test_a_quota_that_is_taken_away_lets_everybody_go_on() -> None:
    made, _ = quotas(u=RATE)
    bucket = made.produce.bucket("u", None)
    assert bucket is not None
    bucket.take(1000 * RATE)
    released = asyncio.Event()
    throttle = Throttle(released.set)
    assert not throttle.passes(bucket)
    assert throttle.waits
    made.rules.put(Entity("u"), QuotaKey.PRODUCE, None)
    made.changed()
    await asyncio.wait_for(released.wait(), 5)
    assert throttle.passes(made.produce.bucket("u", None))


async def test_names_that_clients_choose_take_no_more_than_so_many_buckets() -> None:
    made, clock = quotas(most=3, anybody=RATE)
    for number in range(3):
        bucket = made.produce.bucket(f"u{number}", None)
        assert bucket is not None
        bucket.take(2 * RATE)
    shared = made.produce.bucket("u3", None)
    assert shared is made.produce.bucket("u4", None), "further ones share"
    assert len(made.produce) == 4
    clock.now += 10
    own = made.produce.bucket("u5", None)
    assert own is not shared, "one that is full again makes room"
    assert len(made.produce) == 4
