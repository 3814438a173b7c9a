from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridges.progress import Committed, Progress, erase_topic
from bridges.schema import APPLICATION_ID, MIGRATIONS
from bridges.sql import Database


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
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), GROUPS, st.lists(st.tuples(PLACES, POSITIONS), max_size=4)),
        st.tuples(st.just("delete"), GROUPS, st.none() | st.lists(PLACES, max_size=3)),
        st.tuples(st.just("forget"), st.sampled_from(["t", "u"]), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_it_behaves_like_a_dictionary_that_survives(tmp_path_factory, steps) -> None:
    async def scenario() -> None:
        home = tmp_path_factory.mktemp("progress")
        db, progress = await started(home)
        model: dict[str, dict[tuple[str, int], Committed]] = {}
        for kind, subject, argument in steps:
            if kind == "commit":
                await progress.commit(subject, [(*place, committed) for place, committed in argument])
                for place, committed in argument:
                    model.setdefault(subject, {})[place] = committed
            elif kind == "delete":
                await progress.delete(subject, argument)
                for place in list(model.get(subject, {})) if argument is None else argument:
                    model.get(subject, {}).pop(place, None)
            elif kind == "forget":
                await progress.forget_topic(subject)
                for positions in model.values():
                    for place in [place for place in positions if place[0] == subject]:
                        del positions[place]
            else:
                await db.close()
                db, progress = await started(home)
            model = {group: positions for group, positions in model.items() if positions}
            assert set(progress.groups()) == set(model)
            for group in ("g", "h", "grüße"):
                assert dict(progress.of_group(group)) == model.get(group, {})
                for place in (("t", 0), ("u", 2)):
                    assert progress.committed(group, *place) == model.get(group, {}).get(place)
        await db.close()

    asyncio.run(scenario())


async def test_groups_keep_what_fronts_give_them(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    await progress.save_group("g", b"one")
    await progress.save_group("g", b"two")
    await progress.save_group("h", b"\x00")
    await progress.save_group("h", None)
    await db.close()
    db, progress = await started(tmp_path)
    assert await progress.load_groups() == {"g": b"two"}
    assert progress.groups() == []
    await db.close()


async def test_a_topic_erased_in_the_database_is_erased_in_memory_by_its_own_call(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    await progress.commit("g", [("t", 0, Committed(1)), ("u", 0, Committed(2))])
    await db.run(lambda c: erase_topic(c, "t"))
    progress.topic_gone("t")
    assert dict(progress.of_group("g")) == {("u", 0): Committed(2)}
    await db.close()


async def test_commits_at_the_same_time_share_a_flush(tmp_path: Path) -> None:
    db, progress = await started(tmp_path)
    before = db.commits
    await asyncio.gather(*(progress.commit(f"g{n}", [("t", 0, Committed(n))]) for n in range(200)))
    assert db.commits - before < 20
    assert len(progress.groups()) == 200
    await db.close()


CHILD = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_progress import started
from bridges.progress import Committed

async def main():
    db, progress = await started(Path({path!r}))
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
        db, progress = await started(tmp_path)
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
