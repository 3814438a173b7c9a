"""Connections over real sockets, with a tiny set of handlers."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from anabranch_kit.memory.budget import Kind, MemoryBudget
from bridges.net import server
from bridges.net.server import Limits
from kafka_front import failures
from kafka_front.context import DEFERRED, NO_RESPONSE, Context
from kafka_front.dispatch import Registry
from kafka_front.long_requests import AT_ONCE_BYTES
from kafka_front.server import NullObserver, Server
from kafka_front.service import api_versions
from kafka_front.wire import codec
from kafka_front.wire import messages as m
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError
from tests.anabranch_kit.net.test_outbox import Pages
from tests.kit.waiting import until


class Client:
    """Speaks the protocol by hand, so that order and bytes are visible."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent: dict[int, tuple[int, int]] = {}
        self.next = 100

    def send(self, version: int, message: Any, client_id: str | None = "tester") -> int:
        self.next += 1
        self.sent[self.next] = (message.API_KEY, version)
        self.writer.write(b"".join(codec.encode_request(version, self.next, client_id, message)))
        return self.next

    def send_raw(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def receive(self) -> tuple[int, Any]:
        frame = await self.frame()
        (correlation,) = struct.unpack_from(">i", frame, 0)
        key, version = self.sent.pop(correlation)
        return codec.decode_response(key, version, frame)

    async def call(self, version: int, message: Any) -> Any:
        expected = self.send(version, message)
        correlation, response = await self.receive()
        assert correlation == expected
        return response

    async def closed(self) -> bool:
        """Whether the server closed without sending anything more."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


@dataclass
class Recorder(NullObserver):
    opened: int = 0
    shut: int = 0
    refused: int = 0
    done: list[tuple[int, int, int, int]] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)

    def connection_opened(self) -> None:
        self.opened += 1

    def connection_closed(self) -> None:
        self.shut += 1

    def connection_refused(self) -> None:
        self.refused += 1

    def request_done(self, key: int, version: int, seconds: float, received: int, sent: int) -> None:
        assert seconds >= 0
        self.done.append((key, version, received, sent))

    def request_failed(self, key: int) -> None:
        self.failed.append(key)

    def error_told(self, key: int, code: int) -> None:
        self.told.append((key, code))


class Front:
    """A server whose Produce and Fetch requests wait until the test answers them."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.observer = Recorder()
        self.produces: list[tuple[Context, m.ProduceRequest]] = []
        self.fetches: list[tuple[Context, m.FetchRequest]] = []
        self.heartbeat: Callable[[Context, Any], Any] = lambda ctx, request: m.HeartbeatResponse(throttle_time_ms=7)
        self.arrived = asyncio.Condition()
        self.server: Server
        self.clients: list[Client] = []

    async def start(self, limits: Limits | None = None, memory: int = 64 * 1024 * 1024) -> None:
        api_versions.register(self.registry)
        self.registry.register(ApiKey.PRODUCE, self._produce)
        self.registry.register(ApiKey.FETCH, self._fetch)
        self.registry.register(ApiKey.HEARTBEAT, lambda ctx, request: self.heartbeat(ctx, request))
        budget = MemoryBudget(memory, asyncio.get_running_loop().call_soon)
        self.server = Server(self.registry, limits or Limits(), self.observer, budget)
        self.address = await self.server.listen("kafka", "127.0.0.1", 0)

    def _notify(self) -> None:
        async def notify() -> None:
            async with self.arrived:
                self.arrived.notify_all()

        self.server.spawn(notify())

    def _produce(self, ctx: Context, request: m.ProduceRequest) -> Any:
        self.produces.append((ctx, request))
        self._notify()
        return DEFERRED

    def _fetch(self, ctx: Context, request: m.FetchRequest) -> Any:
        self.fetches.append((ctx, request))
        self._notify()
        return DEFERRED

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.arrived:
            await self.arrived.wait_for(condition)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.address))
        self.clients.append(client)
        return client


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    front = Front()
    await front.start()
    yield front
    await finish(front)


async def finish(front: Front) -> None:
    for client in front.clients:
        client.writer.close()
    await front.server.close()
    assert front.observer.opened == front.observer.shut
    assert not front.server.connections


def soon_idle(front: Front, seconds: float) -> None:
    """From now on a connection counts as idle so soon. Said when what is not to count as idle has begun already: nobody
    knows how long that takes on a busy machine."""
    front.server.limits = replace(front.server.limits, idle_seconds=seconds)
    assert front.server.sweeper is not None
    front.server.sweeper.cancel()
    front.server.sweep_later()


def produce(name: str, records: bytes = b"x" * 10, acks: int = -1) -> m.ProduceRequest:
    topic, partition = m.ProduceRequest.TopicProduceData, m.ProduceRequest.PartitionProduceData
    return m.ProduceRequest(
        acks=acks, topic_data=[topic(name=name, partition_data=[partition(index=3, records=memoryview(records))])]
    )


def produced(name: str) -> m.ProduceResponse:
    return m.ProduceResponse(responses=[m.ProduceResponse.TopicProduceResponse(name=name)])


