"""What gRPC tells the loop is dealt with together, and nothing of it is missed."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import grpc

from bridges.net.grpc_events import _together, take_together

CALLS = 50


async def test_what_grpc_uses_is_found() -> None:
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        assert take_together(asyncio.get_running_loop()), "gRPC's insides have changed: see grpc_events"
        assert not take_together(asyncio.get_running_loop()), "once is enough"
    finally:
        await server.stop(0)


async def test_all_calls_are_answered() -> None:
    async def echo(raw: bytes, context: object) -> bytes:
        await asyncio.sleep(0)
        return raw

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("a.B", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    take_together(asyncio.get_running_loop())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/a.B/Echo")
            for _ in range(5):
                bodies = [b"%d" % number for number in range(CALLS)]
                answers = await asyncio.wait_for(asyncio.gather(*map(call, bodies)), 30)
                assert list(answers) == bodies
    finally:
        await server.stop(0)


def test_one_look_for_all_bytes() -> None:
    """As gRPC's handler does: one byte is its own to read, and it finds one whenever it is called."""
    source, other = socket.socketpair()
    with source, other:
        source.setblocking(False)
        looks: list[bytes] = []
        handler = partial(lambda: looks.append(source.recv(1)))
        for sent in (1, 2, 5000):
            other.sendall(bytes(sent))
            while True:
                before = len(looks)
                _together(source, handler)
                if len(looks) == before:
                    break
        assert len(looks) == 1 + 1 + 2, "4096 at a time"


async def test_a_loop_without_grpc_is_left_alone() -> None:
    assert not take_together(asyncio.get_running_loop())
