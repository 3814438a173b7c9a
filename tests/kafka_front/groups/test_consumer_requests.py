"""KIP-848's requests over the wire, against our handlers and against Apache Kafka itself: see test_group_requests."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups import wire_client as w
from tests.kafka_front.groups.lab import assignment, subscription
from tests.kafka_front.groups.test_group_requests import Place, place
from tests.kafka_front.groups.wire_client import WireClient

__all__ = ["place"]

pytestmark = pytest.mark.timeout(600)  # the first use of Kafka's broker fetches it


class Member:
    """One member on a connection of its own."""

    def __init__(self, client: WireClient, group: str, version: int = 1, **fields: Any) -> None:
        self.client = client
        self.group = group
        self.version = version
        self.id = str(uuid.uuid4()) if version else ""
        self.epoch = 0
        self.fields = fields
        self.held: dict[bytes, list[int]] = {}

    async def beat(self, **fields: Any) -> m.ConsumerGroupHeartbeatResponse:
        """A full heartbeat, whose answer is followed."""
        owned = [m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic, rows) for topic, rows in self.held.items()]
        given = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "rebalance_timeout_ms": w.REBALANCE_MS,
            "subscribed_topic_names": ["t"],
            "topic_partitions": owned,
            **self.fields,
            **fields,
        }
        request = m.ConsumerGroupHeartbeatRequest(**given)
        answer: m.ConsumerGroupHeartbeatResponse = await self.client.call(self.version, request)
        if not answer.error_code:
            self.id, self.epoch = answer.member_id, answer.member_epoch
            if answer.assignment is not None:
                self.held = {one.topic_id: one.partitions for one in answer.assignment.topic_partitions}
        return answer

    @property
    def partitions(self) -> list[int]:
        return sorted(number for numbers in self.held.values() for number in numbers)


async def alone(place: Place, **fields: Any) -> Member:
    """The only member of a group, which has both partitions."""
    member = Member(await place.client(), place.group(), **fields)
    for _ in range(20):
        answer = await member.beat()
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        if member.partitions == [0, 1]:
            return member
    raise AssertionError("it never got the partitions")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
async def test_what_makes_no_sense(place: Place, fields: dict[str, Any], error: int) -> None:
    member = Member(await place.client(), place.group())
    assert (await member.beat(**fields)).error_code == error


async def test_a_member_of_version_0_is_given_its_id(place: Place) -> None:
    one = Member(await place.client(), place.group(), 0)
    two = Member(await place.client(), one.group, 0)
    for _ in range(10):
        for member in (one, two):
            answer = await member.beat()
            assert answer.error_code == ErrorCode.NONE, answer.error_message
    assert one.id != two.id
    assert sorted(one.partitions + two.partitions) == [0, 1]
    for epoch in (-1, 1):
        assert (await one.beat(member_id="", member_epoch=epoch)).error_code == ErrorCode.INVALID_REQUEST
    assert (await one.beat(member_epoch=-1)).member_epoch == -1


async def test_members_are_fenced_by_epoch(place: Place) -> None:
    member = await alone(place)
    assert (await member.beat(member_epoch=member.epoch + 1)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert (await member.beat(member_id="x")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await member.beat(member_epoch=-1)).member_epoch == -1
    assert (await member.beat(member_epoch=1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_two_members_hand_over_in_steps(place: Place) -> None:
    one = await alone(place)
    two = Member(await place.client(), one.group)
    first = await two.beat()
    assert (first.error_code, two.partitions) == (ErrorCode.NONE, [])
    epoch = one.epoch
    await one.beat()
    while not place.ours and len(one.partitions) == 2:  # a broker of 4.4 assigns at most once a second
        await one.beat()
    assert (one.epoch, len(one.partitions)) == (epoch, 1)
    await two.beat()
    assert two.partitions == []
    await one.beat()
    assert one.epoch > epoch
    for _ in range(10):
        await two.beat()
    assert sorted(one.partitions + two.partitions) == [0, 1]


async def test_a_static_member_is_released_first(place: Place) -> None:
    one = await alone(place, instance_id="i")
    two = Member(one.client, one.group, instance_id="i")
    assert (await two.beat()).error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert (await one.beat(member_epoch=-2)).member_epoch == -2
    held, one.epoch = one.held, 1
    assert (await two.beat()).error_code == ErrorCode.NONE
    assert two.held == held
    assert (await one.beat()).error_code == ErrorCode.FENCED_INSTANCE_ID


async def test_a_group_whose_assignor_gives_data_of_its_own_stays_classic(place: Place) -> None:
    client, group = await place.client(), place.group()
    streams = w.protocols(("stream", subscription("t")))
    given = await client.call(5, w.join(group, protocols=streams))
    joined = await client.call(5, w.join(group, given.member_id, protocols=streams))
    own = assignment({"t": [0, 1]})[:-4] + b"\0\0\0\1d"
    await client.call(
        3, w.sync(group, joined.member_id, joined.generation_id, {joined.member_id: own}, protocol_name="stream")
    )
    assert (await Member(client, group).beat()).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (await client.call(3, w.heartbeat(group, joined.member_id, 1))).error_code == ErrorCode.NONE


async def test_positions_are_fenced(place: Place) -> None:
    member = await alone(place)
    [topic] = member.held

    async def commit(version: int, epoch: int, who: str = member.id) -> int:
        row = m.OffsetCommitRequest.OffsetCommitRequestPartition(0, 7)
        named = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", topic_id=topic, partitions=[row])
        request = m.OffsetCommitRequest(
            group_id=member.group, generation_id_or_member_epoch=epoch, member_id=who, topics=[named]
        )
        answer = await member.client.call(version, request)
        return int(answer.topics[0].partitions[0].error_code)

    for version in (9, 10):
        assert await commit(version, member.epoch) == ErrorCode.NONE
        assert await commit(version, member.epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
        assert await commit(version, member.epoch, "x") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit(version, -1, "") == ErrorCode.UNKNOWN_MEMBER_ID

    async def fetch(version: int, epoch: int, who: str | None) -> tuple[int, list[int]]:
        asked = m.OffsetFetchRequest.OffsetFetchRequestTopics(name="t", topic_id=topic, partition_indexes=[0])
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(member.group, who, epoch, [asked])
        [told] = (await member.client.call(version, m.OffsetFetchRequest(groups=[group]))).groups
        return told.error_code, [row.committed_offset for one in told.topics for row in one.partitions]

    for version in (9, 10):
        assert await fetch(version, member.epoch, member.id) == (ErrorCode.NONE, [7])
        assert await fetch(version, -1, None) == (ErrorCode.NONE, [7])
        assert (await fetch(version, member.epoch + 1, member.id))[0] == ErrorCode.STALE_MEMBER_EPOCH
        assert (await fetch(version, member.epoch, "x"))[0] == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_group_is_told_of(place: Place) -> None:
    member = await alone(place)
    client, group = member.client, member.group
    answer = await client.call(1, m.ConsumerGroupDescribeRequest([group, "nobody"]))
    by_name = {one.group_id: one for one in answer.groups}  # Kafka gives them in any order
    told, unknown = by_name[group], by_name["nobody"]
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (told.error_code, told.group_state, told.assignor_name) == (ErrorCode.NONE, "Stable", "uniform")
    assert told.group_epoch == told.assignment_epoch == member.epoch
    [row] = told.members
    assert (row.member_id, row.member_epoch, row.member_type) == (member.id, member.epoch, 1)
    assert (row.subscribed_topic_names, row.subscribed_topic_regex) == (["t"], "")
    assert [(one.topic_name, sorted(one.partitions)) for one in row.assignment.topic_partitions] == [("t", [0, 1])]
    assert [sorted(one.partitions) for one in row.target_assignment.topic_partitions] == [[0, 1]]
    for types, there in (([], True), (["Consumer"], True), (["classic"], False)):
        listed = await client.call(5, m.ListGroupsRequest(types_filter=types))
        found = {one.group_id: (one.group_type, one.group_state, one.protocol_type) for one in listed.groups}
        assert found.get(group) == (("consumer", "Stable", "consumer") if there else None)
    [classic] = (await client.call(6, m.DescribeGroupsRequest([group]))).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    [kept] = (await client.call(2, m.DeleteGroupsRequest([group]))).results
    assert kept.error_code == ErrorCode.NON_EMPTY_GROUP
    assert (await member.beat(member_epoch=-1)).error_code == ErrorCode.NONE
    [gone] = (await client.call(2, m.DeleteGroupsRequest([group]))).results
    assert gone.error_code == ErrorCode.NONE
    [told] = (await client.call(1, m.ConsumerGroupDescribeRequest([group]))).groups
    assert told.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_classic_member_is_given_an_id_before_its_metadata_is_read(place: Place) -> None:
    group = (await alone(place)).group
    client = await place.client()
    asked = w.join(group, protocols=w.protocols(("range", b"\0")))
    given = await client.call(9, asked)
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    asked.member_id = given.member_id
    refusals = (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.UNKNOWN_SERVER_ERROR)  # a broker has not expected it
    assert (await client.call(9, asked)).error_code in refusals
