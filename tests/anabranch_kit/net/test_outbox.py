"""What reaches the socket is what was sent, in order, however slowly the peer reads."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from collections.abc import Callable

import pytest

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.net.outbox import CHUNK, Buffer, Outbox
from anabranch_kit.net.turn import Turn
from anabranch_kit.run.barrier import Barrier
from bridges.errors import LogError
from tests.kit.waiting import until


class Sender(asyncio.Protocol):
    """The protocol half of a connection, as the session does it."""

    def __init__(self, turn: Turn | None = None) -> None:
        self.outbox: Outbox | None = None
        self.most_held = 0
        self.turn = turn or Turn(asyncio.get_running_loop(), Barrier())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)
        self.transport = transport
        self.budget = budget = MemoryBudget(64 << 20, asyncio.get_running_loop().call_soon)
        self.account = budget.account(lambda: self.outbox.go_on() if self.outbox else None)
        self.failures: list[str] = []
        self.outbox = Outbox(transport, self.turn, self.account, lambda: None, self.failures.append)

    def pause_writing(self) -> None:
        assert self.outbox is not None
        self.most_held = max(self.most_held, self.transport.get_write_buffer_size())
        self.outbox.block()

    def resume_writing(self) -> None:
        assert self.outbox is not None
        self.outbox.unblock()


async def connect(turn: Turn | None = None, buffer: int = 32 * 1024) -> tuple[Sender, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Sender(turn), sock=ours)
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


class Pages:
    """Bytes that are read a few at a time, now or in a later turn of the loop."""

    def __init__(self, data: bytes, page: int = 10_000, later: bool = False, fails_at: int = 1 << 60) -> None:
        self.data = data
        self.page = page
        self.later = later
        self.fails_at = fails_at
        self.left = len(data)
        self.reads = 0
        self.under_way = 0

    def __len__(self) -> int:
        return len(self.data)

    def least(self) -> int:
        return min(self.left, self.page)

    def read(self, max_bytes: int, done: Callable[[list[Buffer], LogError | None], None]) -> None:
        assert not self.under_way, "one read at a time"
        self.under_way += 1
        self.reads += 1
        if self.later:
            asyncio.get_running_loop().call_soon(self._answer, max_bytes, done)
        else:
            self._answer(max_bytes, done)

    def _answer(self, max_bytes: int, done: Callable[[list[Buffer], LogError | None], None]) -> None:
        self.under_way -= 1
        at = len(self.data) - self.left
        if at >= self.fails_at:
            done([], LogError("gone"))
            return
        size = min(self.left, max(max_bytes // self.page, 1) * self.page)
        self.left -= size
        done([self.data[start : min(start + self.page, at + size)] for start in range(at, at + size, self.page)], None)

    def rewind(self, size: int) -> None:
        self.left += size


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("page", [700, 90_000, 2_000_000])
async def test_sources_are_read_as_the_peer_takes_them_with_little_in_memory(later: bool, page: int) -> None:
    rng = random.Random(8)
    data = rng.randbytes(9_000_000)
    sender, peer = await connect()
    outbox = sender.outbox
    assert outbox is not None
    cuts = [0, 3000, 5_000_000, 5_000_100, len(data)]
    parts: list[Buffer | Pages] = [data[: cuts[1]]]
    parts += [Pages(data[a:b], page, later) for a, b in itertools.pairwise(cuts[1:])]
    parts.append(b"the end")
    outbox.send(parts)
    assert outbox.unsent > 8_000_000
    received = bytearray()
    most = 0
    while len(received) < len(data) + 7:
        received += await asyncio.get_running_loop().sock_recv(peer, rng.choice((100, 50_000, 400_000)))
        most = max(most, sender.account.held)
        if rng.random() < 0.05:
            outbox.shed()
    assert received == data + b"the end"
    assert (outbox.unsent, sender.account.held, sender.failures) == (0, 0, [])
    assert most <= max(CHUNK, page) + 256 * 1024
    sender.transport.close()
    peer.close()


async def test_a_peer_that_takes_nothing_can_be_made_to_give_its_chunk_back() -> None:
    data = random.Random(9).randbytes(5_000_000)
    sender, peer = await connect()
    outbox = sender.outbox
    assert outbox is not None
    pages = Pages(data)
    outbox.send([pages])
    await until(lambda: sender.account.held >= 500_000)
    outbox.shed()
    assert sender.account.held <= 256 * 1024
    reads = pages.reads
    outbox.shed()
    assert pages.reads == reads
    assert outbox.unsent > 4_000_000
    received = bytearray()
    while len(received) < len(data):
        received += await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
    assert received == data
    sender.transport.close()
    peer.close()


async def test_small_answers_that_nobody_takes_count_with_what_they_take() -> None:
    sender, peer = await connect()
    outbox = sender.outbox
    assert outbox is not None
    outbox.send([bytes(1_000_000)])
    before, size = sender.account.held, outbox.unsent
    for _ in range(1000):
        outbox.send([bytes(8)])
    assert outbox.unsent == size + 8000
    assert sender.account.held >= before + 1000 * (8 + 50)
    received = 0
    while received < 1_008_000:
        received += len(await asyncio.get_running_loop().sock_recv(peer, 1 << 20))
    await until(lambda: not outbox.unsent)
    assert sender.account.held == 0
    sender.transport.close()
    peer.close()


async def test_a_source_that_fails_sends_nothing_more_and_says_so() -> None:
    data = random.Random(10).randbytes(5_000_000)
    sender, peer = await connect()
    assert sender.outbox is not None
    sender.outbox.send([Pages(data, fails_at=2_000_000), b"never"])
    received = bytearray()
    while not sender.failures:
        received += await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
    assert "gone" in sender.failures[0]
    sender.transport.abort()
    while chunk := await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
        received += chunk
    assert data.startswith(bytes(received))
    assert len(received) < 3_200_000
    peer.close()


async def test_a_source_waits_for_memory_and_goes_on_when_there_is_some() -> None:
    data = random.Random(11).randbytes(3_000_000)
    sender, peer = await connect()
    outbox = sender.outbox
    assert outbox is not None
    budget = sender.budget
    hogs = [budget.account(lambda: None) for _ in range(3000)]
    for hog in hogs:
        hog.admit(Kind.REQUESTS, budget.share)
    outbox.send([Pages(data)])
    await until(lambda: outbox.starved)
    assert sender.account.held == 0
    for hog in hogs:
        hog.give(Kind.REQUESTS, hog.held)
    received = bytearray()
    while len(received) < len(data):
        received += await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
    assert received == data
    sender.transport.close()
    peer.close()


async def test_many_that_read_take_turns_and_a_failing_one_does_not_stop_the_others() -> None:
    barrier = Barrier()
    turn = Turn(asyncio.get_running_loop(), barrier)
    order: list[int] = []

    def read(number: int) -> None:
        order.append(number)
        if number == 3:
            raise ZeroDivisionError("a defect")

    for number in range(9):
        turn.ask_to_read(lambda number=number: read(number))  # type: ignore[misc]
    steps = []
    while len(order) < 9:
        await asyncio.sleep(0)
        steps.append(len(order))
    assert order == list(range(9))
    assert max(b - a for a, b in itertools.pairwise([0, *steps])) <= 2
    assert list(barrier.failures.values()) == [1]
    turn.ask_to_read(lambda: order.append(9))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order[-1] == 9


@pytest.mark.parametrize("later", [False, True])
async def test_closing_sends_what_sources_promised_first(later: bool) -> None:
    data = random.Random(12).randbytes(3_000_000)
    sender, peer = await connect()
    assert sender.outbox is not None
    sender.outbox.send([b"head", Pages(data, later=later), b"tail"])
    sender.outbox.finish(sender.transport.close)
    received = bytearray()
    while chunk := await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
        received += chunk
    assert received == b"head" + data + b"tail"
    peer.close()


async def test_a_lost_connection_gives_everything_back_also_with_a_read_under_way() -> None:
    sender, peer = await connect()
    outbox = sender.outbox
    assert outbox is not None
    pages = Pages(bytes(3_000_000), later=True)
    outbox.send([pages])
    await until(lambda: pages.under_way)
    outbox.drop()
    sender.transport.abort()
    await until(lambda: not pages.under_way)
    assert sender.budget.held == 0
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


async def test_to_a_connection_that_is_lost_nothing_more_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport would drop it a piece at a time, and log every one of them: seconds for a large answer."""
    sender, peer = await connect()
    assert sender.outbox is not None
    peer.close()
    written: list[int] = []
    write = sender.transport.write
    monkeypatch.setattr(sender.transport, "write", lambda data: (written.append(len(data)), write(data)))
    sender.outbox.send([bytes(64 << 20)])
    sender.outbox.send([bytes(64 << 20)])
    assert len(written) <= 1, "the first one finds it out"
    assert sender.outbox.unsent == 0
    assert sender.budget.held == 0


