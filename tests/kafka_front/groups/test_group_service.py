"""The coordinator on an event loop and a disk: stored groups, expiry, deletion, and the view for people."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from anabranch_kit.run.barrier import Barrier
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Database
from bridges.catalog.progress import Committed, Progress
from bridges.catalog.topics.lineage import PartitionInfo
from bridges.catalog.topics.topic import Change, Topic
from bridges.catalog.views.groups import CONSUMERS, GroupMemberView, GroupSummary, GroupView
from bridges.cluster.alone import Alone, NoPeers
from bridges.errors import DataCorrupt, LogUnavailable
from kafka_front.service.groups import GroupService
from kafka_front.service.groups.classic.group import JoinReply, SyncReply
from kafka_front.service.groups.classic.requests import JoinRequest, Leaver, SyncRequest
from kafka_front.service.groups.classic.snapshot import GroupSnapshot, decode_snapshot
from kafka_front.service.groups.journal import GroupJournal
from kafka_front.service.groups.live import LiveGroups
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode, KafkaError
from tests.databases import database, on_each_engine
from tests.kafka_front.groups.lab import assignment, code_of, subscription
from tests.kit.waiting import until

DAY_MS = 86_400_000
NOW = 1_800_000_000_000
SETTINGS = KafkaGroupSettings(initial_rebalance_delay_ms=0, min_session_timeout_ms=1)


@dataclass
class FakeCatalog:
    topics: dict[str, Topic] = field(
        default_factory=lambda: {"t": Topic("t", uuid.uuid4(), [PartitionInfo(0, 0), PartitionInfo(1, 1)], {}, 0)}
    )
    on_change: list[Callable[[Change], None]] = field(default_factory=list)

    @property
    def by_id(self) -> dict[bytes, Topic]:
        return {topic.topic_id.bytes: topic for topic in self.topics.values()}


class Life:
    """Runs of one node on one database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database: Database | None = None
        self.progress: Progress

    async def start(self, settings: KafkaGroupSettings = SETTINGS) -> GroupService:
        await self.stop()
        self.database = database(self.path, MIGRATIONS, application_id=APPLICATION_ID)
        await self.database.open()
        progress = Progress(self.database)
        await progress.load()
        self.progress = progress
        service = GroupService(progress.front("kafka"), FakeCatalog(), Alone(0, AsyncMock()), NoPeers(), settings)
        await service.start()
        return service

    async def stop(self) -> None:
        """End like a killed process: nothing but what is in the database remains."""
        if self.database is not None:
            await self.database.close()
            self.database = None


@pytest.fixture
async def life(tmp_path: Path) -> AsyncIterator[Life]:
    life = Life(tmp_path / "node.db")
    yield life
    await life.stop()


async def join(service: GroupService, group: str, member_id: str = "", **fields: object) -> JoinReply:
    given: dict[str, object] = {
        "instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": (("range", subscription("t")),),
    }
    request = JoinRequest(group, member_id, **{**given, **fields})  # type: ignore[arg-type]
    answer: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
    service.coordinator.join(service.runtime.now_ms(), request, answer.set_result)
    service.runtime.touched()
    return await answer


async def sync(service: GroupService, group: str, joined: JoinReply, blob: bytes = b"") -> SyncReply:
    answer: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
    request = SyncRequest(group, joined.member_id, None, joined.generation, assignments=((joined.member_id, blob),))
    service.coordinator.sync(service.runtime.now_ms(), request, answer.set_result)
    service.runtime.touched()
    return await answer


async def member(service: GroupService, group: str, blob: bytes = b"", **fields: object) -> JoinReply:
    """The only member of a stable group."""
    joined = await join(service, group, **fields)
    assert (await sync(service, group, joined, blob)).error == ErrorCode.NONE
    return joined


async def leave(service: GroupService, group: str, member_id: str) -> None:
    answer: asyncio.Future[tuple[int, list[int]]] = asyncio.get_running_loop().create_future()
    service.coordinator.leave(
        service.runtime.now_ms(), group, [Leaver(member_id)], lambda error, errors: answer.set_result((error, errors))
    )
    assert await answer == (ErrorCode.NONE, [ErrorCode.NONE])


def heartbeat(service: GroupService, group: str, joined: JoinReply) -> int:
    now_ms = service.runtime.now_ms()
    return code_of(service.coordinator.heartbeat, now_ms, group, joined.member_id, None, joined.generation)


async def forget(service: GroupService, group: str) -> int:
    """The code with which a deletion is refused, or NONE."""
    try:
        await service.forget(group)
    except KafkaError as refused:
        return refused.code
    return ErrorCode.NONE


