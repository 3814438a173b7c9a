"""Requests that name very many things are worked on in turns, and cannot ask for answers without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridges.auth import ANONYMOUS
from bridges.catalog.progress import Committed
from bridges.clients import Description
from bridges.node.assembly import Node
from kafka_front.dispatch import Registry
from kafka_front.front import KafkaFront
from kafka_front.service import groups, once
from kafka_front.service.core import KafkaService
from kafka_front.service.groups import GroupService
from kafka_front.service.groups.admission import MOST_TOPICS
from kafka_front.serving import SERVICES
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from kafka_front.wire.errors import KafkaError
from tests.bridges.node.test_node import settings_of
from tests.kafka_front.groups.lab import bounded_groups

MANY = 1_000
NAMES = [f"n{number}" for number in range(MANY)]
TOPIC = 2


@dataclass
class Lab:
    node: Node
    registry: Registry
    service: KafkaService
    groups: GroupService
    turns: int = 0
    answers: list[Any] = field(default_factory=list)

    async def call(self, version: int, request: Any) -> Any:
        """The handler's answer to a request; counts the turns that others had meanwhile."""
        clients = self.node.floors.host.clients
        connection = SimpleNamespace(
            advertised=("localhost", 1),
            peer=("localhost", 2),
            attributes={},
            principal=ANONYMOUS,
            client=clients.enter("kafka", "kafka", ("localhost", 2), Description, lambda reason: None),
        )
        ctx = SimpleNamespace(
            key=request.API_KEY,
            version=version,
            client_id="c",
            connection=connection,
            respond=self.answers.append,
        )
        ended = asyncio.Event()

        async def others() -> None:
            while not ended.is_set():
                self.turns += 1
                await asyncio.sleep(0)

        self.turns = 0
        other = asyncio.create_task(others())
        result = self.registry.handlers[request.API_KEY](ctx, request)
        if asyncio.iscoroutine(result):
            result = await result
        ended.set()
        await other
        return result


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    service, registry = KafkaService(node.services(KafkaFront)), Registry()
    for module in SERVICES:
        module.register(registry, service)
    joined = groups.groups_of(service.node, service.settings, service.access, service.group_configs)
    await joined.start()
    groups.register(registry, joined, service.brokers)
    yield Lab(node, registry, service, joined)
    await joined.stop()
    await node.stop()


def _metadata(name: str) -> m.MetadataRequest.MetadataRequestTopic:
    return m.MetadataRequest.MetadataRequestTopic(name=name)


def _fetched(group: str, places: int = 1) -> m.OffsetFetchRequest.OffsetFetchRequestGroup:
    topics = [m.OffsetFetchRequest.OffsetFetchRequestTopics("t", list(range(places)))]
    return m.OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=topics)


def _commit(topic: str, partition: int) -> m.OffsetCommitRequest.OffsetCommitRequestTopic:
    row = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition, 1, -1, "")
    return m.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[row])


def _new(name: str, partitions: int = 1) -> m.CreateTopicsRequest.CreatableTopic:
    return m.CreateTopicsRequest.CreatableTopic(name, partitions, 1)


