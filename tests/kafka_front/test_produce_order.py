"""A pipelining producer's batches keep their order when the node has not heard yet of the topic that it writes to."""

from __future__ import annotations

import asyncio

import pytest

from bridges.errors import LogUnavailable
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.bridges.log.log_lab import batch
from tests.kafka_front.test_produce_memory import Lab, code
from tests.kafka_front.test_session import Client
from tests.kit.waiting import until


class Behind:
    """What other nodes have made, and this one hears of when it asks; the answer comes when the test says."""

    shared = True

    def __init__(self) -> None:
        self.asked = 0
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def catch_up(self) -> None:
        self.asked += 1
        await asyncio.shield(self.told)


def request(*sequences: int, topic: str = "new") -> m.ProduceRequest:
    parts = [m.ProduceRequest.PartitionProduceData(0, bytes(batch(sequence=one).payload)) for one in sequences]
    return m.ProduceRequest(
        acks=-1, timeout_ms=60_000, topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=parts)]
    )


@pytest.fixture
async def lab() -> Lab:
    made = Lab(changes=Behind())
    await made.start(memory=16 << 20)
    made.world.streams["new", 0] = made.world.streams["t", 0]
    made.world.logs.topic_deleted("t", [0])
    del made.world.streams["t", 0]
    return made


async def answered(client: Client) -> int:
    return code((await client.receive())[1])


async def test_what_this_node_has_not_heard_of_is_asked_for_before_it_is_called_unknown(lab: Lab) -> None:
    stream = lab.world.streams.pop(("new", 0))
    client, other = await lab.connect(), await lab.connect()
    client.send(12, request(0))
    await until(lambda: lab.changes.asked == 1)
    client.send(12, request(1))
    other.send(12, request(0, topic="nowhere"))
    await until(lambda: lab.changes.asked == 2)
    lab.world.streams["new", 0] = stream
    lab.changes.told.set_result(None)
    assert await answered(other) == E.UNKNOWN_TOPIC_OR_PARTITION
    await until(lambda: bool(lab.world.backend.writers) and len(lab.world.writer.flying) == 2)
    lab.world.writer.acknowledge(2)
    assert [await answered(client) for _ in range(2)] == [E.NONE, E.NONE]
    assert lab.changes.asked == 2, "what is known is not asked for"
    await lab.server.close()


async def test_while_the_database_is_away_nothing_is_called_unknown(lab: Lab) -> None:
    client = await lab.connect()
    lab.changes.told.set_exception(LogUnavailable("the database is away"))
    assert code(await client.call(12, request(0, topic="nowhere"))) == E.NOT_LEADER_OR_FOLLOWER
    await lab.server.close()


async def test_behind_a_batch_for_an_unknown_topic_nothing_is_taken(lab: Lab) -> None:
    """It was made a moment later, and others were the first to write there."""
    lab.changes.shared = False
    stream = lab.world.streams.pop(("new", 0))
    client = await lab.connect()
    assert code(await client.call(12, request(0))) == E.UNKNOWN_TOPIC_OR_PARTITION
    lab.world.streams["new", 0] = stream
    client.send(12, request(-1))
    await until(lambda: bool(lab.world.backend.writers) and len(lab.world.writer.flying) == 1)
    lab.world.writer.acknowledge(1)
    assert await answered(client) == E.NONE
    assert code(await client.call(12, request(1))) == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    client.send(12, request(0))
    client.send(12, request(1))
    await until(lambda: len(lab.world.writer.flying) == 2)
    lab.world.writer.acknowledge(2)
    assert [await answered(client) for _ in range(2)] == [E.NONE, E.NONE]
    await lab.server.close()


async def test_a_producer_that_goes_on_where_nobody_has_written_begins_anew(lab: Lab) -> None:
    """Clients answer this error with a new epoch."""
    client = await lab.connect()
    assert code(await client.call(12, request(5))) == E.UNKNOWN_PRODUCER_ID
    await lab.server.close()


async def test_a_refused_batch_is_waited_for(lab: Lab) -> None:
    client = await lab.connect()
    client.send(12, request(-1))
    await until(lambda: bool(lab.world.backend.writers) and len(lab.world.writer.flying) == 1)
    lab.world.writer.acknowledge(1)
    client.send(12, request(0))
    await until(lambda: len(lab.world.writer.flying) == 1)
    log = lab.world.logs.get("new", 0)
    assert log is not None
    log.fail(LogUnavailable("gone"))
    assert [await answered(client) for _ in range(2)] == [E.NONE, E.NOT_LEADER_OR_FOLLOWER]
    assert code(await client.call(12, request(1))) == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    await lab.server.close()
