"""Where requests written by hand go that a node and Apache Kafka must answer alike: fixture ``place`` gives each."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.kafka_front.groups.wire_client import WireClient


@dataclass
class Place:
    """Where the requests go."""

    client: WireClient
    ours: bool
    node_id: int
    stack: AsyncExitStack

    async def call(self, version: int, message: Any) -> Any:
        return await self.client.call(version, message)

    async def eventually(self, version: int, message: Any, *codes: int) -> Any:
        """Repeat a request while it answers with ``codes``: a broker's own view lags behind its controller's."""
        while True:
            response = await self.client.call(version, message)
            if set(error_codes(response)).isdisjoint(codes):
                return response
            await asyncio.sleep(0.02)

    async def topic(self, partitions: int = 1, **config: str) -> str:
        """A new topic that is ready for use."""
        name = fresh()
        configs = [m.CreateTopicsRequest.CreatableTopicConfig(k.replace("_", "."), v) for k, v in config.items()]
        response = await self.call(7, create(new(name, partitions, configs=configs)))
        assert response.topics[0].error_code == E.NONE
        await self.settled(name, partitions)
        return name

    async def settled(self, name: str, partitions: int) -> m.MetadataResponse.MetadataResponseTopic:
        """Return the topic's metadata once all its partitions have leaders."""
        topics = [m.MetadataRequest.MetadataRequestTopic(name=name)]
        while True:
            response = await self.call(9, m.MetadataRequest(topics=topics, allow_auto_topic_creation=False))
            topic = response.topics[0]
            leaders = [p.leader_id for p in topic.partitions if p.error_code == E.NONE]
            if topic.error_code == E.NONE and leaders == [self.node_id] * partitions:
                break
            await asyncio.sleep(0.02)
        if not self.ours:
            # Kafka names a broker the leader before that has heard of it.
            wanted = [m.ListOffsetsRequest.ListOffsetsPartition(number, timestamp=-1) for number in range(partitions)]
            of_topic = m.ListOffsetsRequest.ListOffsetsTopic(name, wanted)
            await self.eventually(2, m.ListOffsetsRequest(-1, 0, [of_topic]), E.NOT_LEADER_OR_FOLLOWER)
        return topic

    async def gone(self, name: str) -> None:
        """Return when the topic is unknown."""
        topics = [m.MetadataRequest.MetadataRequestTopic(name=name)]
        while True:
            response = await self.call(9, m.MetadataRequest(topics=topics, allow_auto_topic_creation=False))
            if response.topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION:
                return
            await asyncio.sleep(0.02)

    async def configs(self, kind: int, name: str, *keys: str) -> dict[str, Any]:
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(kind, name, list(keys) or None)
        response = await self.call(4, m.DescribeConfigsRequest([resource], include_synonyms=True))
        (result,) = response.results
        assert (result.error_code, result.resource_type, result.resource_name) == (E.NONE, kind, name)
        return {row.name: row for row in result.configs}


def error_codes(message: Any) -> list[int]:
    """All error codes in a message, however deep."""
    found = []
    for name in message.__slots__:
        value = getattr(message, name)
        if name in ("error_code", "partition_error_code"):
            found.append(value)
        elif isinstance(value, list):
            found += [code for item in value if hasattr(item, "__slots__") for code in error_codes(item)]
    return found


def fresh() -> str:
    return f"t-{uuid.uuid4()}"


def new(name: str, partitions: int = -1, factor: int = -1, **fields: Any) -> m.CreateTopicsRequest.CreatableTopic:
    return m.CreateTopicsRequest.CreatableTopic(name, partitions, factor, **fields)


def create(*topics: m.CreateTopicsRequest.CreatableTopic, validate_only: bool = False) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(list(topics), 30_000, validate_only)
