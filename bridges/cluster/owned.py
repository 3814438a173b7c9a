"""What has one coordinator, groups say, is coordinated by the owner of the slot its name lies in.

Who becomes the owner reads what the former one has stored before it answers; clients are told to come again meanwhile.
Who is the owner no longer answers whoever waits, and forgets. A node that was paused may find a request in its socket
of what is another's by now: whatever it stores asks in the same transaction whether the slot is still its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.task_set import TaskSet
from bridges.errors import LogError

if TYPE_CHECKING:
    from bridges.catalog.progress import Holding
    from bridges.cluster.ownership import Ownership

_log = structlog.get_logger("anabranch.cluster")

_AGAIN_S = 0.25


class OwnedNames(ABC):
    """Those of the slots that this node acts for. ``what`` one of them is called in messages."""

    what: str

    def __init__(self, owners: Ownership) -> None:
        self._owners = owners
        # Slots of which everything is known here.
        self._known: set[int] = set()
        self._tasks = TaskSet()
        owners.on_gained.append(self._gained)
        owners.on_lost.append(self._lost)

    @abstractmethod
    def slot(self, name: str) -> int:
        """Where a name lies."""

    @abstractmethod
    async def read(self, wanted: Callable[[str], bool]) -> None:
        """Know of the names that are ``wanted``, and this node's, what is stored. Raises LogError."""

    @abstractmethod
    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        """Forget what lies in these slots; ``in_order``: and return when nothing that was begun is still on its way."""

    def owns(self, name: str) -> bool:
        """Whether this node coordinates it, and knows all of it."""
        return self.slot(name) in self._known

    def holding(self, name: str) -> Holding:
        """What a transaction of the database calls first that changes what is stored under a name."""
        return self._owners.holding(self.slot(name))

    async def begin(self) -> None:
        """Know of what is this node's from its start, before anybody asks; slots that come later are read as they
        come. Raises LogError."""
        slots = frozenset(self._owners.mine)
        while not await self._know(slots):
            pass  # one of them went and came again meanwhile

    async def close(self) -> None:
        """Read nothing more."""
        await self._tasks.close()

    def _gained(self, slots: Collection[int]) -> None:
        self._tasks.spawn(self._read(frozenset(slots)))

    async def _read(self, slots: frozenset[int]) -> None:
        while True:
            try:
                if await self._know(slots):
                    return
            except LogError as error:
                _log.warning(f"a {self.what} that came to this node could not be read", error=str(error))
                await asyncio.sleep(_AGAIN_S)

    async def _know(self, slots: frozenset[int]) -> bool:
        """Read what lies in those of ``slots`` that are this node's; whether they still are as they were before."""
        mine = {slot: self._owners.epoch(slot) for slot in slots if self._owners.is_mine(slot)}
        if mine:
            await self.read(lambda name: self.slot(name) in slots)
        still = {slot for slot in mine if self._owners.is_mine(slot)}
        if any(self._owners.epoch(slot) != mine[slot] for slot in still):
            return False
        self._known |= still
        return True

    async def _lost(self, slots: Collection[int], in_order: bool) -> None:
        gone = frozenset(slots)
        self._known -= gone
        await self.give_up(gone, in_order)
