from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.sql.engine import Job, Refuse, SqlFailed
from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.progress import Committed, Progress, erase_topic
from bridges.catalog.topics.catalog import Catalog, CatalogOptions
from bridges.catalog.topics.config import SPLIT
from bridges.catalog.topics.lineage import KeyRange
from bridges.catalog.topics.names import (
    InvalidTopicName,
    canonical_name,
    check_topic_name,
    collision_key,
    derived_names,
)
from bridges.catalog.topics.seals import Promise
from bridges.catalog.topics.topic import (
    Change,
    ChangeKind,
    InvalidPartitions,
    NameCollision,
    TopicExists,
    TopicNotFound,
)
from bridges.errors import LogUnavailable
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.wire.model import RangeInfo, StreamInfo
from tests.databases import database, on_each_engine


class Backend:
    """Streams in a file of their own, so that they survive the process as a real backend's do."""

    def __init__(self, path: Path) -> None:
        self.file = sqlite3.connect(path, isolation_level=None)
        self.file.execute(
            "CREATE TABLE IF NOT EXISTS s (id INTEGER PRIMARY KEY, deleted INTEGER, opened INTEGER, inside INTEGER)"
        )
        self.fail_creates_after: int | None = None
        self.inside = True
        """Whether streams are made by the node; False: by some other program."""
        self.fail_deletes = 0
        self.delete_bugs = 0
        self.delete_attempted = asyncio.Event()

    async def create_stream(self, replica: int = 1, ack_count: int = 1, retention_ms: int = 0) -> StreamInfo:
        await asyncio.sleep(0)
        if self.fail_creates_after is not None:
            if self.fail_creates_after == 0:
                raise SbpError(ErrorCode.PD_NO_AVAILABLE_RS, "no server")
            self.fail_creates_after -= 1
        (stream_id,) = self.file.execute("SELECT coalesce(max(id), -1) + 1 FROM s").fetchone()
        self.file.execute("INSERT INTO s VALUES (?, 0, 0, ?)", (stream_id, self.inside))
        return StreamInfo(stream_id, replica, ack_count, retention_ms)

    async def describe_stream(self, stream_id: int) -> StreamInfo:
        if stream_id not in self.alive():
            raise SbpError(ErrorCode.NOT_FOUND, "no such stream")
        (inside,) = self.file.execute("SELECT inside FROM s WHERE id = ?", (stream_id,)).fetchone()
        return StreamInfo(stream_id, inside=bool(inside))

    async def delete_stream(self, stream_id: int) -> None:
        self.delete_attempted.set()
        if self.delete_bugs:
            self.delete_bugs -= 1
            raise RuntimeError("a bug")
        if self.fail_deletes:
            self.fail_deletes -= 1
            raise SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "not now")
        await self.describe_stream(stream_id)
        self.file.execute("UPDATE s SET deleted = 1 WHERE id = ?", (stream_id,))

    async def list_ranges(self, stream_id: int) -> list[RangeInfo]:
        (opened,) = self.file.execute("SELECT opened FROM s WHERE id = ?", (stream_id,)).fetchone()
        return [RangeInfo(stream_id=stream_id, index=0)] * opened

    def alive(self) -> set[int]:
        return {one for (one,) in self.file.execute("SELECT id FROM s WHERE deleted = 0")}


