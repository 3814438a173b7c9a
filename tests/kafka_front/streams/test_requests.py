"""KIP-1071's requests over the wire, against a node and, among the long tests, against Apache Kafka itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.kafka_front.groups.wire_client import REBALANCE_MS, commit, committed, join
from tests.kafka_front.place import Place, fresh

pytestmark = pytest.mark.timeout(600)  # the first use of Kafka's broker fetches it

Request = m.StreamsGroupHeartbeatRequest
NOT_YET = (E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR)


class Member:
    """A member of a streams group, which follows what it is told."""

    def __init__(self, place: Place, group: str, topology: Request.Topology, name: str = "m") -> None:
        self._place = place
        self.group = group
        self.topology = topology
        self.id = name
        self.epoch = 0
        self.active: list[tuple[str, list[int]]] = []

    async def beat(self, **fields: Any) -> m.StreamsGroupHeartbeatResponse:
        """A heartbeat, whose answer is followed."""
        given: dict[str, Any] = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch}
        if self.epoch == 0:
            given |= {
                "rebalance_timeout_ms": REBALANCE_MS,
                "topology": self.topology,
                "active_tasks": [],
                "standby_tasks": [],
                "warmup_tasks": [],
                "process_id": self.id,
                "client_tags": [],
            }
        answer = await self._place.eventually(1, Request(**{**given, **fields}), *NOT_YET)
        assert isinstance(answer, m.StreamsGroupHeartbeatResponse)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.active_tasks is not None:
                self.active = [(one.subtopology_id, one.partitions) for one in answer.active_tasks]
        return answer

    async def until(self, *codes: int) -> m.StreamsGroupHeartbeatResponse:
        """Send heartbeats until one is answered with these statuses alone, and with tasks if there are none."""
        while True:
            answer = await self.beat()
            assert answer.error_code == E.NONE, answer.error_message
            told = tuple(one.status_code for one in answer.status or ())
            if told == codes and (codes or self.active):
                return answer
            await asyncio.sleep(0.1)

    async def described(self) -> m.StreamsGroupDescribeResponse.DescribedGroup:
        """The group as tools see it."""
        (group,) = (await self._place.call(1, m.StreamsGroupDescribeRequest([self.group]))).groups
        assert isinstance(group, m.StreamsGroupDescribeResponse.DescribedGroup)
        return group


def copying(*topics: str) -> Request.Topology:
    """A topology of one subtopology without state."""
    return Request.Topology(0, [Request.Subtopology("0", list(topics))])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, E.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, E.INVALID_REQUEST),
        ({"topology": None}, E.INVALID_REQUEST),
        ({"active_tasks": None}, E.INVALID_REQUEST),
        ({"active_tasks": [Request.TaskIds("0", [0])]}, E.INVALID_REQUEST),
        ({"instance_id": ""}, E.INVALID_REQUEST),
        ({"member_epoch": -3}, E.INVALID_REQUEST),
        ({"member_epoch": -2}, E.INVALID_REQUEST),
        ({"member_epoch": 5, "topology": None, "active_tasks": None}, E.INVALID_REQUEST),
        (
            {"member_epoch": 5, "topology": None, "active_tasks": None, "standby_tasks": None, "warmup_tasks": None},
            E.GROUP_ID_NOT_FOUND,
        ),
    ],
)
async def test_requests_that_say_too_little_or_too_much(place: Place, fields: dict[str, Any], error: E) -> None:
    answer = await Member(place, fresh(), copying(await place.topic())).beat(**fields)
    assert answer.error_code == error, answer.error_message


async def test_internal_topics_are_made_with_the_configuration_that_the_application_wants(place: Place) -> None:
    source, group = await place.topic(3), fresh()
    repartition, changelog = f"{group}-r", f"{group}-c"
    config = [Request.KeyValue("cleanup.policy", "compact")]
    topology = Request.Topology(
        0,
        [
            Request.Subtopology("0", [source], repartition_sink_topics=[repartition]),
            Request.Subtopology(
                "1",
                [],
                state_changelog_topics=[Request.TopicInfo(changelog, topic_configs=config)],
                repartition_source_topics=[Request.TopicInfo(repartition)],
            ),
        ],
    )
    member = Member(place, group, topology)
    await member.until()
    assert sorted(member.active) == [("0", [0, 1, 2]), ("1", [0, 1, 2])]
    for name in (repartition, changelog):
        await place.settled(name, 3)
    assert (await place.configs(2, changelog, "cleanup.policy"))["cleanup.policy"].value == "compact"
    described = await member.described()
    assert (described.group_state, described.error_code) == ("Stable", E.NONE)
    assert described.topology is not None
    assert described.topology.subtopologies is not None
    (_, counting) = sorted(described.topology.subtopologies, key=lambda one: one.subtopology_id)
    assert [(one.name, one.partitions) for one in counting.state_changelog_topics] == [(changelog, 3)]
    (row,) = described.members
    assert [(one.subtopology_id, one.partitions) for one in row.assignment.active_tasks] == member.active


async def test_an_application_without_its_source_topic_waits_for_it(place: Place) -> None:
    group, source = fresh(), fresh()
    member = Member(place, group, copying(source))
    answer = await member.until(1)
    assert answer.status is not None
    assert source in answer.status[0].status_detail
    assert (await member.described()).group_state == "NotReady"


async def test_positions_are_committed_in_the_members_epoch(place: Place) -> None:
    source, group = await place.topic(1), fresh()
    member = Member(place, group, copying(source))
    await member.until()

    async def told(epoch: int, member_id: str = "m") -> int:
        response = await place.call(9, commit(group, {(source, 0): 1}, member_id, epoch))
        return committed(response)[source, 0]

    assert await told(member.epoch) == E.NONE
    assert await told(member.epoch + 1) == E.STALE_MEMBER_EPOCH
    assert await told(member.epoch, "another") == E.UNKNOWN_MEMBER_ID
    (listed,) = [
        one for one in (await place.call(5, m.ListGroupsRequest([], ["streams"]))).groups if one.group_id == group
    ]
    assert (listed.group_type.lower(), listed.protocol_type, listed.group_state) == ("streams", "streams", "Stable")
    deleted = (await place.call(2, m.DeleteGroupsRequest([group]))).results
    assert [one.error_code for one in deleted] == [E.NON_EMPTY_GROUP]
    assert (await member.beat(member_epoch=-1)).error_code == E.NONE
    deleted = (await place.call(2, m.DeleteGroupsRequest([group]))).results
    assert [one.error_code for one in deleted] == [E.NONE]


async def test_a_group_with_members_keeps_its_kind(place: Place) -> None:
    source, group = await place.topic(1), fresh()
    member = Member(place, group, copying(source))
    await member.until()
    assert (await place.call(9, join(group))).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    consumer = m.ConsumerGroupHeartbeatRequest(
        group, "c", 0, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=[source], topic_partitions=[]
    )
    assert (await place.call(1, consumer)).error_code == E.GROUP_ID_NOT_FOUND
    (described,) = (await place.call(1, m.ConsumerGroupDescribeRequest([group]))).groups
    assert described.error_code == E.GROUP_ID_NOT_FOUND
    await member.beat(member_epoch=-1)
    assert (await place.call(9, join(group))).error_code == E.MEMBER_ID_REQUIRED


async def test_a_topology_that_would_hold_up_the_loop_is_refused(place: Place) -> None:
    if not place.ours:
        pytest.skip("a broker has no bound")
    answer = await Member(place, fresh(), copying(*(f"t{number}" for number in range(10_001)))).beat()
    assert answer.error_code == E.STREAMS_INVALID_TOPOLOGY
    assert "10001 names" in (answer.error_message or "")
