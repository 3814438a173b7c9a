from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Connection, Database
from bridges.catalog.progress import Committed, FrontProgress, Progress, erase_topic
from bridges.catalog.views.groups import CONSUMERS, GroupDirectory, GroupMemberView, GroupSummary, GroupView
from bridges.errors import GroupHeld, LogUnavailable
from tests.databases import database, on_each_engine


async def started(path: Path) -> tuple[Database, Progress]:
    db = database(path / "node.db", MIGRATIONS, application_id=APPLICATION_ID)
    await db.open()
    progress = Progress(db)
    await progress.load()
    return db, progress


GROUPS = st.sampled_from(["g", "h", "grüße"])
PLACES = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 2))
POSITIONS = st.builds(
    Committed,
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers(-1, 2**62),
    st.integers(-1, 2**62),
)
# Two fronts that mean the same groups, and one whose groups have names of their own.
ACTORS = st.sampled_from([("kafka", CONSUMERS), ("ydb", CONSUMERS), ("pravega", "readers")])
TRANSACTIONS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), ACTORS, GROUPS, st.lists(st.tuples(PLACES, POSITIONS), max_size=4)),
        st.tuples(st.just("delete"), ACTORS, GROUPS, st.none() | st.lists(PLACES, max_size=3)),
        st.tuples(st.just("expire"), ACTORS, GROUPS, st.sets(PLACES, max_size=3)),
        st.tuples(st.just("expire late"), ACTORS, GROUPS, st.dictionaries(PLACES, POSITIONS, max_size=3)),
        st.tuples(st.just("hold"), ACTORS, GROUPS, st.none() | st.binary(max_size=3)),
        st.tuples(st.just("forget"), ACTORS, st.sampled_from(["t", "u"]), st.none()),
        st.tuples(
            st.just("commit if"),
            ACTORS,
            GROUPS,
            st.tuples(
                st.dictionaries(PLACES, st.none() | st.booleans() | st.integers(0, 3), max_size=3),
                st.lists(st.tuples(PLACES, POSITIONS), max_size=3),
            ),
        ),
        st.tuples(
            st.just("commit with"),
            ACTORS,
            GROUPS,
            st.tuples(TRANSACTIONS, st.lists(st.tuples(PLACES, POSITIONS), max_size=4)),
        ),
        st.tuples(st.just("end"), ACTORS, TRANSACTIONS, st.booleans()),
        st.tuples(st.just("restart"), ACTORS, st.just(""), st.none()),
    ),
    max_size=24,
)


@dataclass
class Model:
    """What :class:`Progress` should know: positions with their owners, states, and what is pending, oldest first."""

    positions: dict[tuple[str, str], dict[tuple[str, int], tuple[Committed, str]]] = field(default_factory=dict)
    states: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    pending: dict[tuple[str, str, str, str, tuple[str, int]], Committed] = field(default_factory=dict)

    def overtaken(self, space: str, group: str, places) -> None:
        for key in [key for key in self.pending if key[2:4] == (space, group) and key[4] in places]:
            del self.pending[key]

    def held(self, space: str, group: str, front: str) -> bool:
        return any((s, g) == (space, group) and f != front for f, s, g in self.states)

    def of(self, space: str, group: str) -> dict[tuple[str, int], tuple[Committed, str]]:
        return self.positions.setdefault((space, group), {})

    def groups(self) -> set[tuple[str, str]]:
        return {name for name, positions in self.positions.items() if positions}


