"""Topics that say how fast their partitions may be written to. Of time only lower bounds are looked at."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import ydb
from confluent_kafka import Producer

from anabranch_kit.run.barrier import Barrier
from bridges.auth.quotas import QuotaRules
from bridges.net.quotas import Quotas
from tests.node_process import NodeProcess
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.service.test_write import Session, told
from ydb_topic_front.service.write.speed import WriteSpeeds
from ydb_topic_front.wire.statuses import Status, YdbError

NEVER = 3600.0
"""Seconds: a test that waits for so long fails."""


def made(raw: RawClient, topic: str, speed: int, burst: int = 0) -> str:
    path = f"/local/{topic}"
    raw.result(
        "CreateTopic", path=path, partition_write_speed_bytes_per_second=speed, partition_write_burst_bytes=burst
    )
    return path


def quota_of(message: Any) -> float:
    """Seconds that the answer says were waited for the partition's speed."""
    assert message.status == Status.SUCCESS, message
    statistics = message.write_response.write_statistics
    assert statistics.HasField("topic_quota_wait_time")
    assert not statistics.topic_quota_wait_time.nanos
    waited = statistics.partition_quota_wait_time
    return float(waited.seconds + waited.nanos / 1e9)


def test_the_sdk_is_slowed_down(ydb_node: NodeProcess, raw: RawClient, topic: str) -> None:
    made(raw, topic, 20_000, 1_000)
    with ydb.Driver(endpoint=f"grpc://{ydb_node.ydb}", database="/local") as driver:
        driver.wait(timeout=30, fail_fast=True)
        with driver.topic_client.writer(topic, codec=ydb.TopicCodec.RAW) as writer:
            began = time.monotonic()
            for _ in range(4):
                writer.write_with_ack(b"x" * 5_000, timeout=30)
            # The burst covers the beginning of the first, and the last one's own bytes are paid by the next.
            assert time.monotonic() - began >= (3 * 5_000 - 1_000) / 20_000


def test_the_answer_tells_how_long_it_took(raw: RawClient, topic: str) -> None:
    writers = [Session(raw, made(raw, topic, 20_000, 100), producer_id="p"), Session(raw, f"/local/{topic}")]
    assert all(writer.init.partition_id == 0 for writer in writers)
    number, waits = 0, list[float]()
    # The bucket is the partition's, whoever writes; the answer of the first one was not held up. What it owes is paid
    # by time as well, which may pass before the other one's bytes come: then they try again.
    while not (waits and waits[-1]):
        waits = []
        number += 1
        for writer in writers:
            writer.send(number, data=b"x" * 4_000)
            message = writer.stream.receive()
            assert told(message)[0][0] == number
            waits.append(quota_of(message))
            queued = message.write_response.write_statistics.max_queue_wait_time
            assert queued.seconds + queued.nanos / 1e9 < 100
        assert waits[0] == 0 or number > 1
    for writer in writers:
        writer.end()


def test_who_waits_goes_on_when_the_topic_says_so(ydb_node: NodeProcess, raw: RawClient, topic: str) -> None:
    path = made(raw, topic, 1)
    writer = Session(raw, path, producer_id="p")
    writer.send(1, data=b"x" * 10_000)
    assert quota_of(writer.stream.receive()) == 0
    writer.send(2)
    # Writers of other protocols do not wait with it.
    producer = Producer({"bootstrap.servers": ydb_node.kafka})
    producer.produce(topic, b"y" * 100_000)
    assert producer.flush(30) == 0
    raw.result("AlterTopic", path=path, set_partition_write_speed_bytes_per_second=0)
    waited = quota_of(writer.stream.receive())
    assert 0 < waited < NEVER
    writer.send(3, data=b"x" * 1_000_000)
    assert quota_of(writer.stream.receive()) == 0
    writer.end()


def test_who_waits_ends_when_another_takes_its_place_or_the_topic_goes(raw: RawClient, topic: str) -> None:
    path = made(raw, topic, 1)
    first = Session(raw, path, producer_id="p")
    first.write(1, data=b"x" * 10_000)
    first.send(2)
    second = Session(raw, path, producer_id="p")
    assert second.init.last_seq_no == 1, "what waits was not written"
    assert [message.status for message in first.stream.rest()] == [Status.SESSION_EXPIRED]
    second.send(2)
    raw.result("DropTopic", path=path)
    assert [message.status for message in second.stream.rest()] == [Status.SCHEME_ERROR]
    # One of the same name has nothing to pay for.
    again = Session(raw, made(raw, topic, 1), producer_id="p")
    again.send(1)
    assert quota_of(again.stream.receive()) == 0
    again.end()


class Waiting:
    """A writer that takes note of its end."""

    def __init__(self) -> None:
        self.errors: list[YdbError] = []

    def end(self, error: YdbError) -> None:
        self.errors.append(error)

    async def await_decided(self) -> None: ...


async def test_nobody_holds_memory_for_long_while_it_is_short() -> None:
    now = 100.0
    budget = SimpleNamespace(scarce=False, waiting=False)
    wanted = SimpleNamespace(partition_write_speed_bytes_per_second=1, partition_write_burst_bytes=1)
    service: Any = SimpleNamespace(
        node=SimpleNamespace(
            budget=budget, quotas=Quotas(QuotaRules(), 1, Barrier()), barrier=Barrier(), every=lambda *chore: None
        ),
        settings=SimpleNamespace(writer_patience_ms=5_000),
        catalog=SimpleNamespace(on_change=[]),
        topics=SimpleNamespace(on_change=[], get_settings=lambda topic: SimpleNamespace(wanted=wanted)),
    )
    topic: Any = SimpleNamespace(name="t")
    speeds = WriteSpeeds(service, lambda: now)
    first, second, third = Waiting(), Waiting(), Waiting()
    assert await speeds.admit(topic, 0, 1_000_000, first) == 0
    # One waits for the partition's speed, the other for its turn.
    waiting = [asyncio.create_task(speeds.admit(topic, 0, 1, writer)) for writer in (first, second)]
    await asyncio.sleep(0)
    now += 4
    waiting.append(asyncio.create_task(speeds.admit(topic, 0, 1, third)))
    await asyncio.sleep(0)
    now += 2
    await speeds.cut_waiting(0)
    assert not first.errors, "there is room"
    budget.scarce = True
    await speeds.cut_waiting(0)
    ends = [[error.status for error in writer.errors] for writer in (first, second, third)]
    assert ends == [[Status.OVERLOADED], [Status.OVERLOADED], []]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not speeds.waiting
