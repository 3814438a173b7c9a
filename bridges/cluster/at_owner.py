"""The one way to the owner of a slot: work runs here if this node acts for the slot, else at the node that does. And
the way to all other nodes, for what each of them has a part of.

Owners change: a node that ends abruptly is succeeded within a lease, and a message may meet a former owner. So work is
repeated, with one back-off and one patience, while no node acts for the slot or its owner does not answer. Owners check
that they act for the slot, and what they are asked for may be repeated (docs/cluster.md, "What nodes ask one another").
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from bridges.cluster.ownership import SERVING
from bridges.errors import LogError, NotOwner, PeerUnreachable

if TYPE_CHECKING:
    from msgspec import Struct

    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Membership, Others, Ownership

PATIENCE_S = 15.0
AGAIN_S = 0.05

A = TypeVar("A")
S = TypeVar("S", bound="Struct")
T = TypeVar("T")


async def at_owner(
    owners: Ownership,
    slot: Callable[[], int],
    here: Callable[[], Awaitable[A]],
    there: Callable[[Member], Awaitable[A]],
    patience_s: float = PATIENCE_S,
) -> A:
    """Run ``here`` if this node acts for a slot, else ``there`` with its owner. ``slot`` is called again at each try.

    Raises NotOwner or PeerUnreachable if no owner answered for ``patience_s``, and other errors of the work at once.
    """

    async def once() -> A:
        owner = find_owner(owners, slot())
        return await (here() if owner is None else there(owner))

    return await patiently(once, patience_s)


async def patiently(work: Callable[[], Awaitable[A]], patience_s: float = PATIENCE_S) -> A:
    """Run ``work``, and again for ``patience_s`` while it raises NotOwner or PeerUnreachable."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return await work()
        except (NotOwner, PeerUnreachable):
            if time.monotonic() >= until:
                raise
        await asyncio.sleep(AGAIN_S)


def find_owner(owners: Ownership, slot: int, what: str = "what is asked for") -> Member | None:
    """Return the node that acts for a slot, None if it is this node. Raises NotOwner if there is none now."""
    if owners.is_mine(slot):
        return None
    owner = owners.owner(slot)
    # This node's id: of a former start, or of this start before it acts for the slot.
    if owner is None or owner.state not in SERVING or owner.node_id == owners.node_id:
        raise NotOwner(what, -1)
    return owner


def share_out(
    owners: Ownership, items: Iterable[T], slot_of: Callable[[T], int], name: Callable[[T], str] = str
) -> tuple[list[T], list[tuple[Member, list[T]]]]:
    """Return the items in slots of this node, and those of other nodes by owner. Raises NotOwner, with an item's name,
    if its slot has none."""
    here: list[T] = []
    elsewhere: dict[int, tuple[Member, list[T]]] = {}
    for item in items:
        owner = find_owner(owners, slot_of(item), name(item))
        if owner is None:
            here.append(item)
        else:
            elsewhere.setdefault(owner.start, (owner, []))[1].append(item)
    return here, list(elsewhere.values())


def find_others(owners: Membership) -> list[Member]:
    """Return all nodes but this one."""
    return [one for one in owners.nodes if one.node_id != owners.node_id]


async def ask_others(
    owners: Membership, peers: Others, kind: str, message: Struct, answer: type[S], patience_s: float
) -> tuple[list[S], set[int]]:
    """Ask all other nodes at once. Return their answers, and the ids of the nodes that gave none in ``patience_s``: who
    shows the answers names these."""
    unanswered: set[int] = set()

    async def ask(member: Member) -> list[S]:
        try:
            return [await peers.ask(member, kind, message, answer, patience_s)]
        except LogError:
            unanswered.add(member.node_id)
            return []

    told = await asyncio.gather(*map(ask, find_others(owners)))
    return [one for answers in told for one in answers], unanswered
