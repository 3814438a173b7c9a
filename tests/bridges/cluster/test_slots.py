"""Plans are balanced, move little, and are the same wherever they are made."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bridges.cluster.slots import NOBODY, plan, sizes_of, slot_of_key, slot_of_partition

members = st.sets(st.integers(1, 9), min_size=1)
owners = st.lists(st.integers(0, 9), min_size=1, max_size=60)


def carried_out(given_to: set[int], before: list[int], leaving: set[int]) -> list[int]:
    after = list(before)
    for move in plan(given_to, before, leaving):
        assert move.to in given_to
        assert after[move.slot] != move.to
        after[move.slot] = move.to
    return after


@given(members, owners, st.sets(st.integers(1, 9)))
def test_shares_are_alike_and_as_little_as_possible_moves(up: set[int], before: list[int], leaving: set[int]) -> None:
    leaving -= up
    # Of one who is neither up nor leaving nothing is taken: somebody ends him first.
    theirs = {owner for owner in before if owner not in up and owner not in leaving and owner != NOBODY}
    after = carried_out(up, before, leaving)
    sizes = sizes_of(after)
    kept = Counter(owner for owner in before if owner in theirs)
    assert all(sizes[owner] == count for owner, count in kept.items())
    assert not any(owner in after for owner in {NOBODY, *leaving})
    if not theirs:
        assert max(sizes[one] for one in up) - min(sizes[one] for one in up) <= 1
        loose = sum(owner not in up for owner in before)
        least = len(before) // len(up)
        excess = sum(max(0, size - least) for one, size in sizes_of(before).items() if one in up)
        assert sum(one != other for one, other in zip(before, after, strict=True)) <= loose + excess
    assert plan(up, after, leaving) == []


@given(members, owners, st.sets(st.integers(1, 9)), st.dictionaries(st.integers(0, 59), st.integers(1, 9)))
def test_what_is_pinned_goes_there_and_the_rest_is_shared_alike(
    up: set[int], before: list[int], leaving: set[int], pins: dict[int, int]
) -> None:
    leaving -= up
    pins = {slot: pin for slot, pin in pins.items() if slot < len(before)}
    after = list(before)
    for move in plan(up, before, leaving, pins):
        assert after[move.slot] != move.to
        after[move.slot] = move.to
    dead = {owner for owner in before if owner not in up and owner not in leaving and owner != NOBODY}
    for slot, (old, new) in enumerate(zip(before, after, strict=True)):
        pin = pins.get(slot)
        if old in dead:
            assert new == old
        elif pin in up:
            assert new == pin
        elif pin is not None and old in up:
            assert new == old  # whose it is to be is not there now
        else:
            assert new in up
    assert plan(up, after, leaving, pins) == []
    if not dead:
        sizes = {one: after.count(one) for one in up}
        free = {owner for slot, owner in enumerate(after) if slot not in pins}
        assert all(sizes[one] - min(sizes.values()) <= 1 for one in free)


@given(members, owners)
def test_a_plan_is_the_same_in_any_order(up: set[int], before: list[int]) -> None:
    assert plan(sorted(up), before) == plan(sorted(up, reverse=True), before)


def test_a_node_that_comes_takes_only_its_share() -> None:
    before = [1] * 512 + [2] * 512
    moves = plan([1, 2, 3], before)
    assert len(moves) == 341
    assert {move.to for move in moves} == {3}


def test_partitions_of_a_topic_are_spread() -> None:
    topic = bytes(range(16))
    found = [slot_of_partition(topic, index, 1024) for index in range(1024)]
    assert sorted(found) == list(range(1024))
    # Whether the nodes come together or one by one, and when one goes.
    slots = carried_out({1, 2}, carried_out({1}, [NOBODY] * 1024, set()), set())
    slots = carried_out({1, 2, 3}, slots, set())
    for shares in (slots, carried_out({1, 2, 3}, [NOBODY] * 1024, set())):
        gone = carried_out({2, 3}, [NOBODY if one == 1 else one for one in shares], set())
        for nodes, owned in (({1, 2, 3}, shares), ({2, 3}, gone)):
            for first in range(0, 1000, 12):
                sizes = Counter(owned[slot] for slot in found[first : first + 12])
                assert max(sizes.values()) <= 12 / len(nodes) + 3
                assert sizes.keys() == nodes


def test_keys_lie_where_they_always_lay() -> None:
    """The number is part of what nodes say to one another: it may never change."""
    assert [slot_of_key("group", key, 1024) for key in ("", "readers", "ж")] == [171, 753, 315]
    assert slot_of_partition(bytes(16), 3, 1024) == 17
    assert slot_of_key("a", "b", 1024) != slot_of_key("b", "a", 1024)
