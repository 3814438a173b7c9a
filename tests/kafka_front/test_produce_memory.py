"""The memory of a Produce is counted as long as a partition's log holds its batches, whoever still waits for them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.run.barrier import Barrier
from bridges.auth import Everybody
from bridges.auth.quotas import QuotaRules
from bridges.catalog.topics.rules import TopicRules
from bridges.cluster.alone import Alone
from bridges.errors import LogUnavailable
from bridges.metrics import FrontMetrics
from bridges.net.quotas import Quotas
from bridges.net.server import Limits
from kafka_front.dispatch import Registry
from kafka_front.server import Server
from kafka_front.service.access import Access
from kafka_front.service.brokers import Brokers
from kafka_front.service.produce import requests as produce
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.bridges.log.log_lab import World, batch
from tests.kafka_front.test_session import Client
from tests.kit.waiting import until

RULES = TopicRules(1 << 20, False, 2**63 - 1, 2**63 - 1, False)


class Lab:
    """A server with nothing but Produce, over one partition of a backend that does what the test says."""

    def __init__(self, *, changes: Any = None) -> None:
        self.changes = changes or SimpleNamespace(shared=False)
        """What other nodes have changed; without, there are none."""

    async def start(self, memory: int) -> None:
        self.world = World()
        self.log = await self.world.boot()
        loop = asyncio.get_running_loop()
        self.metrics = FrontMetrics("kafka")
        limits = SimpleNamespace(batch_records=1000, batch_inflated_bytes=1 << 20)
        service: Any = SimpleNamespace(
            logs=self.world.logs,
            catalog=SimpleNamespace(by_id={}, stream_of=lambda *place: self.world.streams.get(place)),
            node_id=0,
            rack=None,
            brokers=Brokers(0, None, Alone(0, AsyncMock())),
            rules=SimpleNamespace(of=lambda topic: RULES),
            metrics=self.metrics,
            access=Access(Everybody()),
            transactions=None,
            works=None,
            node=SimpleNamespace(
                barrier=Barrier(),
                quotas=Quotas(QuotaRules(), 1, Barrier()),
                limits=limits,
                db=SimpleNamespace(changes=self.changes),
            ),
            loop=loop,
        )
        registry = Registry()
        produce.register(registry, service)
        self.server = Server(registry, Limits(), budget=MemoryBudget(memory, loop.call_soon))
        self.address = await self.server.listen("kafka", "127.0.0.1", 0)

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection(*self.address))


def request(timeout_ms: int, size: int) -> m.ProduceRequest:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(batch(size=size).payload))
    return m.ProduceRequest(
        acks=-1, timeout_ms=timeout_ms, topic_data=[m.ProduceRequest.TopicProduceData(name="t", partition_data=[data])]
    )


def code(response: m.ProduceResponse) -> int:
    return response.responses[0].partition_responses[0].error_code


async def test_a_produce_whose_time_ran_out_counts_until_its_log_lets_go_of_it() -> None:
    lab = Lab()
    await lab.start(memory=16 << 20)
    client = await lab.connect()
    budget = lab.server.budget
    assert code(await client.call(9, request(1, 50_000))) == ErrorCode.REQUEST_TIMED_OUT
    assert budget.held > 50_000
    assert code(await client.call(9, request(1, 50_000))) == ErrorCode.REQUEST_TIMED_OUT
    assert budget.held > 100_000
    lab.world.writer.acknowledge(1)
    assert 50_000 < budget.held < 100_000
    client.writer.close()
    await until(lambda: not lab.server.connections)
    assert budget.held > 50_000
    lab.log.fail(LogUnavailable("gone"))
    assert budget.held == 0
    await lab.server.close()


async def rest(client: Client) -> None:
    while client.sent:
        await client.receive()


async def test_a_stalled_backend_holds_no_more_than_the_budget_however_short_the_timeouts_are() -> None:
    lab = Lab()
    await lab.start(memory=4 << 20)
    budget = lab.server.budget
    clients = [await lab.connect() for _ in range(8)]
    for client in clients:
        for _ in range(40):
            client.send(9, request(1, 100_000))  # 32 MB in all
    await until(lambda: budget.waiting == len(clients))
    # The time of what was taken runs out; nothing more is taken for it.
    for client in clients:
        assert code((await client.receive())[1]) == ErrorCode.REQUEST_TIMED_OUT
    await asyncio.sleep(0)
    assert budget.waiting == len(clients)
    held = sum(len(entry.payload) for entry, _ in lab.world.writer.flying)
    assert held <= budget.held <= budget.total + len(clients) * 256 * 1024
    # When the backend goes on, everything is written.
    readers = asyncio.gather(*(rest(client) for client in clients))
    while not readers.done():
        lab.world.writer.acknowledge(len(lab.world.writer.flying))
        await asyncio.sleep(0)
    lab.world.writer.acknowledge(len(lab.world.writer.flying))
    assert lab.log.high_watermark == 8 * 40
    for client in clients:
        client.writer.close()
    await until(lambda: budget.held == 0)
    await lab.server.close()


async def test_a_defect_in_an_answer_costs_its_own_request_only() -> None:
    lab = Lab()
    await lab.start(memory=16 << 20)
    client = await lab.connect()
    traffic = lab.metrics.topic("t")
    appended = traffic.appended
    calls = 0

    class Traffic:
        def appended(self, *args: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ZeroDivisionError("a defect")
            appended(*args)

    lab.metrics.topics["t"] = Traffic()  # type: ignore[assignment]
    client.send(9, request(10_000, 100))
    client.send(9, request(10_000, 100))
    await until(lambda: len(lab.world.writer.flying) == 2)
    lab.world.writer.acknowledge(2)
    assert code((await client.receive())[1]) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert code((await client.receive())[1]) == 0
    assert lab.server.budget.held == 0
    await lab.server.close()