REQUESTS: dict[str, tuple[int, Callable[[], Any]]] = {
    "Metadata": (12, lambda: m.MetadataRequest([_metadata(n) for n in NAMES], allow_auto_topic_creation=False)),
    "OffsetFetch of groups": (8, lambda: m.OffsetFetchRequest(groups=[_fetched(n) for n in NAMES])),
    "OffsetFetch of partitions": (8, lambda: m.OffsetFetchRequest(groups=[_fetched("g", MANY)])),
    "OffsetFetch, old": (
        5,
        lambda: m.OffsetFetchRequest(
            group_id="g", topics=[m.OffsetFetchRequest.OffsetFetchRequestTopic("t", list(range(MANY)))]
        ),
    ),
    "OffsetCommit": (8, lambda: m.OffsetCommitRequest(group_id="g", topics=[_commit(n, 0) for n in NAMES])),
    "OffsetDelete": (
        0,
        lambda: m.OffsetDeleteRequest(
            "g",
            [
                m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    n, [m.OffsetDeleteRequest.OffsetDeleteRequestPartition(0)]
                )
                for n in NAMES
            ],
        ),
    ),
    "FindCoordinator": (4, lambda: m.FindCoordinatorRequest(coordinator_keys=NAMES)),
    "DescribeGroups": (5, lambda: m.DescribeGroupsRequest(NAMES)),
    "DeleteGroups": (2, lambda: m.DeleteGroupsRequest(NAMES)),
    "CreateTopics": (7, lambda: m.CreateTopicsRequest([_new(f"{n} bad") for n in NAMES], 1_000)),
    "DeleteTopics": (5, lambda: m.DeleteTopicsRequest(topic_names=NAMES)),
    "CreatePartitions": (
        3,
        lambda: m.CreatePartitionsRequest([m.CreatePartitionsRequest.CreatePartitionsTopic(n, 3) for n in NAMES]),
    ),
    "DeleteRecords": (
        2,
        lambda: m.DeleteRecordsRequest(
            [
                m.DeleteRecordsRequest.DeleteRecordsTopic(
                    "t", [m.DeleteRecordsRequest.DeleteRecordsPartition(i, 0) for i in range(1, MANY)]
                )
            ]
        ),
    ),
    "DescribeConfigs": (
        4,
        lambda: m.DescribeConfigsRequest([m.DescribeConfigsRequest.DescribeConfigsResource(TOPIC, n) for n in NAMES]),
    ),
    "AlterConfigs": (
        2,
        lambda: m.AlterConfigsRequest([m.AlterConfigsRequest.AlterConfigsResource(TOPIC, n, []) for n in NAMES]),
    ),
    "IncrementalAlterConfigs": (
        1,
        lambda: m.IncrementalAlterConfigsRequest(
            [m.IncrementalAlterConfigsRequest.AlterConfigsResource(TOPIC, n, []) for n in NAMES]
        ),
    ),
    "DescribeLogDirs": (
        4,
        lambda: m.DescribeLogDirsRequest([m.DescribeLogDirsRequest.DescribableLogDirTopic("t", list(range(1, MANY)))]),
    ),
    "DescribeProducers": (
        0,
        lambda: m.DescribeProducersRequest([m.DescribeProducersRequest.TopicRequest("t", list(range(1, MANY)))]),
    ),
    "ElectLeaders": (
        2,
        lambda: m.ElectLeadersRequest(0, [m.ElectLeadersRequest.TopicPartitions("t", list(range(MANY)))]),
    ),
    "AlterPartitionReassignments": (
        0,
        lambda: m.AlterPartitionReassignmentsRequest(
            topics=[
                m.AlterPartitionReassignmentsRequest.ReassignableTopic(
                    "t", [m.AlterPartitionReassignmentsRequest.ReassignablePartition(i, [0]) for i in range(MANY)]
                )
            ]
        ),
    ),
    "DescribeTopicPartitions": (
        0,
        lambda: m.DescribeTopicPartitionsRequest([m.DescribeTopicPartitionsRequest.TopicRequest(n) for n in NAMES]),
    ),
    "AlterUserScramCredentials": (
        0,
        lambda: m.AlterUserScramCredentialsRequest(
            [m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(n, 1) for n in NAMES]
        ),
    ),
    "DescribeUserScramCredentials": (
        0,
        lambda: m.DescribeUserScramCredentialsRequest(
            [m.DescribeUserScramCredentialsRequest.UserName(n) for n in NAMES]
        ),
    ),
}


@pytest.mark.usefixtures("slow_turns")
@pytest.mark.parametrize("name", REQUESTS)
async def test_others_have_their_turns_while_a_long_request_is_worked_on(lab: Lab, name: str) -> None:
    version, request = REQUESTS[name]
    await lab.node.catalog.create_topic("t", 1)
    lab.groups.coordinator.adopt(0, "g")
    answer = await lab.call(version, request())
    assert answer is not None
    assert lab.turns >= MANY // 5


