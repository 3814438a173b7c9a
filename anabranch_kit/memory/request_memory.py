"""Memory of the node that one HTTP request holds: its body, the objects made of it, and its answer."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

from anabranch_kit.memory.budget import Kind

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget


class RequestMemory:
    """An account of the budget for the life of one request; a context manager that gives everything back in the end.

    Work that goes on after the request, with its bytes, calls :meth:`hold` before and :meth:`release` after that.
    """

    __slots__ = ("_account", "_held", "_holders", "_room")

    def __init__(self, budget: MemoryBudget) -> None:
        self._room = asyncio.Event()
        self._account = budget.account(self._room.set)
        self._held = [0] * len(Kind)
        self._holders = 0

    def __enter__(self) -> Self:
        self.hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def hold(self) -> None:
        """Count one more user of the bytes."""
        self._holders += 1

    def release(self) -> None:
        """Count one user less; the last one gives the bytes back."""
        self._holders -= 1
        if not self._holders:
            for one in Kind:
                self.give(one, self._held[one])
            self._account.close()

    async def admit(self, kind: Kind, size: int, instead: int = 0) -> None:
        """Hold ``size`` bytes more, as soon as there is room for them; ``instead``: bytes that are held already and
        given for them.
        """
        while not self._account.admit(kind, size, instead):
            await self._has_room(size, instead)
        self._held[kind] += size - instead

    async def grow(self, kind: Kind, more: int) -> None:
        """Hold ``more`` bytes beside all of the kind that are held, which together may be the one large request."""
        held = self._held[kind]
        await self.admit(kind, held + more, instead=held)

    async def granted(self, kind: Kind, most: int, least: int) -> int:
        """Hold as many bytes more as there is room for, up to ``most``, as soon as there is room for ``least``; return
        them.
        """
        while not (size := self._account.grant(kind, most, least)):
            await self._has_room(least, 0)
        self._held[kind] += size
        return size

    async def _has_room(self, size: int, instead: int) -> None:
        self._room.clear()
        self._account.wait(size, instead)
        await self._room.wait()

    @property
    def is_crowded(self) -> bool:
        """Return whether something has to be given back before more is taken in."""
        return self._account.crowded

    def take(self, kind: Kind, size: int) -> None:
        """Hold ``size`` bytes that exist already."""
        self._account.take(kind, size)
        self._held[kind] += size

    def give(self, kind: Kind, size: int) -> None:
        """Release bytes."""
        if size:
            self._account.give(kind, size)
            self._held[kind] -= size
