"""A database or a bucket that has gone back is refused: services over a real PostgreSQL and a bucket of files."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from anabranch_kit.errors import StoreError
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.sql.sqlite import SqliteEngine
from bridges.catalog.database.counters import identify
from bridges.catalog.database.schema import MIGRATIONS
from bridges.catalog.database.sql import Connection, Database
from bridges.cluster.marks import Mark, Marks, Totals
from bridges.cluster.members import Patience
from bridges.cluster.service import Cluster
from bridges.cluster.versions import OURS
from bridges.life import Life
from bridges.node.floors.by_itself import ByItself, enter
from bridges.node.settings.config import load
from sbp_back.range_server.object_log.objects.bucket import Bucket
from tests.bridges.cluster.test_taking_over import database
from tests.kit.waiting import until
from tests.postgres import Postgres

PATIENCE = Patience(heartbeat=0.02, lease=10.0)
WAIT_S = 30
TABLES = {"cluster_state": "one", "cluster_nodes": "start", "cluster_slots": "slot", "meta": "key"}
"""By their keys."""


class World:
    """A database, a bucket, and nodes with a directory each."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path
        self.ended: dict[int, str] = {}
        """Why nodes have ended, by their numbers."""

    @property
    def bucket(self) -> Path:
        return self.path / "bucket"

    def marks(self) -> list[Mark]:
        """What is in the bucket, without what is being put."""
        return [Mark.of_key(path.name) for path in self.bucket.glob("marks/*/*") if "#" not in path.name]

    async def do(self, work: Callable[[Connection], object]) -> None:
        db = database(self.url)
        await db.open()
        await db.run(work)
        await db.close()

    async def save(self) -> None:
        """What the database and the bucket are now is where they may go back to."""
        await self.do(_save)
        shutil.copytree(self.bucket, self.path / "saved", ignore=shutil.ignore_patterns("*#*"))

    async def set_database_back(self) -> None:
        await self.do(_restore)

    def set_bucket_back(self) -> None:
        shutil.rmtree(self.bucket)
        shutil.copytree(self.path / "saved", self.bucket)

    async def begin(self, number: int, workers: Collection[int] = ()) -> Cluster:
        """A node, or one of ``workers``, that serves."""
        directory = self.path / str(number)
        directory.mkdir(exist_ok=True)

        def ended(why: str) -> None:
            self.ended.setdefault(number, why)  # the first reason counts

        service = Cluster(database(self.url), number, PATIENCE, Barrier(), ended, OURS)
        db = database(self.url)
        await db.open()
        cluster_id = await db.run(identify)
        await db.close()
        service.marks = Marks(directory / "mark", Bucket(f"file://{self.bucket}"), cluster_id)
        try:
            await service.enter(workers)
            await service.join(number, {}, "")
            await service.await_owners(WAIT_S)
        except BaseException:
            await service.close()
            raise
        return service

    @asynccontextmanager
    async def served(self, number: int) -> AsyncIterator[Cluster]:
        service = await self.begin(number)
        try:
            yield service
        finally:
            await service.retire(0.0)
            await service.close()


def _save(connection: Connection) -> None:
    for table in TABLES:
        connection.execute(f"DROP TABLE IF EXISTS saved_{table}")
        connection.execute(f"CREATE TABLE saved_{table} AS SELECT * FROM {table}")


def _restore(connection: Connection) -> None:
    for table, key in TABLES.items():
        connection.execute(f"DELETE FROM {table} WHERE {key} NOT IN (SELECT {key} FROM saved_{table})")
        columns = [
            name for (name,) in connection.execute(f"SELECT column_name FROM ({_COLUMNS}) found WHERE t = '{table}'")
        ]
        told = ", ".join(columns)
        changed = ", ".join(f"{name} = excluded.{name}" for name in columns if name != key)
        # Rows stay the same ones: who waits for one of them finds it.
        connection.execute(
            f"INSERT INTO {table} ({told}) SELECT {told} FROM saved_{table} ON CONFLICT ({key}) DO UPDATE SET {changed}"
        )


