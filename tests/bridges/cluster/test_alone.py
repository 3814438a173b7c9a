"""A node by itself is a cluster of one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from unittest.mock import AsyncMock

import pytest

from bridges.cluster.alone import Alone, NoPeers
from bridges.cluster.at_owner import find_owner
from bridges.cluster.owned import OwnedNames
from bridges.cluster.ownership import Membership, Others
from bridges.errors import CannotMove, PeerUnreachable


class Names(OwnedNames):
    """Names that are read from nowhere; ``while_reading`` is called as they are."""

    what = "name"

    def __init__(self, owners: Alone, while_reading: Callable[[], None] = lambda: None) -> None:
        super().__init__(owners)
        self.reads = 0
        self._while_reading = while_reading

    def slot(self, name: str) -> int:
        return self._owners.slot_of_key("kind", name)

    async def read(self, wanted: Callable[[str], bool]) -> None:
        assert wanted("a")
        self.reads += 1
        self._while_reading()

    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        pass


async def test_it_owns_everything_before_it_has_asked_anybody() -> None:
    ask = AsyncMock()
    alone: Membership = Alone(7, ask)
    for slot in (alone.slot_of("t", 3), alone.slot_of_key("group", "g")):
        assert alone.is_mine(slot)
        assert slot in alone.mine
        assert alone.owner(slot) is alone.nodes[0]
        assert find_owner(alone, slot) is None
    await alone.await_known()
    await alone.await_owners(0)
    assert not ask.called


async def test_each_epoch_is_above_those_before() -> None:
    alone = Alone(0, AsyncMock(side_effect=[4, 5]))
    await alone.begin()
    assert (alone.epoch(0), await alone.raise_epoch(0)) == (4, 5)
    assert alone.epoch(0) == 4, "of this run; a log that is opened again has its own"


async def test_names_are_known_before_anybody_asks() -> None:
    names = Names(Alone(0, AsyncMock()))
    assert not names.owns("a"), "not yet read"
    await names.begin()
    assert names.owns("a")
    assert names.reads == 1


async def test_names_that_went_and_came_while_they_were_read_are_read_again() -> None:
    alone = Alone(0, AsyncMock())
    epochs = iter([1, 2, 3, 3])
    alone.epoch = lambda slot: next(epochs)  # type: ignore[method-assign]
    names = Names(alone)
    await names.begin()
    assert names.reads == 2


async def test_it_refuses_to_move_and_reaches_nobody() -> None:
    alone = Alone(0, AsyncMock())
    with pytest.raises(CannotMove, match=r"no cluster\.database"):
        await alone.drain(0)
    with pytest.raises(CannotMove):
        _ = alone.keeper
    peers: Others = NoPeers()
    with pytest.raises(PeerUnreachable, match="by itself"):
        await peers.stream(alone.nodes[0], "kind", AsyncMock())
