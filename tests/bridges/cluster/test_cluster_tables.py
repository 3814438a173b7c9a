"""A cluster's transactions, on both engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from anabranch_kit.errors import StoreVersionError
from bridges.catalog.database.counters import identify
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS, extend_cluster
from bridges.catalog.database.sql import Database
from bridges.cluster import tables, versions, wishes
from bridges.cluster.members import Member, State
from bridges.cluster.slots import ANY, NOBODY, sizes_of
from bridges.cluster.tables import Look
from bridges.cluster.versions import OURS, Version
from bridges.errors import CannotMove
from tests.databases import database, on_each_engine

pytestmark = on_each_engine
SLOTS = 8


class Home:
    """A database with a cluster in it."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await self.db.run(lambda connection: work(connection, *arguments))

    async def look(self) -> Look:
        found: Look = await self.do(tables.read_cluster, -1)
        return found

    async def up(self, node_id: int) -> int:
        start: int = await self.do(tables.enter, node_id)
        assert await self.do(tables.join, start, node_id, {"kafka": f"n{node_id}:9092"}, "")
        return start

    async def owners(self) -> list[int]:
        return [slot.owner for slot in (await self.look()).slots or ()]

    async def give(self, giver: int, count: int, to: int) -> list[int]:
        slots = enumerate((await self.look()).slots or ())
        given = [(index, slot.epoch) for index, slot in slots if slot.owner == giver][:count]
        moved: list[int] = await self.do(tables.give, given, giver, to)
        return moved


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    db = database(tmp_path / "a.db", MIGRATIONS, application_id=APPLICATION_ID)
    await db.open()
    made = Home(db)
    await made.do(identify)
    await made.do(tables.make, SLOTS)
    yield made
    await db.close()


async def test_the_number_of_slots_never_changes(home: Home) -> None:
    await home.do(tables.make, 99)
    assert await home.owners() == [NOBODY] * SLOTS


async def test_the_first_gets_everything_and_the_next_its_share(home: Home) -> None:
    first = await home.up(1)
    assert await home.owners() == [first] * SLOTS
    second = await home.up(2)
    assert await home.owners() == [first] * SLOTS
    # More than makes the shares alike is not moved, whoever believes that it should be.
    assert len(await home.give(first, SLOTS, second)) == SLOTS // 2
    assert sizes_of(await home.owners()) == {first: 4, second: 4}
    assert await home.give(first, 1, second) == []


async def test_a_node_has_one_row(home: Home) -> None:
    first = await home.up(1)
    there = await home.do(tables.enter, 1)
    assert isinstance(there, Member)
    assert (there.start, there.state, there.addresses) == (first, State.UP, {"kafka": "n1:9092"})
    assert await home.do(tables.claim, first, 0, NOBODY)
    again = await home.up(1)
    assert again > first
    assert await home.owners() == [first] * SLOTS
    assert await home.do(tables.claim, first, 0, again)
    assert await home.do(tables.finish, first, again)
    assert await home.owners() == [again] * SLOTS


async def test_a_range_server_has_one_node(home: Home) -> None:
    first = await home.up(1)
    assert await home.do(tables.join, first, 7, {}, "")
    there = await home.do(tables.enter, 2, OURS, 7)
    assert isinstance(there, Member)
    assert (there.start, there.node_id) == (first, 1)
    assert await home.do(tables.claim, first, 0, NOBODY)
    second = await home.do(tables.enter, 2, OURS, 7)
    ended, starting = (await home.look()).members
    assert (ended.start, ended.by) == (first, second), "it goes on with the log itself"
    assert (starting.start, starting.server_id) == (second, 7), "and nobody else opens it while it starts"
    assert isinstance(await home.do(tables.enter, 3, OURS, 7), Member)
    for node_id in (4, 5):
        assert isinstance(await home.do(tables.enter, node_id), int), "those without a number are no one's"


async def test_only_whose_counter_stands_still_is_ended(home: Home) -> None:
    first, second = await home.up(1), await home.up(2)
    assert await home.do(tables.beat, second)
    assert not await home.do(tables.claim, second, 0, first)
    assert await home.do(tables.claim, second, 1, first)
    assert await home.do(tables.claim, second, 1, first)  # its answer was lost
    assert not await home.do(tables.beat, second)
    assert not await home.do(tables.join, second, 2, {}, "")
    third = await home.up(3)
    assert not await home.do(tables.claim, second, 1, third)