@on_each_engine
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_it_behaves_like_dictionaries_that_survive(tmp_path_factory, steps) -> None:
    async def scenario() -> None:
        home = tmp_path_factory.mktemp("progress")
        db, progress = await started(home)
        model = Model()
        for kind, (front, space), subject, argument in steps:
            own = progress.front(front, space)
            known = model.of(space, subject)
            if kind == "commit":
                await own.commit(subject, [(*place, committed) for place, committed in argument])
                known.update({place: (committed, front) for place, committed in argument})
                model.overtaken(space, subject, dict(argument))
            elif kind == "commit if":
                wanted, positions = argument
                # True stands for what is there, so that conditions are often met.
                expected = {
                    place: (known[place][0].offset if place in known else None) if offset is True else offset
                    for place, offset in wanted.items()
                }
                present = {place: known.get(place, (None, ""))[0] for place in expected}
                differing = {
                    place: there
                    for place, there in present.items()
                    if (there.offset if there is not None else None) != expected[place]
                }
                placed = [(*place, committed) for place, committed in positions]
                assert await own.commit_if(subject, expected, placed) == differing
                if not differing:
                    known.update({place: (committed, front) for place, committed in positions})
                    model.overtaken(space, subject, dict(positions))
            elif kind == "commit with":
                transaction, positions = argument
                await own.commit_with(transaction, subject, [(*place, committed) for place, committed in positions])
                for place, committed in positions:
                    key = (front, transaction, space, subject, place)
                    model.pending.pop(key, None)
                    model.pending[key] = committed
            elif kind == "end":
                ended = [key for key in model.pending if key[:2] == (front, subject)]
                assert await own.end_transaction(subject, commit=argument) == (len(ended) if argument else 0)
                for key in ended:
                    if argument:
                        model.of(*key[2:4])[key[4]] = (model.pending[key], front)
                        for older in list(model.pending):
                            if older == key:
                                break
                            if older[2:] == key[2:]:
                                del model.pending[older]
                    del model.pending[key]
            elif kind == "delete":
                if model.held(space, subject, front):
                    with pytest.raises(GroupHeld):
                        await own.delete(subject, argument)
                else:
                    await own.delete(subject, argument)
                    if argument is None:
                        argument = [*known, *(key[4] for key in model.pending if key[2:4] == (space, subject))]
                    for place in argument:
                        known.pop(place, None)
                    model.overtaken(space, subject, argument)
            elif kind in ("expire", "expire late"):
                seen = own.of_group(subject)
                wanted = {place: seen[place] for place in argument if place in seen} if kind == "expire" else argument
                gone = [
                    place
                    for place, committed in wanted.items()
                    if known.get(place, (None, ""))[1] == committed.front == front
                    and not model.held(space, subject, front)
                    and not any(key[2:] == (space, subject, place) for key in model.pending)
                ]
                assert await own.expire(subject, wanted) == len(gone)
                for place in gone:
                    del known[place]
            elif kind == "hold":
                await own.save_group(subject, argument)
                model.states.pop((front, space, subject), None)
                if argument is not None:
                    model.states[front, space, subject] = argument
            elif kind == "forget":
                await progress.forget_topic(subject)
                for positions in model.positions.values():
                    for place in [place for place in positions if place[0] == subject]:
                        del positions[place]
                for key in [key for key in model.pending if key[4][0] == subject]:
                    del model.pending[key]
            else:
                await db.close()
                db, progress = await started(home)
            await agrees(progress, model)
        await db.close()

    asyncio.run(scenario())


async def agrees(progress: Progress, model: Model) -> None:
    assert set(progress.names()) == model.groups()
    for front, space in (("kafka", CONSUMERS), ("ydb", CONSUMERS), ("pravega", "readers")):
        own = progress.front(front, space)
        assert list(own.names()) == sorted(group for at, group in model.groups() if at == space)
        assert await own.load_groups() == {
            group: state for (f, s, group), state in model.states.items() if (f, s) == (front, space)
        }
        for group in ("g", "h", "grüße"):
            expected = model.of(space, group)
            assert {p: (c, c.front) for p, c in own.of_group(group).items()} == expected
            assert own.held_elsewhere(group) == model.held(space, group, front)
            assert own.committed(group, "t", 0) == expected.get(("t", 0), (None,))[0]
            for place in ((topic, partition) for topic in ("t", "u") for partition in range(3)):
                assert own.is_pending(group, *place) == any(key[2:] == (space, group, place) for key in model.pending)
        assert set(own.transactions()) == {key[1] for key in model.pending if key[0] == front}
        assert own.group_count == len(model.groups() | {key[2:4] for key in model.pending})
    for topic in ("t", "u"):
        reading = {name for name, places in model.positions.items() if any(place[0] == topic for place in places)}
        assert set(progress.readers_of(topic)) == reading