REPEATED: dict[str, tuple[int, Callable[[], Any]]] = {
    "CreateTopics": (7, lambda: m.CreateTopicsRequest([_new("bad name")] * 10 * MANY, 1_000)),
    "CreatePartitions": (
        3,
        lambda: m.CreatePartitionsRequest([m.CreatePartitionsRequest.CreatePartitionsTopic("t", 3)] * 10 * MANY),
    ),
    "DescribeLogDirs": (
        4,
        lambda: m.DescribeLogDirsRequest([m.DescribeLogDirsRequest.DescribableLogDirTopic("t", [0])] * 10 * MANY),
    ),
    "DescribeTopicPartitions": (
        0,
        lambda: m.DescribeTopicPartitionsRequest([m.DescribeTopicPartitionsRequest.TopicRequest("t")] * 10 * MANY),
    ),
    "DescribeUserScramCredentials": (
        0,
        lambda: m.DescribeUserScramCredentialsRequest(
            [m.DescribeUserScramCredentialsRequest.UserName("u")] * 10 * MANY
        ),
    ),
}


@pytest.mark.usefixtures("slow_turns")
@pytest.mark.parametrize("name", REPEATED)
async def test_others_have_their_turns_while_it_is_seen_what_a_long_request_repeats(lab: Lab, name: str) -> None:
    """It is worked on once, which takes no time: what takes some is to find that out."""
    version, request = REPEATED[name]
    await lab.node.catalog.create_topic("t", 1)
    assert await lab.call(version, request()) is not None
    assert lab.turns >= 40


@pytest.mark.usefixtures("slow_turns")
async def test_others_have_their_turns_while_a_long_answer_is_made(lab: Lab) -> None:
    await lab.node.catalog.create_topic("wide", 2_000)
    for name in NAMES[:100]:
        await lab.node.catalog.create_topic(name, 1)
    everything = await lab.call(12, m.MetadataRequest(None))
    assert sorted(len(topic.partitions) for topic in everything.topics) == [1] * 100 + [2_000]
    assert [p.partition_index for t in everything.topics if t.name == "wide" for p in t.partitions] == list(
        range(2_000)
    )
    assert lab.turns >= 25
    listed = await lab.call(1, m.ListConfigResourcesRequest([TOPIC]))
    assert len(listed.config_resources) == 101
    assert lab.turns >= 20
    own = lab.service.progress
    await own.commit("g", [("wide", index, Committed(index)) for index in range(2_000)])
    committed = await lab.call(
        8, m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=None)])
    )
    (topic,) = committed.groups[0].topics
    assert [(p.partition_index, p.committed_offset) for p in topic.partitions] == [(n, n) for n in range(2_000)]
    assert lab.turns >= 400
    for name in NAMES:
        lab.groups.coordinator.adopt(0, name)
    assert len((await lab.call(4, m.ListGroupsRequest())).groups) == MANY + 1
    assert lab.turns >= 200


# --- answers larger than their requests -------------------------------------------------------------------------------


async def test_a_topic_that_is_named_many_times_is_described_once(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t", 3)
    answer = await lab.call(12, m.MetadataRequest([_metadata("t")] * 50))
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("t", 3)]


async def test_a_group_that_is_named_many_times_is_described_once(lab: Lab) -> None:
    lab.groups.coordinator.adopt(0, "g")
    answer = await lab.call(5, m.DescribeGroupsRequest(["g", "h"] * 50))
    assert [group.group_id for group in answer.groups] == ["g", "h"]


async def test_positions_of_a_group_are_told_once(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t", 1)
    await lab.service.progress.commit("g", [("t", 0, Committed(7))])
    every = m.OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=None)
    answer = await lab.call(8, m.OffsetFetchRequest(groups=[every] * 3))
    assert [(g.group_id, g.error_code, len(g.topics)) for g in answer.groups] == [
        ("g", E.NONE, 1),
        ("g", E.INVALID_REQUEST, 0),
        ("g", E.INVALID_REQUEST, 0),
    ]