async def test_what_the_dead_had_goes_to_the_others_in_a_higher_epoch(home: Home) -> None:
    first, second = await home.up(1), await home.up(2)
    await home.give(first, 4, second)
    third = await home.up(3)
    before = (await home.look()).slots or ()
    assert not await home.do(tables.finish, second, first)
    assert await home.do(tables.claim, second, 0, first)
    assert not await home.do(tables.finish, second, third)
    assert await home.do(tables.finish, second, first)
    assert not await home.do(tables.finish, second, first)
    after = await home.look()
    assert [member.start for member in after.members] == [first, third]
    assert sizes_of(await home.owners()) == {first: 4, third: 4}
    for old, new in zip(before, after.slots or (), strict=True):
        assert (old.owner != new.owner) == (new.epoch > old.epoch)


async def test_whoever_was_ending_another_and_ends_is_followed(home: Home) -> None:
    first, second, third = await home.up(1), await home.up(2), await home.up(3)
    assert await home.do(tables.claim, second, 0, first)
    assert await home.do(tables.claim, first, 0, third)
    assert await home.do(tables.claim, second, 0, third)
    assert await home.do(tables.finish, second, third)
    assert not await home.do(tables.finish, second, first)
    assert await home.do(tables.finish, first, third)
    assert await home.owners() == [third] * SLOTS


async def test_whoever_may_not_take_over_hands_that_on(home: Home) -> None:
    first, second, third = await home.up(1), await home.up(2), await home.up(3)
    assert not await home.do(tables.hand_on, second, first, third), "it is not being ended"
    assert await home.do(tables.claim, second, 0, first)
    assert not await home.do(tables.hand_on, second, third, first), "not by this one"
    assert not await home.do(tables.hand_on, second, first, 99), "nobody of that start"
    assert await home.do(tables.hand_on, second, first, third)
    assert not await home.do(tables.finish, second, first)
    assert await home.do(tables.claim, second, -1, third)
    assert await home.do(tables.finish, second, third)
    fourth = await home.up(4)
    assert await home.do(tables.claim, fourth, 0, first)
    assert await home.do(tables.claim, third, 0, first)
    assert not await home.do(tables.hand_on, fourth, first, third), "that is ended itself"


async def test_one_who_leaves_gives_everything_away(home: Home) -> None:
    first, second = await home.up(1), await home.up(2)
    assert await home.do(tables.leave, first)
    assert len(await home.give(first, SLOTS, second)) == SLOTS
    assert await home.do(tables.mark_stopped, first)
    assert await home.do(tables.claim, first, -1, second)  # it has ended: no counter matters
    assert await home.do(tables.finish, first, second)
    assert len((await home.look()).members) == 1


async def test_the_last_one_leaves_what_it_has_to_whoever_comes(home: Home) -> None:
    first = await home.up(1)
    assert await home.do(tables.leave, first)
    assert await home.do(tables.mark_stopped, first)
    second = await home.up(2)
    assert await home.owners() == [first] * SLOTS
    assert await home.do(tables.claim, first, 0, second)
    assert await home.do(tables.finish, first, second)
    assert await home.owners() == [second] * SLOTS


async def test_a_late_giving_finds_another_epoch(home: Home) -> None:
    first, second = await home.up(1), await home.up(2)
    slot = ((await home.look()).slots or ())[0]
    raised = await home.do(tables.raise_epoch, 0, first)
    assert raised > slot.epoch
    assert await home.do(tables.give, [(0, slot.epoch)], first, second) == []
    assert await home.do(tables.raise_epoch, 0, second) is None
    assert await home.do(tables.give, [(0, raised)], first, second) == [0]
    assert await home.do(tables.raise_epoch, 0, first) is None


async def test_nothing_goes_to_one_who_is_not_there(home: Home) -> None:
    first, second = await home.up(1), await home.up(2)
    assert await home.do(tables.leave, second)
    assert await home.give(first, 1, second) == []
    assert await home.do(tables.claim, second, 0, first)
    assert await home.give(first, 1, second) == []
    assert await home.give(first, 1, 99) == []


async def test_slots_are_told_to_those_who_have_them_not(home: Home) -> None:
    await home.up(1)
    known = (await home.look()).version
    assert (await home.do(tables.read_cluster, known)).slots is None
    await home.up(2)
    assert len((await home.do(tables.read_cluster, known)).slots) == SLOTS


async def test_what_is_pinned_goes_to_its_node_whatever_the_shares_are(home: Home) -> None:
    first, second = await home.up(1), await home.up(2)
    assert not await home.do(wishes.pin, [0], 9)
    assert await home.do(wishes.pin, range(6), 2)
    assert len(await home.give(first, SLOTS, second)) == 6
    # Nothing of that comes back, and of the rest nothing goes there.
    given = [(index, slot.epoch) for index, slot in enumerate((await home.look()).slots or ())]
    assert await home.do(tables.give, given[:6], second, first) == []
    assert await home.do(tables.give, given[6:], first, second) == []
    third = await home.up(3)
    assert await home.do(tables.give, given[:6], second, third) == []
    assert await home.do(wishes.unpin, [0, 1])
    # What is pinned counts to the share.
    assert len(await home.do(tables.give, given[:6], second, third)) == 2
    assert [slot.pin for slot in (await home.look()).slots or ()] == [ANY, ANY, 2, 2, 2, 2, ANY, ANY]
    assert await home.do(wishes.unpin, None, 2)
    assert {slot.pin for slot in (await home.look()).slots or ()} == {ANY}


