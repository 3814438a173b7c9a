"""A cluster of one: a node that shares its database with no other node owns everything from the start.

It stands where :mod:`bridges.cluster.service` and :mod:`bridges.cluster.peers.peers` stand in a cluster, so that the
rest of the node is written once. The only use of the database here is the epoch of each run, and no module for talking
to other nodes is imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from bridges.cluster.members import Member, State
from bridges.cluster.ownership import Outages
from bridges.errors import CannotMove, PeerUnreachable

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.cluster.keeper import Keeper
    from bridges.cluster.ownership import Gained, Gone, Lost

_SLOT = 0
_START = 1
_NO_OTHERS = "this node is by itself: it has no cluster.database"


class Alone:
    """The ownership of a single node (:class:`bridges.cluster.ownership.Membership`): it owns the only slot.

    ``next_epoch`` must return a number above every earlier one, also after a crash.
    """

    def __init__(self, node_id: int, next_epoch: Callable[[], Awaitable[int]]) -> None:
        self.node_id = node_id
        self.on_lost: list[Lost] = []
        self.on_gained: list[Gained] = []
        self.on_gone: list[Gone] = []
        self.mine: Collection[int] = (_SLOT,)
        self.is_sure = True
        self._next_epoch = next_epoch
        self._member = Member(_START, node_id, State.UP)
        self.nodes: Sequence[Member] = (self._member,)
        self._epoch = -1

    async def begin(self) -> None:
        """Acquire the epoch of this run."""
        self._epoch = await self._next_epoch()

    def slot_of(self, topic: str, partition: int) -> int:
        return _SLOT

    def slot_of_key(self, kind: str, key: str) -> int:
        return _SLOT

    def owner(self, slot: int) -> Member:
        return self._member

    def is_mine(self, slot: int) -> bool:
        return True

    def epoch(self, slot: int) -> int:
        """Return the epoch of this run. A log that is opened again within the run gets a higher one of its own."""
        return self._epoch

    async def raise_epoch(self, slot: int) -> int:
        return await self._next_epoch()

    def holding(self, slot: int) -> Callable[[Connection], None]:
        return _hold

    # --- being a member ---------------------------------------------------------------------------------------------

    @property
    def keeper(self) -> Keeper:
        raise CannotMove(_NO_OTHERS)

    def outages(self) -> Outages:
        return Outages()

    async def _refuse(self, *wish: Any) -> NoReturn:
        raise CannotMove(_NO_OTHERS)

    drain = undrain = move = unpin = _refuse

    async def _nothing(self, *about: Any) -> None:
        """Do nothing: there are no other members."""

    await_known = sure = join = await_owners = leave = retire = _nothing


class NoPeers:
    """The peers of a single node (:class:`bridges.cluster.ownership.Others`): every other node counts as ended."""

    def serve(self, kind: str, message: type[Any], answer: Callable[[Any], Awaitable[Any]]) -> None:
        pass

    def serve_stream(self, kind: str, opening: type[Any], serve: Callable[[Any, Any], Awaitable[None]]) -> None:
        pass

    async def ask(self, member: Member, kind: str, message: Any, answer: type[Any], patience_s: float = 0) -> Any:
        raise PeerUnreachable(f"node {member.node_id} cannot be asked: this node is by itself")

    async def stream(self, member: Member, kind: str, opening: Any) -> Any:
        raise PeerUnreachable(f"node {member.node_id} cannot be asked: this node is by itself")

    def close_stream(self, member: Member, stream: Any) -> None:
        pass

    async def drain(self) -> None:
        pass

    async def close(self) -> None:
        pass


def _hold(connection: Connection) -> None:
    """Do nothing: no other node can become the owner."""
