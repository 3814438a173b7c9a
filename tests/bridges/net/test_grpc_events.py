"""gRPC's bytes that wake the loop are taken, all of them."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest

from bridges.net.grpc_events import Wakening, take_all_wakenings


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


@pytest.mark.parametrize("count", [0, 1, 2, 250])
def test_one_byte_is_left_to_whoever_takes_the_events(count: int, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    left: list[bytes] = []

    def handle() -> None:
        try:
            left.append(ours.recv(1000))
        except BlockingIOError:
            left.append(b"")

    with ours, theirs:
        for _ in range(count):
            theirs.send(b"1")
        Wakening(ours, handle)()
    assert left == [b"1" * min(count, 1)]


async def test_the_installed_grpc_is_known_and_calls_are_answered() -> None:
    async def answer(raw: bytes, context: object) -> bytes:
        return raw

    loop = asyncio.get_running_loop()
    server = grpc.aio.server()
    methods = {"Say": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("a.B", methods)])
    assert take_all_wakenings(loop)
    assert take_all_wakenings(loop)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            say = channel.unary_unary("/a.B/Say")
            said = [b"%d" % number for number in range(300)]
            assert await asyncio.gather(*(say(one) for one in said)) == said
    finally:
        await server.stop(None)