_COLUMNS = "SELECT column_name, table_name AS t FROM information_schema.columns WHERE table_schema = 's'"


@pytest.fixture
def world(postgres: Postgres, tmp_path: Path) -> World:
    return World(postgres.made(), tmp_path)


async def beaten(service: Cluster, more: int = 3) -> None:
    """So many heartbeats later."""
    before = service.beats
    await until(lambda: service.beats >= before + more)


DATABASE = "the database has gone back"
BUCKET = "has gone back: it has not what was put there before"


async def test_nodes_that_come_and_go_are_refused_nothing(world: World) -> None:
    for _ in range(3):
        async with world.served(1) as one, world.served(2):
            await beaten(one)
    async with world.served(3), world.served(1) as one:
        await beaten(one)
        marks = world.marks()
        assert len(marks) <= 4, "one of each member"
    assert not world.ended


async def test_a_database_that_goes_back_by_heartbeats_alone_ends_the_nodes(world: World) -> None:
    """As a standby that lagged by a moment in which nothing but they were written."""
    async with world.served(1) as one, world.served(2) as two:
        await beaten(one)
        await until(lambda: one.marked == one.totals)
        await world.save()
        await beaten(one)
        await beaten(two)
        await world.set_database_back()
        await until(lambda: len(world.ended) == 2)
        assert all(DATABASE in sentence for sentence in world.ended.values())
        assert not one.mine
        assert not two.mine


async def test_a_database_that_goes_back_to_before_a_start_is_not_taken_for_a_verdict_of_others(world: World) -> None:
    async with world.served(1):
        await world.save()
        async with world.served(2) as two:
            await beaten(two)
            await world.set_database_back()
            await until(lambda: len(world.ended) == 2)
        assert all(DATABASE in sentence for sentence in world.ended.values()), world.ended


@pytest.mark.parametrize("lost", [False, True], ids=["with its directory", "with the bucket alone"])
@pytest.mark.parametrize("killed", [False, True], ids=["in order", "killed"])
async def test_a_database_that_went_back_while_nobody_ran_is_refused(world: World, lost: bool, killed: bool) -> None:
    service = await world.begin(1)
    await world.save()
    await service.raise_epoch(0)
    if killed:
        await service._tasks.close()
        await service._db.close()
    else:
        await service.close()
    await world.set_database_back()
    if lost:
        shutil.rmtree(world.path / "1")
    for _ in range(3):  # however often its supervisor tries
        with pytest.raises(StoreError, match=DATABASE):
            await world.begin(1)
    with pytest.raises(StoreError, match=DATABASE):
        await world.begin(2)


async def test_a_database_that_does_not_know_of_a_start_is_refused(world: World) -> None:
    async with world.served(1):
        pass
    await world.save()
    async with world.served(2):
        pass
    await world.set_database_back()
    with pytest.raises(StoreError, match=DATABASE):
        await world.begin(2)


async def test_a_database_that_went_back_is_refused_after_it_was_noticed(world: World) -> None:
    """A node that ends for it leaves word of that."""
    async with world.served(1) as one:
        await world.save()
        await beaten(one)
        await world.set_database_back()
        await until(lambda: world.ended)
    shutil.rmtree(world.path / "1")
    with pytest.raises(StoreError, match=DATABASE):
        await world.begin(2)


async def test_a_bucket_that_goes_back_ends_the_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.served(1) as one:
        await until(lambda: one.marked == one.totals)
        await world.save()
        monkeypatch.setattr("bridges.cluster.service.EVERY_S", 0.05)
        one.mark_at = 0.0
        await beaten(one, 10)
        world.set_bucket_back()
        await until(lambda: world.ended)
    assert BUCKET in world.ended[1]


async def test_a_bucket_that_went_back_while_nobody_ran_is_refused(world: World) -> None:
    async with world.served(1):
        await world.save()
    world.set_bucket_back()
    for _ in range(2):
        with pytest.raises(StoreError, match=BUCKET):
            await world.begin(1)


