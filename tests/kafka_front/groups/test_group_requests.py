"""Group requests over the wire, in old and new versions, against our handlers and against Apache Kafka itself.

Every test here runs on both: what is asserted is what a real broker does, not what we think it should do.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from bridges.catalog.database.schema import MIGRATIONS
from bridges.catalog.progress import Progress
from bridges.catalog.topics.lineage import PartitionInfo
from bridges.catalog.topics.topic import Change, Topic
from bridges.cluster.alone import Alone, NoPeers
from kafka_front.dispatch import Registry
from kafka_front.server import Server
from kafka_front.service.brokers import Brokers
from kafka_front.service.groups.classic import membership
from kafka_front.service.groups.consumer import membership as consumer_membership
from kafka_front.service.groups.group_service import GroupService
from kafka_front.service.groups.requests import admin, offsets
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests import databases
from tests.kafka_front.groups import wire_client as w
from tests.kafka_front.groups.lab import assignment, subscription
from tests.kafka_front.groups.wire_client import WireClient
from tests.kit.waiting import until_asked

pytestmark = pytest.mark.timeout(600)  # the first use of Kafka's broker fetches it

NOTHING = (-1, -1, "", 0)


@dataclass
class FakeCatalog:
    topics: dict[str, Topic]
    on_change: list[Callable[[Change], None]] = field(default_factory=list)

    @property
    def by_id(self) -> dict[bytes, Topic]:
        return {topic.topic_id.bytes: topic for topic in self.topics.values()}


@dataclass
class Place:
    """Where the requests go."""

    host: str
    port: int
    stack: AsyncExitStack
    ours: bool = True

    async def client(self, client_id: str = "wire") -> WireClient:
        return await self.stack.enter_async_context(WireClient(self.host, self.port, client_id))

    def group(self) -> str:
        """A group nobody has used."""
        return f"g-{uuid.uuid4()}"


async def _prepare(port: int) -> None:
    """Topic "t" with 2 partitions, and a coordinator for every group."""
    topic = m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
    async with WireClient("127.0.0.1", port) as client:
        await client.call(4, m.CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
        request = m.FindCoordinatorRequest(key="any")
        await client.when_ready(2, request, (ErrorCode.COORDINATOR_NOT_AVAILABLE,))
        # Every partition of the offsets topic must have a coordinator, whichever a test's group falls into.
        for _ in range(64):
            request_ = w.heartbeat(str(uuid.uuid4()), "m", 0)
            await client.when_ready(
                4, request_, (ErrorCode.NOT_COORDINATOR, 14, ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
            )


@pytest.fixture(params=["anabranch", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.long])])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        if request.param == "kafka":
            broker = request.getfixturevalue("apache_kafka")
            await _prepare(broker.port)
            yield Place("127.0.0.1", broker.port, stack, ours=False)
            return
        database = databases.database(tmp_path / "node.db", MIGRATIONS, application_id=1)
        await database.open()
        progress = Progress(database)
        await progress.load()
        topic = Topic("t", uuid.uuid4(), [PartitionInfo(0, 0), PartitionInfo(1, 1)], {}, 0)
        settings = KafkaGroupSettings(initial_rebalance_delay_ms=0, min_session_timeout_ms=1_000, max_size=4)
        service = GroupService(
            progress.front("kafka"), FakeCatalog({"t": topic}), Alone(0, AsyncMock()), NoPeers(), settings
        )
        await service.start()
        registry = Registry()
        for part in (membership, consumer_membership, offsets):
            part.register(registry, service)
        admin.register(registry, service, Brokers(0, None, Alone(0, AsyncMock())))
        server = Server(registry)
        host, port = await server.listen("kafka", "127.0.0.1", 0)
        yield Place(host, port, stack)
        await stack.aclose()
        await service.stop()
        await server.close()
        await database.close()


async def rebalancing(client: WireClient, group: str, member_id: str, generation: int) -> None:
    """Return when the group has entered the join phase."""
    beat = w.heartbeat(group, member_id, generation)
    await until_asked(lambda: client.call(4, beat), lambda answer: answer.error_code != ErrorCode.NONE)


async def form(
    place: Place, group: str, count: int, *, static: bool = False, **fields: Any
) -> list[tuple[WireClient, str]]:
    """A stable group of generation ``count``: (client, member id) of each member, the leader first.

    Every member is assigned its own id; static ones are i0, i1 and so on.
    """
    members: list[tuple[WireClient, str, dict[str, Any]]] = []
    leader = ""
    for generation in range(1, count + 1):
        client = await place.client()
        given = {**fields, "group_instance_id": f"i{generation - 1}"} if static else fields
        member_id = ""
        if not static:
            member_id = (await client.call(5, w.join(group, **given))).member_id
        joins = [client.begin(5, w.join(group, member_id, **given))]
        for other, other_id, _ in members:
            # Whoever rejoins too early is told the generation it knows already.
            await rebalancing(other, group, other_id, generation - 1)
        joins += [other.begin(5, w.join(group, other_id, **its)) for other, other_id, its in members]
        answers = await asyncio.gather(*joins)
        assert {answer.generation_id for answer in answers} == {generation}
        leader = answers[0].leader
        members.append((client, answers[0].member_id, given))
        assigned = {i: i.encode() for _, i, _ in members}
        syncs = [c.begin(3, w.sync(group, i, generation, assigned if i == leader else None)) for c, i, _ in members]
        assert [sync.assignment for sync in await asyncio.gather(*syncs)] == list(assigned.values())
    members.sort(key=lambda member: member[1] != leader)
    return [(client, member_id) for client, member_id, _ in members]


# --- membership ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_join_and_sync_in_every_version(place: Place, version: int) -> None:
    group, client = place.group(), await place.client("cli")
    answer = await client.call(version, w.join(group))
    if version >= 4:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
        answer = await client.call(version, w.join(group, answer.member_id))
    assert answer.error_code == ErrorCode.NONE
    assert answer.member_id.startswith("cli-")
    assert answer.generation_id == 1
    assert answer.leader == answer.member_id
    assert answer.protocol_name == "range"
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert not answer.skip_assignment
    assert [(i.member_id, i.metadata) for i in answer.members] == [(answer.member_id, subscription("t"))]
    sync_version = min(version, 5)
    synced = await client.call(sync_version, w.sync(group, answer.member_id, 1, {answer.member_id: b"mine"}))
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")
    if sync_version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    beat = await client.call(min(version, 4), w.heartbeat(group, answer.member_id, 1))
    assert beat.error_code == ErrorCode.NONE
    if version < 3:
        gone = await client.call(version, m.LeaveGroupRequest(group_id=group, member_id=answer.member_id))
        assert gone.error_code == ErrorCode.NONE
    else:
        gone = await client.call(min(version, 5), w.leave(group, (answer.member_id, None)))
        assert gone.error_code == ErrorCode.NONE
        assert [(i.member_id, i.group_instance_id, i.error_code) for i in gone.members] == [(answer.member_id, None, 0)]


async def test_refused_joins(place: Place) -> None:
    group, client = place.group(), await place.client()

    async def refused(**fields: Any) -> tuple[int, str]:
        answer = await client.call(5, w.join(**{"group": group, **fields}))
        assert (answer.generation_id, answer.leader, answer.members, answer.protocol_name) == (-1, "", [], "")
        return answer.error_code, answer.member_id

    assert await refused(group="", session_timeout_ms=1, member_id="x") == (ErrorCode.INVALID_GROUP_ID, "x")
    assert await refused(session_timeout_ms=999, member_id="x") == (ErrorCode.INVALID_SESSION_TIMEOUT, "x")
    assert await refused(session_timeout_ms=1_800_001) == (ErrorCode.INVALID_SESSION_TIMEOUT, "")
    assert await refused(member_id="x") == (ErrorCode.UNKNOWN_MEMBER_ID, "x")
    assert await refused(protocol_type="") == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert await refused(protocols=[]) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    await form(place, group, 1)
    assert await refused(member_id="x") == (ErrorCode.UNKNOWN_MEMBER_ID, "x")
    assert await refused(member_id="x", protocols=[]) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "x")
    assert await refused(protocol_type="connect") == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert await refused(protocols=w.protocols(("other", b""))) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert await refused(member_id="x", group_instance_id="i") == (ErrorCode.UNKNOWN_MEMBER_ID, "x")


async def test_refused_syncs_and_heartbeats(place: Place) -> None:
    group, client = place.group(), await place.client()

    async def both(group: str, member: str, generation: int, instance: str | None = None) -> tuple[int, int]:
        synced = await client.call(5, w.sync(group, member, generation, group_instance_id=instance))
        beat = await client.call(4, w.heartbeat(group, member, generation, instance))
        assert synced.assignment == b""
        return synced.error_code, beat.error_code

    assert await both("", "x", 1) == (ErrorCode.INVALID_GROUP_ID,) * 2
    assert await both(group, "x", 1) == (ErrorCode.UNKNOWN_MEMBER_ID,) * 2
    [(_, member)] = await form(place, group, 1, static=True)
    assert await both(group, "x", 9) == (ErrorCode.UNKNOWN_MEMBER_ID,) * 2
    assert await both(group, "x", 9, "i0") == (ErrorCode.FENCED_INSTANCE_ID,) * 2
    assert await both(group, member, 9, "nobody") == (ErrorCode.UNKNOWN_MEMBER_ID,) * 2
    assert await both(group, member, 0) == (ErrorCode.ILLEGAL_GENERATION,) * 2
    wrong = await client.call(5, w.sync(group, member, 1, protocol_type="connect"))
    assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong = await client.call(5, w.sync(group, member, 1, protocol_name="sticky"))
    assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong = await client.call(5, w.sync("", "x", 1, protocol_name=None))
    assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong = await client.call(5, w.sync("", "x", 1, protocol_type=None))
    assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_refused_leaves(place: Place) -> None:
    group, client = place.group(), await place.client()
    answer = await client.call(4, w.leave("", ("x", None)))
    assert (answer.error_code, answer.members) == (ErrorCode.INVALID_GROUP_ID, [])
    answer = await client.call(4, w.leave(group, ("x", None), ("", "i")))
    assert answer.error_code == ErrorCode.NONE
    assert [i.error_code for i in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    old = await client.call(2, m.LeaveGroupRequest(group_id=group, member_id="x"))
    assert old.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    await form(place, group, 1, static=True)
    answer = await client.call(4, w.leave(group, ("x", None), ("x", "i0"), ("", "i1"), ("", "i0")))
    assert [(i.member_id, i.group_instance_id, i.error_code) for i in answer.members] == [
        ("x", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", "i0", ErrorCode.FENCED_INSTANCE_ID),
        ("", "i1", ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "i0", ErrorCode.NONE),
    ]


async def test_rebalance_of_two_members(place: Place) -> None:
    group = place.group()
    (leader, leader_id), (follower, follower_id) = await form(place, group, 2)
    again = await follower.call(5, w.join(group, follower_id))
    assert (again.error_code, again.generation_id, again.members) == (ErrorCode.NONE, 2, [])
    assert (await follower.call(3, w.sync(group, follower_id, 2))).assignment == follower_id.encode()
    rejoin = leader.begin(5, w.join(group, leader_id))
    await rebalancing(follower, group, follower_id, 2)
    beat = await follower.call(4, w.heartbeat(group, follower_id, 2))
    assert beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    synced = await follower.call(3, w.sync(group, follower_id, 2))
    assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    second = await follower.call(5, w.join(group, follower_id))
    first = await rejoin
    assert (first.generation_id, second.generation_id) == (3, 3)
    assert {i.member_id for i in first.members} == {leader_id, follower_id}
    beat = await follower.call(4, w.heartbeat(group, follower_id, 3))
    assert beat.error_code == ErrorCode.NONE
    same = await follower.call(5, w.join(group, follower_id))
    assert (same.error_code, same.generation_id, same.leader) == (ErrorCode.NONE, 3, leader_id)
    waiting = follower.begin(3, w.sync(group, follower_id, 3))
    await leader.call(3, w.sync(group, leader_id, 3, {follower_id: b"F"}))
    assert (await waiting).assignment == b"F"


async def test_the_leader_leaves_and_the_other_one_leads(place: Place) -> None:
    group = place.group()
    (leader, leader_id), (follower, follower_id) = await form(place, group, 2)
    await leader.call(4, w.leave(group, (leader_id, None)))
    beat = await follower.call(4, w.heartbeat(group, follower_id, 2))
    assert beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    answer = await follower.call(5, w.join(group, follower_id))
    assert (answer.generation_id, answer.leader) == (3, follower_id)
    assert [i.member_id for i in answer.members] == [follower_id]


async def test_a_silent_member_is_removed(place: Place) -> None:
    group = place.group()
    [(leader, leader_id)] = await form(place, group, 1)
    # Only the silent one's session is short: whoever speaks may be held up for longer than that.
    silent = await place.client()
    follower_id = (await silent.call(5, w.join(group, session_timeout_ms=1_000))).member_id
    joining = silent.begin(5, w.join(group, follower_id, session_timeout_ms=1_000))
    await rebalancing(leader, group, leader_id, 1)
    answer = await leader.call(5, w.join(group, leader_id))
    assert {i.member_id for i in answer.members} == {leader_id, follower_id}
    assert (await joining).generation_id == 2
    await leader.call(3, w.sync(group, leader_id, 2, {leader_id: b"L", follower_id: b"F"}))
    await rebalancing(leader, group, leader_id, 2)
    answer = await leader.call(5, w.join(group, leader_id))
    assert [i.member_id for i in answer.members] == [leader_id]
    beat = await leader.call(4, w.heartbeat(group, follower_id, 3))
    assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_static_follower_and_leader_restart_without_a_rebalance(place: Place) -> None:
    group = place.group()
    (_, leader), (_, follower) = await form(place, group, 2, static=True)
    leading, following = "i0", "i1"
    ids = (leader, follower)

    fresh = await place.client()
    back = await fresh.call(9, w.join(group, group_instance_id=following))
    assert (back.error_code, back.generation_id, back.leader, back.skip_assignment) == (0, 2, leader, False)
    assert back.members == []
    assert back.member_id not in ids
    synced = await fresh.call(5, w.sync(group, back.member_id, 2, group_instance_id=following))
    assert synced.assignment == follower.encode()
    beat = await fresh.call(4, w.heartbeat(group, follower, 2, following))
    assert beat.error_code == ErrorCode.FENCED_INSTANCE_ID
    refused = await fresh.call(9, w.join(group, follower, group_instance_id=following))
    assert refused.error_code == ErrorCode.FENCED_INSTANCE_ID

    led = await fresh.call(9, w.join(group, group_instance_id=leading))
    assert (led.error_code, led.generation_id, led.skip_assignment) == (0, 2, True)
    assert led.leader == led.member_id
    assert {i.group_instance_id for i in led.members} == {leading, following}
    synced = await fresh.call(5, w.sync(group, led.member_id, 2, group_instance_id=leading))
    assert synced.assignment == leader.encode()

    older = await fresh.call(5, w.join(group, group_instance_id=leading))
    assert (older.error_code, older.leader, older.members) == (0, led.member_id, [])
    assert older.member_id != led.member_id


async def test_a_full_group(place: Place) -> None:
    group, client = place.group(), await place.client()
    await form(place, group, 4)
    answer = await client.call(5, w.join(group))
    assert (answer.error_code, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")


# --- offsets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 10))
async def test_commit_and_fetch_in_every_version(place: Place, version: int) -> None:
    group, client = place.group(), await place.client()
    places = {("t", 0): 7, ("t", 1): 2**40, ("unknown", 0): 1, ("t", 2): 5}
    answer = await client.call(version, w.commit(group, places, metadata="höher", leader_epoch=0))
    assert w.committed(answer) == {
        ("t", 0): 0,
        ("t", 1): 0,
        ("unknown", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    fetch_version = version - 1
    asked = {"t": [0, 1, 2], "unknown": [0]}
    response = await client.call(fetch_version, w.fetch(fetch_version, group, asked))
    epoch = 0 if version >= 6 and fetch_version >= 5 else -1
    assert w.fetched(fetch_version, response) == {
        ("t", 0): (7, epoch, "höher", 0),
        ("t", 1): (2**40, epoch, "höher", 0),
        ("t", 2): NOTHING,
        ("unknown", 0): NOTHING,
    }


@pytest.mark.parametrize("version", range(2, 10))
async def test_fetch_of_everything(place: Place, version: int) -> None:
    group, client = place.group(), await place.client()
    response = await client.call(version, w.fetch(version, group, None))
    assert w.fetched(version, response) == {}
    await client.call(8, w.commit(group, {("t", 1): 3}, metadata=None))
    response = await client.call(version, w.fetch(version, group, None))
    assert w.fetched(version, response) == {("t", 1): (3, -1, "", 0)}


@pytest.mark.parametrize("version", range(1, 10))
async def test_unknown_groups_have_simply_nothing_committed(place: Place, version: int) -> None:
    client = await place.client()
    response = await client.call(version, w.fetch(version, place.group(), {"t": [0]}))
    assert w.fetched(version, response) == {("t", 0): NOTHING}


@pytest.mark.parametrize("retention_ms", [2**63 - 1, 0, -1, -(2**63)])
async def test_positions_are_stored_whatever_retention_is_asked_for(place: Place, retention_ms: int) -> None:
    group, client = place.group(), await place.client()
    answer = await client.call(2, w.commit(group, {("t", 0): 5}, retention_time_ms=retention_ms))
    assert w.committed(answer) == {("t", 0): ErrorCode.NONE}
    response = await client.call(5, w.fetch(5, group, {"t": [0]}))
    assert w.fetched(5, response)["t", 0][0] == 5


@pytest.mark.parametrize("rebalance_ms", [0, -1, -(2**31), 2**31 - 1])
async def test_a_member_with_any_rebalance_timeout_joins_and_leaves(place: Place, rebalance_ms: int) -> None:
    group, client = place.group(), await place.client()
    joined = await client.call(3, w.join(group, rebalance_timeout_ms=rebalance_ms))
    assert joined.error_code == ErrorCode.NONE
    left = await client.call(4, w.leave(group, (joined.member_id, None)))
    assert left.error_code == ErrorCode.NONE
    # With no time to synchronise it may be out already.
    assert left.members[0].error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)


async def test_several_groups_in_one_fetch(place: Place) -> None:
    one, two, client = place.group(), place.group(), await place.client()
    await client.call(8, w.commit(one, {("t", 0): 1}))
    await client.call(8, w.commit(two, {("t", 0): 2}))
    request = m.OffsetFetchRequest(
        groups=[w.fetch(8, group, {"t": [0]}).groups[0] for group in (two, one, place.group())], require_stable=True
    )
    response = await client.call(8, request)
    found = {g.group_id: g.topics[0].partitions[0].committed_offset for g in response.groups}
    assert [found[one], found[two]] == [1, 2]
    assert sorted(found.values()) == [-1, 1, 2]


async def test_metadata_may_have_4096_characters(place: Place) -> None:
    group, client = place.group(), await place.client()
    answer = await client.call(8, w.commit(group, {("t", 0): 1}, metadata="ä" * 4096))
    assert w.committed(answer) == {("t", 0): 0}
    answer = await client.call(8, w.commit(group, {("t", 0): 2}, metadata="x" * 4097))
    assert w.committed(answer) == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    response = await client.call(8, w.fetch(8, group, {"t": [0]}))
    assert w.fetched(8, response)["t", 0][0] == 1


async def test_refused_commits(place: Place) -> None:
    group, client = place.group(), await place.client()

    async def error(member: str, generation: int, instance: str | None = None, version: int = 8) -> int:
        request = w.commit(group, {("t", 0): 1}, member, generation, group_instance_id=instance)
        [code] = set(w.committed(await client.call(version, request)).values())
        return code

    assert await error("x", 1) == ErrorCode.ILLEGAL_GENERATION
    assert await error("x", 1, version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    unknown = await client.call(8, w.commit(group, {("nothing", 0): 1}, "x", 1))
    assert w.committed(unknown) == {("nothing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await error("", -1) == ErrorCode.NONE
    assert await error("x", -1) == ErrorCode.NONE
    assert await error("x", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    [(_, member)] = await form(place, group, 1, static=True)
    assert await error("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await error("x", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await error("x", 1, "i0") == ErrorCode.FENCED_INSTANCE_ID
    assert await error(member, 9) == ErrorCode.ILLEGAL_GENERATION
    assert await error(member, -1) == ErrorCode.ILLEGAL_GENERATION
    assert await error(member, 1, "i0") == ErrorCode.NONE
    joined = await client.call(5, w.join(group, member, group_instance_id="i0"))
    assert joined.generation_id == 2
    assert await error(member, 2, "i0") == ErrorCode.REBALANCE_IN_PROGRESS


async def test_deleting_offsets(place: Place) -> None:
    group, client = place.group(), await place.client()

    async def delete(group: str, places: dict[str, list[int]]) -> tuple[int, list[int]]:
        answer = await client.call(0, w.delete_offsets(group, places))
        return answer.error_code, [p.error_code for t in answer.topics for p in t.partitions]

    assert await delete(group, {"t": [0]}) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    await client.call(8, w.commit(group, {("t", 0): 1, ("t", 1): 2}))
    assert await delete(group, {"t": [0]}) == (0, [0])
    assert await delete(group, {"t": [0]}) == (0, [0])
    assert await delete(group, {"nothing": [0], "t": [5]}) == (0, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2)
    response = await client.call(8, w.fetch(8, group, None))
    assert w.fetched(8, response) == {("t", 1): (2, -1, "", 0)}
    await form(place, group, 1)
    assert await delete(group, {"t": [1]}) == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    other = place.group()
    await form(place, other, 1, protocol_type="connect")
    assert await delete(other, {"t": [1]}) == (ErrorCode.NON_EMPTY_GROUP, [])
    reader = place.group()
    await form(place, reader, 1, protocols=w.protocols(("range", subscription("u"))))
    assert await delete(reader, {"t": [1]}) == (0, [0])


# --- groups as a whole -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_describe(place: Place, version: int) -> None:
    group, client = place.group(), await place.client()

    async def described(group: str) -> Any:
        request = m.DescribeGroupsRequest([group], include_authorized_operations=version >= 3)
        [found] = (await client.call(version, request)).groups
        assert found.group_id == group
        return found

    dead = await described(group)
    unknown = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    assert (dead.error_code, dead.group_state, dead.members) == (unknown, "Dead", [])
    assert (dead.protocol_type, dead.protocol_data) == ("", "")
    await client.call(8, w.commit(group, {("t", 0): 1}))
    empty = await described(group)
    assert (empty.error_code, empty.group_state, empty.protocol_type) == (0, "Empty", "")
    [(member_client, member_id)] = await form(place, group, 1)
    stable = await described(group)
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
    if version >= 3:
        assert stable.authorized_operations & 328 == 328
    [member] = stable.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "wire", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), member_id.encode())
    await member_client.call(5, w.join(group, member_id))
    completing = await described(group)
    assert (completing.group_state, completing.protocol_data) == ("CompletingRebalance", "")
    assert [(i.member_id, i.member_metadata, i.member_assignment) for i in completing.members] == [
        (member_id, b"", member_id.encode())
    ]
    await member_client.call(4, w.leave(group, (member_id, None)))
    left = await described(group)
    assert (left.group_state, left.protocol_type, left.protocol_data, left.members) == ("Empty", "consumer", "", [])


async def test_list_with_filters(place: Place) -> None:
    stable, empty, client = place.group(), place.group(), await place.client()
    await form(place, stable, 1)
    await client.call(8, w.commit(empty, {("t", 0): 1}))

    async def listed(version: int, states: list[str], types: list[str]) -> dict[str, tuple[str, str, str]]:
        answer = await client.call(version, m.ListGroupsRequest(states, types))
        assert answer.error_code == 0
        return {
            g.group_id: (g.protocol_type, g.group_state, g.group_type)
            for g in answer.groups
            if g.group_id in (stable, empty)
        }

    for version in range(4):
        assert await listed(version, [], []) == {stable: ("consumer", "", ""), empty: ("", "", "")}
    both = {stable: ("consumer", "Stable", "classic"), empty: ("", "Empty", "classic")}
    assert await listed(5, [], []) == both
    assert await listed(5, ["Empty", "STABLE"], ["classic"]) == both
    assert await listed(4, ["Empty"], []) == {empty: ("", "Empty", "")}
    assert await listed(5, [], ["consumer"]) == {}
    assert await listed(5, ["nonsense"], ["Classic"]) == {}


@pytest.mark.parametrize("version", range(3))
async def test_deleting_groups(place: Place, version: int) -> None:
    group, busy, client = place.group(), place.group(), await place.client()
    await form(place, busy, 1)
    await client.call(8, w.commit(group, {("t", 0): 1}))
    missing = place.group()
    answer = await client.call(version, m.DeleteGroupsRequest([group, busy, missing]))
    assert {r.group_id: r.error_code for r in answer.results} == {
        group: ErrorCode.NONE,
        busy: ErrorCode.NON_EMPTY_GROUP,
        missing: ErrorCode.GROUP_ID_NOT_FOUND,
    }
    response = await client.call(8, w.fetch(8, group, {"t": [0]}))
    assert w.fetched(8, response) == {("t", 0): NOTHING}
    [found] = (await client.call(5, m.DescribeGroupsRequest([group]))).groups
    assert found.group_state == "Dead"


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator(place: Place, version: int) -> None:
    client = await place.client()
    keys = ["one", "two"] if version >= 4 else []
    answer = await client.call(version, m.FindCoordinatorRequest(0, keys, "one"))
    found = answer.coordinators if version >= 4 else [answer]
    assert [(f.error_code, f.host, f.port) for f in found] == [(0, "127.0.0.1", place.port)] * max(1, len(keys))
    if version >= 4:
        assert [f.key for f in found] == keys


async def test_find_coordinator_of_an_unknown_type(place: Place) -> None:
    client = await place.client()
    answer = await client.call(4, m.FindCoordinatorRequest(7, ["one"]))
    [found] = answer.coordinators
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.INVALID_REQUEST, -1, "", -1)


async def test_assignments_are_opaque(place: Place) -> None:
    group, client = place.group(), await place.client()
    answer = await client.call(1, w.join(group, protocol_type="connect", protocols=w.protocols(("x", b"\0\xff"))))
    blob = assignment({"t": [0]}) + bytes(range(256)) * 400
    synced = await client.call(1, w.sync(group, answer.member_id, 1, {answer.member_id: blob}))
    assert synced.assignment == blob