class Home:
    """A data directory with a catalog that can be started again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.promises: list[Promise] = []

    async def start(self, **options) -> Catalog:
        self.backend = Backend(self.path / "backend.db")
        self.db = database(self.path / "node.db", MIGRATIONS, application_id=APPLICATION_ID)
        await self.db.open()
        self.progress = Progress(self.db)
        await self.progress.load()
        self.catalog = Catalog(self.db, self.backend, CatalogOptions(**options), (erase_topic,), None, self.promises)
        self.changes: list[Change] = []
        self.catalog.on_change.append(self.changes.append)
        await self.catalog.load()
        return self.catalog

    async def stop(self) -> None:
        await self.catalog.close()
        await self.db.close()
        self.backend.file.close()

    async def restart(self, **options) -> Catalog:
        await self.stop()
        return await self.start(**options)

    async def no_doomed(self) -> None:
        while self.catalog.pending_deletions:
            await self.db.run(lambda c: None)

    def streams(self) -> set[int]:
        return {p.stream_id for topic in self.catalog.topics.values() for p in topic.partitions}


@pytest.fixture
async def home(tmp_path: Path):
    home = Home(tmp_path)
    await home.start()
    yield home
    await home.stop()


# --- names ----------------------------------------------------------------------------------------------------------


@given(st.text(st.characters(codec="ascii"), max_size=260) | st.text(max_size=12))
def test_legal_names_are_exactly_those_of_the_rule(name: str) -> None:
    legal = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    if 1 <= len(name) <= 249 and set(name) <= legal and name not in (".", ".."):
        check_topic_name(name)
    else:
        with pytest.raises(InvalidTopicName):
            check_topic_name(name)


@given(st.text("ab._-", min_size=1, max_size=6), st.text("ab._-", min_size=1, max_size=6))
def test_derived_names_tell_topics_apart_unless_they_lie_in_the_default_scope(one: str, other: str) -> None:
    if collision_key(one) == collision_key(other):
        return
    shared = set(derived_names(one).items()) & set(derived_names(other).items())
    for protocol, _ in shared:
        assert protocol == "pravega"
        assert one == f"default.{other}" or other == f"default.{one}"


def test_derived_names_by_example() -> None:
    assert derived_names("orders") == {"pravega": "default/orders", "ydb": "orders"}
    assert derived_names("shop.orders.v1") == {"pravega": "shop/orders.v1", "ydb": "shop/orders/v1"}
    assert derived_names("__offsets") == {"ydb": "__offsets"}
    assert derived_names(".hidden") == {}


@given(st.text("ab._-", min_size=1, max_size=8))
def test_names_lead_back_from_every_protocol(name: str) -> None:
    if name in (".", ".."):
        return
    for protocol, other in derived_names(name).items():
        back = canonical_name(protocol, other)
        assert back == name or (protocol == "pravega" and name == f"default.{back}")


@given(st.text("ab.-", min_size=1, max_size=4), st.text("ab.-", min_size=1, max_size=4))
def test_streams_of_pravega_lead_back_unless_their_scope_has_a_dot(scope: str, stream: str) -> None:
    canonical = canonical_name("pravega", f"{scope}/{stream}")
    again = derived_names(canonical).get("pravega")
    assert again == f"{scope}/{stream}" or "." in scope


def test_names_that_no_topic_can_have() -> None:
    for protocol, wrong in (("pravega", "a"), ("pravega", "a/"), ("pravega", "a/b/c"), ("ydb", "a//b"), ("ydb", "/a")):
        with pytest.raises(InvalidTopicName):
            canonical_name(protocol, wrong)
    with pytest.raises(InvalidTopicName, match="at most 249"):
        canonical_name("ydb", "a/" * 200 + "a")
    assert canonical_name("pravega", "default/orders") == "orders"
    assert canonical_name("pravega", "default/a.b") == "default.a.b"
    assert canonical_name("pravega", "shop/orders.v1") == "shop.orders.v1"
    assert canonical_name("ydb", "shop/orders") == "shop.orders"


@on_each_engine
async def test_two_names_of_another_protocol_that_mean_the_same_canonical_one(home: Home) -> None:
    for name in ("a/b.c", "a.b/c"):
        canonical = canonical_name("pravega", name)
        assert canonical == "a.b.c"
        if home.catalog.by_name("pravega", "a/b.c") is None:
            await home.catalog.create_topic(canonical, 1, names={"pravega": name})
        else:
            with pytest.raises(TopicExists):
                await home.catalog.create_topic(canonical, 1, names={"pravega": name})


# --- topics ---------------------------------------------------------------------------------------------------------


@on_each_engine
async def test_a_topic_survives_with_all_it_has(home: Home) -> None:
    made = await home.catalog.create_topic("a.b", 3, {"retention.ms": "1000"}, {"pravega": "x/y"})
    again = (await home.restart()).topic("a.b")
    assert again is not made
    assert (again.name, again.topic_id, again.partitions) == (made.name, made.topic_id, made.partitions)
    assert (again.config, again.created_ms, again.names) == (made.config, made.created_ms, made.names)
    assert again.names == {"pravega": "x/y", "ydb": "a/b"}
    assert home.catalog.by_id[made.topic_id.bytes] is again
    assert home.catalog.by_name("ydb", "a/b") is again
    assert [p.index for p in again.partitions] == [0, 1, 2]
    assert home.streams() == home.backend.alive()
    assert home.catalog.stream_of("a.b", 2) == again.partitions[2].stream_id
    assert home.catalog.stream_of("a.b", 3) is None
    assert home.catalog.stream_of("a.b", -1) is None
    assert home.catalog.stream_of("none", 0) is None


@on_each_engine
async def test_names_are_taken_once(home: Home) -> None:
    catalog = home.catalog
    await catalog.create_topic("a.b", 1)
    with pytest.raises(TopicExists):
        await catalog.create_topic("a.b", 1)
    with pytest.raises(NameCollision, match="differ only"):
        await catalog.create_topic("a_b", 1)
    with pytest.raises(NameCollision, match="pravega"):
        await catalog.create_topic("c", 1, names={"pravega": "a/b"})
    with pytest.raises(InvalidTopicName):
        await catalog.create_topic("a b", 1)
    await catalog.create_topic("plain", 1)
    with pytest.raises(NameCollision, match="default/plain"):
        await catalog.create_topic("default.plain", 1)
    assert set(catalog.topics) == {"a.b", "plain"}
    assert home.streams() == home.backend.alive()


@on_each_engine
async def test_two_creations_of_one_name_at_once(home: Home) -> None:
    results = await asyncio.gather(
        home.catalog.create_topic("t", 2), home.catalog.create_topic("t", 2), return_exceptions=True
    )
    assert [isinstance(one, TopicExists) for one in results] == [False, True]
    assert home.streams() == home.backend.alive()


async def test_limits_of_partitions(tmp_path: Path) -> None:
    home = Home(tmp_path)
    catalog = await home.start(max_partitions_per_topic=4, max_partitions=6)
    for wrong in (0, -1, 5):
        with pytest.raises(InvalidPartitions):
            await catalog.create_topic("t", wrong)
    await catalog.create_topic("t", 4)
    with pytest.raises(InvalidPartitions, match="limit of 6"):
        await catalog.create_topic("u", 3)
    await catalog.create_topic("u", 2)
    await catalog.delete_topic("t")
    await catalog.add_partitions("u", 4)
    assert catalog.partition_count == 4
    await home.stop()


@on_each_engine
async def test_the_limit_of_partitions_holds_for_what_is_made_at_the_same_time(tmp_path: Path) -> None:
    home = Home(tmp_path)
    catalog = await home.start(max_partitions_per_topic=9, max_partitions=20)
    await catalog.create_topic("grows", 1, {SPLIT: "true"})
    await catalog.create_topic("splits", 1, {SPLIT: "true"})
    halves = [KeyRange.of_doubles(0.0, 0.5), KeyRange.of_doubles(0.5, 1.0)]
    made = await asyncio.gather(
        *(catalog.create_topic(f"t{number}", 2) for number in range(20)),
        catalog.add_partitions("grows", 9),
        catalog.change_partitions("splits", [0], halves),
        return_exceptions=True,
    )
    refused = [one for one in made if isinstance(one, BaseException)]
    assert {type(one) for one in refused} == {InvalidPartitions}
    assert catalog.partition_count == 20
    # What failed, or was deleted, makes room again.
    home.backend.fail_creates_after = 0
    await catalog.delete_topic("t0")
    with pytest.raises(LogUnavailable):
        await catalog.create_topic("u", 2)
    home.backend.fail_creates_after = None
    await catalog.create_topic("u", 2)
    with pytest.raises(InvalidPartitions, match="limit of 20"):
        await catalog.create_topic("v", 1)
    await home.stop()


@on_each_engine
async def test_a_creation_that_fails_halfway_leaves_nothing(home: Home) -> None:
    home.backend.fail_creates_after = 2
    with pytest.raises(LogUnavailable, match="no server"):
        await home.catalog.create_topic("t", 5)
    await home.no_doomed()
    assert home.backend.alive() == set()
    home.backend.fail_creates_after = None
    await home.catalog.create_topic("t", 5)
    assert home.streams() == home.backend.alive()
    assert await home.db.run(lambda c: c.execute("SELECT count(*) FROM stream_intents").fetchone()) == (0,)


@on_each_engine
async def test_a_creation_that_is_committed_behind_an_error_keeps_its_streams(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = home.db.engine.execute
    groups = 0

    def told_as_failed(group: list[Job], refuse: Refuse) -> None:
        nonlocal groups
        execute(group, refuse)
        groups += 1
        if groups == 2:  # behind the intent
            for job in group:
                job.error = SqlFailed("the connection was lost")

    monkeypatch.setattr(home.db.engine, "execute", told_as_failed)
    await home.catalog.create_topic("t", 3)
    assert groups == 3, "it was proved"
    assert [change.topic.name for change in home.changes] == ["t"]
    catalog = await home.restart()
    assert len(catalog.topic("t").partitions) == 3
    await home.no_doomed()
    assert home.streams() == home.backend.alive()


@on_each_engine
async def test_a_creation_whose_intent_was_given_up_by_another_start_is_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was paused, and whose next life looked for what it had left unfinished."""
    create = home.backend.create_stream

    async def ended_meanwhile(*args: int, **kwargs: int) -> StreamInfo:
        await home.db.run(lambda c: c.execute("DELETE FROM stream_intents"))
        return await create(*args, **kwargs)

    monkeypatch.setattr(home.backend, "create_stream", ended_meanwhile)
    with pytest.raises(LogUnavailable, match="another start"):
        await home.catalog.create_topic("t", 1)
    assert "t" not in home.catalog.topics
    assert await home.db.run(lambda c: c.execute("SELECT count(*) FROM partitions").fetchone()) == (0,)
    assert await home.db.run(lambda c: c.execute("SELECT count(*) FROM doomed_streams").fetchone()) == (0,), "not ours"