async def test_a_resource_that_is_named_twice_is_described_once(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t", 1)
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(TOPIC, "t")
    answer = await lab.call(4, m.DescribeConfigsRequest([resource] * 3))
    assert [(r.error_code, len(r.configs) > 20) for r in answer.results] == [
        (E.NONE, True),
        (E.INVALID_REQUEST, False),
        (E.INVALID_REQUEST, False),
    ]


async def test_producers_of_a_partition_are_told_once(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t", 1)
    answer = await lab.call(0, m.DescribeProducersRequest([m.DescribeProducersRequest.TopicRequest("t", [0, 0])] * 2))
    codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
    assert codes == [E.NONE] + [E.INVALID_REQUEST] * 3


async def test_an_answer_with_too_many_rows_is_cut_with_an_error(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "MAX_ROWS", 50)
    for name in "abcd":
        await lab.node.catalog.create_topic(name, 1)
    resources = [m.DescribeConfigsRequest.DescribeConfigsResource(TOPIC, name) for name in "abcd"]
    answer = await lab.call(4, m.DescribeConfigsRequest(resources))
    assert [r.error_code for r in answer.results] == [E.NONE, E.NONE, E.INVALID_REQUEST, E.INVALID_REQUEST]
    assert "ask for less" in answer.results[3].error_message


async def test_of_a_position_that_is_committed_many_times_in_one_request_the_last_counts(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t", 1)
    rows = [m.OffsetCommitRequest.OffsetCommitRequestPartition(0, number, -1, "") for number in range(50)]
    topics = [m.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=rows)]
    answer = await lab.call(8, m.OffsetCommitRequest(group_id="g", topics=topics))
    assert [p.error_code for p in answer.topics[0].partitions] == [E.NONE] * 50
    committed = lab.service.progress.committed("g", "t", 0)
    assert committed is not None
    assert committed.offset == 49


# --- bounds on what members send --------------------------------------------------------------------------------------


async def test_members_cannot_send_more_than_a_group_can_have(lab: Lab) -> None:
    size = lab.groups.settings.max_size
    identity = m.LeaveGroupRequest.MemberIdentity("x", None)
    await lab.call(4, m.LeaveGroupRequest(group_id="g", members=[identity] * (size + 1)))
    item = m.SyncGroupRequest.SyncGroupRequestAssignment("x", b"")
    await lab.call(
        5,
        m.SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="p", assignments=[item] * (size + 1)),
    )
    protocols = [m.JoinGroupRequest.JoinGroupRequestProtocol(n, b"") for n in [*NAMES, "one more"]]
    await lab.call(
        5,
        m.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=protocols,
        ),
    )
    assert [answer.error_code for answer in lab.answers] == [E.INVALID_REQUEST] * 3
    assert lab.groups.coordinator.groups == {}


async def test_commits_cannot_bring_any_number_of_groups_into_being(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.groups, "settings", bounded_groups(max_groups=2))
    await lab.node.catalog.create_topic("t", 1)

    async def commit(group: str) -> int:
        answer = await lab.call(8, m.OffsetCommitRequest(group_id=group, topics=[_commit("t", 0)]))
        return int(answer.topics[0].partitions[0].error_code)

    assert [await commit(group) for group in ("a", "b", "c", "a")] == [
        E.NONE,
        E.NONE,
        E.COORDINATOR_NOT_AVAILABLE,
        E.NONE,
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_that_names_more_topics_than_one_step_takes_is_refused(lab: Lab, version: int) -> None:
    names = [str(number) for number in range(MOST_TOPICS + 1)]
    owned = [m.ConsumerGroupHeartbeatRequest.TopicPartitions(bytes(16))] * len(names)
    for given in ({"subscribed_topic_names": names}, {"topic_partitions": owned}):
        request = m.ConsumerGroupHeartbeatRequest("g", "me", 0, rebalance_timeout_ms=1000)
        for name, value in given.items():
            setattr(request, name, value)
        await lab.call(version, request)
        refused = lab.answers.pop()
        assert refused.error_code == E.GROUP_MAX_SIZE_REACHED
        assert "have it subscribe to a pattern" in refused.error_message
    assert lab.groups.find("g") is None


async def test_changes_of_more_than_one_step_takes_are_refused(lab: Lab) -> None:
    deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion
    deletions = [deletion(str(number), 1) for number in range(10_001)]
    with pytest.raises(KafkaError, match="one request has at most 10000") as refused:
        await lab.call(0, m.AlterUserScramCredentialsRequest(deletions))
    assert refused.value.code == E.POLICY_VIOLATION
    entry = m.AlterClientQuotasRequest.EntryData([m.AlterClientQuotasRequest.EntityData("user", "me")] * 17)
    with pytest.raises(KafkaError, match="one has at most 16") as refused:
        await lab.call(1, m.AlterClientQuotasRequest([entry]))
    assert refused.value.code == E.INVALID_REQUEST
