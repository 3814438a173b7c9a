"""``__share_group_state``: share partitions come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_front.service.internal.shares import share_name
from kafka_front.wire import messages as m
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.internal.reader import Reader
from tests.kafka_front.node_lab import serving
from tests.kit.waiting import wait_until

TOPIC = "__share_group_state"


@pytest.mark.parametrize("deleted", ["offsets", "group", "topic"])
async def test_a_share_partition_is_told_as_gone(tmp_path: Path, deleted: str) -> None:
    async with serving(tmp_path) as node:
        address = node.addresses["kafka"]
        admin = AdminClient({"bootstrap.servers": str(address)})
        await asyncio.to_thread(admin.create_topics([NewTopic("t", 1, 1)])["t"].result, 60)
        await asyncio.to_thread(admin.list_topics, TOPIC, 60)
        name = share_name("s", node.catalog.topics["t"].topic_id.bytes, 0)
        reader = await asyncio.to_thread(Reader, str(address), name, 0, TOPIC)

        def told(gone: bool) -> bool:
            return bool(reader.look()) and all((value is None) is gone for value in reader.state.values())

        async with WireClient(address.host, address.port) as client:
            asked = m.AlterShareGroupOffsetsRequest
            row = asked.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
            topics = [asked.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=[row])]
            await client.call(0, asked(group_id="s", topics=topics))
            await asyncio.to_thread(wait_until, lambda: told(gone=False))
            if deleted == "offsets":
                gone = m.DeleteShareGroupOffsetsRequest
                one = gone.DeleteShareGroupOffsetsRequestTopic(topic_name="t")
                await client.call(0, gone(group_id="s", topics=[one]))
            elif deleted == "group":
                await client.call(2, m.DeleteGroupsRequest(groups_names=["s"]))
            else:
                await asyncio.to_thread(admin.delete_topics(["t"])["t"].result, 60)
            await asyncio.to_thread(wait_until, lambda: told(gone=True))
        await asyncio.to_thread(reader.close)