def topic_of(response: m.ProduceResponse) -> str:
    return response.responses[0].name


async def test_an_answer_given_at_once_is_sent_and_counted(front: Front) -> None:
    client = await front.connect()
    assert await client.call(4, m.HeartbeatRequest(group_id="g")) == m.HeartbeatResponse(throttle_time_ms=7)
    assert await client.call(0, m.HeartbeatRequest(group_id="g")) == m.HeartbeatResponse()
    (key, version, received, sent), *_ = front.observer.done
    assert (key, version) == (ApiKey.HEARTBEAT, 4)
    assert received > 10
    assert sent == 4 + 5 + 7


async def test_api_versions_lists_what_is_registered(front: Front) -> None:
    client = await front.connect()
    for version in range(APIS[18].highest + 1):
        response = await client.call(
            version, m.ApiVersionsRequest(client_software_name="test.er-1", client_software_version="1.0")
        )
        assert response.error_code == 0
        rows = [(row.api_key, row.min_version, row.max_version) for row in response.api_keys]
        assert rows == [(0, 0, 13), (1, 4, 18), (12, 0, 4), (18, 0, 5)]


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("-a", "1"), ("a", "1 "), ("a_b", "1"), ("a", "1-")])
async def test_api_versions_checks_the_software_name(front: Front, name: str, version: str) -> None:
    client = await front.connect()
    request = m.ApiVersionsRequest(client_software_name=name, client_software_version=version)
    response = await client.call(3, request)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.api_keys == []
    assert (await client.call(2, m.ApiVersionsRequest())).error_code == 0


async def test_api_versions_too_new_is_answered_in_version_0(front: Front) -> None:
    client = await front.connect()
    client.send_raw(struct.pack(">hhih", 18, 99, 5, 2) + b"id" + b"whatever version 99 has")
    correlation, response = codec.decode_response(18, 0, await client.frame())
    assert correlation == 5
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [row.api_key for row in response.api_keys] == [0, 1, 12, 18]
    assert (await client.call(0, m.ApiVersionsRequest())).error_code == 0


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 4, 0, 1, -1),  # a key between brokers
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", 3, 0, 1, -1) + b"\0\0\0\0",  # known, but not served here
        struct.pack(">hhih", 12, 5, 1, -1),  # a version too new
        struct.pack(">hhih", 1, 3, 1, -1),  # a version too old
        struct.pack(">hhih", 1, 13, 1, -1) + b"\0",  # a version with a schema, but not served
        struct.pack(">hhih", 12, 0, 1, -1) + b"\0\5ab",  # malformed body
        struct.pack(">hhih", 12, 0, 1, 100) + b"ab",  # malformed header
        struct.pack(">hhih", 12, 0, 1, 2) + b"\xff\xff",
        struct.pack(">hhi", 12, 0, 1),
        struct.pack(">hhih", 0, 9, 1, -1) + b"\0" + b"\xff" * 30,  # a Produce, which may outlive its connection
    ],
)
async def test_unanswerable_requests_cost_their_connection_only(front: Front, frame: bytes) -> None:
    bystander = await front.connect()
    client = await front.connect()
    client.send_raw(frame)
    assert await client.closed()
    assert (await bystander.call(0, m.HeartbeatRequest())).error_code == 0
    assert front.server.budget.held == 0


@pytest.mark.parametrize("size", [7, 0, -5, 100 * 1024 * 1024 + 1])
async def test_bad_frame_length_closes(front: Front, size: int) -> None:
    client = await front.connect()
    client.writer.write(struct.pack(">i", size) + b"abcdefgh")
    assert await client.closed()


async def test_earlier_answers_are_sent_before_a_close(front: Front) -> None:
    client = await front.connect()
    client.send(0, m.HeartbeatRequest())
    client.send_raw(struct.pack(">hhih", 4, 0, 1, -1))
    await client.receive()
    assert await client.closed()


async def test_produce_before_version_3_is_refused_politely(front: Front) -> None:
    client = await front.connect()
    for version in range(3):
        response = await client.call(version, produce("t"))
        (partition,) = response.responses[0].partition_responses
        assert (partition.index, partition.error_code) == (3, ErrorCode.UNSUPPORTED_VERSION)
        assert partition.base_offset == -1
    assert front.produces == []


async def test_produces_overlap_and_answers_keep_their_order(front: Front) -> None:
    client = await front.connect()
    ids = [client.send(9, produce(name)) for name in "abc"]
    await front.until(lambda: len(front.produces) == 3)
    for (ctx, request), name in reversed(list(zip(front.produces, "abc", strict=True))):
        assert request.topic_data[0].name == name
        ctx.respond(produced(name))
    for expected, name in zip(ids, "abc", strict=True):
        correlation, response = await client.receive()
        assert (correlation, topic_of(response)) == (expected, name)