async def test_what_many_are_sent_at_the_same_time_is_shared_out_over_turns() -> None:
    turn = Turn(asyncio.get_running_loop(), Barrier())
    many = [await connect(turn, 160_000) for _ in range(100)]
    size = 300_000
    for number, (sender, _) in enumerate(many):
        assert sender.outbox is not None
        sender.outbox.send([bytes((number,)) * size])
    unsent = sum(sender.outbox.unsent for sender, _ in many if sender.outbox is not None)
    assert 100 * size - unsent < 4 << 20, "most of them wait for a later turn of the loop"
    assert not turn.has_readers, "nobody waits to read"
    loop = asyncio.get_running_loop()
    for number, (sender, peer) in enumerate(many):
        received = bytearray()
        while len(received) < size:
            received += await loop.sock_recv(peer, size)
        assert received == bytes((number,)) * size
        sender.transport.close()
        peer.close()


async def test_what_is_long_goes_on_in_the_next_turns() -> None:
    """Also when the socket takes everything at once."""
    turn = Turn(asyncio.get_running_loop(), Barrier())
    sender, peer = await connect(turn)
    assert sender.outbox is not None
    taken: list[int] = []
    sender.transport.pause_reading()

    def write(data: bytes) -> None:
        taken.append(len(data))

    sender.outbox._direct = None
    sender.transport.write = write  # type: ignore[method-assign]
    sender.outbox.send([bytes(32 << 20)])
    assert sum(taken) <= 4 << 20
    while sum(taken) < 32 << 20:
        before = sum(taken)
        await asyncio.sleep(0)
        assert sum(taken) - before <= 4 << 20
    peer.close()
