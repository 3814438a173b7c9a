"""Parts of gRPC messages are counted in the memory budget while they are held, and cost their connection at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc
import pytest

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.sockets import Arrived
from anabranch_kit.run.barrier import Barrier
from bridges.metrics import FrontMetrics
from bridges.net import grpc_received
from bridges.net.grpc_received import GIVE_BACK_BYTES, ReceivedMemory, peer_of
from bridges.net.grpc_server import GrpcCall, GrpcLimits, GrpcServer, GrpcStream, ended
from tests.half_messages import HalfMessage

MIB = 1024 * 1024
STREAM, CALL = "/a.B/Read", "/a.B/Say"


class Lab:
    """A server whose streams count what they get."""

    def __init__(self, budget: int) -> None:
        loop = asyncio.get_running_loop()
        self.budget = MemoryBudget(budget, loop.call_soon)
        self.server = GrpcServer(GrpcLimits(64 * MIB, 100, 100, 60.0), FrontMetrics("test"), self.budget, Barrier())
        self.server.add_stream("a.B", "Read", self._read)
        self.server.add_call("a.B", "Say", self._say)
        self.got = asyncio.Event()
        self.port = 0

    async def _read(self, stream: GrpcStream) -> None:
        while (raw := await stream.read()) is not None:
            stream.account.give(0, len(raw))  # type: ignore[arg-type]
            self.got.set()
            await stream.write(len(raw).to_bytes(4, "big"))

    async def _say(self, raw: bytes, call: GrpcCall) -> bytes:
        return raw

    async def look(self) -> int:
        """Bytes that are no message yet, as far as is known now."""
        await self.server.received.measure({self.port})
        return self.server.received.held_bytes

    async def until(self, at_least: int, at_most: int) -> None:
        async with asyncio.timeout(60):
            while not at_least <= await self.look() <= at_most:
                await asyncio.sleep(0.01)


@pytest.fixture
async def lab(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    monkeypatch.setattr(grpc_received, "GLANCE_SECONDS", 3600)  # the test looks itself
    lab = Lab(64 * MIB)
    lab.port = (await lab.server.start({"x": ("127.0.0.1", 0, None)}))["x"]
    yield lab
    await lab.server.stop()


@pytest.mark.parametrize("path", [STREAM, CALL])
async def test_a_part_of_a_message_counts_until_it_is_whole_or_given_up(lab: Lab, path: str) -> None:
    async with HalfMessage("127.0.0.1", lab.port, path) as half:
        await half.send(10 * MIB, 6 * MIB)
        await lab.until(6 * MIB - 1000, 6 * MIB + 100_000)
        assert lab.budget.held >= 6 * MIB - 1000
        if path == STREAM:
            await half.more(bytes(4 * MIB))
            await lab.got.wait()
            await lab.until(0, 100_000)
            await half.send(10 * MIB, 2 * MIB)
            await lab.until(2 * MIB - 100_000, 2 * MIB + 100_000)
    await lab.until(0, 0)
    assert lab.budget.held == 0


async def test_whole_messages_do_not_seem_to_be_held(lab: Lab) -> None:
    """Small ones and large ones, on streams and by calls, however many there were."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{lab.port}") as channel:
        say = channel.unary_unary(CALL)
        stream = channel.stream_stream(STREAM)()
        for size in [*range(0, 2000, 7), MIB, 0, 3 * MIB, 5]:
            await stream.write(bytes(size))
            assert int.from_bytes(await stream.read(), "big") == size
            assert await say(bytes(size % 5000), metadata=[("x-one", "y" * 300)]) == bytes(size % 5000)
            assert await lab.look() < 20_000
        await stream.done_writing()


async def test_while_memory_is_short_parts_of_messages_cost_their_connection(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_received, "PATIENCE_SECONDS", 0.0)
    async with (
        HalfMessage("127.0.0.1", lab.port, STREAM) as large,
        HalfMessage("127.0.0.1", lab.port, CALL) as call,
        HalfMessage("127.0.0.1", lab.port, STREAM) as small,
    ):
        await small.send(60 * MIB, 100_000)
        await large.send(60 * MIB, 5 * MIB)
        await lab.until(5 * MIB, 6 * MIB)
        assert lab.server.received.cut == 0, "there is room"
        await call.send(60 * MIB, 50 * MIB)
        async with asyncio.timeout(60):
            while not (large.ended.is_set() and call.ended.is_set()):
                await lab.look()
                await asyncio.sleep(0.01)
        assert lab.server.received.cut == 2
        await lab.until(90_000, 200_000)
        assert not small.ended.is_set()


def test_clients_are_known_by_their_addresses() -> None:
    assert peer_of("ipv4:127.0.0.1:50123") == ("127.0.0.1", 50123)
    assert peer_of("ipv6:%5B::1%5D:50123") == ("::1", 50123)
    assert peer_of("ipv6:[::ffff:10.0.0.1]:7") == ("10.0.0.1", 7)
    assert peer_of("unix:") == ("", 0)


