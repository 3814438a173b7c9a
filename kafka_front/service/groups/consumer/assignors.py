"""The server's assignors of KIP-848, as sliced work, since clients choose how large a group is.

``uniform`` spreads partitions as evenly as possible and moves as few as possible. ``range`` gives the members of each
topic, in one order for all topics, adjoining ranges. So topics with equal partition counts and the same members have
the same partition numbers at each member. It ignores the previous assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from msgspec import Struct

from anabranch_kit.run.sliced import Sliced
from kafka_front.service.groups.consumer.group import Partitions

_SLICE = 2_000
"""Partitions or members in one step of the sliced work."""
_MAX_PASSES = 16

Targets = dict[str, Partitions]
"""Target assignments by member id."""


class AssignedMember(Struct, frozen=True):
    """A member as assignors see it: its topics by id, and its previous target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    target: Partitions


Assignor = Callable[[Sequence[AssignedMember], Mapping[bytes, int]], Sliced[Targets]]
"""Members and the number of partitions by topic id -> every member's partitions."""


def uniform(members: Sequence[AssignedMember], topics: Mapping[bytes, int]) -> Sliced[Targets]:
    """Assign as evenly as subscriptions allow, and stickily.

    Members keep their partitions. A free partition goes to the reader of its topic with the fewest. Then partitions
    move from members to readers that have at least two fewer. If all members read the same topics, their numbers
    finally differ by one at most, after as few moves as possible.
    """
    ordered = sorted(members, key=lambda member: member.member_id)
    loads = [0] * len(ordered)
    owners: dict[bytes, list[int]] = {topic: [-1] * count for topic, count in topics.items()}
    readers: dict[bytes, list[int]] = {topic: [] for topic in topics}
    steps = 0
    for index, member in enumerate(ordered):
        for topic in member.topics:
            if topic in readers:
                readers[topic].append(index)
                steps += 1
        for topic, numbers in member.target.items():
            if topic not in member.topics or topic not in owners:
                continue
            of_topic = owners[topic]
            for number in numbers:
                if number < len(of_topic) and of_topic[number] < 0:
                    of_topic[number] = index
                    loads[index] += 1
            steps += len(numbers)
        if steps >= _SLICE:
            steps = 0
            yield None
    # Topics with the same readers are one pool. Pools with few readers come first: later ones can still even out the
    # loads.
    pools: dict[tuple[int, ...], list[bytes]] = {}
    for topic, of_topic_readers in readers.items():
        if of_topic_readers:
            pools.setdefault(tuple(of_topic_readers), []).append(topic)
    order = sorted(pools.items(), key=lambda pool: (len(pool[0]), pool[1]))
    for pool_readers, pool in order:
        yield from _hand_out([owners[topic] for topic in sorted(pool)], pool_readers, loads)
    for _ in range(_MAX_PASSES):
        moved = False
        for pool_readers, pool in order:
            if len(pool_readers) > 1:
                moved |= yield from _level([owners[topic] for topic in sorted(pool)], pool_readers, loads)
        if not moved or len(order) == 1:
            break
    return (yield from _collected(ordered, owners))


def _hand_out(pool: Sequence[list[int]], readers: Sequence[int], loads: list[int]) -> Sliced[None]:
    heap = [(loads[index], index) for index in readers]
    heapify(heap)
    steps = 0
    for owners in pool:
        for number, owner in enumerate(owners):
            if owner < 0:
                load, index = heap[0]
                owners[number] = index
                loads[index] = load + 1
                heapreplace(heap, (load + 1, index))
            steps += 1
            if steps % _SLICE == 0:
                yield None


def _level(pool: Sequence[list[int]], readers: Sequence[int], loads: list[int]) -> Sliced[bool]:
    """Move partitions of one pool until no owner has two more than another reader. Returns whether any moved."""
    held: dict[int, list[tuple[list[int], int]]] = {}
    steps = 0
    for owners in pool:
        for number, owner in enumerate(owners):
            held.setdefault(owner, []).append((owners, number))
            steps += 1
            if steps % _SLICE == 0:
                yield None
    low = [(loads[index], index) for index in readers]
    high = [(-loads[index], index) for index in held]
    heapify(low)
    heapify(high)
    moved = 0
    while high:
        steps += 1
        if steps % _SLICE == 0:
            yield None
        load, giver = high[0]
        if -load != loads[giver] or not held[giver]:
            heappop(high)
            continue
        least, taker = low[0]
        if least != loads[taker]:
            heappop(low)
            continue
        if loads[giver] - least < 2:
            break
        owners, number = held[giver].pop()
        owners[number] = taker
        held.setdefault(taker, []).append((owners, number))
        loads[giver] -= 1
        loads[taker] += 1
        for index in (giver, taker):  # their older entries are now stale
            heappush(low, (loads[index], index))
            heappush(high, (-loads[index], index))
        moved += 1
    return moved > 0


def ranges(members: Sequence[AssignedMember], topics: Mapping[bytes, int]) -> Sliced[Targets]:
    """Give adjoining partitions of each topic to the members that read it, static ones first, in the order of their
    ids."""
    ordered = sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or "", member.member_id)
    )
    readers: dict[bytes, list[int]] = {topic: [] for topic in topics}
    steps = 0
    for index, member in enumerate(ordered):
        for topic in member.topics:
            if topic in readers:
                readers[topic].append(index)
        steps += len(member.topics) + 1
        if steps >= _SLICE:
            steps = 0
            yield None
    owners: dict[bytes, list[int]] = {}
    for topic, count in topics.items():
        of_topic = owners[topic] = []
        share, more = divmod(count, len(readers[topic]) or 1)
        for position, index in enumerate(readers[topic]):
            of_topic += [index] * (share + (position < more))
        steps += len(of_topic) + len(readers[topic])
        if steps >= _SLICE:
            steps = 0
            yield None
    return (yield from _collected(ordered, owners))


def _collected(members: Sequence[AssignedMember], owners: Mapping[bytes, list[int]]) -> Sliced[Targets]:
    gathered: list[dict[bytes, set[int]]] = [{} for _ in members]
    steps = 0
    for topic, of_topic in owners.items():
        for number, index in enumerate(of_topic):
            if index >= 0:
                gathered[index].setdefault(topic, set()).add(number)
        steps += len(of_topic)
        if steps >= _SLICE:
            steps = 0
            yield None
    targets: Targets = {}
    for member, partitions in zip(members, gathered, strict=True):
        before = member.target
        now = {topic: frozenset(numbers) for topic, numbers in partitions.items()}
        targets[member.member_id] = before if now == before else now
        steps += 1
        if steps % _SLICE == 0:
            yield None
    return targets


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": ranges}
"""Assignors by the names that clients know; the first is the default (group.consumer.assignors)."""
DEFAULT_ASSIGNOR = next(iter(ASSIGNORS))
