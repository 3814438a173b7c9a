"""What is owned: a fixed number of slots, to which partitions and whatever has one coordinator are spread by hash.

So the size of what the database keeps, and of the one transaction in which a dead node's share goes to others, follows
the number of slots and not that of partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType

from msgspec import Struct

SLOTS = 1024
"""Of a new cluster; the database keeps the number, which never changes."""
NOBODY = 0
ANY = -1


class Slot(Struct, frozen=True):
    """``owner``: the start of a member, or :data:`NOBODY`. ``epoch``: above that of every owner before. ``pin``: the id
    of the node that is to have it, :data:`ANY` where balance decides."""

    owner: int = NOBODY
    epoch: int = -1
    pin: int = ANY


class Move(Struct, frozen=True):
    """A slot that should go to the member ``to``."""

    slot: int
    to: int


def slot_of_partition(topic_id: bytes, partition: int, slots: int) -> int:
    """Neighbouring partitions of a topic lie in neighbouring slots, so that the nodes have like shares of it."""
    return (_number(topic_id) + partition) % slots


def slot_of_key(kind: str, key: str, slots: int) -> int:
    """Of what has one coordinator: a group, a transactional id."""
    return _number(f"{kind}\0{key}".encode()) % slots


def plan(
    members: Collection[int],
    owners: Sequence[int],
    leaving: Collection[int] = (),
    pins: Mapping[int, int] = MappingProxyType({}),
) -> list[Move]:
    """As few moves as give every one of ``members`` a like share, with one slot more for some.

    ``owners``: of each slot. What :data:`NOBODY` and those ``leaving`` have goes first; others keep what they have, but
    for what is above a like share. ``pins``: who is to have a slot whatever the shares are; where he is none of
    ``members`` it stays. The same arguments give the same moves.
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
    """How many slots each is to have: alike, but for those who have more pinned to them than that."""
    # Those that have most already keep the slots that do not divide.
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
    """Who is to have which slot; ``up``: the starts of the nodes that are there, by their ids."""
    return {index: up[slot.pin] for index, slot in enumerate(slots) if slot.pin in up}


def sizes_of(owners: Iterable[int]) -> Counter[int]:
    """How many slots each owner has."""
    return Counter(owners)


@lru_cache(maxsize=8)
def _scattered(slots: int) -> tuple[int, ...]:
    """All slots, so that the first of them, however many, lie about evenly among all: neighbouring slots are a topic's,
    and whoever is given some is to have a like share of each topic. (The fractional parts of a golden ratio's multiples
    are spread so.)"""
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
