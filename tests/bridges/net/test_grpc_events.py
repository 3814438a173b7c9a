"""gRPC's bytes that wake the loop are taken, all of them."""

from __future__ import annotations

import asyncio
import select
import socket

import grpc
import pytest

from bridges.net.grpc_events import Wakening, take_all_wakenings


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


class Events:
    """gRPC's queue, and how it deals with events: it reads one byte, and goes on until an event raises."""

    def __init__(self, pair: tuple[socket.socket, socket.socket], *events: str) -> None:
        self.link, wakes = pair
        self.waiting = list(events)
        self.done: list[str] = []
        for _ in events:
            wakes.send(b"1")

    def handle(self) -> None:
        self.link.recv(1)
        while self.waiting:
            event = self.waiting.pop(0)
            if event == "of a closed loop":
                raise RuntimeError("Event loop is closed")
            self.done.append(event)

    def wakes(self) -> bool:
        """Whether the loop would be woken again."""
        return bool(select.select([self.link], [], [], 0)[0])


@pytest.mark.parametrize("count", [1, 2, 250])
def test_all_bytes_are_taken_with_the_events(count: int, pair: tuple[socket.socket, socket.socket]) -> None:
    with pair[0], pair[1]:
        events = Events(pair, *(str(number) for number in range(count)))
        Wakening(events.link, events.handle)()
        assert len(events.done) == count
        assert not events.wakes()


def test_events_behind_one_that_raises_still_wake_the_loop(pair: tuple[socket.socket, socket.socket]) -> None:
    with pair[0], pair[1]:
        events = Events(pair, "first", "of a closed loop", "behind", "last")
        wakening = Wakening(events.link, events.handle)
        with pytest.raises(RuntimeError, match="closed"):
            wakening()
        assert events.wakes()
        wakening()
        assert events.done == ["first", "behind", "last"]


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