async def test_a_position_that_was_committed_anew_does_not_expire(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    kafka, ydb = progress.front("kafka"), progress.front("ydb")
    await kafka.commit("g", [("t", 0, Committed(1, commit_ms=5)), ("t", 1, Committed(1, commit_ms=5))])
    seen = dict(kafka.of_group("g"))
    again = asyncio.gather(
        kafka.commit("g", [("t", 0, Committed(1, commit_ms=6))]), ydb.commit("g", [("t", 1, Committed(1, commit_ms=5))])
    )
    await asyncio.sleep(0)  # both are queued before the expiry
    assert await kafka.expire("g", seen) == 0
    await again
    assert kafka.committed("g", "t", 0) == Committed(1, commit_ms=6)
    assert kafka.committed("g", "t", 1) == Committed(1, commit_ms=5)
    await db.close()


@on_each_engine
async def test_states_and_positions_of_the_former_version_are_carried_over(tmp_path: Path) -> None:
    former = database(tmp_path / "node.db", MIGRATIONS[:3], application_id=APPLICATION_ID)
    await former.open()

    def fill(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO positions VALUES ('g', 't', 1, 7, 2, 'note', 5, -1)")
        connection.execute("INSERT INTO positions VALUES ('grüße', 'u', 0, 9, -1, '', 6, 8)")
        connection.execute("INSERT INTO groups VALUES ('g', x'00ff')")

    await former.run(fill)
    await former.close()

    for _ in range(2):  # carried over at the first start, as it is at the next
        db, progress = await started(tmp_path)
        kafka = progress.front("kafka")
        assert {name: dict(progress.of_group(name)) for name in progress.names()} == {
            (CONSUMERS, "g"): {("t", 1): Committed(7, 2, "note", 5, -1)},
            (CONSUMERS, "grüße"): {("u", 0): Committed(9, -1, "", 6, 8)},
        }
        assert all(c.front == "kafka" for name in progress.names() for c in progress.of_group(name).values())
        assert await kafka.load_groups() == {"g": b"\x00\xff"}
        assert await progress.front("ydb").load_groups() == {}
        await db.close()
    db, progress = await started(tmp_path)
    await progress.forget_topic("t")
    assert [*progress.names()] == [(CONSUMERS, "grüße")]
    await db.close()


@on_each_engine
async def test_a_topic_erased_in_the_database_is_erased_in_memory_by_its_own_call(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    await progress.front("kafka").commit("g", [("t", 0, Committed(1)), ("u", 0, Committed(2))])
    await db.run(lambda c: erase_topic(c, "t"))
    progress.topic_gone("t")
    assert dict(progress.of_group((CONSUMERS, "g"))) == {("u", 0): Committed(2)}
    await db.close()


@on_each_engine
async def test_of_several_who_change_a_position_one_wins(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    fronts = [progress.front("kafka"), progress.front("ydb")]
    place = ("t", 0)

    async def count(front: FrontProgress) -> None:
        offset: int | None = None
        for _ in range(20):
            while differing := await front.commit_if("g", {place: offset}, [(*place, Committed((offset or 0) + 1))]):
                found = differing[place]
                offset = None if found is None else found.offset
            offset = (offset or 0) + 1

    await asyncio.gather(*(count(front) for front in fronts * 2))
    assert progress.committed(("consumers", "g"), *place) == Committed(80)
    await db.close()


@on_each_engine
async def test_memory_follows_the_database_also_where_nobody_waits_any_more(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    front = progress.front("ydb")
    await front.commit("g", [("t", 0, Committed(1)), ("t", 1, Committed(1)), ("u", 0, Committed(1))])
    await front.commit_with("x", "g", [("t", 2, Committed(1))])
    callers = [
        asyncio.ensure_future(work)
        for work in (
            front.commit("g", [("t", 0, Committed(2))]),
            front.delete("g", [("t", 1)]),
            front.commit_with("y", "g", [("t", 3, Committed(3))]),
            front.end_transaction("x", commit=True),
            progress.forget_topic("u"),
        )
    ]
    await asyncio.sleep(0)  # their closures are queued
    for caller in callers:
        caller.cancel()
    await db.run(lambda connection: None)
    await agrees_with_the_file(progress, db)
    found = {place: front.committed("g", *place) for place in (("t", 0), ("t", 1), ("t", 2), ("u", 0))}
    offsets = {place: None if one is None else one.offset for place, one in found.items()}
    assert offsets == {("t", 0): 2, ("t", 1): None, ("t", 2): 1, ("u", 0): None}
    assert front.is_pending("g", "t", 3)
    assert not front.is_pending("g", "t", 2)
    await db.close()


def known(progress: Progress) -> dict[str, dict[Any, Any]]:
    """Return the positions and holders of each group, and the readers of each topic."""
    names = list(progress.names())
    return {
        "positions": {name: dict(progress.of_group(name)) for name in names},
        "holders": {name: set(progress.holders(name)) for name in names},
        "readers": {topic: set(progress.readers_of(topic)) for topic in ("t", "u")},
    }


async def agrees_with_the_file(progress: Progress, db: Database) -> None:
    again = Progress(db)
    await again.load()
    assert known(again) == known(progress)


@on_each_engine
async def test_what_waited_for_a_transaction_does_not_come_back_over_later_commits(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    kafka, ydb = progress.front("kafka"), progress.front("ydb")
    await asyncio.gather(
        kafka.commit_with("t1", "g", [("t", 0, Committed(10)), ("t", 1, Committed(10))]),
        ydb.commit("g", [("t", 0, Committed(20))]),
        kafka.commit_with("t2", "g", [("t", 1, Committed(30))]),
    )
    assert not kafka.is_pending("g", "t", 0), "it was decided otherwise"
    assert kafka.is_pending("g", "t", 1)
    assert await kafka.end_transaction("t2", commit=True) == 1
    assert await kafka.end_transaction("t1", commit=True) == 0
    assert await kafka.end_transaction("t1", commit=True) == 0, "telling it again makes no difference"
    assert [kafka.committed("g", "t", partition) for partition in (0, 1)] == [Committed(20), Committed(30)]
    await db.close()


@on_each_engine
async def test_commits_at_the_same_time_share_a_flush(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    before = db.commits
    await asyncio.gather(*(progress.front("kafka").commit(f"g{n}", [("t", 0, Committed(n))]) for n in range(200)))
    assert db.commits - before < 20
    assert len([*progress.names()]) == 200
    await db.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from typing import Any, cast
sys.path.insert(0, {tests!r})
from test_progress import started
from bridges.catalog.progress import Committed

async def main():
    db, everything = await started(Path({path!r}))
    progress = everything.front('kafka')
    async def consumer(n):
        committed = progress.committed(f"g{{n}}", "t", 0)
        offset = committed.offset if committed else 0
        while True:
            offset += 1
            await progress.commit(f"g{{n}}", [("t", 0, Committed(offset)), ("t", 1, Committed(offset * 2))])
            print(n, offset, flush=True)
    await asyncio.gather(*(consumer(n) for n in range(8)))

asyncio.run(main())
"""


@on_each_engine
async def test_acknowledged_commits_survive_kill_and_are_whole(tmp_path: Path) -> None:
    program = CHILD.format(path=str(tmp_path), tests=str(Path(__file__).parent))
    acknowledged = dict.fromkeys(range(8), 0)
    for lines in (25, 60, 111):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        seen = [child.stdout.readline() for _ in range(lines)]
        os.kill(child.pid, signal.SIGKILL)
        # What follows the last line's end was cut off by the kill: it says nothing.
        seen += child.stdout.read().split("\n")[:-1]
        child.wait()
        for line in seen:
            group, offset = map(int, line.split())
            assert offset > acknowledged[group]
            acknowledged[group] = offset
        db, everything = await started(tmp_path)
        progress = everything.front("kafka")
        for group, offset in acknowledged.items():
            committed = progress.committed(f"g{group}", "t", 0)
            if offset:
                assert committed is not None
                # At most the one commit that was not acknowledged yet may be there on top.
                assert offset <= committed.offset <= offset + 1
            if committed is not None:
                assert progress.committed(f"g{group}", "t", 1) == Committed(committed.offset * 2)
                acknowledged[group] = committed.offset
        await db.close()


TRANSFER = """
import asyncio, sys
from pathlib import Path
from typing import Any, cast
sys.path.insert(0, {tests!r})
from test_progress import started
from bridges.catalog.progress import Committed

async def main():
    db, everything = await started(Path({path!r}))
    progress = everything.front('kafka')
    async def consumer(n):
        committed = progress.committed(f"g{{n}}", "t", 0)
        number = committed.offset if committed else 0
        while True:
            number += 1
            name = f"g{{n}}-{{number}}"
            for partition in range(2):
                await progress.commit_with(name, f"g{{n}}", [("t", partition, Committed(number))])
            print("pending", n, number, flush=True)
            await progress.end_transaction(name, commit=True)
            print("ended", n, number, flush=True)
    await asyncio.gather(*(consumer(n) for n in range(4)))

asyncio.run(main())
"""


@on_each_engine
async def test_positions_of_a_transaction_survive_kill_and_become_valid_together(tmp_path: Path) -> None:
    program = TRANSFER.format(path=str(tmp_path), tests=str(Path(__file__).parent))
    valid = dict.fromkeys(range(4), 0)
    for lines in (9, 30, 51):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        seen = [child.stdout.readline() for _ in range(lines)]
        os.kill(child.pid, signal.SIGKILL)
        seen += child.stdout.read().split("\n")[:-1]
        child.wait()
        pending: dict[int, int] = {}
        for line in seen:
            kind, consumer, number = line.split()
            (valid if kind == "ended" else pending)[int(consumer)] = int(number)
        db, everything = await started(tmp_path)
        progress = everything.front("kafka")
        for n in range(4):
            group = f"g{n}"
            found = [progress.committed(group, "t", partition) for partition in range(2)]
            assert found[0] == found[1]
            reached = found[0].offset if found[0] is not None else 0
            assert valid[n] <= reached <= valid[n] + 1
            if pending.get(n, 0) > reached:
                # It was told that all of it is durable, and not yet that it ended: it is there, and can end.
                assert f"{group}-{pending[n]}" in progress.transactions()
                assert progress.is_pending(group, "t", 0)
                assert await progress.end_transaction(f"{group}-{pending[n]}", commit=True) == 2
                reached = pending[n]
            valid[n] = reached
        for name in progress.transactions():
            assert await progress.end_transaction(name, commit=False) == 0
        assert all(progress.committed(f"g{n}", "t", 1) == (Committed(valid[n]) if valid[n] else None) for n in range(4))
        await db.close()


@on_each_engine
async def test_positions_behind_the_end_of_a_log_are_taken_back_to_it_also_those_that_are_pending(
    tmp_path: Path,
) -> None:
    db, progress = await started(tmp_path)
    kafka = progress.front("kafka")
    await kafka.commit("g", [("t", 0, Committed(20)), ("t", 1, Committed(20)), ("u", 0, Committed(20))])
    await kafka.commit("h", [("t", 0, Committed(10))])
    await kafka.commit_with("transaction", "p", [("t", 0, Committed(30))])
    assert await progress.not_beyond("t", 0, 10) == [(CONSUMERS, "g")]
    assert await progress.not_beyond("t", 0, 10) == []
    await db.close()
    db, progress = await started(tmp_path)
    assert {place: found.offset for place, found in progress.of_group((CONSUMERS, "g")).items()} == {
        ("t", 0): 10,
        ("t", 1): 20,
        ("u", 0): 20,
    }
    await progress.front("kafka").end_transaction("transaction", commit=True)
    position = progress.committed((CONSUMERS, "p"), "t", 0)
    assert position is not None
    assert position.offset == 10
    await db.close()


@on_each_engine
async def test_who_becomes_the_owner_of_groups_knows_what_the_one_before_has_left(tmp_path: Path) -> None:
    """Two that have the same database, as nodes on one machine's or cluster's have; what is not asked for stays."""
    db, before = await started(tmp_path)
    db.engine.shared = True
    behind = Progress(db)
    for group in ("mine", "theirs"):
        await before.front("kafka").commit(group, [("t", 0, Committed(1)), ("t", 1, Committed(2))])
    await behind.load()
    mine = before.front("kafka")
    await mine.commit("mine", [("t", 0, Committed(5)), ("u", 0, Committed(1))])
    await mine.delete("mine", [("t", 1)])
    await mine.save_group("mine", b"state")
    await mine.commit_with("txn", "mine", [("u", 1, Committed(3))])
    await mine.commit("theirs", [("t", 0, Committed(9))])
    await mine.commit("new", [("t", 0, Committed(1))])
    await behind.reload(lambda name: name[1] != "theirs", [])
    after = behind.front("kafka")
    assert after.of_group("mine") == mine.of_group("mine") == {("t", 0): Committed(5), ("u", 0): Committed(1)}
    assert after.committed("new", "t", 0) == Committed(1)
    assert after.committed("theirs", "t", 0) == Committed(1)
    assert after.transactions() == ["txn"]
    assert after.is_pending("mine", "u", 1)
    assert list(behind.holders((CONSUMERS, "mine"))) == ["kafka"]
    await mine.end_transaction("txn", commit=True)
    await mine.save_group("mine", None)
    await mine.delete("new")
    await behind.reload(lambda name: True, [])
    assert known(behind) == known(before)
    assert behind.front("kafka").transactions() == []
    assert not any(behind.front("kafka").is_pending("mine", "u", number) for number in range(3))
    assert behind.front("kafka").group_count == len(list(before.names()))
    await db.close()


class Members(GroupDirectory):
    """What a front says of its members: those of one group."""

    space = CONSUMERS

    def __init__(self, group: str, count: int = 1, space: str = CONSUMERS) -> None:
        self.space = space
        self.is_read = True
        """Whether the front has read what it has stored of groups that have come to this node."""
        line = GroupSummary(group, "consumer", "Stable", "ydb", count)
        member = GroupMemberView("m", None, "reader", "/10.0.0.1", (("t", 0),))
        self._view = GroupView(line, 0, "balanced", None, (member,) * count)

    def summaries(self) -> list[GroupSummary]:
        return [self._view.summary]

    def knows(self, group_id: str) -> bool:
        return self.is_read

    def summary(self, group_id: str) -> GroupSummary | None:
        return None if group_id != self._view.summary.group_id else self._view.summary

    def view(self, group_id: str) -> GroupView | None:
        return None if group_id != self._view.summary.group_id else self._view


@on_each_engine
async def test_members_of_another_front_hold_a_group(tmp_path: Path) -> None:
    db, _ = await started(tmp_path)
    directories: dict[str, Members] = {}
    progress = Progress(db, lambda: directories)
    await progress.load()
    kafka, ydb, other = progress.front("kafka"), progress.front("ydb"), progress.front("pravega", "readers")
    old = Committed(5, commit_ms=1)
    await kafka.commit("g", [("t", 0, old)])
    await other.commit("g", [("t", 0, old)])
    directories["ydb"] = Members("g")
    with pytest.raises(GroupHeld, match=r"has a member through ydb \(reader at 10.0.0.1\): .* Stop its members"):
        kafka.require_free("g")
    with pytest.raises(GroupHeld):
        await kafka.delete("g")
    assert await kafka.expire("g", {("t", 0): old}) == 0
    assert kafka.held_elsewhere("g")
    assert kafka.other_summary("g") == directories["ydb"].summary("g")
    assert progress.views((CONSUMERS, "g")) == {"ydb": kafka.other_view("g")}
    assert kafka.committed("g", "t", 0) == old

    kafka.require_free("h")
    ydb.require_free("g")  # the members are its own
    other.require_free("g")  # in its space this is another group
    await other.delete("g")

    directories["ydb"] = Members("g", 0)  # nobody is left
    directories["ydb"].is_read = False
    with pytest.raises(LogUnavailable, match="has just come to this node"):
        kafka.require_free("g")  # unknown is not no
    directories["ydb"].is_read = True
    kafka.require_free("g")
    await kafka.delete("g")
    assert kafka.committed("g", "t", 0) is None
    await db.close()


class Counting:
    """A connection that counts the statements, and the rows that are read."""

    def __init__(self, connection: Connection, counts: Counter[str]) -> None:
        self._connection = connection
        self._counts = counts

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        self._counts["statements"] += 1
        done = self._connection.execute(statement, values)
        if not statement.startswith("SELECT"):
            return done
        found = done.fetchall()
        self._counts["rows"] += len(found)
        return Rows(found)


class Rows(list[Any]):
    def fetchall(self) -> list[Any]:
        return self


@on_each_engine
async def test_a_take_over_reads_the_rows_of_its_slots_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slot_of(space: str, group: str) -> int:
        return int(group.removeprefix("g")) % 50

    db, alone = await started(tmp_path)
    db.engine.shared = True
    before, after = Progress(db, slot_of=slot_of), Progress(db, slot_of=slot_of)
    for number in range(400):
        kafka = (alone if number < 200 else before).front("kafka")
        await kafka.commit(f"g{number}", [("t", 0, Committed(number)), ("t", 1, Committed(1))])
        await kafka.save_group(f"g{number}", b"%d" % number)

    def wanted(group: str) -> bool:
        return slot_of(CONSUMERS, group) == 7

    counts: Counter[str] = Counter()
    run = db.run

    def counted(work: Callable[[Connection], Any], **options: Any) -> Any:
        return run(lambda connection: work(cast("Connection", Counting(connection, counts))), **options)

    monkeypatch.setattr(db, "run", counted)
    front, expected = after.front("kafka"), {f"g{number}" for number in range(400) if number % 50 == 7}
    await front.reload(wanted, [7])
    assert set(front.names()) == expected
    assert set(await front.load_groups([7])) >= expected
    for group in ("g7", "g357"):
        assert front.of_group(group) == {("t", 0): Committed(int(group[1:])), ("t", 1): Committed(1)}
        assert list(after.holders((CONSUMERS, group))) == ["kafka"]
    # Rows of a node alone have no slot until a node of a cluster has read them.
    await front.reload(lambda group: True, range(50))
    counts.clear()
    await front.reload(wanted, [7])
    assert set(await front.load_groups([7])) == expected
    assert counts["rows"] <= 4 * len(expected), "positions, holders and states of these groups alone"
    assert counts["statements"] <= 6
    await db.close()
