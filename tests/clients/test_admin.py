"""Administration with every library that has an admin client."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from _pytest.mark import ParameterSet

from tests.clients.api import (
    EARLIEST,
    GROUP_ID_NOT_FOUND,
    INVALID_PARTITIONS,
    LATEST,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    Client,
    ClientError,
    GroupState,
    Rec,
)
from tests.clients.registry import Opener, clients
from tests.clients.sharing import await_topic, group_members_left

pytestmark = pytest.mark.timeout(600)  # the first use of a driver builds it


def that_can(*operations: str) -> list[ParameterSet]:
    return clients(lambda abilities: abilities.admin >= set(operations))


@pytest.mark.parametrize("name", that_can("create_topic", "delete_topic"))
def test_topics_come_and_go(
    name: str, open_client: Opener, reference: Client, fresh_name: Callable[[str], str]
) -> None:
    client, topic = open_client(name), fresh_name("lifecycle")
    client.create_topic(topic, 3, {"retention.ms": "123456789"})
    await_topic(reference, topic, 3)
    assert topic in client.topics()
    assert client.partition_count(topic) == 3
    with pytest.raises(ClientError) as refused:
        client.create_topic(topic, 3)
    assert refused.value.code == TOPIC_ALREADY_EXISTS
    reference.produce(topic, 0, [Rec(b"of the first topic")])
    client.delete_topic(topic)
    with pytest.raises(ClientError) as refused:
        client.delete_topic(topic)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION
    client.create_topic(topic, 1)
    await_topic(reference, topic, 1)
    assert reference.offset(topic, 0, LATEST) == 0, "a topic made anew begins anew"


@pytest.mark.parametrize("name", that_can("topics", "partition_count"))
def test_topics_are_listed_and_described(name: str, open_client: Opener, make_topic: Callable[..., str]) -> None:
    client, topic = open_client(name), make_topic("listed", 5)
    assert topic in client.topics()
    assert client.partition_count(topic) == 5


@pytest.mark.parametrize(
    "name", clients(lambda abilities: "partition_count" in abilities.admin and abilities.asks_without_creating)
)
def test_asking_for_an_unknown_topic_does_not_create_it(
    name: str, open_client: Opener, reference: Client, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("unknown")
    with pytest.raises(ClientError) as refused:
        open_client(name).partition_count(topic)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in reference.topics()


@pytest.mark.parametrize("name", that_can("config", "set_config"))
def test_configuration(name: str, open_client: Opener, reference: Client, make_topic: Callable[..., str]) -> None:
    client, topic = open_client(name), make_topic("config", 1, {"retention.ms": "11111111"})
    before = client.config(topic)
    assert before["retention.ms"] == "11111111"
    assert before["cleanup.policy"] == "delete"
    assert {"max.message.bytes", "segment.bytes", "message.timestamp.type", "compression.type"} <= before.keys()
    client.set_config(topic, {"retention.ms": "22222222", "max.message.bytes": "54321"})
    deadline = time.monotonic() + 30
    while reference.config(topic)["retention.ms"] != "22222222":
        assert time.monotonic() < deadline, "the change never became visible"
    after = client.config(topic)
    assert after == before | {"retention.ms": "22222222", "max.message.bytes": "54321"}


@pytest.mark.parametrize(
    "name",
    clients(lambda abilities: "config" in abilities.admin and abilities.config_errors),
)
def test_configuration_of_an_unknown_topic(name: str, open_client: Opener, fresh_name: Callable[[str], str]) -> None:
    with pytest.raises(ClientError) as refused:
        open_client(name).config(fresh_name("nowhere"))
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", that_can("add_partitions"))
def test_partitions_are_added(
    name: str, open_client: Opener, reference: Client, make_topic: Callable[..., str]
) -> None:
    client, topic = open_client(name), make_topic("growing", 2)
    reference.produce(topic, 1, [Rec(b"before")])
    client.add_partitions(topic, 5)
    await_topic(reference, topic, 5)
    reference.produce(topic, 4, [Rec(b"in the new partition")])
    assert [record.value for record in reference.consume(topic, {1: 1, 4: 1})].count(b"before") == 1
    with pytest.raises(ClientError) as refused:
        client.add_partitions(topic, 3)
    assert refused.value.code == INVALID_PARTITIONS


@pytest.mark.parametrize("name", that_can("delete_records"))
def test_records_are_deleted_up_to_an_offset(
    name: str, open_client: Opener, reference: Client, make_topic: Callable[..., str]
) -> None:
    client, topic = open_client(name), make_topic("trimmed")
    for number in range(4):  # four batches; the offset lies inside the second
        reference.produce(topic, 0, [Rec(f"{number}-{item}".encode()) for item in range(5)])
    client.delete_records(topic, 0, 7)
    assert client.offset(topic, 0, EARLIEST) == 7
    assert client.offset(topic, 0, LATEST) == 20
    assert [record.offset for record in client.consume(topic, {0: 13})] == list(range(7, 20))


@pytest.mark.parametrize("name", that_can("offset"))
def test_offsets_by_time(name: str, open_client: Opener, reference: Client, make_topic: Callable[..., str]) -> None:
    client, topic = open_client(name), make_topic("times", 2)
    assert client.offset(topic, 0, EARLIEST) == client.offset(topic, 0, LATEST) == 0
    start = time.time_ns() // 1_000_000 - 100_000
    # The first record, in offset order, that is as late as asked: 30 comes before 20.
    steps = [10, 30, 20, 40, 50]
    for codec in ("none", "zstd", "gzip"):
        reference.produce(topic, 0, [Rec(b"v" * 50, timestamp=start + step) for step in steps], codec=codec)
        steps = [step + 50 for step in steps]
    assert client.offset(topic, 0, EARLIEST) == 0
    assert client.offset(topic, 0, LATEST) == 15
    expected = {0: 0, 10: 0, 11: 1, 20: 1, 30: 1, 31: 3, 50: 4, 51: 5, 61: 6, 75: 6, 100: 9, 101: 10, 141: 14}
    assert {step: client.offset(topic, 0, start + step) for step in expected} == expected
    assert client.offset(topic, 0, start + 151) in ({-1, 15} if name == "kcat" else {-1})
    assert client.offset(topic, 1, LATEST) == 0


@pytest.mark.parametrize("name", that_can("groups", "describe_group", "committed"))
def test_groups_are_listed_and_described(
    name: str, open_client: Opener, reference: Client, make_topic: Callable[..., str], fresh_name: Callable[[str], str]
) -> None:
    client, topic, group = open_client(name), make_topic("grouped", 2), fresh_name("group")
    reference.produce(topic, 0, [Rec(b"one"), Rec(b"two")])
    reference.consume_group(group, topic, 2)
    group_members_left(reference, group)
    assert group in client.groups()
    assert client.describe_group(group) == GroupState("Empty", 0)
    assert client.committed(group, topic, 0) == 2
    assert client.committed(fresh_name("nobody"), topic, 0) == -1


@pytest.mark.parametrize("name", that_can("delete_group"))
def test_groups_are_deleted(
    name: str, open_client: Opener, reference: Client, make_topic: Callable[..., str], fresh_name: Callable[[str], str]
) -> None:
    client, topic, group = open_client(name), make_topic("ungrouped"), fresh_name("group")
    reference.produce(topic, 0, [Rec(b"one")])
    reference.consume_group(group, topic, 1)
    group_members_left(reference, group)
    client.delete_group(group)
    assert group not in client.groups()
    assert reference.committed(group, topic, 0) == -1
    with pytest.raises(ClientError) as refused:
        client.delete_group(group)
    assert refused.value.code == GROUP_ID_NOT_FOUND
