"""What the rest of a node asks about who owns what.

A node by itself has none and owns everything. Nothing of this is asked for an append: a partition's log asks
when it is opened, and is closed when its slot is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from bridges.cluster.members import Member, State

if TYPE_CHECKING:
    from bridges.catalog.sql import Connection

Lost = Callable[[Collection[int], bool], Awaitable[None]]
"""Called with slots that this node acts for no more; the second argument is true when they are about to be handed over:
then it returns when nothing of theirs is under way here."""
Gained = Callable[[Collection[int]], None]
"""Called with slots that this node acts for from now on."""
Gone = Callable[[], None]
"""Called when members have ended for good: what only they could serve is served by others now."""


class Ownership(Protocol):
    """Who owns partitions, and coordinates what has one coordinator (groups, transactional ids)."""

    on_lost: list[Lost]
    on_gained: list[Gained]
    on_gone: list[Gone]

    @property
    def nodes(self) -> Sequence[Member]:
        """Those that serve, in the order of their ids."""
        ...

    def slot_of(self, topic: str, partition: int) -> int:
        """The slot of a partition; -1 of an unknown topic."""
        ...

    def slot_of_key(self, kind: str, key: str) -> int:
        """The slot of what has one coordinator, by its ``kind`` (of what, a front's own word) and name."""
        ...

    def owner(self, slot: int) -> Member | None:
        """Who acts for a slot, as far as is known here; None: nobody does."""
        ...

    def is_mine(self, slot: int) -> bool:
        """Whether this node acts for it."""
        ...

    def epoch(self, slot: int) -> int:
        """The epoch in which its owner has it, as far as is known here."""
        ...

    def holding(self, slot: int) -> Callable[[Connection], None]:
        """What a transaction of the node's database calls first that is the owner's of a slot to make: it raises
        NotOwner where this start of the node is not, and lets nobody become it before the transaction has ended."""
        ...

    async def raise_epoch(self, slot: int) -> int:
        """A higher epoch for a slot of this node. Raises NotOwner, and errors of the database."""
        ...


SERVING = frozenset({State.UP, State.LEAVING})
"""What members do of which clients are told."""
