"""A node dies by kill -9 at a step of a producer's transactions: each is there whole, or not at all.

``ANABRANCH_EVERY_STEP=1`` takes every step.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from bridges.formats import format_of
from bridges.log.partition.partition_log import PartitionLog
from tests.kafka_front.node_lab import log_of, serving
from tests.kafka_front.transactions.node_lives import live
from tests.lives import Lives

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS = [True, False, True, True]
"""Which transactions are committed."""
STEPS = range(1, 61) if os.environ.get("ANABRANCH_EVERY_STEP") else [6, 11, 17, 22, 30]


async def scenario(address: str) -> None:
    """A client that goes on by itself when its node comes back, and does what could not be done once more."""
    producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id="tx", retry_backoff_ms=20)
    await producer.start()
    for number, commit in enumerate(ROUNDS):
        while True:
            await producer.begin_transaction()
            try:
                for partition in range(2):
                    await producer.send_and_wait("t", b"%d" % number, partition=partition)
                await producer.send_offsets_to_transaction({TopicPartition("t", 0): number + 1}, "g")
                await (producer.commit_transaction() if commit else producer.abort_transaction())
            except ProducerFenced:
                raise
            except KafkaError:
                await producer.abort_transaction()
                continue
            break
    await producer.stop()


async def values(log: PartitionLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    await log.ready()
    offset = log.log_start_offset
    while offset < log.high_watermark:
        for batch in await log.read_committed(offset, 1 << 20):
            records = format_of(batch.flags).records(batch)
            found += [one.value for one in records if one is not None]
            offset = batch.end_offset
    return found


@pytest.mark.parametrize("kill_at", STEPS)
async def test_each_transaction_is_whole_when_the_node_is_killed(tmp_path: Path, kill_at: int) -> None:
    with Lives(tmp_path, kill_at, live) as lives:
        await scenario(lives.address)
        await asyncio.to_thread(lives.end)
    assert lives.lives == 2 or kill_at > lives.steps
    async with serving(tmp_path) as node:
        expected = [b"%d" % number for number, commit in enumerate(ROUNDS) if commit]
        for partition in range(2):
            log = log_of(node, "t", partition)
            assert await values(log) == expected
            assert log.last_stable_offset == log.high_watermark
        (position,) = node.progress.of_group(("consumers", "g")).values()
        assert position.offset == len(ROUNDS), "of the last that was committed"
