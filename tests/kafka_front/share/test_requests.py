"""Share groups over the wire against a node: fetched, acknowledged, given back, and what is durable of that."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.record import MemoryRecords

from anabranch_kit.run.awaited import awaited
from bridges.errors import StorageFull
from bridges.formats import FORMATS, FormatId
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch, PartitionLog
from bridges.node.assembly import Node
from kafka_front.front import KafkaFront
from kafka_front.service.groups.admission import MOST_TOPICS
from kafka_front.service.groups.share import tables
from kafka_front.service.groups.share.service import LivePartition, ShareService
from kafka_front.service.groups.share.sessions import Place, ShareSession, ShareSessions
from kafka_front.settings import KafkaSettings
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode, KafkaError
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import append, log_of, serving
from tests.kit.waiting import until

GROUP = "shared"
GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
FAST = {"kafka.group.share_record_lock_duration_ms": "200ms"}


class Member:
    """A member of a share group that reads the topic t, on a connection of its own."""

    def __init__(self, client: WireClient, topic_id: bytes, group: str = GROUP) -> None:
        self.client = client
        self.topic_id = topic_id
        self.group = group
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.session = 0

    async def beat(self, **fields: Any) -> m.ShareGroupHeartbeatResponse:
        topics = ["t"] if self.epoch == 0 else None
        given = {"subscribed_topic_names": topics, "member_epoch": self.epoch, **fields}
        answer: m.ShareGroupHeartbeatResponse = await self.client.call(
            1, m.ShareGroupHeartbeatRequest(group_id=self.group, member_id=self.id, **given)
        )
        if not answer.error_code:
            self.epoch = answer.member_epoch
        return answer

    async def fetch(self, partition: int = 0, **fields: Any) -> m.ShareFetchResponse:
        given = {"max_wait_ms": 100, "min_bytes": 1, "max_records": 100, "batch_size": 1, **fields}
        asked = m.ShareFetchRequest
        topics = [asked.FetchTopic(self.topic_id, [asked.FetchPartition(partition)])] if self.session == 0 else []
        answer: m.ShareFetchResponse = await self.client.call(
            2,
            asked(
                group_id=self.group,
                member_id=self.id,
                share_session_epoch=self.session,
                **{"topics": topics, **given},
            ),
        )
        if not answer.error_code:
            self.session += 1
        return answer

    async def acquire(self, **fields: Any) -> list[tuple[int, int, int]]:
        """First and last offsets and deliveries of what it gets."""
        answer = await self.fetch(**fields)
        assert answer.error_code == 0, answer.error_message
        return acquired(answer)

    async def acknowledge(self, first: int, last: int, *kinds: int, partition: int = 0, **fields: Any) -> int:
        asked = m.ShareAcknowledgeRequest
        batches = [asked.AcknowledgementBatch(first, last, list(kinds))]
        answer: m.ShareAcknowledgeResponse = await self.client.call(
            2,
            asked(
                group_id=self.group,
                member_id=self.id,
                share_session_epoch=self.session,
                topics=[asked.AcknowledgeTopic(self.topic_id, [asked.AcknowledgePartition(partition, batches)])],
                **fields,
            ),
        )
        if answer.error_code:
            return answer.error_code
        self.session += 1
        return answer.responses[0].partitions[0].error_code


def acquired(answer: m.ShareFetchResponse) -> list[tuple[int, int, int]]:
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for one in partition.acquired_records
    ]


class Lab:
    """A node with a topic t, and clients of it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.clients: list[WireClient] = []

    @property
    def topic_id(self) -> bytes:
        return self.node.catalog.topics["t"].topic_id.bytes

    async def client(self) -> WireClient:
        address = self.node.addresses["kafka"]
        client = await WireClient(address.host, address.port).__aenter__()
        self.clients.append(client)
        return client

    async def member(self, group: str = GROUP) -> Member:
        member = Member(await self.client(), self.topic_id, group)
        answer = await member.beat()
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        return member

    async def earliest(self, group: str = GROUP) -> None:
        """The group begins at the first record."""
        await self.configure("share.auto.offset.reset", "earliest", group)

    async def configure(self, key: str, value: str, group: str = GROUP) -> None:
        asked = m.IncrementalAlterConfigsRequest
        client = await self.client()
        answer = await client.call(
            1,
            asked(resources=[asked.AlterConfigsResource(32, group, [asked.AlterableConfig(key, 0, value)])]),
        )
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message


