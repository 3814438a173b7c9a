"""A Kafka consumer on a topic that a client of sbp-v0.1 writes to as well."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from sbp_document import DocumentClient, DocumentRecord
from tests.kafka_front.node_lab import serving


async def test_kafka_and_the_document_on_one_topic(tmp_path: Path) -> None:
    async with serving(tmp_path, {"listen.sbp-v0.1": "127.0.0.1:0"}) as node:
        stream_id = (await node.catalog.create_topic("orders", 1)).partitions[0].stream_id
        address = node.addresses["sbp-v0.1"]
        client = DocumentClient.connect(address.host, address.port)
        bootstrap = str(node.addresses["kafka"])
        consumer = AIOKafkaConsumer("orders", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await consumer.start()
        await producer.start()

        async def next_record() -> tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]:
            record = await asyncio.wait_for(consumer.getone(), 30)
            return record.offset, record.key, record.value, tuple(record.headers), record.timestamp

        one = DocumentRecord(b"one", [("shop", "7")], timestamp=1_700_000_000_000)
        two = DocumentRecord(b"two", timestamp=1_700_000_000_001)
        await client.append(stream_id, [one, two])
        # A consumer that waits gets them at once: they came through the partition's own writer.
        assert await next_record() == (0, None, b"one", (("shop", b"7"),), 1_700_000_000_000)
        assert await next_record() == (1, None, b"two", (), 1_700_000_000_001)
        await producer.send_and_wait("orders", b"three", key=b"k", timestamp_ms=1_700_000_000_002)
        assert await next_record() == (2, b"k", b"three", (), 1_700_000_000_002)
        assert (await client.append(stream_id, [DocumentRecord(b"four", timestamp=5)])).base_offset == 3
        assert await next_record() == (3, None, b"four", (), 5)
        batches = (await client.fetch(stream_id, 0)).batches
        assert [(batch.base_offset, batch.end_offset, batch.wrapped) for batch in batches] == [
            (0, 2, -1),
            (2, 3, 1),
            (3, 4, -1),
        ]
        await producer.stop()
        await consumer.stop()
        await client.close()
