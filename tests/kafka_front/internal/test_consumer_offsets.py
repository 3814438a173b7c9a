"""``__consumer_offsets``: what a reader of it sees of groups, and goes on seeing over a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bridges.catalog.topics.topic import TopicKind
from kafka_front.service.internal.offsets import GroupOffsets
from kafka_front.service.internal.topic_copy import TopicCopy, partition_of
from tests.kafka_front.internal.reader import TOPIC, Reader, offset_of, position_key
from tests.kafka_front.node_lab import serving
from tests.kit.waiting import wait_until


def commit(bootstrap: str, group: str, *offsets: int) -> None:
    """Commit a position for each partition of topic t, as a client that is no member."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    places = [TopicPartition("t", number, offset) for number, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def test_a_group_has_the_partition_that_java_computes() -> None:
    # the hash of "polygenelubricants" is the least int, and Kafka takes 0 for its absolute value
    groups = {"polygenelubricants": 0, "": 0, "a": 97 % 50, "zz": (31 * 122 + 122) % 50, "😀": 1772899 % 50}
    assert {name: partition_of(name, 50) for name in groups} == groups


async def test_a_reader_sees_commits_and_deletions_promptly_and_goes_on_over_a_restart(tmp_path: Path) -> None:
    def first(bootstrap: str) -> tuple[int, list[int]]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", 3, 1)])["t"].result(60)
        commit(bootstrap, "g", 5, 6)
        described = admin.list_topics(TOPIC, 60).topics[TOPIC]
        assert (described.error, len(described.partitions)) == (None, 50)
        reader = Reader(bootstrap, "g")
        keys = [position_key("g", "t", number) for number in range(3)]
        reader.await_offset(keys[1], 6)  # committed before anybody asked
        assert offset_of(reader.state[keys[0]]) == 5
        commit(bootstrap, "g", 7, 8, 9)
        reader.await_offset(keys[2], 9)
        assert [offset_of(reader.state[key]) for key in keys] == [7, 8, 9]
        reader.close()
        return reader.offset, reader.offsets

    def second(bootstrap: str, start: int) -> list[int]:
        reader = Reader(bootstrap, "g", start)
        assert reader.look() == {}  # nothing has changed, and nothing is told twice
        commit(bootstrap, "g", 10)
        reader.await_offset(position_key("g", "t", 0), 10)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        [done] = admin.delete_consumer_groups(["g"]).values()
        done.result(60)
        wait_until(lambda: len(reader.look()) == 3)
        assert set(reader.state.values()) == {None}
        reader.close()
        return reader.offsets

    async with serving(tmp_path) as node:
        end, seen = await asyncio.to_thread(first, str(node.addresses["kafka"]))
    async with serving(tmp_path) as node:
        more = await asyncio.to_thread(second, str(node.addresses["kafka"]), end)
    offsets = seen + more
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("event", ["the node starts again", "a member is gone", "slots have come"])
async def test_a_change_of_which_the_topic_has_not_heard_is_told_later(tmp_path: Path, event: str) -> None:
    """A commit and a deletion are durable, and their coordinator ended right after each."""

    def prepare(bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        admin.list_topics(TOPIC, 60)
        for group in ("g", "gone"):
            commit(bootstrap, group, 5)
            reader = Reader(bootstrap, group)
            reader.await_offset(position_key(group, "t", 0), 5)
            reader.close()

    def change(bootstrap: str) -> None:
        commit(bootstrap, "g", 9)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        [done] = admin.delete_consumer_groups(["gone"]).values()
        done.result(60)

    def check(bootstrap: str) -> None:
        for group, offset in (("g", 9), ("gone", None)):
            reader = Reader(bootstrap, group)
            reader.await_offset(position_key(group, "t", 0), offset)
            reader.close()

    async with serving(tmp_path) as node:
        bootstrap = str(node.addresses["kafka"])
        await asyncio.to_thread(prepare, bootstrap)
        node.progress.on_change.clear()
        await asyncio.to_thread(change, bootstrap)
        cluster = node.floors.place.cluster
        if event == "a member is gone":
            for gone in cluster.on_gone:
                gone()
            await asyncio.to_thread(check, bootstrap)
        elif event == "slots have come":
            for gained in cluster.on_gained:
                gained(cluster.mine)
            await asyncio.to_thread(check, bootstrap)
    if event == "the node starts again":
        async with serving(tmp_path) as node:
            await asyncio.to_thread(check, str(node.addresses["kafka"]))


async def test_nothing_is_begun_after_the_end() -> None:
    """Other fronts may stop later, and their clients commit positions until then."""
    topic = SimpleNamespace(partitions=[None] * 50, kind=TopicKind.INTERNAL)
    node: Any = SimpleNamespace(catalog=SimpleNamespace(topics={TOPIC: topic}), progress=None)
    copy = TopicCopy(node, GroupOffsets(node.progress), AsyncMock())
    await copy.close()
    before = asyncio.all_tasks()
    copy.changed("g")
    assert asyncio.all_tasks() == before


async def test_positions_of_a_deleted_topic_are_told_as_gone(tmp_path: Path) -> None:
    def use(bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        commit(bootstrap, "g", 5)
        admin.list_topics(TOPIC, 60)
        reader, key = Reader(bootstrap, "g"), position_key("g", "t", 0)
        reader.await_offset(key, 5)
        admin.delete_topics(["t"])["t"].result(60)
        reader.await_offset(key, None)
        reader.close()

    async with serving(tmp_path) as node:
        await asyncio.to_thread(use, str(node.addresses["kafka"]))


async def test_clients_read_the_topic_and_change_nothing_in_it(tmp_path: Path) -> None:
    def attempt(bootstrap: str) -> list[int]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert admin.list_topics(TOPIC, 60).topics[TOPIC].error is None
        codes: list[int] = []
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(TOPIC, b"x", b"k", partition=0, on_delivery=lambda error, _: codes.append(error.code()))
        producer.flush(60)
        place = TopicPartition(TOPIC, 0, 0)
        for future in (
            admin.delete_topics([TOPIC])[TOPIC],
            admin.delete_records([place])[place],
            admin.create_partitions([NewPartitions(TOPIC, 60)])[TOPIC],
        ):
            with pytest.raises(KafkaException) as refused:
                future.result(60)
            codes.append(refused.value.args[0].code())
        return codes

    async with serving(tmp_path) as node:
        codes = await asyncio.to_thread(attempt, str(node.addresses["kafka"]))
        assert len(node.catalog.topics[TOPIC].partitions) == 50
    refused = KafkaError.TOPIC_EXCEPTION
    # no client deletes records of a topic that is compacted only, as in Kafka
    assert codes == [refused, refused, KafkaError.POLICY_VIOLATION, refused]


async def test_the_topic_is_made_when_a_client_asks_for_it_and_not_before(tmp_path: Path) -> None:
    def use(bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        commit(bootstrap, "g", 5)
        assert set(admin.list_topics(timeout=60).topics) == {"t"}
        [described] = admin.describe_topics(TopicCollection([TOPIC])).values()
        found = described.result(60)
        assert (found.is_internal, len(found.partitions)) == (True, 50)
        assert set(admin.list_topics(timeout=60).topics) == {"t", TOPIC}

    async with serving(tmp_path) as node:
        await asyncio.to_thread(use, str(node.addresses["kafka"]))
