"""Several nodes over one PostgreSQL: what one of them changes the others have."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar
from urllib.request import urlopen

import psycopg
import pytest
import ydb
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from pravega_front.wire.controller import message
from tests.cluster.together import together
from tests.kafka_front.test_session import Client
from tests.node_process import NodeProcess
from tests.postgres import Postgres
from tests.pravega_front.controller_client import ControllerClient, stream
from tests.test_three_protocols import consumed

T = TypeVar("T")

PATIENCE = 60
LISTENERS = ("kafka", "ydb", "pravega", "pravega-segmentstore", "console", "sbp-pd", "sbp-range-server")


@pytest.fixture(scope="module")
def postgres_of(postgres: Postgres) -> str:
    """The URL of the nodes' database."""
    return postgres.made()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres_of: str) -> Iterator[list[NodeProcess]]:
    """Two that were started together over a database that nobody had."""
    directory = tmp_path_factory.mktemp("several")
    with together(directory, 2, postgres_of, LISTENERS, lambda _: {"auth.rules": "allow"}) as made:
        yield made


@pytest.fixture
def admins(nodes: list[NodeProcess]) -> list[AdminClient]:
    return [AdminClient({"bootstrap.servers": node.kafka}) for node in nodes]


def until(look: Callable[[], T], wanted: T) -> float:
    """Milliseconds until ``look`` gives what is wanted."""
    began = time.monotonic()
    while (found := look()) != wanted:
        assert time.monotonic() - began < PATIENCE, found
    return (time.monotonic() - began) * 1000


def topics(admin: AdminClient) -> set[str]:
    return set(admin.list_topics(timeout=PATIENCE).topics)


def test_a_topic_that_is_made_at_one_node_is_there_at_the_other_within_milliseconds(admins: list[AdminClient]) -> None:
    one, other = admins
    took = []
    for number in range(10):
        name = f"made{number}"
        one.create_topics([NewTopic(name, 3)])[name].result(PATIENCE)
        took.append(until(lambda name=name: name in topics(other), True))
    took.sort()
    print(f"seen after {took[len(took) // 2]:.0f} ms, at the latest {took[-1]:.0f}")
    assert took[len(took) // 2] < 500


def test_configuration_partitions_and_deletion_are_the_same_everywhere(admins: list[AdminClient]) -> None:
    one, other = admins
    one.create_topics([NewTopic("same", 1)])["same"].result(PATIENCE)
    until(lambda: "same" in topics(other), True)
    resource = ConfigResource(ResourceType.TOPIC, "same", set_config={"retention.ms": "1234"})
    other.alter_configs([resource])[resource].result(PATIENCE)

    def kept(admin: AdminClient) -> str:
        asked = ConfigResource(ResourceType.TOPIC, "same")
        return str(admin.describe_configs([asked])[asked].result(PATIENCE)["retention.ms"].value)

    until(lambda: kept(one), "1234")
    one.create_partitions([NewPartitions("same", 4)])["same"].result(PATIENCE)
    until(lambda: len(other.list_topics("same", timeout=PATIENCE).topics["same"].partitions), 4)
    other.delete_topics(["same"])["same"].result(PATIENCE)
    until(lambda: "same" in topics(one), False)
    one.create_topics([NewTopic("same", 2)])["same"].result(PATIENCE)
    until(lambda: len(other.list_topics("same", timeout=PATIENCE).topics["same"].partitions), 2)


def test_what_groups_are_configured_with_is_the_same_everywhere(admins: list[AdminClient]) -> None:
    one, other = admins
    asked = ConfigResource(ResourceType.GROUP, "configured")

    def told(admin: AdminClient) -> dict[str, str]:
        found = admin.describe_configs([asked])[asked].result(PATIENCE)
        return {key: found[key].value for key in ("consumer.session.timeout.ms", "share.isolation.level")}

    def changed(admin: AdminClient, operation: AlterConfigOpType, key: str, value: str | None) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.GROUP, "configured", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE)

    changed(one, AlterConfigOpType.SET, "consumer.session.timeout.ms", "50000")
    changed(other, AlterConfigOpType.SET, "share.isolation.level", "read_committed")
    for admin in admins:
        until(
            lambda admin=admin: told(admin),
            {"consumer.session.timeout.ms": "50000", "share.isolation.level": "read_committed"},
        )
    changed(other, AlterConfigOpType.DELETE, "consumer.session.timeout.ms", None)
    until(lambda: told(one)["consumer.session.timeout.ms"], "45000")
    with pytest.raises(KafkaException, match=r"group\.consumer\.max\.session\.timeout\.ms"):
        changed(one, AlterConfigOpType.SET, "consumer.session.timeout.ms", "60001")


