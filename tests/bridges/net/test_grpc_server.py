"""The gRPC server that fronts share: what a call holds, and what goes wrong in it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from itertools import islice

import grpc
import pytest
import structlog

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.run.barrier import Barrier
from bridges.metrics import FrontMetrics
from bridges.net.grpc_server import Code, GrpcCall, GrpcLimits, GrpcRefusal, GrpcServer, GrpcStream
from tests.kit.waiting import until

MIB = 1024 * 1024


class Held:
    """Something that a handler knows while it works."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class Lab:
    """A server with one method, whose handler holds as many bytes as the request says until it may go on."""

    def __init__(self) -> None:
        self.budget = MemoryBudget(MIB, asyncio.get_running_loop().call_soon)
        self.barrier = Barrier()
        self.server = GrpcServer(GrpcLimits(MIB, 100, 100, 60.0), FrontMetrics("test"), self.budget, self.barrier)
        self.server.add_call("a.B", "Hold", self.hold)
        self.holding = asyncio.Semaphore(0)
        self.go_on = asyncio.Event()

    async def hold(self, raw: bytes, call: GrpcCall) -> bytes:
        if raw == b"bug":
            raise ZeroDivisionError
        if not call.admits(int(raw)):
            raise GrpcRefusal(Code.RESOURCE_EXHAUSTED, "no room")
        self.holding.release()
        await self.go_on.wait()
        return b"done"


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    lab = Lab()
    yield lab
    lab.go_on.set()
    await lab.server.stop()


async def test_what_an_answer_takes_is_counted_until_it_is_sent_or_nobody_wants_it(lab: Lab) -> None:
    ports = await lab.server.start({"x": ("127.0.0.1", 0, None)})
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['x']}") as channel:
        call = channel.unary_unary("/a.B/Hold")
        first, second = call(b"90000"), call(b"90000")
        await lab.holding.acquire()
        await lab.holding.acquire()
        assert lab.budget.held >= 180_000
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"900000")
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        await until(lambda: lab.budget.held < 180_000)  # the server hears of it
        lab.go_on.set()
        assert await second == b"done"
        await until(lambda: not lab.budget.held)


async def test_nobody_is_refused_for_a_small_answer_however_short_memory_is(lab: Lab) -> None:
    ports = await lab.server.start({"x": ("127.0.0.1", 0, None)})
    others = lab.budget.account(lambda: None)
    others.take(Kind.RESPONSES, 2 * MIB)
    lab.go_on.set()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['x']}") as channel:
        call = channel.unary_unary("/a.B/Hold")
        assert await call(b"60000") == b"done"
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"70000")
        others.give(Kind.RESPONSES, 2 * MIB)
        await until(lambda: not lab.budget.held)


async def test_a_connection_too_many_is_closed_until_others_are() -> None:
    loop = asyncio.get_running_loop()
    server = GrpcServer(
        GrpcLimits(MIB, 100, 100, 60.0, connections=2),
        FrontMetrics("test"),
        MemoryBudget(MIB, loop.call_soon),
        Barrier(),
    )

    async def answer(raw: bytes, call: GrpcCall) -> bytes:
        return raw

    server.add_call("a.B", "Say", answer)
    ports = await server.start({"x": ("127.0.0.1", 0, None)})
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{ports['x']}", options) for _ in range(3)]
    first, second, third = [channel.unary_unary("/a.B/Say") for channel in channels]
    try:
        assert [await first(b"1"), await second(b"2")] == [b"1", b"2"]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await third(b"3")
        assert refused.value.code() is Code.UNAVAILABLE
        assert await second(b"4") == b"4"
        await channels[0].close()
        assert await third(b"5", wait_for_ready=True, timeout=30) == b"5"
    finally:
        for channel in channels:
            await channel.close()
        await server.stop()


async def test_a_bug_costs_its_call_and_is_counted(lab: Lab) -> None:
    ports = await lab.server.start({"x": ("127.0.0.1", 0, None)})
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['x']}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary("/a.B/Hold")(b"bug")
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        lab.go_on.set()
        assert await channel.unary_unary("/a.B/Hold")(b"1") == b"done"
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await channel.unary_unary("/a.B/Other")(b"")
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert sum(lab.barrier.failures.values()) == 1


