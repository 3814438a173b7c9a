"""Slots, the units of ownership: a fixed number, over which partitions and coordinated names are spread by hash.

So the size of the database's tables, and of the one transaction that distributes a dead node's share, depends on the
number of slots and not on the number of partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType

from msgspec import Struct

SLOTS = 1024
"""Number of slots of a new cluster; the database stores the number, which never changes."""
NOBODY = 0
ANY = -1


class Slot(Struct, frozen=True):
    """The state of a slot.

    ``owner``: the start of a member, or :data:`NOBODY`. ``epoch``: above that of every earlier owner. ``pin``: the id
    of the node that should own it, :data:`ANY` where balancing decides.
    """

    owner: int = NOBODY
    epoch: int = -1
    pin: int = ANY


class Move(Struct, frozen=True):
    """A slot that should go to the member ``to``."""

    slot: int
    to: int


def slot_of_partition(topic_id: bytes, partition: int, slots: int) -> int:
    """Return the slot of a partition.

    Neighbouring partitions of a topic lie in neighbouring slots, so that the nodes have similar shares of the topic.
    """
    return (_number(topic_id) + partition) % slots


def slot_of_key(kind: str, key: str, slots: int) -> int:
    """Return the slot of a coordinated name, such as a group or transactional id."""
    return _number(f"{kind}\0{key}".encode()) % slots


def plan(
    members: Collection[int],
    owners: Sequence[int],
    leaving: Collection[int] = (),
    pins: Mapping[int, int] = MappingProxyType({}),
) -> list[Move]:
    """Return the fewest moves that give all ``members`` equal shares, up to one slot.

    ``owners``: the owner of each slot. Slots of :data:`NOBODY` and of members ``leaving`` go first; other members keep
    what they have, except what exceeds their share. ``pins``: the member that must have a slot, whatever the shares
    are; a slot whose member is none of ``members`` stays. Equal arguments give equal moves.
    """
    if not members:
        return []
    pinned = dict.fromkeys(sorted(members), 0)
    sizes = dict(pinned)
    movable = (NOBODY, *leaving)
    wanted: list[Move] = []
    free: list[int] = []
    for slot in _scattered(len(owners)):
        owner, pin = owners[slot], pins.get(slot)
        is_loose = owner in movable and owner not in sizes
        holder = owner
        if pin is None or (pin not in sizes and is_loose):
            free.append(slot)
        else:
            if pin in sizes:
                holder = pin
                if owner != pin and (is_loose or owner in sizes):
                    wanted.append(Move(slot, pin))
            if holder in pinned:
                pinned[holder] += 1
        if holder in sizes:
            sizes[holder] += 1
    above = {member: sizes[member] - quota for member, quota in _quotas(sizes, pinned, len(owners)).items()}
    loose: list[int] = []
    excess: list[int] = []
    for slot in free:
        owner = owners[slot]
        if owner in movable and owner not in sizes:
            loose.append(slot)
        elif above.get(owner, 0) > 0:
            above[owner] -= 1
            excess.append(slot)
    takers = _in_turns({member: -above[member] for member in sorted(above) if above[member] < 0})
    return [*wanted, *(Move(slot, to) for slot, to in zip((*loose, *excess), takers, strict=False))]


def _quotas(sizes: Mapping[int, int], pinned: Mapping[int, int], slots: int) -> dict[int, int]:
    """Return how many slots each member should have: equal shares, unless a member has more slots pinned to it."""
    # The members with the most slots keep the remainder of the division.
    rest = sorted(sizes, key=lambda member: (-sizes[member], member))
    quota: dict[int, int] = {}
    while True:
        least, extra = divmod(slots, len(rest))
        more = [member for member in rest if pinned[member] > least]
        if not more:
            return quota | {member: least + (index < extra) for index, member in enumerate(rest)}
        for member in more:
            quota[member] = pinned[member]
            slots -= pinned[member]
        rest = [member for member in rest if member not in quota]


def pins_of(slots: Iterable[Slot], up: Mapping[int, int]) -> dict[int, int]:
    """Return the start that should own each pinned slot. ``up``: the starts of nodes that are UP, by node id."""
    return {index: up[slot.pin] for index, slot in enumerate(slots) if slot.pin in up}


def sizes_of(owners: Iterable[int]) -> Counter[int]:
    """Return how many slots each owner has."""
    return Counter(owners)


@lru_cache(maxsize=8)
def _scattered(slots: int) -> tuple[int, ...]:
    """Return all slots in an order whose every prefix is spread evenly.

    Neighbouring slots belong to a topic, and a member that gets some slots should get a similar share of each topic.
    (The fractional parts of the golden ratio's multiples are spread so.)
    """
    return tuple(sorted(range(slots), key=lambda slot: slot * 0x9E3779B97F4A7C15 % 2**64))


def _in_turns(lacking: dict[int, int]) -> list[int]:
    takers: list[int] = []
    left = dict(lacking)
    while left:
        for member in list(left):
            takers.append(member)
            left[member] -= 1
            if not left[member]:
                del left[member]
    return takers


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
