from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridges.catalog.group_view import CONSUMERS
from bridges.catalog.progress import Committed, GroupHeld, Progress, erase_topic
from bridges.catalog.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.sql import Database


async def started(path: Path) -> tuple[Database, Progress]:
    db = Database(path / "node.db", MIGRATIONS, application_id=APPLICATION_ID)
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
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), ACTORS, GROUPS, st.lists(st.tuples(PLACES, POSITIONS), max_size=4)),
        st.tuples(st.just("delete"), ACTORS, GROUPS, st.none() | st.lists(PLACES, max_size=3)),
        st.tuples(st.just("expire"), ACTORS, GROUPS, st.sets(PLACES, max_size=3)),
        st.tuples(st.just("expire late"), ACTORS, GROUPS, st.dictionaries(PLACES, POSITIONS, max_size=3)),
        st.tuples(st.just("hold"), ACTORS, GROUPS, st.none() | st.binary(max_size=3)),
        st.tuples(st.just("forget"), ACTORS, st.sampled_from(["t", "u"]), st.none()),
        st.tuples(st.just("restart"), ACTORS, st.just(""), st.none()),
    ),
    max_size=16,
)


@dataclass
class Model:
    """What :class:`Progress` should know: positions with their owners, and states."""

    positions: dict[tuple[str, str], dict[tuple[str, int], tuple[Committed, str]]] = field(default_factory=dict)
    states: dict[tuple[str, str, str], bytes] = field(default_factory=dict)

    def held(self, space: str, group: str, front: str) -> bool:
        return any((s, g) == (space, group) and f != front for f, s, g in self.states)

    def of(self, space: str, group: str) -> dict[tuple[str, int], tuple[Committed, str]]:
        return self.positions.setdefault((space, group), {})

    def groups(self) -> set[tuple[str, str]]:
        return {name for name, positions in self.positions.items() if positions}


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
            elif kind == "delete":
                if model.held(space, subject, front):
                    with pytest.raises(GroupHeld):
                        await own.delete(subject, argument)
                else:
                    await own.delete(subject, argument)
                    for place in list(known) if argument is None else argument:
                        known.pop(place, None)
            elif kind in ("expire", "expire late"):
                seen = own.of_group(subject)
                wanted = {place: seen[place] for place in argument if place in seen} if kind == "expire" else argument
                gone = [
                    place
                    for place, committed in wanted.items()
                    if known.get(place, (None, ""))[1] == committed.front == front
                    and not model.held(space, subject, front)
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
        assert set(own.groups()) == {group for at, group in model.groups() if at == space}
        assert await own.load_groups() == {
            group: state for (f, s, group), state in model.states.items() if (f, s) == (front, space)
        }
        for group in ("g", "h", "grüße"):
            expected = model.of(space, group)
            assert {p: (c, c.front) for p, c in own.of_group(group).items()} == expected
            assert own.held_elsewhere(group) == model.held(space, group, front)
            assert own.committed(group, "t", 0) == expected.get(("t", 0), (None,))[0]
    counted: dict[str, dict[tuple[str, str], int]] = {}
    for name, positions in model.positions.items():
        for topic, _ in positions:
            of_topic = counted.setdefault(topic, {})
            of_topic[name] = of_topic.get(name, 0) + 1
    assert progress._readers == counted


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


async def test_states_and_positions_of_the_former_version_are_carried_over(tmp_path: Path) -> None:
    former = Database(tmp_path / "node.db", MIGRATIONS[:3], application_id=APPLICATION_ID)
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
    assert progress.names() == [(CONSUMERS, "grüße")]
    await db.close()


async def test_a_topic_erased_in_the_database_is_erased_in_memory_by_its_own_call(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    await progress.front("kafka").commit("g", [("t", 0, Committed(1)), ("u", 0, Committed(2))])
    await db.run(lambda c: erase_topic(c, "t"))
    progress.topic_gone("t")
    assert dict(progress.of_group((CONSUMERS, "g"))) == {("u", 0): Committed(2)}
    await db.close()


async def test_commits_at_the_same_time_share_a_flush(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    before = db.commits
    await asyncio.gather(*(progress.front("kafka").commit(f"g{n}", [("t", 0, Committed(n))]) for n in range(200)))
    assert db.commits - before < 20
    assert len(progress.names()) == 200
    await db.close()


CHILD = """
import asyncio, sys
from pathlib import Path
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