async def test_calls_of_one_method_do_not_wait_behind_those_of_another() -> None:
    budget = MemoryBudget(MIB, asyncio.get_running_loop().call_soon)
    server = GrpcServer(GrpcLimits(MIB, 1000, 1000, 60.0), FrontMetrics("test"), budget, Barrier())
    begun: list[bytes] = []

    async def answer(raw: bytes, call: GrpcCall) -> bytes:
        begun.append(raw)
        return raw

    server.add_call("a.B", "Ask", answer)
    server.add_call("a.B", "Say", answer)
    ports = await server.start({"x": ("127.0.0.1", 0, None)})
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['x']}") as channel:
            ask, say = channel.unary_unary("/a.B/Ask"), channel.unary_unary("/a.B/Say")
            assert await ask(b"first") == b"first"  # the connection is there
            many = [ask(b"many") for _ in range(500)]
            assert await say(b"one") == b"one"
            assert await asyncio.gather(*many) == [b"many"] * 500
    finally:
        await server.stop()
    assert begun.index(b"one") < 250, "it came last, and was taken as soon as it had come"


@pytest.fixture
def plain_log() -> Iterator[None]:
    """Exceptions are logged as a node does it: what structlog does where it finds rich keeps all that they know."""
    structlog.configure([structlog.processors.format_exc_info, structlog.processors.JSONRenderer()])
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("refused", [True, False])
@pytest.mark.parametrize("path", ["/a.B/Call", "/a.B/Stream"])
@pytest.mark.usefixtures("plain_log")
async def test_nothing_of_a_refused_request_is_kept(path: str, refused: bool) -> None:
    """Without Python's collector, which comes when very many objects have been made: requests are few and large."""
    budget = MemoryBudget(MIB, asyncio.get_running_loop().call_soon)
    server = GrpcServer(GrpcLimits(MIB, 100, 100, 60.0), FrontMetrics("test"), budget, Barrier(clock=lambda: 0.0))
    kept: list[weakref.ref[Held]] = []

    async def answer(raw: bytes, call: GrpcCall) -> bytes:
        held = Held(raw)
        kept.append(weakref.ref(held))
        if refused:
            raise GrpcRefusal(Code.RESOURCE_EXHAUSTED, "no room")
        raise ZeroDivisionError

    async def serve(stream: GrpcStream) -> None:
        raw = await stream.read()
        assert raw is not None
        stream.account.give(Kind.REQUESTS, len(raw))
        await answer(raw, stream)

    server.add_call("a.B", "Call", answer)
    server.add_stream("a.B", "Stream", serve)
    ports = await server.start({"x": ("127.0.0.1", 0, None)})
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['x']}") as channel:
            for _ in range(3):
                call = channel.stream_stream(path)()
                await call.write(bytes(1000))
                await call.done_writing()
                assert await call.code() is (Code.RESOURCE_EXHAUSTED if refused else Code.INTERNAL)
        await until(lambda: not any(one() is not None for one in kept))  # the server ends the call
        assert len(kept) == 3
    finally:
        gc.enable()
        await server.stop()


async def test_large_requests_of_calls_that_take_long_have_room_or_are_refused(lab: Lab) -> None:
    async def keep(raw: bytes, call: GrpcCall) -> bytes:
        lab.holding.release()
        await lab.go_on.wait()
        return b"kept"

    lab.server.add_call("a.B", "Keep", keep)
    ports = await lab.server.start({"x": ("127.0.0.1", 0, None)})
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['x']}") as channel:
        call = channel.unary_unary("/a.B/Keep")
        large = [asyncio.ensure_future(call(bytes(200_000))) for _ in range(20)]
        await lab.holding.acquire()
        for one in islice(asyncio.as_completed(large), 15):
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await one
            assert told.value.code() is Code.UNAVAILABLE
        # What its connection kept of messages is given back when the sockets are looked at next.
        await until(lambda: lab.budget.held <= lab.budget.total)
        small = asyncio.ensure_future(call(b"small"))
        await until(lambda: not lab.holding.locked())
        lab.go_on.set()
        assert await small == b"kept"
        await asyncio.gather(*large, return_exceptions=True)
        await until(lambda: not lab.budget.held)
