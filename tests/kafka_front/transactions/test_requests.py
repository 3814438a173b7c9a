"""Transactions through requests written by hand, on a node in the process of the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from anabranch_kit.run.awaited import awaited
from bridges.catalog.topics.lineage import KeyRange
from bridges.catalog.views.transactions import NothingToAbort
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.records import Record
from bridges.node.assembly import Node
from kafka_front.front import KafkaFront
from kafka_front.service.core import KafkaService
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import log_of, serving

GROUP = "g"


class Producer:
    """Sends the requests of a transactional producer one by one."""

    def __init__(self, client: WireClient, name: str = "tx") -> None:
        self.client, self.name = client, name
        self.id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self, timeout_ms: int = 60_000, version: int = 5) -> int:
        told = await self.client.call(version, m.InitProducerIdRequest(self.name, timeout_ms))
        if not told.error_code:
            self.id, self.epoch = told.producer_id, told.producer_epoch
            self.sequences.clear()
        return int(told.error_code)

    async def produce(self, version: int, partition: int = 0, topic: str = "t") -> int:
        payload = encode(
            [Record(None, b"v", timestamp=1_000_000)],
            attributes=TRANSACTIONAL,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get((topic, partition), 0),
        )
        data = m.ProduceRequest.PartitionProduceData(partition, memoryview(bytearray(payload)))
        topics = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
        request = m.ProduceRequest(self.name, -1, 10_000, topics)
        told = await self.client.call(version, request)
        code = int(told.responses[0].partition_responses[0].error_code)
        self.sequences[topic, partition] = self.sequences.get((topic, partition), 0) + (not code)
        return code

    async def add(self, *partitions: int, version: int = 3) -> list[int]:
        topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic("t", list(partitions))
        request = m.AddPartitionsToTxnRequest([], self.name, self.id, self.epoch, [topic])
        told = await self.client.call(version, request)
        rows = told.results_by_topic_v3_and_below[0].results_by_partition
        return [int(row.partition_error_code) for row in rows]

    async def offsets(self, version: int, offset: int) -> int:
        partition = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(0, offset)
        topic = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(partitions=[partition], name="t")
        request = m.TxnOffsetCommitRequest(self.name, GROUP, self.id, self.epoch, topics=[topic])
        return int((await self.client.call(version, request)).topics[0].partitions[0].error_code)

    async def end(self, commit: bool, version: int = 5) -> int:
        told = await self.client.call(version, m.EndTxnRequest(self.name, self.id, self.epoch, commit))
        if not told.error_code and version >= 5:
            self.id, self.epoch = told.producer_id, told.producer_epoch
            self.sequences.clear()
        return int(told.error_code)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as node:
        await node.catalog.create_topic("t", 3, {})
        yield node


@pytest.fixture
async def client(node: Node) -> AsyncIterator[WireClient]:
    address = node.addresses["kafka"]
    async with WireClient(address.host, address.port) as client:
        yield client


def service_of(node: Node) -> KafkaService:
    (front,) = node.fronts
    assert isinstance(front, KafkaFront)
    assert front.server is not None
    assert front.server.service is not None
    return front.server.service


async def test_ids_that_rest_in_the_database_go_on_where_they_were(tmp_path: Path) -> None:
    few = {"kafka.transactional_ids": "2"}
    names = [f"tx-{number}" for number in range(6)]
    for again in (False, True):  # after a restart
        async with serving(tmp_path, few) as node:
            if "t" not in node.catalog.topics:
                await node.catalog.create_topic("t", 3, {})
            address = node.addresses["kafka"]
            async with WireClient(address.host, address.port) as client:
                producers = [Producer(client, name) for name in names]
                before = [await producer.init() for producer in producers]
                assert before == [E.NONE] * 6
                epochs = [producer.epoch for producer in producers]
                rests = producers[0]
                assert await rests.add(0) == [E.NONE], "older clients add partitions first"
                assert await rests.end(True, version=3) == E.NONE
                await service_of(node).transactions.settle(0)
                assert await producers[1].produce(12) == E.NONE, "newer ones by their batch"
                assert await producers[1].end(True, version=4) == E.NONE
                producers[2].epoch -= 1
                assert await producers[2].add(1) == [E.PRODUCER_FENCED]
                assert await producers[3].end(False, version=3) == E.INVALID_TXN_STATE
                listed = await client.call(1, m.ListTransactionsRequest())
                assert {one.transactional_id for one in listed.transaction_states} == set(names)
                described = await client.call(0, m.DescribeTransactionsRequest(names))
                assert [one.error_code for one in described.transaction_states] == [E.NONE] * 6
                assert [epochs[0], epochs[5]] == ([1, 0] if again else [0, 0])
                forgotten = await service_of(node).transactions.forget(lambda name: name == "tx-5", 2**62)
                assert (forgotten, await producers[5].add(0)) == (1, [E.INVALID_PRODUCER_ID_MAPPING])
                idle = time.time_ns() // 1_000_000 + 2 * service_of(node).settings.transactional_id_expiration_ms
                if again:
                    for _ in range(2):
                        await service_of(node).transactions.settle(idle)
                    assert (await client.call(1, m.ListTransactionsRequest())).transaction_states == []


async def position(client: WireClient, version: int = 9, *, stable: bool = True) -> tuple[int, int]:
    """(offset, error) of the group's position."""
    topics = [m.OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    groups = [m.OffsetFetchRequest.OffsetFetchRequestGroup(GROUP, topics=topics)]
    told: Any = await client.call(version, m.OffsetFetchRequest(groups=groups, require_stable=stable))
    row = told.groups[0].topics[0].partitions[0]
    return row.committed_offset, row.error_code


async def test_partitions_and_groups_are_added_by_version_two_itself(node: Node, client: WireClient) -> None:
    producer = Producer(client)
    assert await producer.init() == 0
    assert [await producer.produce(12, n) for n in (0, 1, 0, 1)] == [0, 0, 0, 0]
    assert await producer.offsets(5, 7) == 0
    assert await position(client) == (-1, E.UNSTABLE_OFFSET_COMMIT)
    assert await position(client, stable=False) == (-1, 0)
    before = producer.id, producer.epoch
    assert await producer.end(True) == 0
    assert (producer.id, producer.epoch) == (before[0], before[1] + 1)
    assert await position(client) == (7, 0), "at once: readers see what was decided when it is answered"
    for partition in (0, 1):
        log = log_of(node, "t", partition)
        assert log.last_stable_offset == log.high_watermark == 3
    late = Producer(client)
    late.id, late.epoch = before
    late.sequences["t", 0] = 2
    assert await late.produce(12) == E.INVALID_PRODUCER_EPOCH
    assert log_of(node, "t").high_watermark == 3


async def test_version_one_wants_partitions_added_first(node: Node, client: WireClient) -> None:
    producer = Producer(client)
    assert await producer.produce(11) == E.INVALID_RECORD, "no producer id"
    assert await producer.init() == 0
    assert await producer.produce(11) == E.INVALID_TXN_STATE
    assert await producer.add(0, 9) == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert await producer.add(0, 1) == [0, 0]
    assert await producer.produce(11) == 0
    assert await producer.produce(11, 2) == E.INVALID_TXN_STATE
    assert await producer.offsets(3, 7) == E.INVALID_TXN_STATE
    assert await producer.end(False, 4) == 0
    assert await producer.produce(11) == E.INVALID_TXN_STATE, "what comes late is part of nothing"
    log = log_of(node, "t")
    assert log.last_stable_offset == log.high_watermark == 2
    assert log_of(node, "t", 1).high_watermark == 0


async def test_a_zombie_is_told_so_in_words_that_its_version_knows(client: WireClient) -> None:
    zombie, other = Producer(client), Producer(client)
    assert await zombie.init() == 0
    assert await zombie.add(0) == [0]
    assert await other.init() == 0, "which waits until what the zombie had open is aborted"
    assert (other.id, other.epoch) == (zombie.id, 2)
    assert (await zombie.add(0, version=1), await zombie.add(0)) == ([E.INVALID_PRODUCER_EPOCH], [E.PRODUCER_FENCED])
    assert (await zombie.end(True, 1), await zombie.end(True, 4)) == (E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED)
    assert await zombie.produce(11) == E.INVALID_PRODUCER_EPOCH
    other.id += 1
    assert await other.add(0) == [E.INVALID_PRODUCER_ID_MAPPING]


async def test_its_timeout_ends_a_transaction_that_holds_up_all_readers(node: Node, client: WireClient) -> None:
    hanging = Producer(client, "hanging")
    assert await hanging.init(timeout_ms=300) == 0
    assert await hanging.produce(12) == 0
    other = Producer(client, "other")
    assert await other.init() == 0
    assert await other.produce(12) == 0
    assert await other.end(True) == 0
    log = log_of(node, "t")
    assert (log.last_stable_offset, log.high_watermark) == (0, 3), "readers of every protocol go by that"
    async with asyncio.timeout(10):
        await log.until(lambda: log.last_stable_offset == 4)
    # Every protocol but Kafka's reads by this: a gap in the place of what was aborted.
    batches = await log.read_committed(0, 1 << 20)
    assert [log_part.base_offset for log_part in batches] == [0, 1, 2, 3]
    assert await hanging.produce(12) == E.INVALID_PRODUCER_EPOCH
    assert await hanging.end(True) == E.INVALID_TXN_STATE


async def test_an_operators_abort_comes_behind_what_is_on_its_way(node: Node, client: WireClient) -> None:
    producer = Producer(client)
    assert await producer.init() == 0
    assert await producer.produce(12) == 0
    (front,) = node.fronts
    assert isinstance(front, KafkaFront)
    assert front.transactions is not None
    service = service_of(node).transactions
    place = ("t", 1)
    added: asyncio.Future[None] = awaited(
        lambda reply: service.coordinator.add(service.now(), "tx", producer.id, producer.epoch, [place], [], reply)
    )
    assert not added.done(), "its row is not durable yet"
    view = await front.transactions.abort("tx")
    assert (added.done(), view.state, dict(view.places)) == (True, "CompleteAbort", {})
    assert added.exception() is None
    assert log_of(node, "t").last_stable_offset == 2
    with pytest.raises(NothingToAbort):
        await front.transactions.abort("tx")


async def test_a_topic_that_is_deleted_meanwhile_holds_up_no_end(node: Node, client: WireClient) -> None:
    producer = Producer(client)
    await node.catalog.create_topic("gone", 1, {})
    assert await producer.init() == 0
    assert await producer.produce(12, topic="gone") == 0
    assert await producer.produce(12) == 0
    await node.catalog.delete_topic("gone")
    await node.catalog.create_topic("gone", 1, {})
    assert await producer.end(True) == 0
    assert log_of(node, "gone").high_watermark == 0, "it is another topic"
    assert log_of(node, "t").last_stable_offset == 2


async def test_a_partition_is_split_under_an_open_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridges.catalog.topics.seals.RETRY_FIRST_S", 3600.0)  # it is not a matter of trying again
    async with serving(tmp_path) as node:
        await node.catalog.create_topic("t", 1, {"anabranch.partitions.split": "true"})
        address = node.addresses["kafka"]
        async with WireClient(address.host, address.port) as client:
            producer = Producer(client)
            assert await producer.init() == 0
            assert await producer.produce(12) == 0
            halves = [KeyRange.of_doubles(0.0, 0.5), KeyRange.of_doubles(0.5, 1.0)]
            await node.catalog.change_partitions("t", [0], halves)
            assert await producer.produce(12) == E.POLICY_VIOLATION, "nothing more goes there"
            assert await producer.end(True) == 0
            log = log_of(node, "t")
            async with asyncio.timeout(10):
                assert await log.ended() == 2, "the marker is the last that the partition takes"
            assert log.last_stable_offset == 2


async def test_tools_see_since_when_the_last_transaction_was_open(node: Node, client: WireClient) -> None:
    producer = Producer(client)

    async def seen() -> tuple[str, bool, list[str]]:
        """State, whether a start is told, and the states that are listed as older than an hour."""
        told: Any = await client.call(0, m.DescribeTransactionsRequest(["tx"]))
        listed: Any = await client.call(2, m.ListTransactionsRequest(duration_filter=3_600_000))
        (one,) = told.transaction_states
        states = [row.transaction_state for row in listed.transaction_states]
        return one.transaction_state, one.transaction_start_time_ms > 0, states

    assert await producer.init() == 0
    assert await seen() == ("Empty", False, ["Empty"])
    assert await producer.produce(12) == 0
    assert await seen() == ("Ongoing", True, [])
    assert await producer.end(True) == 0
    async with asyncio.timeout(10):
        while (await seen())[0] != "CompleteCommit":
            await asyncio.sleep(0)
    assert await seen() == ("CompleteCommit", True, [])
    everything: Any = await client.call(2, m.ListTransactionsRequest(duration_filter=0))
    assert [row.transaction_state for row in everything.transaction_states] == ["CompleteCommit"]
    assert await producer.init() == 0
    assert await seen() == ("Empty", False, ["Empty"])


async def test_tools_see_and_end_what_is_open(node: Node, client: WireClient) -> None:
    producer = Producer(client)
    assert await producer.init() == 0
    assert await producer.produce(12) == 0
    told: Any = await client.call(0, m.DescribeTransactionsRequest(["tx", "other"]))
    found, missing = told.transaction_states
    assert (found.transaction_state, found.producer_id, found.transaction_timeout_ms) == ("Ongoing", producer.id, 60000)
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("t", [0])]
    assert missing.error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    listed: Any = await client.call(2, m.ListTransactionsRequest(["Ongoing", "Odd"], transactional_id_pattern="t.*"))
    assert [row.transactional_id for row in listed.transaction_states] == ["tx"]
    assert listed.unknown_state_filters == ["Odd"]
    listed = await client.call(2, m.ListTransactionsRequest(transactional_id_pattern="x.*"))
    assert listed.transaction_states == []
    listed = await client.call(2, m.ListTransactionsRequest(transactional_id_pattern="(((("))
    assert listed.error_code == E.INVALID_REGULAR_EXPRESSION
    asked = m.DescribeProducersRequest([m.DescribeProducersRequest.TopicRequest("t", [0])])
    row: Any = (await client.call(0, asked)).topics[0].partitions[0].active_producers[0]
    assert (row.producer_id, row.current_txn_start_offset) == (producer.id, 0)
    marked = m.WriteTxnMarkersRequest.WritableTxnMarkerTopic("t", [0, 7])
    marker = m.WriteTxnMarkersRequest.WritableTxnMarker(producer.id, producer.epoch, False, [marked])
    answer: Any = await client.call(1, m.WriteTxnMarkersRequest([marker]))
    rows = answer.markers[0].topics[0].partitions
    assert [one.error_code for one in rows] == [0, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert log_of(node, "t").last_stable_offset == 2


async def test_a_marker_without_the_epoch_of_its_producer_ends_nothing(node: Node, client: WireClient) -> None:
    producer = Producer(client)
    assert [await producer.init() for _ in range(2)] == [0, 0], "others have an earlier epoch"
    assert await producer.produce(12) == 0
    topics = [m.WriteTxnMarkersRequest.WritableTxnMarkerTopic("t", [0])]
    for epoch in (-(2**15), -1, 0):
        marker = m.WriteTxnMarkersRequest.WritableTxnMarker(producer.id, epoch, True, topics)
        answer: Any = await client.call(1, m.WriteTxnMarkersRequest([marker]))
        assert answer.markers[0].topics[0].partitions[0].error_code == E.INVALID_PRODUCER_EPOCH
    assert log_of(node, "t").last_stable_offset == 0
    assert await producer.end(False) == 0


@pytest.mark.parametrize(("length", "code"), [(0, E.INVALID_REQUEST), (1000, E.NONE), (1001, E.INVALID_REQUEST)])
async def test_what_is_remembered_is_not_as_long_as_a_client_likes(client: WireClient, length: int, code: E) -> None:
    assert await Producer(client, "x" * length).init() == code
