"""Requests that name topics wait until their node has heard of those that others have made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_front.dispatch import Registry
from kafka_front.service.unheard import NAMES, hear_first
from kafka_front.wire import messages as m
from kafka_front.wire.message import Message

ID = b"i" * 16

REQUESTS: list[Message] = [
    m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="new")]),
    m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(topic_id=ID)]),
    m.ListOffsetsRequest(topics=[m.ListOffsetsRequest.ListOffsetsTopic("new")]),
    m.OffsetCommitRequest(topics=[m.OffsetCommitRequest.OffsetCommitRequestTopic(name="new")]),
    m.OffsetCommitRequest(topics=[m.OffsetCommitRequest.OffsetCommitRequestTopic(topic_id=ID)]),
    m.OffsetDeleteRequest(topics=[m.OffsetDeleteRequest.OffsetDeleteRequestTopic("new")]),
    m.TxnOffsetCommitRequest(topics=[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="new")]),
    m.AddPartitionsToTxnRequest(v3_and_below_topics=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic("new")]),
    m.DeleteRecordsRequest(topics=[m.DeleteRecordsRequest.DeleteRecordsTopic("new")]),
    m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="new")]),
    m.DeleteTopicsRequest(topic_names=["new"]),
    m.CreatePartitionsRequest(topics=[m.CreatePartitionsRequest.CreatePartitionsTopic("new")]),
    m.DescribeTopicPartitionsRequest(topics=[m.DescribeTopicPartitionsRequest.TopicRequest("new")]),
    m.DescribeConfigsRequest([m.DescribeConfigsRequest.DescribeConfigsResource(2, "new")]),
    m.AlterConfigsRequest([m.AlterConfigsRequest.AlterConfigsResource(2, "new")]),
    m.IncrementalAlterConfigsRequest([m.IncrementalAlterConfigsRequest.AlterConfigsResource(2, "new")]),
]


class Cluster:
    """A node that hears of a topic when it asks for it; ``seen`` by a handler of each API is what it knows then."""

    def __init__(self, *, shared: bool = True) -> None:
        self.topics: dict[str, object] = {}
        self.by_id: dict[bytes, object] = {}
        self.asked = 0
        self.seen: list[int] = []
        self.registry = Registry()
        for key in NAMES:
            self.registry.register(key, self._handle)
        changes = SimpleNamespace(shared=shared, latest=self._latest)
        service: Any = SimpleNamespace(node=SimpleNamespace(db=SimpleNamespace(changes=changes)), catalog=self)
        hear_first(self.registry, service)

    async def _latest(self) -> None:
        self.asked += 1
        self.topics["new"] = self.by_id[ID] = object()

    async def _handle(self, ctx: Any, request: Message) -> str:
        self.seen.append(len(self.topics))
        return "answer"


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
async def test_a_node_asks_once_before_it_handles_what_it_has_not_heard_of(request_: Message) -> None:
    cluster = Cluster()
    handler = cluster.registry.handlers[request_.API_KEY]
    ctx: Any = None
    assert [await handler(ctx, request_) for _ in range(2)] == ["answer", "answer"]
    assert (cluster.seen, cluster.asked) == ([1, 1], 1)


def test_each_of_these_apis_is_looked_at() -> None:
    assert {request.API_KEY for request in REQUESTS} == set(map(int, NAMES))


async def test_a_node_by_itself_asks_nobody() -> None:
    cluster = Cluster(shared=False)
    ctx: Any = None
    for request in REQUESTS:
        assert await cluster.registry.handlers[request.API_KEY](ctx, request) == "answer"
    assert cluster.asked == 0