async def test_a_cancelled_caller_does_not_stop_a_creation(home: Home) -> None:
    task = asyncio.ensure_future(home.catalog.create_topic("t", 2))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    catalog = await home.restart()
    assert len(catalog.topic("t").partitions) == 2


@on_each_engine
async def test_what_streams_depend_on_is_flushed_before_they_change_whatever_the_durability(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The placement driver keeps its word when power is lost: the catalog must not know less than it."""
    happened: list[str] = []
    submit, create, delete = home.db.submit, home.backend.create_stream, home.backend.delete_stream

    def submitted(fn, *, flush=False, frees=False, then=None):  # type: ignore[no-untyped-def]
        happened.append("flushed" if flush else "written")
        return submit(fn, flush=flush, frees=frees, then=then)

    async def created(*args: int, **kwargs: int) -> StreamInfo:
        happened.append("create")
        return await create(*args, **kwargs)

    async def deleted(stream_id: int) -> None:
        happened.append("delete")
        await delete(stream_id)

    monkeypatch.setattr(home.db, "submit", submitted)
    monkeypatch.setattr(home.backend, "create_stream", created)
    monkeypatch.setattr(home.backend, "delete_stream", deleted)
    await home.catalog.create_topic("t", 1)
    assert happened[:2] == ["flushed", "create"]
    happened.clear()
    await home.catalog.delete_topic("t")
    await home.no_doomed()
    assert happened[:2] == ["flushed", "delete"]
    happened.clear()
    await home.catalog.counters.next_epoch()
    await home.catalog.counters.allocate_producer_ids(5)
    assert happened == ["flushed", "flushed"]


async def test_a_broken_listener_costs_neither_the_change_nor_other_listeners_nor_the_deletion(home: Home) -> None:
    def broken(change: Change) -> None:
        raise RuntimeError("a bug in a listener")

    home.catalog.on_change.insert(0, broken)
    await home.catalog.create_topic("t", 2)
    await home.catalog.delete_topic("t")
    assert [change.kind for change in home.changes] == [ChangeKind.CREATED, ChangeKind.DELETED]
    await home.no_doomed()
    assert home.backend.alive() == set()


async def test_a_bug_in_deleting_one_stream_does_not_end_the_deleting(home: Home) -> None:
    home.backend.delete_bugs = 1
    await home.catalog.create_topic("t", 3)
    await home.catalog.delete_topic("t")
    await home.no_doomed()
    assert home.backend.alive() == set()


@on_each_engine
async def test_deletion_forgets_positions_and_streams_also_across_restarts(home: Home) -> None:
    catalog = home.catalog
    first = await catalog.create_topic("t", 2)
    await home.progress.front("kafka").commit("g", [("t", 0, Committed(5)), ("other", 0, Committed(6))])
    home.backend.fail_deletes = 10**9
    await catalog.delete_topic("t")
    assert "t" not in catalog.topics
    with pytest.raises(TopicNotFound):
        await catalog.delete_topic("t")
    await home.backend.delete_attempted.wait()
    assert len(home.backend.alive()) == 2
    catalog = await home.restart()  # the backend is well again
    await home.no_doomed()
    assert home.backend.alive() == set()
    assert home.progress.front("kafka").committed("g", "t", 0) is None
    assert home.progress.front("kafka").committed("g", "other", 0) == Committed(6)
    second = await catalog.create_topic("t", 2)
    assert second.topic_id != first.topic_id
    assert home.streams() == home.backend.alive()


@on_each_engine
async def test_partitions_grow_only(home: Home) -> None:
    topic = await home.catalog.create_topic("t", 2)
    for wrong in (1, 2, 0):
        with pytest.raises(InvalidPartitions):
            await home.catalog.add_partitions("t", wrong)
    before = list(topic.partitions)
    assert await home.catalog.add_partitions("t", 5) is topic
    assert topic.partitions[:2] == before
    assert (await home.restart()).topic("t").partitions == topic.partitions
    with pytest.raises(TopicNotFound):
        await home.catalog.add_partitions("u", 2)


@on_each_engine
async def test_configuration_is_checked_kept_and_removed(home: Home) -> None:
    catalog = home.catalog
    await catalog.create_topic("t", 1, {"cleanup.policy": " compact , delete"})
    assert catalog.topic("t").config == {"cleanup.policy": "compact,delete"}
    with pytest.raises(InvalidConfig):
        await catalog.create_topic("u", 1, {"no.such": "1"})
    with pytest.raises(InvalidConfig):
        await catalog.set_config("t", {"retention.ms": "soon"})
    await catalog.set_config("t", {"retention.ms": "5", "cleanup.policy": None})
    assert catalog.topic("t").config == {"retention.ms": "5"}
    assert catalog.effective("t", "retention.ms") == 5
    assert catalog.effective("t", "cleanup.policy") == ["delete"]
    assert (await home.restart()).topic("t").config == {"retention.ms": "5"}


@on_each_engine
async def test_what_a_front_says_of_a_change_is_part_of_it(home: Home) -> None:
    catalog = home.catalog
    await home.db.run(lambda db: db.execute("CREATE TABLE front_x_notes (topic TEXT, note TEXT)"))

    def noted(note: str, *, fails: bool = False):
        def also(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO front_x_notes VALUES ('t', ?)", (note,))
            if fails:
                raise LogUnavailable(note)

        return also

    async def notes() -> list[str]:
        return [
            note for (note,) in await home.db.run(lambda db: db.execute("SELECT note FROM front_x_notes").fetchall())
        ]

    with pytest.raises(LogUnavailable, match="one"):
        await catalog.create_topic("t", 1, also=noted("one", fails=True))
    assert "t" not in catalog.topics
    await catalog.create_topic("t", 1, also=noted("two"))
    with pytest.raises(LogUnavailable, match="three"):
        await catalog.set_config("t", {"retention.ms": "5"}, also=noted("three", fails=True))
    assert catalog.topic("t").config == {}
    await catalog.set_config("t", {"retention.ms": "6"}, also=noted("four"))
    assert (await home.restart()).topic("t").config == {"retention.ms": "6"}
    assert await notes() == ["two", "four"]


@on_each_engine
async def test_changes_of_one_topic_at_once_all_count(home: Home) -> None:
    catalog = home.catalog
    await catalog.create_topic("t", 1)
    await asyncio.gather(
        catalog.set_config("t", {"retention.ms": "5"}),
        catalog.set_config("t", {"retention.bytes": "6"}),
        catalog.add_partitions("t", 3),
        catalog.set_config("t", {"segment.ms": "7"}),
    )
    topic = (await home.restart()).topic("t")
    assert topic.config == {"retention.ms": "5", "retention.bytes": "6", "segment.ms": "7"}
    assert len(topic.partitions) == 3


@on_each_engine
async def test_a_change_that_waited_for_a_deletion_finds_nothing(home: Home) -> None:
    catalog = home.catalog
    await catalog.create_topic("t", 1)
    results = await asyncio.gather(
        catalog.delete_topic("t"), catalog.set_config("t", {"retention.ms": "5"}), return_exceptions=True
    )
    assert results[0] is None
    assert isinstance(results[1], TopicNotFound)
    await catalog.create_topic("t", 1)
    await catalog.set_config("t", {"retention.ms": "6"})
    assert catalog.topic("t").config == {"retention.ms": "6"}


async def test_listeners_are_told(home: Home) -> None:
    catalog = home.catalog
    topic = await catalog.create_topic("t", 1)
    await catalog.add_partitions("t", 2)
    await catalog.set_config("t", {"retention.ms": "5"})
    await catalog.set_node_config({"log.retention.ms": "9"})
    await catalog.delete_topic("t")
    kinds = ChangeKind
    assert home.changes == [
        Change(kinds.CREATED, topic),
        Change(kinds.PARTITIONS, topic),
        Change(kinds.CONFIG, topic),
        Change(kinds.NODE_CONFIG),
        Change(kinds.DELETED, topic),
    ]


@on_each_engine
async def test_node_configuration_gives_defaults_to_topics(home: Home) -> None:
    catalog = home.catalog
    await catalog.create_topic("t", 1)
    await catalog.set_node_config({"log.retention.ms": "9"})
    assert catalog.effective("t", "retention.ms") == 9
    for wrong in ({"node.id": "4"}, {"no.such": "1"}, {"message.max.bytes": "-1"}, {"log.retention.hours": "1"}):
        with pytest.raises(InvalidConfig):
            await catalog.set_node_config(wrong)
    catalog = await home.restart()
    assert catalog.node_config == {"log.retention.ms": "9"}
    await catalog.set_node_config({"log.retention.ms": None})
    assert catalog.effective("t", "retention.ms") == 7 * 86_400_000


async def test_static_settings_lie_between(tmp_path: Path) -> None:
    home = Home(tmp_path)
    catalog = await home.start(static={"log.retention.hours": "2"})
    await catalog.create_topic("t", 1)
    assert catalog.effective("t", "retention.ms") == 7_200_000
    await catalog.set_node_config({"log.retention.ms": "9"})
    assert catalog.effective("t", "retention.ms") == 9
    await home.stop()


@on_each_engine
async def test_counters_never_repeat(home: Home) -> None:
    assert await home.catalog.counters.next_epoch() == 0
    assert await home.catalog.counters.next_epoch() == 1
    assert await home.catalog.counters.allocate_producer_ids(1000) == 0
    catalog = await home.restart()
    assert await catalog.counters.next_epoch() == 2
    assert sorted(await asyncio.gather(*(catalog.counters.allocate_producer_ids(10) for _ in range(3)))) == [
        1000,
        1010,
        1020,
    ]
    with pytest.raises(ValueError, match="at least one"):
        await catalog.counters.allocate_producer_ids(0)


@on_each_engine
async def test_cluster_id_is_made_once(home: Home, tmp_path: Path) -> None:
    first = home.catalog.cluster_id
    assert len(first) == 22
    assert not first.startswith("-")
    assert (await home.restart()).cluster_id == first
    assert (await home.db.run(lambda c: c.execute("SELECT value FROM meta WHERE key = 'cluster_id'").fetchone())) == (
        first,
    )


# --- crashes --------------------------------------------------------------------------------------------------------


@on_each_engine
async def test_streams_of_an_unfinished_creation_are_found(home: Home) -> None:
    await home.catalog.create_topic("kept", 2)
    top = max(home.backend.alive())
    await home.db.run(
        lambda c: c.execute("INSERT INTO stream_intents (first_stream_id, count) VALUES (?, 3)", (top + 1,))
    )
    orphans = [(await home.backend.create_stream()).stream_id for _ in range(3)]
    used = (await home.backend.create_stream()).stream_id  # somebody has opened this one: it is not ours to delete
    home.backend.file.execute("UPDATE s SET opened = 1 WHERE id = ?", (used,))
    await home.restart()
    await home.no_doomed()
    assert home.backend.alive() == home.streams() | {used}
    assert not set(orphans) & home.backend.alive()
    assert await home.db.run(lambda c: c.execute("SELECT count(*) FROM stream_intents").fetchone()) == (0,)


@on_each_engine
async def test_streams_that_others_made_and_never_opened_are_theirs(home: Home) -> None:
    """Programs that speak SBP make streams in the node's placement driver, too; a crash of the node is not theirs."""
    await home.db.run(lambda c: c.execute("INSERT INTO stream_intents (first_stream_id, count) VALUES (0, 2)"))
    orphan = (await home.backend.create_stream()).stream_id
    home.backend.inside = False
    others = {(await home.backend.create_stream()).stream_id for _ in range(2)}
    home.backend.inside = True
    orphans = {orphan, (await home.backend.create_stream()).stream_id}
    await home.restart()
    await home.no_doomed()
    assert home.backend.alive() == others
    assert not orphans & home.backend.alive()


async def test_nothing_is_looked_for_in_a_backend_that_others_use(home: Home) -> None:
    await home.db.run(lambda c: c.execute("INSERT INTO stream_intents (first_stream_id, count) VALUES (0, 3)"))
    foreign = (await home.backend.create_stream()).stream_id
    await home.restart(owns_streams=False)
    await home.no_doomed()
    assert home.backend.alive() == {foreign}


CHILD = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_catalog import Home

async def main():
    home = Home(Path({path!r}))
    catalog = await home.start()
    print("started", flush=True)
    async def lane(n):
        round_ = 0
        while True:
            name = f"t{{n}}-{{round_ % 5}}"
            if name in catalog.topics:
                await catalog.delete_topic(name)
            else:
                await catalog.create_topic(name, 1 + n)
            if name in catalog.topics and round_ % 2:
                await catalog.add_partitions(name, len(catalog.topic(name).partitions) + 2)
            round_ += 1
            print(name, name in catalog.topics, flush=True)
    await asyncio.gather(*(lane(n) for n in range(4)))

asyncio.run(main())
"""


@on_each_engine
async def test_killed_in_the_middle_of_creations_and_deletions(tmp_path: Path) -> None:
    choices = random.Random(7)
    program = CHILD.format(path=str(tmp_path), tests=str(Path(__file__).parent))
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(choices.randint(2, 60))]
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.read().splitlines()
        child.wait()
        told = (line.split() for line in lines[1:])
        last = {one[0]: one[1] == "True" for one in told if len(one) == 2}  # the last line may be torn

        home = Home(tmp_path)
        catalog = await home.start()
        await home.no_doomed()
        # Every stream belongs to a topic and the other way round, whatever the moment of the crash.
        assert home.streams() == home.backend.alive()
        for topic in catalog.topics.values():
            assert [p.index for p in topic.partitions] == list(range(len(topic.partitions)))
        # The last acknowledged state of a topic may only be followed by one change of it that was under way.
        for lane in range(4):
            names = [name for name in last if name.startswith(f"t{lane}-")]
            wrong = [name for name in names if last[name] != (name in catalog.topics)]
            assert len(wrong) <= 1
        await home.stop()