async def test_an_epoch_is_known_to_the_bucket_before_anything_is_opened_in_it(world: World) -> None:
    async with world.served(1) as one:
        epoch = await one.raise_epoch(0)
        marks = world.marks()
        assert max(mark.totals.epoch for mark in marks) > epoch
        async with world.served(2) as two:
            await until(lambda: len(two.mine) > 100)
            gained = max(two.epoch(slot) for slot in two.mine)
            marks = world.marks()
            assert max(mark.totals.epoch for mark in marks) > gained


def refused(*_: object) -> NoReturn:
    raise OSError("503 SlowDown")


class Held:
    """The mark behind the ``first`` ones of each start but one, which the bucket takes when it is let in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: int, besides: int = -1) -> None:
        self._open = Event()
        self.waiting = self.taken = False
        puts: Counter[int] = Counter()
        put = Bucket.put_again

        def late(bucket: Bucket, key: str, *rest: Any) -> bool:
            by = Mark.of_key(key).start
            puts[by] += 1
            if puts[by] != first + 1 or by == besides:
                return put(bucket, key, *rest)
            self.waiting = True
            assert self._open.wait(WAIT_S)
            try:
                return put(bucket, key, *rest)
            finally:
                self.taken = True

        monkeypatch.setattr(Bucket, "put_again", late)
        monkeypatch.setattr("bridges.cluster.service.MARKED_S", WAIT_S)

    def let_in(self) -> None:
        self._open.set()


async def test_a_node_acts_for_nothing_in_an_epoch_that_the_bucket_does_not_know(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.served(1) as one:
        held = Held(monkeypatch, first=1, besides=one.start)
        monkeypatch.setattr(Cluster, "await_owners", lambda service, seconds: asyncio.sleep(0))
        async with world.served(2) as two:
            await until(lambda: any(slot.owner == two.start for slot in one.keeper.slots))
            await beaten(two, 10)
            assert not two.mine
            held.let_in()
            await until(lambda: two.mine)
    assert not world.ended


async def test_an_epoch_waits_for_its_own_mark_where_another_is_under_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.served(1) as one:
        held = Held(monkeypatch, first=0)
        one.begin_marking()
        await until(lambda: held.waiting)
        raising = asyncio.create_task(one.raise_epoch(0))
        await until(lambda: one.totals.epoch > one.marked.epoch)
        held.let_in()
        epoch = await raising
        assert max(mark.totals.epoch for mark in world.marks()) > epoch


async def test_the_last_mark_of_a_node_is_behind_one_that_the_bucket_takes_late(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former mark would delete it, and the node would take the bucket for one that has gone back."""
    service = await world.begin(1)
    held = Held(monkeypatch, first=0)
    service.begin_marking()
    await until(lambda: held.waiting)
    await beaten(service)
    closing = asyncio.create_task(service.close())
    await asyncio.wait({closing}, timeout=0.5)
    held.let_in()
    await closing
    await until(lambda: held.taken)
    await until(lambda: [mark.beats for mark in world.marks()] == [service.beats])
    assert not world.ended


async def test_a_heartbeat_that_finds_an_older_database_says_so(world: World) -> None:
    """The next look, which would find it as well, may be late."""
    async with world.served(1):
        await world.save()
        async with world.served(2) as two:
            (watching,) = [task for task in two._tasks._tasks if task.get_name() == "cluster"]
            watching.cancel()
            await world.set_database_back()
            await until(lambda: 2 in world.ended)
        assert DATABASE in world.ended[2]


async def test_a_bucket_that_does_not_answer_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.served(1) as one:
        monkeypatch.setattr(Bucket, "put_again", refused)
        await one.raise_epoch(0)
        await beaten(one)
        assert one.marked.is_behind(one.totals)
        monkeypatch.undo()
        await until(lambda: one.marked == one.totals)
    assert not world.ended