async def test_other_requests_wait_for_all_earlier_ones(front: Front) -> None:
    client = await front.connect()
    client.send(9, produce("a"))
    client.send(9, produce("b"))
    heartbeat = client.send(4, m.HeartbeatRequest())
    client.send(9, produce("c"))
    fetch = client.send(4, m.FetchRequest())
    client.send(9, produce("d"))
    await front.until(lambda: len(front.produces) == 2)
    assert next(iter(front.server.connections)).in_flight > 0
    front.produces[1][0].respond(produced("b"))
    assert ApiKey.HEARTBEAT not in [key for key, *_ in front.observer.done]
    front.produces[0][0].respond(produced("a"))
    assert [topic_of((await client.receive())[1]) for _ in range(2)] == ["a", "b"]
    assert (await client.receive())[0] == heartbeat
    await front.until(lambda: len(front.produces) == 3)
    assert front.fetches == []
    front.produces[2][0].respond(produced("c"))
    await front.until(lambda: len(front.fetches) == 1)
    assert len(front.produces) == 3
    front.fetches[0][0].respond(m.FetchResponse(session_id=9))
    await client.receive()
    assert (await client.receive())[0] == fetch
    await front.until(lambda: len(front.produces) == 4)
    front.produces[3][0].respond(produced("d"))
    assert topic_of((await client.receive())[1]) == "d"