async def test_a_node_that_comes_again_gets_what_is_pinned_to_it(home: Home) -> None:
    first, second = await home.up(1), await home.up(2)
    assert await home.do(wishes.pin, [3], 2)
    assert await home.give(first, SLOTS, second)
    owners = await home.owners()
    assert owners[3] == second
    assert await home.do(tables.claim, second, 0, first)
    assert await home.do(tables.finish, second, first)
    assert await home.owners() == [first] * SLOTS
    again = await home.up(2)
    slot = ((await home.look()).slots or ())[3]
    assert await home.do(tables.give, [(3, slot.epoch)], first, again) == [3]


async def test_who_is_drained_owns_nothing_until_it_is_undrained(home: Home) -> None:
    first = await home.up(1)
    assert not await home.do(wishes.drain, 1)  # nobody could take over
    assert not await home.do(wishes.undrain, 1)
    second = await home.up(2)
    assert await home.do(wishes.drain, 1)
    assert not await home.do(wishes.drain, 2)
    assert len(await home.give(first, SLOTS, second)) == SLOTS
    assert not await home.do(wishes.pin, [0], 1)
    assert await home.do(tables.leave, first)
    assert await home.do(tables.mark_stopped, first)
    assert await home.do(tables.claim, first, 0, second)
    assert await home.do(tables.finish, first, second)
    assert (await home.look()).drained == {1}
    again = await home.up(1)
    member = {one.start: one for one in (await home.look()).members}[again]
    assert (member.state, member.drained) == (State.LEAVING, True)
    assert await home.give(second, 1, again) == []
    assert await home.do(wishes.undrain, 1)
    assert len(await home.give(second, SLOTS, again)) == SLOTS // 2
    assert (await home.look()).drained == frozenset()


async def test_who_stops_stops_though_it_is_undrained(home: Home) -> None:
    first, _ = await home.up(1), await home.up(2)
    assert await home.do(wishes.drain, 1)
    assert await home.do(tables.leave, first)
    assert await home.do(wishes.undrain, 1)
    assert await home.do(tables.state_of, first) is State.LEAVING


