"""The leader and its epoch beside an error that says that a client has another idea of it (KIP-951)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridges.errors import LogUnavailable
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.partition.partition_log import PartitionLog
from bridges.node.assembly import Node
from kafka_front.wire.errors import ErrorCode as E
from kafka_front.wire.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from tests.kafka_front.node_lab import connect, log_of, serving


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """In its second run, so that there is an older epoch."""
    async with serving(tmp_path) as first:
        await first.catalog.create_topic("t", 1)
    async with serving(tmp_path, {"advertise.kafka": "outside.example:77", "node.rack": "r1"}) as node:
        await log_of(node, "t").ready()
        yield node


def fetch(node: Node, epoch: int) -> FetchRequest:
    part = FetchRequest.FetchPartition(0, fetch_offset=0, current_leader_epoch=epoch, partition_max_bytes=1000)
    topic_id = node.catalog.topics["t"].topic_id.bytes
    return FetchRequest(
        max_bytes=1000, topics=[FetchRequest.FetchTopic(topic="t", topic_id=topic_id, partitions=[part])]
    )


@pytest.mark.parametrize("version", [12, 15, 16, 18])
async def test_a_fetch_with_an_old_epoch_is_told_the_new_one_and_where_its_leader_is(node: Node, version: int) -> None:
    client = await connect(node)
    epoch = log_of(node, "t").epoch
    response = await client.call(version, fetch(node, epoch - 1))
    (data,) = response.responses[0].partitions
    assert data.error_code == E.FENCED_LEADER_EPOCH
    if version < 16:
        assert (data.current_leader, response.node_endpoints) == (None, [])
        return
    assert data.current_leader == FetchResponse.LeaderIdAndEpoch(node.settings.node.id, epoch)
    assert response.node_endpoints == [FetchResponse.NodeEndpoint(node.settings.node.id, "outside.example", 77, "r1")]
    again = await client.call(version, fetch(node, data.current_leader.leader_epoch))
    assert (again.responses[0].partitions[0].error_code, again.node_endpoints) == (E.NONE, [])


@pytest.mark.parametrize("version", [9, 10, 13])
async def test_a_produce_to_a_partition_that_is_not_led_now_is_told_who_leads(
    node: Node, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(self: PartitionLog, batch: Any, done: Any) -> None:
        done(None, LogUnavailable("it is being opened again"))

    monkeypatch.setattr(PartitionLog, "append", append)
    client = await connect(node)
    records = memoryview(bytearray(encode([Record(None, b"v", (), 1_700_000_000_000)])))
    data = ProduceRequest.PartitionProduceData(0, records)
    topic_id = node.catalog.topics["t"].topic_id.bytes
    topic = ProduceRequest.TopicProduceData(name="t", topic_id=topic_id, partition_data=[data])
    response = await client.call(version, ProduceRequest(None, -1, 10_000, [topic]))
    (answer,) = response.responses[0].partition_responses
    assert answer.error_code == E.NOT_LEADER_OR_FOLLOWER
    if version < 10:
        assert (answer.current_leader, response.node_endpoints) == (None, [])
        return
    assert answer.current_leader == ProduceResponse.LeaderIdAndEpoch(node.settings.node.id, log_of(node, "t").epoch)
    assert response.node_endpoints == [ProduceResponse.NodeEndpoint(node.settings.node.id, "outside.example", 77, "r1")]