async def test_records_are_mutable_views_of_the_frame(front: Front) -> None:
    client = await front.connect()
    for size in (10, 300_000):
        client.send(9, produce("t", bytes(range(10)) * (size // 10)))
        await front.until(lambda: len(front.produces) == 1)
        ctx, request = front.produces.pop()
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert bytes(records) == bytes(range(10)) * (size // 10)
        records[0:2] = b"zz"
        assert isinstance(records.obj, bytearray)
        ctx.respond(produced("t"))
        await client.receive()


async def test_large_responses_of_parts_arrive_whole(front: Front) -> None:
    client = await front.connect()
    client.send(11, m.FetchRequest())
    await front.until(lambda: len(front.fetches) == 1)
    parts = [b"a" * 3_000_000, memoryview(b"b" * 10), bytearray(b"c" * 70_000), b"", b"d"]
    partition = m.FetchResponse.PartitionData(records=parts)
    topic = m.FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition, partition])
    front.fetches[0][0].respond(m.FetchResponse(responses=[topic]))
    _, response = await client.receive()
    for got in response.responses[0].partitions:
        assert bytes(got.records) == b"".join(parts)


async def test_a_request_without_a_response_holds_up_no_other(front: Front) -> None:
    client = await front.connect()
    client.send(9, produce("silent", acks=0))
    client.send(9, produce("loud"))
    await front.until(lambda: len(front.produces) == 2)
    front.produces[1][0].respond(produced("loud"))
    front.produces[0][0].respond(NO_RESPONSE)
    assert topic_of((await client.receive())[1]) == "loud"
    front.heartbeat = lambda ctx, request: NO_RESPONSE
    client.send(0, m.HeartbeatRequest())
    front.heartbeat = lambda ctx, request: m.HeartbeatResponse()
    assert front.server.budget.held == 0


async def test_failure_without_acks_closes(front: Front) -> None:
    client = await front.connect()
    client.send(9, produce("silent", acks=0))
    await front.until(lambda: len(front.produces) == 1)
    front.produces[0][0].fail(ErrorCode.CORRUPT_MESSAGE)
    assert await client.closed()


async def test_handlers_that_wait_answer_in_order_and_tell_their_errors(front: Front) -> None:
    gate = asyncio.Event()

    async def beat(ctx: Context, request: Any) -> Any:
        await gate.wait()
        if request.group_id == "bad":
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return m.HeartbeatResponse(error_code=len(request.group_id))

    front.heartbeat = beat
    client = await front.connect()
    client.send(4, m.HeartbeatRequest(group_id="four"))
    client.send(4, m.HeartbeatRequest(group_id="bad"))
    gate.set()
    assert (await client.receive())[1].error_code == 4
    assert (await client.receive())[1].error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("coroutine", [False, True])
async def test_unexpected_exceptions_answer_unknown_server_error(front: Front, coroutine: bool) -> None:
    def plain(ctx: Context, request: Any) -> Any:
        raise ZeroDivisionError("a bug")

    async def asynchronous(ctx: Context, request: Any) -> Any:
        raise ZeroDivisionError("a bug")

    front.heartbeat = asynchronous if coroutine else plain
    client = await front.connect()
    assert (await client.call(4, m.HeartbeatRequest())).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert front.observer.failed == [ApiKey.HEARTBEAT]
    front.heartbeat = lambda ctx, request: m.HeartbeatResponse()
    assert (await client.call(4, m.HeartbeatRequest())).error_code == 0


@pytest.mark.parametrize("result", [None, "text", m.HeartbeatResponse(error_code=10**9), m.HeartbeatRequest()])
async def test_wrong_results_answer_unknown_server_error(front: Front, result: Any) -> None:
    front.heartbeat = lambda ctx, request: result
    client = await front.connect()
    assert (await client.call(4, m.HeartbeatRequest())).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_second_answer_is_an_error(front: Front) -> None:
    client = await front.connect()
    client.send(9, produce("t"))
    await front.until(lambda: len(front.produces) == 1)
    ctx = front.produces[0][0]
    ctx.respond(produced("t"))
    with pytest.raises(RuntimeError, match="twice"):
        ctx.respond(produced("t"))
    await client.receive()


async def test_connection_loss_calls_back_and_late_answers_are_dropped(front: Front) -> None:
    client = await front.connect()
    client.send(4, m.FetchRequest())
    await front.until(lambda: len(front.fetches) == 1)
    ctx = front.fetches[0][0]
    gone = asyncio.Event()
    forgotten: list[int] = []

    def forget() -> None:
        forgotten.append(1)

    ctx.connection.on_close(gone.set)
    ctx.connection.on_close(forget)
    ctx.connection.forget_on_close(forget)
    client.writer.close()
    await gone.wait()
    assert ctx.connection.closed
    assert front.server.budget.held == 0
    ctx.respond(m.FetchResponse())
    assert forgotten == []
    late: list[int] = []
    ctx.connection.on_close(lambda: late.append(1))
    assert late == [1]


def reset(client: Client) -> None:
    """End a client's connection as the death of its machine does: what it sent last need not be started."""
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


async def test_produce_bytes_stay_accounted_after_the_client_left(front: Front) -> None:
    client = await front.connect()
    client.send(9, produce("t", b"x" * 50_000))
    client.send(4, m.HeartbeatRequest())
    await front.until(lambda: len(front.produces) == 1)
    ctx = front.produces[0][0]
    gone = asyncio.Event()
    ctx.connection.on_close(gone.set)
    reset(client)
    await gone.wait()
    assert 50_000 < front.server.budget.held < 50_200
    ctx.respond(produced("t"))
    assert front.server.budget.held == 0


async def test_reading_pauses_while_too_much_is_unanswered() -> None:
    front = Front()
    await front.start(Limits(connection_bytes=100_000))
    greedy, modest = await front.connect(), await front.connect()
    for n in range(40):
        greedy.send(9, produce(f"g{n}", b"x" * 50_000))
    await front.until(lambda: len(front.produces) >= 2)
    (connection,) = [c for c in front.server.connections if c.in_flight]
    # One receive may bring a whole buffer (256 KiB) beyond the bound, but no more.
    assert not connection.reading
    assert connection.in_flight <= 100_000 + 256 * 1024 + 50_000
    for _ in range(40):
        await front.until(lambda: bool(front.produces))
        ctx, request = front.produces.pop(0)
        ctx.respond(produced(request.topic_data[0].name))
    assert [topic_of((await greedy.receive())[1]) for _ in range(40)] == [f"g{n}" for n in range(40)]
    assert front.server.budget.held == 0
    assert (await modest.call(0, m.HeartbeatRequest())).error_code == 0
    await finish(front)


async def test_the_budget_pauses_connections_and_wakes_all() -> None:
    front = Front()
    await front.start(memory=200_000)
    clients = [await front.connect() for _ in range(6)]
    for client in clients:
        client.send(9, produce("first", b"x" * 60_000))
        client.send(9, produce("second", b"x" * 60_000))
    await until(lambda: front.server.budget.waiting > 0)
    for _ in range(12):
        await front.until(lambda: bool(front.produces))
        front.produces.pop(0)[0].respond(produced("t"))
    for client in clients:
        await client.receive()
        await client.receive()
    await until(lambda: front.server.budget.waiting == 0)
    assert front.server.budget.held == 0
    await finish(front)


async def test_memory_of_unfinished_requests_is_bounded() -> None:
    front = Front()
    await front.start(memory=500_000)
    budget = front.server.budget
    first, second = await front.connect(), await front.connect()
    whole = b"".join(codec.encode_request(9, 1, "c", produce("one", b"x" * 400_000)))
    other = b"".join(codec.encode_request(9, 2, "c", produce("two", b"y" * 300_000)))
    first.sent[1], second.sent[2] = (0, 9), (0, 9)
    first.writer.write(whole[:5000])
    await until(lambda: budget.held > 300_000)
    assert budget.held == len(whole) - 4
    second.writer.write(other)
    await until(lambda: budget.waiting == 1)
    assert budget.held <= len(whole) + 256 * 1024  # what was received before the reservation was refused
    assert front.produces == []
    third = await front.connect()
    assert (await third.call(0, m.HeartbeatRequest())).error_code == 0  # small requests need no reservation
    first.writer.write(whole[5000:])
    await front.until(lambda: len(front.produces) == 1)
    front.produces.pop()[0].respond(produced("one"))
    assert topic_of((await first.receive())[1]) == "one"
    await front.until(lambda: len(front.produces) == 1)
    front.produces.pop()[0].respond(produced("two"))
    assert topic_of((await second.receive())[1]) == "two"
    first.writer.write(whole[:5000])
    await until(lambda: budget.held > 300_000)
    first.writer.close()
    await until(lambda: budget.held == 0)
    await finish(front)


@pytest.mark.parametrize("size", [400_000, 10_000])
async def test_a_request_must_arrive_in_time(size: int) -> None:
    front = Front()
    await front.start(Limits(receive_seconds=0.05))
    client = await front.connect()
    client.writer.write(b"".join(codec.encode_request(9, 1, "c", produce("one", b"x" * size)))[:5000])
    assert await client.closed()
    await until(lambda: front.server.budget.held == 0)
    await finish(front)


async def test_what_waits_behind_a_long_poll_holds_little_memory_however_much_is_sent() -> None:
    front = Front()
    await front.start(memory=32 * 1024 * 1024)
    budget = front.server.budget
    hogs = [await front.connect() for _ in range(9)]
    for number, hog in enumerate(hogs):
        hog.send(11, m.FetchRequest(max_wait_ms=2**31 - 1))
        for _ in range(80):
            hog.send(9, produce("queued", b"x" * (50_000 if number % 2 else 500_000)))
    await front.until(lambda: len(front.fetches) == 9)
    await until(lambda: sum(not c.reading for c in front.server.connections) == 9)
    assert budget.held <= 9 * (64 * 1024 + 256 * 1024)
    modest = await front.connect()
    modest.send(9, produce("modest", b"x" * 3_000_000))
    await front.until(lambda: len(front.produces) == 1)
    front.produces.pop()[0].respond(produced("modest"))
    assert topic_of((await modest.receive())[1]) == "modest"
    # What was queued is not lost: it is read when the poll ends.
    for ctx, _ in front.fetches:
        ctx.respond(m.FetchResponse())
    for hog in hogs[:2]:
        await hog.receive()
    answered = 0
    while answered < 9 * 80:
        await front.until(lambda: bool(front.produces))
        while front.produces:
            answered += 1
            front.produces.pop(0)[0].respond(produced("queued"))
    for hog in hogs[:2]:
        for _ in range(80):
            assert topic_of((await hog.receive())[1]) == "queued"
    for hog in hogs:
        hog.writer.transport.abort()
    await until(lambda: budget.held == 0)
    await finish(front)


async def test_many_halves_of_small_requests_are_counted(front: Front) -> None:
    clients = [await front.connect() for _ in range(20)]
    whole = b"".join(codec.encode_request(9, 1, "c", produce("one", b"x" * 12_000)))
    for client in clients:
        client.writer.write(whole[:10_000])
    await until(lambda: front.server.budget.held == 20 * 10_000)
    for client in clients:
        client.sent[1] = (0, 9)
        client.writer.write(whole[10_000:])
    for _ in clients:
        await front.until(lambda: bool(front.produces))
        front.produces.pop()[0].respond(produced("one"))
    for client in clients:
        await client.receive()
    assert front.server.budget.held == 0


async def test_a_client_that_does_not_read_is_not_served_further() -> None:
    front = Front()
    await front.start(Limits(write_buffer_bytes=64 * 1024))
    client = await front.connect()
    big = m.FetchResponse.FetchableTopicResponse(
        topic="t", partitions=[m.FetchResponse.PartitionData(records=b"x" * 20_000_000)]
    )
    client.send(4, m.FetchRequest())
    client.send(4, m.FetchRequest())
    await front.until(lambda: len(front.fetches) == 1)
    front.fetches[0][0].respond(m.FetchResponse(responses=[big]))
    connection = front.fetches[0][0].connection
    await until(lambda: connection.write_paused)
    assert len(front.fetches) == 1
    await client.receive()
    await front.until(lambda: len(front.fetches) == 2)
    front.fetches[1][0].respond(m.FetchResponse())
    await client.receive()
    await finish(front)


async def test_when_all_places_are_taken_the_connection_that_was_silent_for_longest_goes() -> None:
    front = Front()
    await front.start(Limits(max_connections=2))
    one, two = await front.connect(), await front.connect()
    await one.call(0, m.HeartbeatRequest())
    await two.call(0, m.HeartbeatRequest())
    await one.call(0, m.HeartbeatRequest())
    three = await front.connect()
    assert (await three.call(0, m.HeartbeatRequest())).error_code == 0
    assert await two.closed()
    assert front.observer.refused == 1
    assert (await one.call(0, m.HeartbeatRequest())).error_code == 0
    await finish(front)


async def test_a_connection_is_refused_when_every_other_has_a_request_in_progress() -> None:
    front = Front()
    await front.start(Limits(max_connections=2))
    busy = [await front.connect(), await front.connect()]
    for client in busy:
        client.send(4, m.FetchRequest())
    await front.until(lambda: len(front.fetches) == 2)
    three = await front.connect()
    assert await three.closed()
    assert front.observer.refused == 1
    for ctx, _ in front.fetches:
        ctx.respond(m.FetchResponse())
    for client in busy:
        await client.receive()
        assert (await client.call(0, m.HeartbeatRequest())).error_code == 0
    await finish(front)


async def test_idle_connections_are_closed_and_busy_ones_kept() -> None:
    front = Front()
    await front.start()
    idle, busy = await front.connect(), await front.connect()
    busy.send(4, m.FetchRequest())
    await front.until(lambda: len(front.fetches) == 1)
    soon_idle(front, 0.05)
    assert await idle.closed()
    front.fetches[0][0].respond(m.FetchResponse(session_id=4))
    assert (await busy.receive())[1].session_id == 0  # version 4 has no sessions
    await finish(front)


async def test_advertised_address_and_identity(front: Front) -> None:
    seen: list[Context] = []

    def beat(ctx: Context, request: Any) -> Any:
        seen.append(ctx)
        return m.HeartbeatResponse()

    front.heartbeat = beat
    other = await front.server.listen("outside", "127.0.0.1", 0, ("broker.example", 9999))
    direct = await front.connect()
    await direct.call(4, m.HeartbeatRequest())
    outside = Client(*await asyncio.open_connection(*other))
    front.clients.append(outside)
    outside.send(0, m.HeartbeatRequest(), client_id=None)
    await outside.receive()
    first, second = seen
    assert first.connection.advertised == front.address
    assert first.connection.listener == "kafka"
    assert first.client_id == "tester"
    assert second.connection.advertised == ("broker.example", 9999)
    assert second.connection.listener == "outside"
    assert second.client_id is None
    assert first.connection.id != second.connection.id
    assert first.connection.peer[0] == "127.0.0.1"


async def test_answers_of_one_turn_leave_in_one_write(front: Front) -> None:
    client = await front.connect()
    client.send(9, produce("a"))
    client.send(9, produce("b"))
    await front.until(lambda: len(front.produces) == 2)
    transport = front.produces[0][0].connection.transport
    assert transport is not None
    writes: list[bytes] = []
    real = transport.write
    transport.write = lambda data: (writes.append(bytes(data)), real(data))[1]  # type: ignore[method-assign,func-returns-value]
    for ctx, _ in front.produces:
        ctx.respond(produced("t"))
    await client.receive()
    await client.receive()
    assert len(writes) == 1


async def test_the_answer_that_nothing_can_join_leaves_at_once(front: Front) -> None:
    client = await front.connect()
    client.send(9, produce("a"))
    client.send(4, m.HeartbeatRequest())
    await front.until(lambda: len(front.produces) == 1)
    connection = front.produces[0][0].connection
    await until(lambda: connection._waiting)
    transport = connection.transport
    assert transport is not None
    writes: list[bytes] = []
    real = transport.write
    transport.write = lambda data: (writes.append(bytes(data)), real(data))[1]  # type: ignore[method-assign,func-returns-value]
    # Behind the first one a request waits, whose answer is to leave with it.
    front.produces[0][0].respond(produced("a"))
    assert writes == []
    await client.receive()
    await client.receive()
    assert len(writes) == 1
    client.send(9, produce("b"))
    await front.until(lambda: len(front.produces) == 2)
    front.produces[1][0].respond(produced("b"))
    assert len(writes) == 2
    assert topic_of((await client.receive())[1]) == "b"


async def test_close_lets_coroutines_end(front: Front) -> None:
    gate = asyncio.Event()
    ended: list[str] = []

    async def beat(ctx: Context, request: Any) -> Any:
        started.set()
        await gate.wait()
        ended.append("done")
        return m.HeartbeatResponse()

    started = asyncio.Event()
    front.heartbeat = beat
    client = await front.connect()
    client.send(4, m.HeartbeatRequest())
    await started.wait()
    closing = asyncio.create_task(front.server.close())
    gate.set()
    await client.receive()
    await closing
    assert ended == ["done"]
    assert await client.closed()


async def test_drain_answers_what_is_in_progress_and_nothing_more(front: Front) -> None:
    busy, idle = await front.connect(), await front.connect()
    await idle.call(0, m.HeartbeatRequest())
    busy.send(9, produce("a"))
    busy.send(4, m.HeartbeatRequest())
    await front.until(lambda: len(front.produces) == 1)
    draining = asyncio.create_task(front.server.drain())
    assert await idle.closed()
    assert not draining.done()
    front.produces[0][0].respond(produced("a"))
    assert topic_of((await busy.receive())[1]) == "a"
    assert await busy.closed()
    await draining
    with pytest.raises(OSError, match=r"refused|failed"):
        await front.connect()
    assert front.server.budget.held == 0


async def test_errors_told_are_counted(front: Front) -> None:
    client = await front.connect()
    front.heartbeat = lambda ctx, request: m.HeartbeatResponse(error_code=25)
    await client.call(4, m.HeartbeatRequest())
    await client.call(0, produce("t"))
    assert front.observer.told == [(ApiKey.HEARTBEAT, 25), (ApiKey.PRODUCE, 35)]


def test_registry_refuses_unknown_and_double_registrations() -> None:
    registry = Registry()
    registry.register(ApiKey.FETCH, lambda ctx, request: None)
    with pytest.raises(ValueError, match="already"):
        registry.register(ApiKey.FETCH, lambda ctx, request: None)
    with pytest.raises(ValueError, match="not in the table"):
        registry.register(4, lambda ctx, request: None)


# --- long requests and answers ----------------------------------------------------------------------------------------


def long_metadata(names: int = 20_000) -> m.MetadataRequest:
    return m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=f"n{n}") for n in range(names)])