async def test_a_worker_has_at_once_what_its_former_self_had(home: Home) -> None:
    workers = [10, 11]
    first = await home.do(tables.succeed, 10, workers)
    second = await home.do(tables.succeed, 11, workers)
    for start, node_id in ((first, 10), (second, 11)):
        assert await home.do(tables.join, start, node_id, {"kafka": f"here:{start}"}, "")
    assert len(await home.give(first, SLOTS // 2, second)) == SLOTS // 2
    before = (await home.look()).slots or ()
    again = await home.do(tables.succeed, 11, workers)
    after = (await home.look()).slots or ()
    for old, new in zip(before, after, strict=True):
        assert new.owner == (again if old.owner == second else first)
        assert (new.epoch > max(one.epoch for one in before)) == (old.owner == second)
    # Clients are told of it where it was.
    members = {one.start: one for one in (await home.look()).members}
    assert members.keys() == {first, again}
    assert members[again].state is State.UP
    assert members[again].addresses == {"kafka": f"here:{second}"}
    # What the former self asks for comes too late, and so does who was ending it.
    assert not await home.do(tables.beat, second)
    assert not await home.do(tables.claim, second, 0, first)
    assert not await home.do(tables.finish, second, first)


async def test_what_workers_that_are_no_more_had_is_for_those_that_are(home: Home) -> None:
    starts = {node_id: await home.do(tables.succeed, node_id, [0, 1, 2]) for node_id in (0, 1, 2)}
    for node_id, start in starts.items():
        assert await home.do(tables.join, start, node_id, {}, "")
    for node_id in (1, 2):
        assert await home.give(starts[0], 2, starts[node_id])
    again = await home.do(tables.succeed, 0, [0, 1])
    assert NOBODY in await home.owners()
    assert {one.node_id for one in (await home.look()).members} == {0, 1}
    assert await home.do(tables.join, again, 0, {}, "")
    assert set(await home.owners()) == {again, starts[1]}


OLD, NEW, NEWER = Version(1, 2), Version(1, 3), Version(2, 4)


async def of_version(home: Home, node_id: int, version: Version) -> int:
    start: int = await home.do(tables.enter, node_id, version)
    assert await home.do(tables.join, start, node_id, {}, "")
    return start


async def ends(home: Home, start: int, by: int) -> None:
    assert await home.do(tables.leave, start)
    assert await home.do(tables.mark_stopped, start)
    assert await home.do(tables.claim, start, 0, by)
    assert await home.do(tables.finish, start, by)


async def level(home: Home) -> Version:
    found: Version = (await home.look()).level
    return found


async def test_the_level_is_raised_when_all_are_new_and_never_lowered(home: Home) -> None:
    first, second = await of_version(home, 1, OLD), await of_version(home, 2, OLD)
    assert await level(home) == OLD
    # One after the other comes again as a new one.
    await ends(home, first, second)
    first = await of_version(home, 1, NEW)
    assert await level(home) == OLD
    assert [one.version for one in (await home.look()).members] == [OLD, NEW]
    await ends(home, second, first)
    assert await level(home) == OLD  # it may come again as it was
    second = await of_version(home, 2, NEW)
    assert await level(home) == NEW
    with pytest.raises(
        StoreVersionError, match="stores version 2, and all nodes of its cluster were raised to version 3"
    ):
        await home.do(tables.enter, 3, OLD)
    await home.do(versions.raise_level)
    assert await level(home) == NEW
    await ends(home, second, first)
    await of_version(home, 2, NEWER)
    assert await level(home) == NEW
    await ends(home, first, second + 1)
    assert await level(home) == NEW
    await of_version(home, 1, NEWER)
    assert await level(home) == NEWER


async def test_the_last_of_a_release_that_has_died_may_come_again(home: Home) -> None:
    first, second = await of_version(home, 1, OLD), await of_version(home, 2, NEW)
    await ends(home, first, second)
    await of_version(home, 1, OLD)
    assert await level(home) == OLD


async def test_one_who_is_still_being_ended_holds_the_level(home: Home) -> None:
    first, second = await of_version(home, 1, OLD), await of_version(home, 2, NEW)
    assert await home.do(tables.claim, first, 0, second)
    await of_version(home, 3, NEW)
    assert await level(home) == OLD
    assert await home.do(tables.finish, first, second)
    await of_version(home, 4, NEW)
    assert await level(home) == NEW


@pytest.mark.parametrize(
    ("others", "comes", "sentence"),
    [
        (OLD, Version(1, 4), "stores version 4, and its cluster is at version 2"),
        (OLD, Version(3, 2), "says version 3, and its cluster is at version 1"),
        (OLD, Version(1, 1), "all nodes of its cluster were raised to version 2"),
        (OLD, NEW, ""),
        (OLD, Version(2, 2), ""),
    ],
)
async def test_who_is_more_than_one_version_away_is_refused(
    home: Home, others: Version, comes: Version, sentence: str
) -> None:
    await of_version(home, 1, others)
    for ask in (partial(home.do, tables.enter, 2, comes), partial(home.do, versions.admit, len(MIGRATIONS), 2, comes)):
        if sentence:
            with pytest.raises(StoreVersionError, match=sentence):
                await ask()
        else:
            await ask()
    assert len((await home.look()).members) == (1 if sentence else 2)


async def test_a_database_of_before_there_were_versions_is_of_the_first(home: Home) -> None:
    before = MIGRATIONS.index(extend_cluster)
    await home.do(versions.admit, before, 1, Version(2, 2))
    with pytest.raises(StoreVersionError, match="stores version 3, and its cluster is at version 1"):
        await home.do(versions.admit, before, 1, NEW)


async def test_a_member_that_lives_counts_beside_the_level(home: Home) -> None:
    await of_version(home, 2, OLD)
    await of_version(home, 1, NEW)
    change = "UPDATE cluster_nodes SET stores = 4 WHERE node_id = 1"
    await home.db.run(lambda connection: connection.execute(change).rowcount)
    with pytest.raises(StoreVersionError, match="node 1 of its cluster version 4, which is more than one away"):
        await home.do(tables.enter, 3, OLD)
    # Its own former self is past.
    assert isinstance(await home.do(tables.enter, 1, OLD), Member)


async def test_slots_are_pinned_once_all_nodes_leave_them_there(home: Home) -> None:
    await home.up(1)
    await home.db.run(lambda connection: connection.execute("UPDATE cluster_state SET stores = 1").rowcount)
    with pytest.raises(CannotMove, match="release that cannot leave"):
        await home.do(wishes.pin, [0], 1)


async def test_a_worker_of_an_older_release_is_refused(home: Home) -> None:
    await home.do(tables.succeed, 0, [0], OLD)
    await home.db.run(lambda connection: connection.execute("UPDATE cluster_state SET stores = 3").rowcount)
    with pytest.raises(StoreVersionError, match="start the newer release again"):
        await home.do(tables.succeed, 0, [0], OLD)
    # All workers stop and start together: no release has to be in between.
    await home.do(tables.succeed, 0, [0], Version(7, 7))