def pass_time(seconds: float) -> None:
    """So long goes by on the loop's clock: no session is so short that it could run out in the middle of a test."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]


# --- stored groups ---------------------------------------------------------------------------------------------------


@on_each_engine
async def test_the_answer_to_sync_comes_after_the_group_is_stored(life: Life) -> None:
    service = await life.start()
    joined = await member(service, "g", b"mine")
    stored = decode_snapshot((await service.progress.load_groups())["g"])
    assert stored is not None
    assert (stored.generation, [m.assignment for m in stored.members]) == (1, [b"mine"])
    service = await life.start()
    assert heartbeat(service, "g", joined) == ErrorCode.NONE
    assert (await sync(service, "g", joined)).assignment == b"mine"


async def test_sessions_run_out_by_the_timer(life: Life) -> None:
    service = await life.start()
    await member(service, "g")
    pass_time(61)
    await until(lambda: not service.coordinator.groups["g"].members)
    assert service.coordinator.groups["g"].state.value == "Empty"


async def test_sessions_of_restored_members_run_out_too(life: Life) -> None:
    service = await life.start()
    await member(service, "g")
    service = await life.start()
    assert service.coordinator.groups["g"].members
    pass_time(61)
    await until(lambda: not service.coordinator.groups["g"].members)


async def test_an_emptied_group_is_stored_so(life: Life) -> None:
    service = await life.start()
    joined = await member(service, "g")
    await leave(service, "g", joined.member_id)
    since = service.runtime.journal.to_unix(service.coordinator.groups["g"].since_ms)
    service = await life.start()
    group = service.coordinator.groups["g"]
    assert (group.state.value, group.generation, group.members) == ("Empty", 2, {})
    assert abs(service.runtime.journal.to_unix(group.since_ms) - since) < 10_000  # of two clocks, read in turn


@on_each_engine
async def test_a_group_that_cannot_be_read_stops_the_start(life: Life) -> None:
    service = await life.start()
    await member(service, "g")
    blob = (await service.progress.load_groups())["g"]
    await service.progress.save_group("g", blob[:-10])
    with pytest.raises(DataCorrupt, match="consumer group 'g': unreadable"):
        await life.start()


@on_each_engine
async def test_groups_of_other_kinds_stay_as_they_are(life: Life) -> None:
    service = await life.start()
    await service.progress.save_group("reader", b"something else")
    service = await life.start()
    assert "reader" not in service.coordinator.groups
    assert (await service.progress.load_groups())["reader"] == b"something else"


@dataclass
class SlowStore:
    """A store whose writes end when the test says so."""

    writes: list[tuple[str, bytes | None, asyncio.Future[None]]] = field(default_factory=list)
    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def load_groups(self) -> dict[str, bytes]:
        return {}

    async def save_group(self, group: str, state: bytes | None) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writes.append((group, state, written))
        self.called.set()
        await written

    async def next(self) -> tuple[str, int | None, asyncio.Future[None]]:
        while not self.writes:
            self.called.clear()
            await self.called.wait()
        group, state, written = self.writes.pop(0)
        snapshot = None if state is None else decode_snapshot(state)
        return group, None if snapshot is None else snapshot.generation, written


def snapshot(generation: int) -> GroupSnapshot:
    return GroupSnapshot(generation, None, None, None, 0, ())


async def test_writes_of_one_group_never_overlap_and_the_last_one_wins() -> None:
    store = SlowStore()
    journal = GroupJournal(store, lambda: 5, lambda: NOW)
    done: list[tuple[int, int, int]] = []
    for generation in (1, 2, 3):
        journal.save("g", snapshot(generation), lambda now, error, g=generation: done.append((g, now, error)))  # type: ignore[misc]
        if generation == 1:
            group, stored, first = await store.next()
    assert (group, stored) == ("g", 1)
    assert not store.writes
    first.set_result(None)
    group, stored, second = await store.next()
    assert (group, stored) == ("g", 3)
    assert done == [(1, 5, ErrorCode.NONE)]
    second.set_result(None)
    await journal.close()
    assert done == [(1, 5, ErrorCode.NONE), (2, 5, ErrorCode.NONE), (3, 5, ErrorCode.NONE)]


async def test_groups_that_wait_together_are_written_together() -> None:
    store = SlowStore()
    journal = GroupJournal(store, lambda: 5, lambda: NOW)
    journal.save("a", snapshot(1), lambda now, error: None)
    _, _, first = await store.next()
    journal.save("b", snapshot(1), lambda now, error: None)
    journal.save("c", snapshot(1), lambda now, error: None)
    first.set_result(None)
    one, _, written = await store.next()
    other, _, also_written = await store.next()
    assert {one, other} == {"b", "c"}
    written.set_result(None)
    also_written.set_result(None)
    await journal.close()


async def test_a_write_that_fails_is_told_and_does_not_stop_the_next() -> None:
    store = SlowStore()
    journal = GroupJournal(store, lambda: 5, lambda: NOW)
    errors: list[int] = []
    journal.save("g", snapshot(1), lambda now, error: errors.append(error))
    _, _, written = await store.next()
    erasing = asyncio.create_task(journal.erase("g"))
    written.set_exception(LogUnavailable("no disk"))
    _, state, written = await store.next()
    assert errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert state is None
    written.set_result(None)
    await erasing


async def test_a_defect_of_one_group_keeps_no_other_from_being_stored() -> None:
    store = SlowStore()
    barrier = Barrier()
    journal = GroupJournal(store, lambda: 5, lambda: NOW, barrier)
    done: list[tuple[str, int]] = []

    def broken(now_ms: int, error: int) -> None:
        done.append(("broken", error))
        raise RuntimeError("a defect")

    journal.save("a", snapshot(1), broken)
    _, _, first = await store.next()
    journal.save("b", snapshot(1), lambda now, error: done.append(("b", error)))
    journal.save("c", snapshot(1), lambda now, error: done.append(("c", error)))
    first.set_result(None)
    _, _, second = await store.next()
    _, _, third = await store.next()
    second.set_exception(RuntimeError("another defect"))
    third.set_result(None)
    await journal.close()
    assert done == [("broken", ErrorCode.NONE), ("b", ErrorCode.COORDINATOR_NOT_AVAILABLE), ("c", ErrorCode.NONE)]
    assert barrier.failures == {"end of storing a group": 1, "storing a group": 1}
    journal.save("a", snapshot(2), lambda now, error: done.append(("a", error)))
    _, _, last = await store.next()
    last.set_result(None)
    await journal.close()
    assert done[-1] == ("a", ErrorCode.NONE)


# --- expiry and deletion ---------------------------------------------------------------------------------------------


async def commit(service: GroupService, group: str, *places: tuple[str, int], age_ms: int, expire_ms: int = -1) -> None:
    await service.progress.commit(
        group, [(t, p, Committed(1, commit_ms=NOW - age_ms, expire_ms=expire_ms)) for t, p in places]
    )


@on_each_engine
async def test_positions_of_a_simple_group_expire_by_their_own_age(life: Life) -> None:
    service = await life.start()
    await commit(service, "g", ("t", 0), age_ms=7 * DAY_MS)
    await commit(service, "g", ("t", 1), age_ms=7 * DAY_MS - 1)
    assert await service.expire(NOW) == 1
    assert [name async for name in service.group_ids()] == ["g"]
    assert set(service.progress.of_group("g")) == {("t", 1)}
    assert await service.expire(NOW + 1) == 1
    assert [name async for name in service.group_ids()] == []
    assert [name async for name in (await life.start()).group_ids()] == []


async def test_a_group_whose_expiry_fails_costs_the_others_nothing(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    service = await life.start()
    for group in ("a", "broken", "z"):
        await commit(service, group, ("t", 0), age_ms=8 * DAY_MS)
    too_old = service._too_old

    def broken(group: str, *rest: Any) -> Any:
        if group == "broken":
            raise RuntimeError(group)
        return too_old(group, *rest)

    monkeypatch.setattr(service, "_too_old", broken)
    assert await service.expire(NOW) == 2
    assert [name async for name in service.group_ids()] == ["broken"]


async def test_a_retention_given_with_the_commit_counts_instead(life: Life) -> None:
    service = await life.start()
    await commit(service, "g", ("t", 0), age_ms=0, expire_ms=NOW + 10)
    await commit(service, "g", ("t", 1), age_ms=30 * DAY_MS, expire_ms=NOW + 20)
    assert await service.expire(NOW + 9) == 0
    assert await service.expire(NOW + 10) == 1
    assert await service.expire(NOW + 20) == 1


async def test_positions_of_an_emptied_group_expire_by_the_time_it_has_been_empty(life: Life) -> None:
    service = await life.start()
    joined = await member(service, "g")
    await service.progress.commit("g", [("t", 0, Committed(1, commit_ms=0))])
    await leave(service, "g", joined.member_id)
    emptied = service.runtime.journal.to_unix(service.coordinator.groups["g"].since_ms)
    assert await service.expire(emptied + 7 * DAY_MS - 1_000) == 0
    assert await service.expire(emptied + 7 * DAY_MS + 1_000) == 1
    assert [name async for name in service.group_ids()] == []
    await service.stop()
    assert await service.progress.load_groups() == {}


async def test_positions_of_topics_that_are_read_do_not_expire(life: Life) -> None:
    service = await life.start()
    await member(service, "g")
    await commit(service, "g", ("t", 0), ("other", 0), age_ms=30 * DAY_MS)
    assert await service.expire(NOW) == 1
    assert set(service.progress.of_group("g")) == {("t", 0)}


async def test_nothing_expires_while_a_group_rebalances_or_its_subscriptions_are_unknown(life: Life) -> None:
    service = await life.start()
    await join(service, "rebalancing")
    await member(service, "unreadable", protocols=(("range", b"?"),))
    await member(service, "connect", protocol_type="connect")
    for group in ("rebalancing", "unreadable", "connect"):
        await commit(service, group, ("t", 0), age_ms=30 * DAY_MS)
    assert await service.expire(NOW) == 0


async def test_a_position_that_is_being_replaced_does_not_expire(life: Life) -> None:
    service = await life.start()
    await commit(service, "g", ("t", 0), age_ms=30 * DAY_MS)
    service.committing["g"] = 1
    assert await service.expire(NOW) == 0


# --- beside another protocol ------------------------------------------------------------------------------------------


async def test_expiry_leaves_another_fronts_positions_alone_and_makes_no_group_of_them(life: Life) -> None:
    service = await life.start()
    other = life.progress.front("ydb")
    await other.commit("theirs", [("t", 0, Committed(7, commit_ms=0, expire_ms=1))])
    await other.commit("both", [("t", 0, Committed(8, commit_ms=0))])
    await commit(service, "both", ("t", 1), age_ms=30 * DAY_MS)

    assert await service.expire(NOW) == 1

    assert dict(other.of_group("theirs")) == {("t", 0): Committed(7, commit_ms=0, expire_ms=1)}
    assert set(other.of_group("both")) == {("t", 0)}
    assert service.coordinator.groups == {}
    assert await service.expire(NOW + DAY_MS) == 0
    service = await life.start()
    assert [name async for name in service.group_ids()] == ["both", "theirs"]


@on_each_engine
async def test_nothing_expires_of_a_group_that_another_front_holds(life: Life) -> None:
    service = await life.start()
    other = life.progress.front("ydb")
    await commit(service, "g", ("t", 0), age_ms=30 * DAY_MS)
    await other.save_group("g", b"a consumer")
    assert await service.expire(NOW) == 0
    assert set(service.progress.of_group("g")) == {("t", 0)}
    await other.save_group("g", None)
    assert await service.expire(NOW) == 1


async def test_a_group_that_kafka_clients_left_is_forgotten_though_others_read_on(life: Life) -> None:
    """Kept because of positions that never expire here, its state would keep others from ever letting theirs expire."""
    service = await life.start()
    joined = await member(service, "g")
    await commit(service, "g", ("t", 0), age_ms=30 * DAY_MS)
    await leave(service, "g", joined.member_id)
    await life.progress.front("ydb").commit("g", [("t", 1, Committed(3))])
    assert await service.expire(NOW + 60 * 365 * DAY_MS) == 1
    assert await service.progress.load_groups() == {}
    assert life.progress.holders((CONSUMERS, "g")) == frozenset()
    assert set(service.progress.of_group("g")) == {("t", 1)}


async def test_kafka_clients_cannot_delete_a_group_that_another_front_holds(life: Life) -> None:
    service = await life.start()
    other = life.progress.front("ydb")
    await other.save_group("g", b"a consumer")
    await other.commit("g", [("t", 0, Committed(3))])
    assert await forget(service, "g") == ErrorCode.NON_EMPTY_GROUP
    assert service.progress.committed("g", "t", 0) == Committed(3)
    await other.save_group("g", None)
    assert await forget(service, "g") == ErrorCode.NONE
    assert dict(other.of_group("g")) == {}


@on_each_engine
async def test_a_front_that_comes_while_a_group_is_deleted_keeps_its_positions(life: Life) -> None:
    service = await life.start()
    other = life.progress.front("ydb")
    await commit(service, "g", ("t", 0), age_ms=0)
    holding = asyncio.create_task(other.save_group("g", b"a consumer"))
    await asyncio.sleep(0)  # on its way to the database, where it comes first
    assert await forget(service, "g") == ErrorCode.NON_EMPTY_GROUP
    await holding
    assert set(other.of_group("g")) == {("t", 0)}


@on_each_engine
async def test_states_of_one_name_do_not_overwrite_each_other(life: Life) -> None:
    service = await life.start()
    await member(service, "g")
    await life.progress.front("ydb").save_group("g", b"another")
    service = await life.start()
    assert service.coordinator.groups["g"].state.value == "Stable"
    assert await life.progress.front("ydb").load_groups() == {"g": b"another"}


async def test_empty_groups_without_positions_go_but_not_under_a_pending_member(life: Life) -> None:
    service = await life.start()
    joined = await member(service, "left")
    await leave(service, "left", joined.member_id)
    pending = await join(service, "pending", require_known_id=True)
    assert pending.error == ErrorCode.MEMBER_ID_REQUIRED
    await service.expire(NOW)
    assert [name async for name in service.group_ids()] == ["pending"]
    await service.stop()
    assert await service.progress.load_groups() == {}


@on_each_engine
async def test_a_deleted_group_is_gone_for_good(life: Life) -> None:
    service = await life.start()
    joined = await member(service, "g")
    await commit(service, "g", ("t", 0), age_ms=0)
    assert await forget(service, "g") == ErrorCode.NON_EMPTY_GROUP
    await leave(service, "g", joined.member_id)
    assert await forget(service, "g") == ErrorCode.NONE
    assert await forget(service, "g") == ErrorCode.GROUP_ID_NOT_FOUND
    service = await life.start()
    assert [name async for name in service.group_ids()] == []
    assert service.progress.of_group("g") == {}


async def test_a_group_looked_up_while_it_is_deleted_does_not_come_back(life: Life) -> None:
    service = await life.start()
    await commit(service, "g", ("t", 0), age_ms=0)
    deleting = asyncio.create_task(forget(service, "g"))
    while "g" not in service.coordinator.groups and not deleting.done():
        service.find("g")
        await asyncio.sleep(0)
    assert await deleting == ErrorCode.NONE
    assert service.find("g") is None


# --- for people ------------------------------------------------------------------------------------------------------


async def test_groups_that_clients_joined_are_shown(life: Life) -> None:
    service = await life.start()
    joined = await member(service, "g", assignment({"t": [1, 0]}))
    await service.progress.commit("g", [("t", 0, Committed(10, 0, "note")), ("gone", 0, Committed(3))])
    await service.progress.commit("simple", [("t", 0, Committed(20))])
    assert [service.summary(name) async for name in service.group_ids()] == [
        GroupSummary("g", "classic", "Stable", "consumer", 1),
        GroupSummary("simple", "classic", "Empty", "", 0),
    ]
    summary = GroupSummary("g", "classic", "Stable", "consumer", 1)
    assert [*LiveGroups(service).summaries()] == [summary]
    reader = GroupMemberView(joined.member_id, None, "c", "/h", (("t", 0), ("t", 1)))
    assert LiveGroups(service).view("g") == GroupView(summary, 1, "range", joined.member_id, (reader,))
    assert LiveGroups(service).view("nothing") is None
    # Positions alone may be another front's; that a Kafka client asked about the group changes nothing.
    assert service.find("simple") is not None
    assert LiveGroups(service).view("simple") is None
    assert [*LiveGroups(service).summaries()] == [summary]


async def test_a_group_is_shown_from_its_first_member_id_until_it_is_forgotten(life: Life) -> None:
    service = await life.start()
    await join(service, "pending", require_known_id=True)
    assert [*LiveGroups(service).summaries()] == [GroupSummary("pending", "classic", "Empty", "", 0)]
    joined = await member(service, "g")
    await leave(service, "g", joined.member_id)
    view = LiveGroups(service).view("g")
    assert view is not None
    assert (view.summary.state, view.summary.protocol_type, view.leader, view.members) == (
        "Empty",
        "consumer",
        None,
        (),
    )
    assert await forget(service, "g") == ErrorCode.NONE
    assert LiveGroups(service).view("g") is None


async def test_looking_at_groups_brings_none_into_being(life: Life) -> None:
    service = await life.start()
    await service.progress.commit("simple", [("t", 0, Committed(20))])
    assert LiveGroups(service).view("simple") is None
    assert LiveGroups(service).view("nothing") is None
    assert service.coordinator.groups == {}


async def test_opaque_assignments_are_shown_as_unknown(life: Life) -> None:
    service = await life.start()
    await member(service, "workers", b"\1", protocol_type="connect")
    await member(service, "odd", b"\1")
    await member(service, "huge", assignment({"t": list(range(300_000))}))
    for group in ("workers", "odd", "huge"):
        view = LiveGroups(service).view(group)
        assert view is not None
        assert view.members[0].partitions is None