async def test_what_is_not_seen_any_more_is_forgotten(lab: Lab) -> None:
    memory = ReceivedMemory(lab.budget, Barrier())
    memory.find_connection("ipv4:10.0.0.1:9").hold(1000)
    await memory.measure({lab.port})
    assert memory.held_bytes == 1000, "it may be new"
    await memory.measure({lab.port})
    assert memory.held_bytes == 0


def holding(budget: MemoryBudget, *sizes: int) -> ReceivedMemory:
    """Of as many connections, each with so many bytes of messages."""
    memory = ReceivedMemory(budget, Barrier())
    for number, size in enumerate(sizes):
        memory.find_connection(f"ipv4:10.0.0.1:{number + 1}").hold(size)
    return memory


async def looked(
    memory: ReceivedMemory, monkeypatch: pytest.MonkeyPatch, *there: int, cookie: bytes = b"1"
) -> list[int]:
    """The ports of those that it closes, when it looks and these are there."""
    closed: list[int] = []

    def close(number: int, peer: tuple[str, int]) -> bool:
        closed.append(number)
        return True

    monkeypatch.setattr(grpc_received, "close", close)
    monkeypatch.setattr(
        memory, "ask_kernel", lambda ports: {("10.0.0.1", port): Arrived(0, port, cookie) for port in there}
    )
    await memory.measure({1})
    return closed


async def test_who_is_closed_makes_room_before_gRPC_has_given_him_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise everybody would be closed one look after the other."""
    memory = holding(lab.budget, 30 * MIB, 20 * MIB, 20 * MIB)
    assert await looked(memory, monkeypatch, 1, 2, 3) == [1]
    assert await looked(memory, monkeypatch, 1, 2, 3) == []
    memory.find_connection("ipv4:10.0.0.1:2").hold(30 * MIB)
    assert await looked(memory, monkeypatch, 1, 2, 3) == [2]


async def test_who_comes_again_from_the_same_port_is_somebody_else(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = holding(lab.budget, 70 * MIB)
    assert await looked(memory, monkeypatch, 1) == [1]
    assert await looked(memory, monkeypatch, 1, cookie=b"2") == []
    assert memory.held_bytes == 0
    memory.find_connection("ipv4:10.0.0.1:1").hold(70 * MIB)
    assert await looked(memory, monkeypatch, 1, cookie=b"2") == [1]


async def test_very_many_connections_may_hold_less_each(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    number, size = 640, grpc_received.LARGE_BYTES // 2
    memory = holding(lab.budget, *[size] * number)
    assert number * size > lab.budget.total
    closed = await looked(memory, monkeypatch, *range(1, number + 1))
    assert len(closed) == number - lab.budget.total // size


async def test_a_process_that_grows_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client on the same machine sends in a second is more than a node may hold."""
    monkeypatch.setattr(grpc_received, "LOOK_SECONDS", 3600)
    lab = Lab(16 * MIB)
    lab.port = (await lab.server.start({"x": ("127.0.0.1", 0, None)}))["x"]
    try:
        async with HalfMessage("127.0.0.1", lab.port, STREAM) as half:
            with suppress(ConnectionError):
                await half.send(60 * MIB, 50 * MIB)
            async with asyncio.timeout(60):
                await half.ended.wait()
        assert lab.server.received.cut == 1
    finally:
        await lab.server.stop()


async def test_pings_do_not_seem_to_be_held_however_often_it_is_looked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(grpc_received, "monotonic", lambda: now)
    connection = ReceivedMemory(lab.budget, Barrier()).find_connection("ipv4:10.0.0.1:9")
    total = 0
    for second in range(1000):
        total += 17 * (second % 10 == 0)
        for _ in range(20):
            now += 0.05
            connection.received(total)
    assert connection.pending <= 17
    for _ in range(1000):
        now += 0.05
        total += 100
        connection.received(total)
    assert connection.pending > 98_000


@pytest.mark.parametrize("there", [True, False])
async def test_what_is_free_in_the_heap_goes_back(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """When large parts of messages have gone, and also before they take what there is."""
    given = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(grpc_received, "give_back", lambda: loop.call_soon_threadsafe(given.set))
    for name in "GLANCE_SECONDS", "HURRY_SECONDS", "LOOK_SECONDS":
        monkeypatch.setattr(grpc_received, name, 0.001)
    memory = ReceivedMemory(MemoryBudget(64 * MIB, loop.call_soon), Barrier())
    found = {("10.0.0.1", 1): Arrived(0, 0, b"1")}
    monkeypatch.setattr(memory, "ask_kernel", lambda ports: found)
    task = asyncio.create_task(memory.watch({1}))
    try:
        async with asyncio.timeout(60):
            memory.find_connection("ipv4:10.0.0.1:1").hold(GIVE_BACK_BYTES)
            await given.wait()
            if not there:
                given.clear()
                found.clear()
                await given.wait()
                assert memory.held_bytes == 0
    finally:
        await ended(task)
