"""Names with a coordinator, such as groups: the owner of the hash slot of a name coordinates it.

A new owner reads what the former one has stored before it answers; meanwhile clients are asked to retry. A former owner
answers its waiters, and forgets the names. A node that was paused may find requests in its socket for names that
another node owns by now: so every write checks, in the same transaction, that the slot is still its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from anabranch_kit.run.task_set import TaskSet
from bridges.errors import LogError

if TYPE_CHECKING:
    from bridges.catalog.progress import Holding
    from bridges.cluster.ownership import Ownership

_log = structlog.get_logger("anabranch.cluster")

_AGAIN_S = 0.25


class Wanted(Struct, frozen=True):
    """The names to read: those in ``slots`` for which ``finds`` is true."""

    slots: frozenset[int]
    finds: Callable[[str], bool]

    def __call__(self, name: str) -> bool:
        return self.finds(name)


class OwnedNames(ABC):
    """The names in the slots for which this node acts. ``what``: the noun for a name in messages."""

    what: str

    def __init__(self, owners: Ownership) -> None:
        self._owners = owners
        # Slots whose names have been read.
        self._known: set[int] = set()
        self._tasks = TaskSet()
        owners.on_gained.append(self._gained)
        owners.on_lost.append(self._lost)

    @abstractmethod
    def slot(self, name: str) -> int:
        """Return the slot of a name."""

    @abstractmethod
    async def read(self, wanted: Wanted) -> None:
        """Read the stored state of this node's names that are ``wanted``. Raises LogError."""

    @abstractmethod
    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        """Forget the names in these slots; with ``in_order``, return only when nothing that was begun is in flight."""

    def owns(self, name: str) -> bool:
        """Return whether this node coordinates a name and has read its state."""
        return self.slot(name) in self._known

    def holding(self, name: str) -> Holding:
        """Return the check that a transaction must call first before it changes what is stored under a name."""
        return self._owners.holding(self.slot(name))

    async def begin(self) -> None:
        """Read the names of this node's slots before it serves; slots gained later are read then. Raises LogError."""
        slots = frozenset(self._owners.mine)
        while not await self._know(slots):
            pass  # a slot was lost and gained again meanwhile

    async def close(self) -> None:
        """Stop reading."""
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
        """Read the names in those of ``slots`` that this node owns; return False if an epoch has changed meanwhile."""
        mine = {slot: self._owners.epoch(slot) for slot in slots if self._owners.is_mine(slot)}
        if mine:
            await self.read(Wanted(slots, lambda name: self.slot(name) in slots))
        still = {slot for slot in mine if self._owners.is_mine(slot)}
        if any(self._owners.epoch(slot) != mine[slot] for slot in still):
            return False
        self._known |= still
        return True

    async def _lost(self, slots: Collection[int], in_order: bool) -> None:
        gone = frozenset(slots)
        self._known -= gone
        await self.give_up(gone, in_order)