@asynccontextmanager
async def lab(path: Path, flags: dict[str, str] | None = None, records: int = 10) -> AsyncIterator[Lab]:
    async with serving(path, flags) as node:
        if "t" not in node.catalog.topics:
            await node.catalog.create_topic("t", 1, {})
            await write(node, [b"%d" % number for number in range(records)])
        made = Lab(node)
        try:
            yield made
        finally:
            for client in made.clients:
                await client.__aexit__(None, None, None)


async def write(node: Node, values: Sequence[bytes], records: int = 1) -> None:
    """So many records a batch."""
    log = log_of(node, "t")
    await log.ready()
    for start in range(0, len(values), records):
        some = values[start : start + records]
        payload = encode([Record(None, value, timestamp=1_000_000) for value in some])
        await append(log, Batch(payload, len(some), int(FormatId.KAFKA), 1_000_000))


async def test_neighbouring_records_are_acquired_in_ranges_of_the_size_that_is_asked_for(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        assert await member.acquire(batch_size=4) == [(0, 3, 1), (4, 7, 1), (8, 9, 1)]
        assert await member.acknowledge(0, 9, *[ACCEPT] * 3, *[RELEASE] * 3, ACCEPT, *[RELEASE] * 3) == 0
        assert await member.acquire(batch_size=100) == [(3, 5, 2), (7, 9, 2)]
        await write(made.node, [b"later"])
        await member.acknowledge(9, 9, RELEASE)
        assert await member.acquire(batch_size=100) == [(9, 9, 3), (10, 10, 1)], "what came another number of times"


async def test_a_session_begins_with_all_that_it_reads(tmp_path: Path) -> None:
    async with lab(tmp_path, records=0) as made:
        await made.earliest()
        member = await made.member()
        assert member.epoch == 1
        first, second = await member.fetch(max_wait_ms=0), await member.fetch(max_wait_ms=0)
        assert [(one.partition_index, one.error_code, len(one.records or b"")) for one in first.responses[0].partitions]
        assert first.responses[0].topic_id == made.topic_id
        assert second.responses == []


async def test_what_one_member_has_the_other_gets_none_of(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        first, second = await made.member(), await made.member()
        assert await first.acquire(max_records=4) == [(n, n, 1) for n in range(4)]
        assert await second.acquire(max_records=100) == [(n, n, 1) for n in range(4, 10)]
        assert await first.acquire() == []


async def test_who_has_room_for_nothing_gets_nothing(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        assert await member.acquire(max_bytes=0) == []
        assert await member.acquire() == [(n, n, 1) for n in range(10)], "nothing was taken"


async def test_accepted_is_over_released_comes_again_rejected_never(tmp_path: Path) -> None:
    async with lab(tmp_path, records=4) as made:
        await made.earliest()
        member = await made.member()
        assert len(await member.acquire()) == 4
        assert await member.acknowledge(0, 3, ACCEPT, RELEASE, REJECT, RELEASE) == 0
        assert await member.acquire() == [(1, 1, 2), (3, 3, 2)]
        assert await member.acknowledge(1, 3, ACCEPT) == ErrorCode.INVALID_RECORD_STATE, "2 is not the member's"
        assert await member.acknowledge(1, 1, ACCEPT) == 0
        assert await member.acknowledge(1, 1, ACCEPT) == 0, "below the start offset it is dealt with"
        assert await member.acknowledge(3, 3, ACCEPT) == 0
        assert await member.acquire() == []


async def test_a_lock_ends_and_deliveries_do(tmp_path: Path) -> None:
    async with lab(tmp_path, {**FAST, "kafka.group.share_delivery_count_limit": "2"}, records=1) as made:
        await made.earliest()
        member = await made.member()
        assert await member.acquire() == [(0, 0, 1)]
        assert await member.acquire(max_wait_ms=10_000) == [(0, 0, 2)], "the wait ends with the lock"
        assert await member.acquire(max_wait_ms=400) == [], "it was delivered as often as it may be"


async def test_acknowledged_and_where_it_starts_survive_a_restart(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire()
        assert await member.acknowledge(0, 2, ACCEPT) == 0
        assert await member.acknowledge(5, 6, ACCEPT) == 0
        assert await member.acknowledge(7, 7, RELEASE) == 0
    async with lab(tmp_path) as made:
        member = await made.member()
        got = await member.acquire()
        deliveries = {offset: count for first, last, count in got for offset in range(first, last + 1)}
        assert deliveries == {3: 2, 4: 2, 7: 2, 8: 2, 9: 2}, "what was given back was delivered once"
        answer = await member.client.call(
            1,
            m.DescribeShareGroupOffsetsRequest(
                [m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(GROUP, None)]
            ),
        )
        (row,) = answer.groups[0].topics[0].partitions
        assert (row.start_offset, row.lag) == (3, 5)


async def test_a_connection_that_ends_gives_back_what_it_has(tmp_path: Path) -> None:
    async with lab(tmp_path, records=3) as made:
        await made.earliest()
        first, second = await made.member(), await made.member()
        assert len(await first.acquire()) == 3
        waiting = asyncio.create_task(second.acquire(max_wait_ms=20_000))
        await first.client.__aexit__(None, None, None)
        made.clients.remove(first.client)
        assert await waiting == [(0, 0, 2), (1, 1, 2), (2, 2, 2)]


async def test_a_request_outside_its_share_session_is_refused(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        assert await member.acknowledge(0, 0, ACCEPT) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        await member.acquire(max_records=1)
        member.session = 7
        assert (await member.fetch()).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        member.session = -1
        assert (await member.fetch()).error_code == 0
        member.session = 1
        assert (await member.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


async def test_a_new_group_begins_behind_what_there_is(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        member = await made.member()
        assert await member.acquire() == []
        await write(made.node, [b"new"])
        assert await member.acquire() == [(10, 10, 1)]
        # It has begun, durably: what is written while nobody reads is not left out.
    async with lab(tmp_path) as made:
        await write(made.node, [b"newer"])
        member = await made.member()
        got = await member.acquire()
        assert (got[0][0], got[-1][1]) == (10, 11)


@pytest.mark.parametrize("kinds", [[], [9], [1, 1], [4]])
async def test_acknowledgements_that_make_no_sense(tmp_path: Path, kinds: list[int]) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire()
        assert await member.acknowledge(0, 2, *kinds) == ErrorCode.INVALID_REQUEST


async def test_names_belong_to_one_kind_of_group(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        member = await made.member()
        client = await made.client()
        answer = await client.call(
            1,
            m.ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=1000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            ),
        )
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        listed = await client.call(5, m.ListGroupsRequest())
        assert [(one.group_id, one.group_type, one.group_state) for one in listed.groups] == [
            (GROUP, "share", "Stable")
        ]
        deleted = await client.call(2, m.DeleteGroupsRequest([GROUP]))
        assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        await member.beat(member_epoch=-1)
        deleted = await client.call(2, m.DeleteGroupsRequest([GROUP]))
        assert deleted.results[0].error_code == ErrorCode.NONE


async def test_a_topic_made_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire()
        assert await member.acknowledge(0, 9, ACCEPT) == 0
        await made.node.catalog.delete_topic("t")
        await made.node.catalog.create_topic("t", 1, {})
        await write(made.node, [b"other"])
        again = await made.member()
        assert await again.acquire() == [(0, 0, 1)]


def share_of(made: Lab) -> ShareService:
    (front,) = made.node.fronts
    assert isinstance(front, KafkaFront)
    assert front.server is not None
    assert front.server.share is not None
    return front.server.share


async def test_an_acknowledgement_is_answered_when_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire()
        share, held, asked = share_of(made), asyncio.Event(), asyncio.Event()
        write_it = share.write

        async def slow(live: LivePartition) -> None:
            asked.set()
            await held.wait()
            await write_it(live)

        monkeypatch.setattr(share, "write", slow)
        said = asyncio.create_task(member.acknowledge(0, 4, ACCEPT))
        await asyncio.wait_for(asked.wait(), 10)
        other = await made.member()
        assert [one[0] for one in await other.acquire()] == [], "the others are somebody's still"
        assert not said.done()
        held.set()
        assert await said == 0


async def test_what_cannot_be_stored_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire()
        assert await member.acknowledge(0, 1, ACCEPT) == 0

        async def full(live: LivePartition) -> None:
            raise StorageFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(share_of(made), "write", full)
            assert await member.acknowledge(2, 4, ACCEPT) == ErrorCode.KAFKA_STORAGE_ERROR
        got = await member.acquire()
        assert (got[0][0], got[-1][1]) == (2, 9), "what was durable is over, and nothing else"


async def test_an_owner_that_was_overtaken_acknowledges_nothing(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire()
        taken = await made.node.db.run(lambda connection: tables.take(connection, GROUP, (made.topic_id, 0)))
        assert taken is not None
        assert await member.acknowledge(0, 9, ACCEPT) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        after = await made.node.db.run(lambda connection: tables.of_group(connection, GROUP))
        assert [(start, spans) for _, _, start, spans in after] == [(0, [])]
        got = await member.acquire()
        assert (got[0][0], got[-1][1]) == (0, 9), "it takes the partition over again"


async def test_a_group_that_reads_committed_data_gets_nothing_of_aborted_transactions(tmp_path: Path) -> None:
    async with lab(tmp_path, records=0) as made:
        log = log_of(made.node, "t")
        await log.ready()
        await written_in(log, 1, b"a0", b"a1")  # 0, 1
        await written_in(log, 2, b"c0")  # 2
        await ended(log, 1, commit=False)  # 3
        await ended(log, 2, commit=True)  # 4
        await write(made.node, [b"p"])  # 5
        await written_in(log, 3, b"open")  # 6
        await made.configure("share.isolation.level", "read_committed")
        await made.earliest()
        member = await made.member()
        got = [offset for first, last, _ in await member.acquire() for offset in range(first, last + 1)]
        assert {2, 5} <= set(got)
        assert not {0, 1, 6} & set(got)
        for offset in got:
            assert await member.acknowledge(offset, offset, ACCEPT if offset in (2, 5) else GAP) == 0
        await ended(log, 3, commit=True)
        assert (await member.acquire())[0] == (6, 6, 1)
        await made.earliest("other")
        everything = await made.member("other")
        assert (await everything.acquire())[0] == (0, 1, 1)


async def test_a_group_begins_at_a_time_and_has_times_of_its_own(tmp_path: Path) -> None:
    async with lab(tmp_path, records=0) as made:
        log = log_of(made.node, "t")
        await log.ready()
        now_ms = time.time_ns() // 1_000_000
        for age_ms in (7_200_000, 3_000_000, 0):
            payload = encode([Record(None, b"v", timestamp=now_ms - age_ms)])
            await append(log, Batch(payload, 1, int(FormatId.KAFKA), now_ms - age_ms))
        await made.configure("share.auto.offset.reset", "by_duration:PT1H")
        await made.configure("share.heartbeat.interval.ms", "7000")
        member = await made.member()
        assert (await member.beat()).heartbeat_interval_ms == 7_000
        assert (await member.acquire())[0][0] == 1
        await made.configure("share.auto.offset.reset", "by_duration:PT0.001S", "later")
        assert await (await made.member("later")).acquire() == []


async def written_in(log: PartitionLog, producer: int, *values: bytes) -> None:
    records = [Record(None, value, timestamp=1_000_000) for value in values]
    payload = encode(records, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0)
    part = InTransaction(producer, 0)
    await append(log, Batch(payload, len(values), int(FormatId.KAFKA), 1_000_000, transaction=part))


async def ended(log: PartitionLog, producer: int, *, commit: bool) -> None:
    await awaited(lambda done: log.append_marker(producer, 0, commit, done))


async def test_long_batches_are_delivered_in_parts_and_no_more_than_may_be_is_in_flight(tmp_path: Path) -> None:
    async with lab(tmp_path, {"kafka.group.share_partition_max_record_locks": "30"}, records=0) as made:
        await made.earliest()
        await write(made.node, [b"%d" % number for number in range(100)], records=100)
        member = await made.member()
        assert await member.acquire(max_records=10, share_acquire_mode=1) == [(0, 9, 1)]
        assert await member.acquire(max_records=10) == [(10, 29, 1)], "to the batch's end, or what may be in flight"
        assert await member.acquire(max_records=10) == []
        assert await member.acknowledge(0, 4, ACCEPT) == 0
        assert await member.acquire(max_records=10) == [(30, 34, 1)]


async def test_a_topic_that_is_deleted_leaves_the_session_without_an_error(tmp_path: Path) -> None:
    """An error has Java's consumers ask for its metadata, which makes the topic anew where that is allowed."""
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire(max_records=1)
        await made.node.catalog.delete_topic("t")
        assert (await member.fetch(max_wait_ms=50)).responses == []
        assert share_of(made).sessions.partitions == 0
        assert (await member.beat()).assignment.topic_partitions == []
        forgotten = m.ShareFetchRequest.ForgottenTopic(member.topic_id, [0])
        assert (await member.fetch(max_wait_ms=50, forgotten_topics_data=[forgotten])).responses == []


def named(*places: tuple[bytes, int]) -> list[m.ShareFetchRequest.FetchTopic]:
    asked = m.ShareFetchRequest
    return [asked.FetchTopic(topic_id, [asked.FetchPartition(number)]) for topic_id, number in places]


async def test_partitions_that_are_not_there_are_told_of_once_and_not_kept(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        member, nobody, sessions = await made.member(), uuid.uuid4().bytes, share_of(made).sessions
        there, absent, other = (made.topic_id, 0), (made.topic_id, 7), (nobody, 0)
        answer = await member.fetch(topics=named(there, absent, other))
        told = {
            (one.topic_id, part.partition_index): part.error_code for one in answer.responses for part in one.partitions
        }
        assert told == {
            there: ErrorCode.NONE,
            absent: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            other: ErrorCode.UNKNOWN_TOPIC_ID,
        }
        assert sessions.partitions == 1
        assert [sessions.reads((GROUP, *place)) for place in (there, absent, other)] == [True, False, False]
        assert (await member.fetch()).responses == []


async def test_share_sessions_remember_no_more_partitions_than_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaSettings, "fetch_session_partitions", 30)
    async with lab(tmp_path) as made:
        await made.node.catalog.add_partitions("t", 40)
        sessions = share_of(made).sessions
        for number in range(9):
            member = await made.member(f"g{number}")
            answer = await member.fetch(topics=named(*((made.topic_id, one) for one in range(3))), max_wait_ms=0)
            assert answer.error_code == 0
        answer = await member.fetch(topics=named((made.topic_id, 3)))
        assert answer.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED, "one has a tenth of all"
        assert (await member.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        members = [await made.member(f"h{number}") for number in range(3)]
        for number, member in enumerate(members):
            answer = await member.fetch(topics=named(*((made.topic_id, one) for one in range(3))), max_wait_ms=0)
            assert answer.error_code == (ErrorCode.SHARE_SESSION_LIMIT_REACHED if number == 2 else 0)
        for client in made.clients:
            await client.__aexit__(None, None, None)
        await until(lambda: not sessions.partitions)
        assert len(sessions) == 0
        for group in (*(f"g{number}" for number in range(9)), *(f"h{number}" for number in range(3))):
            assert not share_of(made).live_of(group), "what nobody reads is not kept"
            assert not any(sessions.reads((group, made.topic_id, number)) for number in range(40))


class Staying:
    """A connection that does not end."""

    def on_close(self, callback: Callable[[], None]) -> None:
        pass

    def forget_on_close(self, callback: Callable[[], None]) -> None:
        pass


async def test_a_session_begins_when_what_the_one_before_held_is_given_back() -> None:
    given: list[tuple[ShareSession, Place]] = []
    client: Any = Staying()
    sessions = ShareSessions(1, 100, lambda session, place: given.append((session, place)))
    old = await sessions.open(GROUP, "me", client)
    sessions.add(old, (b"topic", 0))
    new = await sessions.open(GROUP, "me", client)
    assert given == [(old, (b"topic", 0))], "else it would take from the new session what that has acquired"
    assert (len(sessions), sessions.partitions, new.closed) == (1, 0, False)


async def test_what_members_of_share_groups_say_of_themselves_is_bounded(tmp_path: Path) -> None:
    async with lab(tmp_path, {"kafka.group.max_bytes": "2000"}) as made:
        one = await made.member()
        many = [f"topic-{number}" for number in range(20)]
        assert (await one.beat(subscribed_topic_names=many)).error_code == 0
        two = Member(one.client, made.topic_id)
        refused = await two.beat(subscribed_topic_names=many)
        assert (refused.error_code, "kafka.group.max_bytes" in str(refused.error_message)) == (
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            True,
        )
        assert set(share_of(made).find(GROUP).members) == {one.id}
        refused = await one.beat(subscribed_topic_names=[""] * (MOST_TOPICS + 1))
        assert (refused.error_code, "pattern" in str(refused.error_message)) == (ErrorCode.GROUP_MAX_SIZE_REACHED, True)
        assert (await one.beat(subscribed_topic_names=["t"])).error_code == 0
        assert (await two.beat(subscribed_topic_names=many)).error_code == 0
        assert (await two.beat(member_epoch=-1)).error_code == 0
        assert (await one.beat(member_epoch=-1)).error_code == 0
        assert share_of(made).find(GROUP).said_bytes == 0


async def test_acknowledging_what_a_session_does_not_read_takes_nothing_over(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.node.catalog.add_partitions("t", 2)
        member = await made.member()
        await member.fetch(max_wait_ms=0)
        assert await member.acknowledge(0, 0, ACCEPT, partition=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        stored = await made.node.db.run(lambda connection: tables.of_group(connection, GROUP))
        assert [number for _, number, *_ in stored] == [0]


async def test_an_error_that_many_are_told_keeps_nothing_of_them(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.member()
        live = await share_of(made).partition(GROUP, made.topic_id, 0)
        live.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another node has the partition"))
        for _ in range(5):
            with pytest.raises(KafkaError) as told:
                live.check()
        assert len(told.traceback) == 2


async def test_offsets_are_altered_while_nobody_is_in_the_group(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire()
        alter = m.AlterShareGroupOffsetsRequest
        row = alter.AlterShareGroupOffsetsRequestPartition
        request = alter(GROUP, [alter.AlterShareGroupOffsetsRequestTopic("t", [row(0, 7), row(3, 0)])])
        assert (await member.client.call(0, request)).error_code == ErrorCode.NON_EMPTY_GROUP
        await member.beat(member_epoch=-1)
        answer = await member.client.call(0, request)
        assert [one.error_code for one in answer.responses[0].partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await member.acknowledge(0, 9, ACCEPT) != 0, "it has nothing of what the group reads now"
        again = await made.member()
        assert [one[0] for one in await again.acquire()] == [7, 8, 9]
        await again.beat(member_epoch=-1)
        forget = m.DeleteShareGroupOffsetsRequest
        answer = await member.client.call(0, forget(GROUP, [forget.DeleteShareGroupOffsetsRequestTopic("t")]))
        assert answer.responses[0].error_code == 0
        anew = await made.member()
        assert [one[0] for one in await anew.acquire()] == list(range(10))


async def test_offsets_of_a_group_that_is_not_there_yet_make_it(tmp_path: Path) -> None:
    """As `kafka-share-groups --reset-offsets` before the first member comes."""
    async with lab(tmp_path) as made:
        client = await made.client()
        forget = m.DeleteShareGroupOffsetsRequest
        forgotten = forget(GROUP, [forget.DeleteShareGroupOffsetsRequestTopic("t")])
        assert (await client.call(0, forgotten)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        alter = m.AlterShareGroupOffsetsRequest
        row = alter.AlterShareGroupOffsetsRequestPartition
        topic = alter.AlterShareGroupOffsetsRequestTopic("t", [row(0, 7)])
        assert (await client.call(0, alter("", [topic]))).error_code == ErrorCode.INVALID_GROUP_ID
        answer = await client.call(0, alter(GROUP, [topic]))
        assert [one.error_code for one in answer.responses[0].partitions] == [0]
        member = await made.member()
        assert [one[0] for one in await member.acquire()] == [7, 8, 9]
        await member.beat(member_epoch=-1)
        assert (await client.call(0, forgotten)).responses[0].error_code == 0
        again = await client.call(0, forgotten)
        assert again.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there was nothing left of it"


@pytest.mark.parametrize("kind", [FormatId.YDB, FormatId.PRAVEGA])
async def test_what_other_protocols_wrote_is_told_in_kafkas_format(tmp_path: Path, kind: FormatId) -> None:
    async with lab(tmp_path, records=0) as made:
        await made.earliest()
        log = log_of(made.node, "t")
        await log.ready()
        for number in range(3):
            builder = FORMATS[kind].builder(0, 1)
            builder.add(Record(None, b"%d" % number, timestamp=1_000_000, offset=0))
            await append(log, Batch(builder.finish(), 1, int(kind), 1_000_000))
        member = await made.member()
        got: list[tuple[int, int, int]] = []
        told: list[tuple[int, bytes]] = []
        for _ in range(3):  # what takes long to translate comes with a fetch of its own
            answer = await member.fetch()
            got += acquired(answer)
            for topic in answer.responses:
                records = topic.partitions[0].records
                batches = MemoryRecords(bytes(records if not isinstance(records, list) else b"".join(records)))
                told += [(one.offset, one.value) for batch in iter(batches.next_batch, None) for one in batch]
        assert got == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]
        assert told == [(0, b"0"), (1, b"1"), (2, b"2")]


async def test_a_group_has_limits_of_its_own(tmp_path: Path) -> None:
    async with lab(tmp_path, records=120) as made:
        await made.earliest()
        await made.configure("share.delivery.count.limit", "2")
        await made.configure("share.partition.max.record.locks", "100")
        member = await made.member()
        assert sum(last - first + 1 for first, last, _ in await member.acquire(max_records=500)) == 100
        assert await member.acknowledge(0, 99, RELEASE) == 0
        assert {count for *_, count in await member.acquire(max_records=500)} == {2}
        await made.configure("share.delivery.count.limit", "3")  # takes effect at once
        assert await member.acknowledge(0, 99, RELEASE) == 0
        assert {count for *_, count in await member.acquire(max_records=500)} == {3}
        assert await member.acknowledge(0, 99, RELEASE) == 0
        assert min(await member.acquire(max_records=500)) == (100, 100, 1), "no record comes a fourth time"


async def test_a_group_may_forbid_to_renew_locks(tmp_path: Path) -> None:
    async with lab(tmp_path) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire()
        assert await member.acknowledge(0, 9, RENEW, is_renew_ack=True) == 0
        await made.configure("share.renew.acknowledge.enable", "false")
        assert await member.acknowledge(0, 9, RENEW, is_renew_ack=True) == ErrorCode.INVALID_RECORD_STATE
        assert await member.acknowledge(0, 9, ACCEPT) == 0, "the member has its records still"