async def test_a_worker_starts_while_the_bucket_is_away_and_checks_it_when_it_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may have on its disk what is asked for. A node of a cluster would raise numbers that are compared."""
    async with world.served(1):
        await world.save()
    world.set_bucket_back()
    with monkeypatch.context() as away:
        away.setattr("bridges.cluster.marks.PATIENCE_S", 0.0)
        away.setattr(Bucket, "list", refused)
        with pytest.raises(StoreError, match="the marks of the database cannot be read"):
            await world.begin(1)
        service = await world.begin(1, workers=[1])
        assert not world.ended
    await until(lambda: world.ended)
    assert BUCKET in world.ended[1]
    await service.close()


def test_a_mark_is_what_its_name_says() -> None:
    mark = Mark(3, 70, Totals(12, 4, 9_000_000))
    assert Mark.of_key(mark.key) == mark
    assert Totals(1, 2, 3).is_behind(Totals(1, 2, 4))
    assert not Totals(1, 2, 4).is_behind(Totals(1, 2, 4))


def test_a_mark_of_another_cluster_says_nothing(tmp_path: Path) -> None:
    """Its store does: it names the cluster that it is of."""
    mark = Mark(3, 70, Totals(12, 4, 9_000_000))
    Marks(tmp_path / "mark", None, "one").write(mark)
    for cluster_id, found in (("one", mark), ("other", None)):
        marks = Marks(tmp_path / "mark", None, cluster_id)
        marks.load()
        assert marks.mine == found


class Single:
    """A single node's database file, its directory's mark and its bucket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.life = Life()
        self.file = path / "node.db"

    @property
    def bucket(self) -> Path:
        return self.path / "bucket"

    @asynccontextmanager
    async def served(self) -> AsyncIterator[ByItself]:
        db = Database(SqliteEngine(self.file, MIGRATIONS))
        await db.open()
        settings = load({"data_dir": str(self.path), "sbp.objects": f"file://{self.bucket}"}, environ={}).settings
        plan, ground = (cast("Any", SimpleNamespace()) for _ in range(2))
        plan.settings, plan.life = settings, self.life
        ground.db, ground.directory = db, SimpleNamespace(mark=self.path / "mark")
        try:
            place = await enter(plan, ground)
            try:
                yield place
            finally:
                await place.close()
        finally:
            await db.close()


@pytest.fixture
def single(tmp_path: Path) -> Single:
    return Single(tmp_path)


async def test_a_single_node_that_comes_and_goes_is_refused_nothing(single: Single) -> None:
    for _ in range(3):
        async with single.served() as place:
            await place.mark_again(0)
            (mark,) = single.bucket.glob("marks/*/*")
            assert Mark.of_key(mark.name).totals.version > 0
    assert single.life.failure is None


async def test_a_bucket_that_goes_back_ends_a_single_node(single: Single, tmp_path: Path) -> None:
    async with single.served() as place:
        shutil.copytree(single.bucket, tmp_path / "saved")
        await place.mark_again(0)
        assert single.life.failure is None
        shutil.rmtree(single.bucket)
        shutil.copytree(tmp_path / "saved", single.bucket)
        await place.mark_again(0)
        assert BUCKET in (single.life.failure or "")
    for _ in range(2):
        with pytest.raises(StoreError, match=BUCKET):
            async with single.served():
                pass


@pytest.mark.parametrize("lost", [False, True], ids=["with its directory", "with the bucket alone"])
async def test_a_database_file_that_went_back_is_refused(single: Single, tmp_path: Path, lost: bool) -> None:
    async with single.served():
        pass
    shutil.copy(single.file, tmp_path / "saved")
    async with single.served():
        pass
    shutil.copy(tmp_path / "saved", single.file)
    if lost:
        (single.path / "mark").unlink()
    for _ in range(3):
        with pytest.raises(StoreError, match=DATABASE):
            async with single.served():
                pass


async def test_a_bucket_that_is_away_at_the_start_is_checked_when_it_answers(
    single: Single, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with single.served():
        shutil.copytree(single.bucket, tmp_path / "saved")
    shutil.rmtree(single.bucket)
    shutil.copytree(tmp_path / "saved", single.bucket)
    with monkeypatch.context() as away:
        away.setattr("bridges.cluster.marks.PATIENCE_S", 0.0)
        away.setattr(Bucket, "list", refused)
        async with single.served() as place:
            assert single.life.failure is None
            away.undo()
            await place.mark_again(0)
            assert BUCKET in (single.life.failure or "")