def test_many_topics_made_at_once_at_all_nodes_exist_once(admins: list[AdminClient]) -> None:
    names = [f"storm{number}" for number in range(40)]
    asked = [admin.create_topics([NewTopic(name, 1) for name in names]) for admin in admins]
    for name in names:
        made = [futures[name].exception(PATIENCE) is None for futures in asked]
        assert sum(made) == 1, name
    for admin in admins:
        until(lambda admin=admin: topics(admin) >= set(names), True)


def test_what_the_ydb_front_keeps_is_the_same_everywhere(nodes: list[NodeProcess]) -> None:
    with ExitStack() as stack:
        drivers = [stack.enter_context(ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local")) for node in nodes]
        for driver in drivers:
            driver.wait(timeout=PATIENCE, fail_fast=True)
        one, other = (driver.topic_client for driver in drivers)
        drivers[0].scheme_client.make_directory("/local/made/deep")
        one.create_topic("orders", consumers=["first"])

        def consumers(client: Any) -> set[str]:
            return {consumer.name for consumer in client.describe_topic("orders").consumers}

        for driver in drivers:
            children = lambda driver=driver: {  # noqa: E731
                child.name for child in driver.scheme_client.list_directory("/local").children
            }
            until(lambda children=children: children() >= {"made", "orders"}, True)
        wanted = {"first"}
        for number in range(10):
            # Both change the same topic at the same time, each by what it knows.
            with ThreadPoolExecutor() as pool:
                added = [
                    pool.submit(client.alter_topic, "orders", add_consumers=[f"{name}{number}"])
                    for name, client in (("a", one), ("b", other))
                ]
                for future in added:
                    future.result(PATIENCE)
            wanted |= {f"a{number}", f"b{number}"}
        until(lambda: consumers(one), wanted)
        until(lambda: consumers(other), wanted)


def test_what_the_pravega_front_keeps_is_the_same_everywhere(nodes: list[NodeProcess]) -> None:
    with ExitStack() as stack:
        clients = [ControllerClient(node.addresses["pravega"]) for node in nodes]
        for client in clients:
            stack.callback(client.close)
        one, other = clients

        def found(client: ControllerClient) -> set[str]:
            listed = client.listStreamsInScope(scope=message("ScopeInfo")(scope="shared")).streams
            return {f"{one.scope}/{one.stream}" for one in listed}

        one.createScope(scope="shared")
        until(lambda: other.checkScopeExists(scope="shared").exists, True)
        policy = {"scaleType": 0, "minNumSegments": 3}
        info = stream("shared", "orders")
        made = other.createStream(streamInfo=info, scalingPolicy=policy, tags={"tag": ["blue"]})
        assert made.status == 0
        until(lambda: "shared/orders" in found(one), True)
        assert list(one.getStreamConfiguration(scope="shared", stream="orders").tags.tag) == ["blue"]
        assert len(one.getCurrentSegments(scope="shared", stream="orders").segmentRanges) == 3
        one.updateStream(streamInfo=info, scalingPolicy=policy, tags={"tag": ["green"]})
        until(lambda: list(other.getStreamConfiguration(scope="shared", stream="orders").tags.tag), ["green"])


def test_a_rule_that_one_node_is_told_binds_at_all(nodes: list[NodeProcess], admins: list[AdminClient]) -> None:
    one, other = admins
    one.create_topics([NewTopic("secret", 1)])["secret"].result(PATIENCE)
    until(lambda: "secret" in topics(other), True)
    hide = AclBinding(
        ResourceType.TOPIC, "secret", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.ALL,
        AclPermissionType.DENY,
    )  # fmt: skip
    one.create_acls([hide])[hide].result(PATIENCE)
    until(lambda: "secret" in topics(other), False)
    gone = AclBindingFilter(
        ResourceType.TOPIC, "secret", ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert len(other.delete_acls([gone])[gone].result(PATIENCE)) == 1
    until(lambda: "secret" in topics(one), True)


async def test_positions_of_a_group_are_told_by_any_node_and_set_by_its_coordinator(
    nodes: list[NodeProcess], admins: list[AdminClient]
) -> None:
    """librdkafka reads nothing more of partitions whose OffsetFetch was refused because its group had just moved."""
    admins[0].create_topics([NewTopic("placed", 2)])["placed"].result(PATIENCE)
    until(lambda: "placed" in topics(admins[1]), True)
    consumer = Consumer({"bootstrap.servers": nodes[0].kafka, "group.id": "movers", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("placed", 1, 0)], asynchronous=False)
    consumer.close()
    refused = 0
    for node in nodes:
        host, _, port = node.kafka.rpartition(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        ask = m.OffsetFetchRequest
        old = await client.call(7, ask(group_id="movers", topics=[ask.OffsetFetchRequestTopic("placed", [0, 1])]))
        assert old.error_code == 0
        assert [(one.partition_index, one.committed_offset) for one in old.topics[0].partitions] == [(0, -1), (1, 0)]
        named = [ask.OffsetFetchRequestTopics(name="placed", partition_indexes=[1])]
        of = ask.OffsetFetchRequestGroup
        groups = [of("movers", topics=named), of("others", topics=named), of("third", member_id="x", topics=None)]
        new = await client.call(9, ask(groups, require_stable=True))
        assert [(one.group_id, one.error_code) for one in new.groups] == [(one.group_id, 0) for one in groups]
        assert [one.topics[0].partitions[0].committed_offset for one in new.groups[:2]] == [0, -1]
        (whole,) = (await client.call(8, ask([of("movers", topics=None)]))).groups
        assert [(one.name, one.partitions[0].partition_index) for one in whole.topics] == [("placed", 1)]
        place = m.OffsetCommitRequest.OffsetCommitRequestTopic
        offset = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=1, committed_offset=0)
        topic = place(name="placed", partitions=[offset])
        commit = await client.call(8, m.OffsetCommitRequest(group_id="movers", topics=[topic]))
        refused += commit.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        client.writer.close()
    assert refused == 1, "the other one coordinates the group"


def test_groups_of_all_nodes_are_listed_at_any_node(nodes: list[NodeProcess], admins: list[AdminClient]) -> None:
    admins[0].create_topics([NewTopic("counted", 1)])["counted"].result(PATIENCE)
    until(lambda: "counted" in topics(admins[1]), True)
    names = [f"count-{number:02}" for number in range(12)]
    for name in names:
        consumer = Consumer({"bootstrap.servers": nodes[0].kafka, "group.id": name, "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition("counted", 0, 0)], asynchronous=False)
        consumer.close()

    def listed(path: str) -> tuple[list[str], int | None, int | None]:
        found = []
        for node in nodes:
            with urlopen(node.console + path) as answer:
                told = json.load(answer)
            assert "unanswered" not in told
            rows = [one["group"] for one in told["groups"]]
            assert all(one["partitions"] == 1 for one in told["groups"] if one["group"] in names)
            found.append((rows, told.get("total"), told.get("next")))
        assert found[0] == found[1]
        return found[0]

    assert [one for one in listed("/api/groups")[0] if one in names] == names
    assert listed("/api/groups?limit=5&search=count-") == (names[:5], 12, 5)
    assert listed("/api/groups?limit=5&search=count-&skip=10") == (names[10:], 12, None)
    assert listed("/api/groups?limit=5&search=count-&descending=true") == (names[:-6:-1], 12, 5)
    assert listed("/api/groups?limit=12&search=count-&sort=seconds") == (names, 12, None)
    assert listed("/api/topics/counted/groups")[0] == names
    assert listed("/api/topics/counted/groups?limit=2&skip=1") == (names[1:3], 12, 3)
    what = (ResourceType.GROUP, names[3], ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
    hidden = AclBinding(*what, AclOperation.DESCRIBE, AclPermissionType.DENY)
    admins[0].create_acls([hidden])[hidden].result(PATIENCE)
    for node in nodes:
        until(lambda node=node: json.load(urlopen(f"{node.console}/api/groups?limit=1&search={names[3]}"))["total"], 0)
    assert listed("/api/groups?limit=12&search=count-")[0] == [one for one in names if one != names[3]]


def test_a_partition_is_written_and_read_through_any_node_and_lies_on_its_owners_server(
    nodes: list[NodeProcess], admins: list[AdminClient], postgres_of: str
) -> None:
    admins[0].create_topics([NewTopic("moved", 1)])["moved"].result(PATIENCE)
    until(lambda: "moved" in topics(admins[1]), True)
    expected: list[tuple[int, bytes]] = []
    for turn in range(4):
        node = nodes[turn % 2]
        producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True})
        for number in range(50):
            producer.produce("moved", b"%d.%d" % (turn, number), partition=0)
        assert producer.flush(PATIENCE) == 0
        expected += [(turn * 50 + number, b"%d.%d" % (turn, number)) for number in range(50)]
        assert consumed(node, "moved", len(expected)) == expected
    with psycopg.connect(postgres_of) as connection:
        placed = connection.execute(
            "SELECT server_id FROM anabranch_pd.replicas JOIN anabranch.partitions USING (stream_id) "
            "WHERE topic = 'moved' ORDER BY range_index"
        ).fetchall()
    servers = [server for (server,) in placed]
    # Clients are led to its owner (tests/cluster/test_failover.py has what moves).
    assert len(set(servers)) == 1
