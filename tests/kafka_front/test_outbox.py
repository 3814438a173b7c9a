"""What reaches the socket is what was sent, in order, however slowly the peer reads."""

from __future__ import annotations

import asyncio
import random
import socket

from bridges.budget import MemoryBudget
from kafka_front.outbox import Outbox
from kafka_front.wire.primitives import Buffer


class Sender(asyncio.Protocol):
    """The protocol half of a connection, as the session does it."""

    def __init__(self) -> None:
        self.outbox: Outbox | None = None
        self.most_held = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)
        self.transport = transport
        budget = MemoryBudget(64 << 20, asyncio.get_running_loop().call_soon)
        self.account = budget.account(lambda: self.outbox.go_on() if self.outbox else None)
        self.failures: list[str] = []
        self.outbox = Outbox(transport, asyncio.get_running_loop(), self.account, lambda: None, self.failures.append)

    def pause_writing(self) -> None:
        assert self.outbox is not None
        self.most_held = max(self.most_held, self.transport.get_write_buffer_size())
        self.outbox.block()

    def resume_writing(self) -> None:
        assert self.outbox is not None
        self.outbox.unblock()


async def connect() -> tuple[Sender, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024)
    _, protocol = await asyncio.get_running_loop().create_connection(Sender, sock=ours)
    return protocol, theirs


def parts_of(data: bytes, rng: random.Random) -> list[Buffer]:
    parts: list[Buffer] = []
    position = 0
    while position < len(data):
        size = rng.choice((0, 1, 100, 20_000, 300_000, 1_000_000))
        kind = rng.choice((bytes, bytearray, memoryview))
        parts.append(kind(data[position : position + size]))
        position += size
    return parts


async def test_a_slow_reader_gets_everything_in_order_and_the_transport_holds_little() -> None:
    rng = random.Random(5)
    data = rng.randbytes(8_000_000)
    sender, peer = await connect()
    assert sender.outbox is not None
    half = len(data) // 2
    sender.outbox.send(parts_of(data[:half], rng))
    sender.outbox.send(parts_of(data[half:], rng))
    assert sender.outbox.unsent > 7_000_000
    received = bytearray()
    while len(received) < len(data):
        received += await asyncio.get_running_loop().sock_recv(peer, rng.choice((100, 50_000)))
    assert received == data
    assert sender.outbox.unsent == 0
    assert sender.most_held <= 256 * 1024
    sender.transport.close()
    peer.close()


async def test_closing_sends_what_is_left_first() -> None:
    data = random.Random(6).randbytes(3_000_000)
    sender, peer = await connect()
    assert sender.outbox is not None
    sender.outbox.send([data])
    sender.outbox.finish(sender.transport.close)
    received = bytearray()
    while chunk := await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
        received += chunk
    assert received == data
    peer.close()
