"""Work for the owner of a slot: where it runs, when it is repeated, and when it ends. Each safeguard is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from bridges.cluster import at_owner
from bridges.cluster.members import Member, State
from bridges.errors import LogError, NotOwner, PeerUnreachable
from tests.left_out import Scenario, is_noticed, without

PATIENCE_S = 5.0


class Cluster:
    """What node 1 knows: all slots are one node's. Every node answers with its number, after failures that a test
    sets."""

    node_id = 1

    def __init__(self, has: int) -> None:
        self.has = has
        self.acts = True
        self.states = dict.fromkeys((1, 2, 3), State.UP)
        self.failures: list[Exception] = []
        self.asked: list[int] = []

    def slot(self) -> int:
        return 7

    def owner(self, slot: int) -> Member | None:
        return Member(self.has, self.has, self.states[self.has]) if self.has else None

    def is_mine(self, slot: int) -> bool:
        return self.has == 1 and self.acts

    async def here(self) -> int:
        return self._answer(1)

    async def there(self, owner: Member) -> int:
        assert owner.node_id != self.node_id, "it asks itself"
        return self._answer(owner.node_id)

    def _answer(self, number: int) -> int:
        self.asked.append(number)
        if self.failures:
            raise self.failures.pop(0)
        return number

    def change_later(self, change: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(0.1, change)

    def move_later(self, to: int) -> None:
        def move() -> None:
            self.has, self.acts = to, True

        self.change_later(move)


async def ask(made: ModuleType, cluster: Cluster, patience_s: float = PATIENCE_S) -> int:
    async with asyncio.timeout(PATIENCE_S / 2):
        found: Any = await made.at_owner(cluster, cluster.slot, cluster.here, cluster.there, patience_s)
    return int(found)


async def work_runs_where_the_owner_is(made: ModuleType) -> None:
    for number in (1, 2):
        assert await ask(made, Cluster(number), 0) == number


async def an_owner_is_waited_for(made: ModuleType) -> None:
    cluster = Cluster(0)
    cluster.move_later(2)
    assert await ask(made, cluster) == 2
    assert cluster.asked == [2]


async def a_member_that_has_ended_is_not_asked(made: ModuleType) -> None:
    cluster = Cluster(2)
    cluster.states[2] = State.ENDING
    cluster.move_later(3)
    assert await ask(made, cluster) == 3
    assert cluster.asked == [3]
    cluster.states[3] = State.LEAVING
    assert await ask(made, cluster) == 3, "it serves until it has handed over"


async def a_slot_that_this_node_is_about_to_have_is_not_asked_for_here(made: ModuleType) -> None:
    cluster = Cluster(1)
    cluster.acts = False
    cluster.move_later(1)
    assert await ask(made, cluster) == 1
    assert cluster.asked == [1]


async def work_is_repeated_where_the_owner_is_then(made: ModuleType) -> None:
    for failure in (NotOwner("it", 3), PeerUnreachable("gone")):
        cluster = Cluster(2)
        cluster.failures.append(failure)
        cluster.move_later(3)
        assert await ask(made, cluster) in (2, 3)
        assert cluster.asked[0] == 2
        assert len(cluster.asked) == 2


async def other_errors_come_at_once(made: ModuleType) -> None:
    cluster = Cluster(2)
    cluster.failures.append(LogError("no"))
    with pytest.raises(LogError, match="no"):
        await ask(made, cluster)
    assert cluster.asked == [2]


async def patience_ends(made: ModuleType) -> None:
    for has, error in ((0, NotOwner), (2, PeerUnreachable)):
        cluster = Cluster(has)
        cluster.failures = [PeerUnreachable("gone")] * 1000
        with pytest.raises(error):
            await ask(made, cluster, 0.2)


async def items_are_shared_out_by_owner(made: ModuleType) -> None:
    cluster = Cluster(2)
    cluster.is_mine = lambda slot: slot == 0  # type: ignore[method-assign]
    here, elsewhere = made.share_out(cluster, "abca", lambda item: ord(item) - ord("a"))
    assert here == ["a", "a"]
    assert [(owner.node_id, items) for owner, items in elsewhere] == [(2, ["b", "c"])]
    cluster.has = 0
    with pytest.raises(NotOwner, match="b"):
        made.share_out(cluster, "ab", lambda item: ord(item) - ord("a"))


SCENARIOS: list[Scenario] = [
    work_runs_where_the_owner_is,
    an_owner_is_waited_for,
    a_member_that_has_ended_is_not_asked,
    a_slot_that_this_node_is_about_to_have_is_not_asked_for_here,
    work_is_repeated_where_the_owner_is_then,
    other_errors_come_at_once,
    patience_ends,
    items_are_shared_out_by_owner,
]
_CONDITION = "owner is None or owner.state not in SERVING or owner.node_id == owners.node_id"
WITHOUT = {
    "no owner is no answer": (_CONDITION, "owner.state not in SERVING or owner.node_id == owners.node_id"),
    "who serves": (_CONDITION, "owner is None or owner.node_id == owners.node_id"),
    "this node does not ask itself": (_CONDITION, "owner is None or owner.state not in SERVING"),
    "here": ("if owners.is_mine(slot):", "if False:"),
    "another owner is waited for": ("except (NotOwner, PeerUnreachable):", "except PeerUnreachable:"),
    "who does not answer is asked again": ("except (NotOwner, PeerUnreachable):", "except NotOwner:"),
    "an end": ("if time.monotonic() >= until:", "if False:"),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
async def test_a_promise_is_kept(scenario: Scenario) -> None:
    await scenario(at_owner)


@pytest.mark.parametrize("safeguard", WITHOUT)
async def test_a_safeguard_that_is_left_out_is_noticed(safeguard: str) -> None:
    assert await is_noticed(without(at_owner, *WITHOUT[safeguard]), SCENARIOS)