def answer_of(request: m.MetadataRequest) -> m.MetadataResponse:
    topic = m.MetadataResponse.MetadataResponseTopic
    return m.MetadataResponse(topics=[topic(name=one.name) for one in request.topics or []])


class Held:
    """A function that waits in whichever thread it is called, and notes which that is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.called = threading.Event()
        self.let_go = threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self, *args: Any) -> Any:
        self.threads.append(threading.current_thread())
        self.called.set()
        if threading.current_thread() is not threading.main_thread():
            assert self.let_go.wait(30)
        return self.function(*args)


async def test_a_long_request_is_read_off_the_loop_and_keeps_its_place(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    front.registry.register(ApiKey.METADATA, lambda ctx, request: answer_of(request))
    wire = codec.server_codec(ApiKey.METADATA, 12)
    held = Held(wire.decode)
    monkeypatch.setattr(wire, "decode", held)
    one, other = await front.connect(), await front.connect()
    first = one.send(12, long_metadata())
    second = one.send(12, long_metadata(1))
    await asyncio.to_thread(held.called.wait)
    assert (await other.call(0, m.HeartbeatRequest())).error_code == 0
    held.let_go.set()
    assert [(await one.receive())[0], (await one.receive())[0]] == [first, second]
    assert [thread is threading.main_thread() for thread in held.threads] == [False, True]


async def test_a_produce_of_many_partitions_is_read_off_the_loop_and_what_follows_waits(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = codec.server_codec(ApiKey.PRODUCE, 9)
    held = Held(wire.decode)
    monkeypatch.setattr(wire, "decode", held)
    many = produce("many")
    many.topic_data *= 3_000
    one, other = await front.connect(), await front.connect()
    first, second = one.send(9, many), one.send(9, produce("few"))
    await asyncio.to_thread(held.called.wait)
    assert (await other.call(0, m.HeartbeatRequest())).error_code == 0
    assert not front.produces, "neither it nor what came behind it"
    held.let_go.set()
    await front.until(lambda: len(front.produces) == 1)
    assert len(front.produces[0][1].topic_data) == 3_000
    front.produces[0][0].respond(m.ProduceResponse())
    await front.until(lambda: len(front.produces) == 2)
    front.produces[1][0].respond(m.ProduceResponse())
    assert [(await one.receive())[0], (await one.receive())[0]] == [first, second]
    assert [thread is threading.main_thread() for thread in held.threads] == [True, False, True]


async def test_the_failure_of_a_long_request_is_told_off_the_loop(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[Context] = []

    async def handler(ctx: Context, request: m.MetadataRequest) -> m.MetadataResponse:
        contexts.append(ctx)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not now")

    front.registry.register(ApiKey.METADATA, handler)
    held = Held(failures.response)
    monkeypatch.setattr(failures, "response", held)
    one, other = await front.connect(), await front.connect()
    first, second = one.send(12, long_metadata()), one.send(0, m.HeartbeatRequest())
    await asyncio.to_thread(held.called.wait)
    assert (await other.call(0, m.HeartbeatRequest())).error_code == 0
    contexts[0].crashed()
    held.let_go.set()
    told = await one.receive()
    assert (told[0], len(told[1].topics)) == (first, 20_000)
    assert {one.error_code for one in told[1].topics} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert (await one.receive())[0] == second
    assert [thread is threading.main_thread() for thread in held.threads] == [False], "once, whoever fails meanwhile"


async def test_a_long_answer_is_written_off_the_loop(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:

    async def handler(ctx: Context, request: m.MetadataRequest) -> m.MetadataResponse:
        return answer_of(long_metadata() if request.topics is None else request)

    front.registry.register(ApiKey.METADATA, handler)
    wire = codec.server_codec(ApiKey.METADATA, 12)
    held = Held(wire.encode)
    monkeypatch.setattr(wire, "encode", held)
    one, other = await front.connect(), await front.connect()
    assert len((await one.call(12, long_metadata(3))).topics) == 3
    one.send(12, m.MetadataRequest(None))
    while len(held.threads) < 2:
        await other.call(0, m.HeartbeatRequest())
    held.let_go.set()
    assert len((await one.receive())[1].topics) == 20_000
    assert [thread is threading.main_thread() for thread in held.threads] == [True, False]
    assert front.observer.failed == []


async def test_a_short_request_that_becomes_much_waits_for_room_and_a_long_one_has_it(front: Front) -> None:
    inside: list[int] = []
    go_on = asyncio.Event()

    async def handler(ctx: Context, request: m.MetadataRequest) -> m.MetadataResponse:
        async with ctx.room(AT_ONCE_BYTES):
            inside.append(len(request.topics or []))
            await go_on.wait()
        return m.MetadataResponse()

    front.registry.register(ApiKey.METADATA, handler)
    clients = [await front.connect() for _ in range(4)]
    for client, names in zip(clients, (1, 20_000, 2), strict=False):
        client.send(12, long_metadata(names))
        await clients[3].call(0, m.HeartbeatRequest())
    assert inside == [1]
    assert front.server.budget.held > 30 * AT_ONCE_BYTES // 2
    go_on.set()
    for client in clients[:3]:
        await client.receive()
    assert sorted(inside) == [1, 2, 20_000]


@pytest.mark.parametrize("goes", [False, True])
async def test_whoever_gave_a_long_answer_hears_when_it_is_needed_no_more(
    front: Front, monkeypatch: pytest.MonkeyPatch, goes: bool
) -> None:
    over: list[bool] = []

    def handler(ctx: Context, request: m.MetadataRequest) -> Any:
        ctx.respond_off_loop(answer_of(long_metadata()), lambda: over.append(True))
        return DEFERRED

    front.registry.register(ApiKey.METADATA, handler)
    wire = codec.server_codec(ApiKey.METADATA, 12)
    held = Held(wire.encode)
    monkeypatch.setattr(wire, "encode", held)
    one, other = await front.connect(), await front.connect()
    one.send(12, m.MetadataRequest(None))
    await asyncio.to_thread(held.called.wait)
    if goes:
        one.writer.close()
        while front.observer.shut == 0:
            await other.call(0, m.HeartbeatRequest())
    assert over == []
    held.let_go.set()
    if not goes:
        await one.receive()
    while front.server.tasks:
        await other.call(0, m.HeartbeatRequest())
    assert over == [True]


@pytest.mark.parametrize("error", [codec.WireError("cut short"), RuntimeError("a defect")])
async def test_a_long_request_that_cannot_be_read_costs_its_connection(
    front: Front, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    front.registry.register(ApiKey.METADATA, lambda ctx, request: answer_of(request))

    def fail(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(codec.server_codec(ApiKey.METADATA, 12), "decode", fail)
    one, other = await front.connect(), await front.connect()
    one.send(12, long_metadata())
    assert await one.closed()
    assert (await other.call(0, m.HeartbeatRequest())).error_code == 0


async def test_a_client_that_goes_while_its_long_request_is_read_leaves_nothing(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[Any] = []
    front.registry.register(ApiKey.METADATA, lambda ctx, request: handled.append(request))
    wire = codec.server_codec(ApiKey.METADATA, 12)
    held = Held(wire.decode)
    monkeypatch.setattr(wire, "decode", held)
    one, other = await front.connect(), await front.connect()
    one.send(12, long_metadata())
    await asyncio.to_thread(held.called.wait)
    one.writer.close()
    while front.observer.shut == 0:
        await other.call(0, m.HeartbeatRequest())
    held.let_go.set()
    while front.server.tasks:
        await other.call(0, m.HeartbeatRequest())
    assert handled == []


async def test_a_request_that_breaks_when_its_connection_ends_keeps_no_other_from_hearing_of_it(front: Front) -> None:
    client = await front.connect()
    client.send(12, m.FetchRequest())
    await front.until(lambda: len(front.fetches) == 1)
    connection = front.fetches[0][0].connection
    heard: list[int] = []
    ended = asyncio.Event()

    def broken() -> None:
        raise RuntimeError("a bug")

    def last() -> None:
        asyncio.get_running_loop().call_soon(ended.set)

    # They are called in no particular order: the more there are, the surer one comes after a broken one.
    for number in range(20):
        connection.on_close(partial(heard.append, number))
        connection.on_close(partial(broken))
    connection.on_close(last)
    client.writer.close()
    await asyncio.wait_for(ended.wait(), 30)
    assert sorted(heard) == list(range(20))
    assert front.server.barrier.failures == {"end of a connection": 20}


def large_response(part: Any) -> m.FetchResponse:
    partition = m.FetchResponse.PartitionData(records=[part])
    return m.FetchResponse(responses=[m.FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])])


async def test_a_client_that_takes_nothing_for_long_is_cut() -> None:
    front = Front()
    await front.start()
    client = await front.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(11, m.FetchRequest())
    await front.until(lambda: len(front.fetches) == 1)
    soon_idle(front, 0.1)
    front.fetches[0][0].respond(large_response(bytes(40_000_000)))
    assert front.server.budget.held > 20_000_000
    await until(lambda: not front.server.connections)
    assert front.server.budget.held == 0
    await finish(front)


async def test_while_memory_is_short_a_client_that_takes_nothing_keeps_no_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "SHED_SECONDS", 0.05)
    front = Front()
    await front.start(memory=8 * 1024 * 1024)
    budget = front.server.budget
    client = await front.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(11, m.FetchRequest())
    await front.until(lambda: len(front.fetches) == 1)
    data = bytes(range(250)) * 160_000
    front.fetches[0][0].respond(large_response(Pages(data, page=100_000)))
    (connection,) = front.server.connections
    await until(lambda: connection.stalled_since < float("inf"))
    assert 0 < connection.account.held <= 1_000_000
    other = budget.account(lambda: None)
    other.take(Kind.REQUESTS, 7 * 1024 * 1024)
    await until(lambda: connection.account.held <= 256 * 1024)
    other.give(Kind.REQUESTS, other.held)
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    _, response = await client.receive()
    assert bytes(response.responses[0].partitions[0].records) == data
    await until(lambda: budget.held == 0)
    await finish(front)
