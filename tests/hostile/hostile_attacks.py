"""Kinds of hostility, each in a process of its own, so that its work is not the well-behaved clients' or the node's.

    python hostile_attacks.py idle=500 drip=100 --target kafka=127.0.0.1:9092 --seconds 10 --seed 1

What they need is imported and made once, before the processes are forked. Bounded in connections, requests and time;
connects to loopback only. Prints a line of JSON for each attack that was carried out: what was done.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import struct
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import hostile_frames as frames  # noqa: E402
import hostile_largest  # noqa: E402

from sbp_back.wire.model import RangeInfo  # noqa: E402

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_PAUSE_S = 0.005
_PIECE = 64 << 10
"""Bytes given to a socket at a time."""
_PLACES = 250
"""Loopback addresses that connections come from, so that many of them find ports."""


@dataclass(slots=True)
class Done:
    """What an attack did, and what the node did about it."""

    connections: int = 0
    refused: int = 0
    closed_by_node: int = 0
    requests: int = 0
    answers: int = 0
    bytes_sent: int = 0
    appenders: int = 0
    """Writers of Pravega's that were set up, several on each connection."""


@dataclass(slots=True)
class Attack:
    """Targets, bounds and counts of one attack, which lasts ``seconds``; ``until`` is the loop's clock."""

    targets: dict[str, tuple[str, int]]
    count: int
    seconds: float
    rng: random.Random
    bulk: RangeInfo | None
    partitions: int
    done: Done = field(default_factory=Done)
    until: float = 0.0

    @property
    def left(self) -> float:
        return self.until - asyncio.get_running_loop().time()

    def listener(self, number: int) -> str:
        """The listener of the numbered connection: all in turn."""
        return list(self.targets)[number % len(self.targets)]

    async def connect(self, listener: str, receive_buffer: int = 0) -> Link | None:
        """A connection, or None when the node did not take it."""
        host, port = self.targets[listener]
        link = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        link.setblocking(False)
        if receive_buffer:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        link.bind((f"127.0.1.{1 + self.rng.randrange(_PLACES)}", 0))
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(link, (host, port)), 10)
            streams = await asyncio.open_connection(sock=link, limit=1024)
        except (OSError, TimeoutError):
            link.close()
            self.done.refused += 1
            return None
        self.done.connections += 1
        return streams

    async def send(self, link: Link, data: bytes) -> bool:
        """Send with patience up to the attack's end; False when the node closed the connection.

        Of what the node does not take, no more than a piece is held here for each connection; ``data`` may be shared.
        """
        writer = link[1]
        writer.transport.set_write_buffer_limits(0)
        view = memoryview(data)
        try:
            for start in range(0, len(view), _PIECE):
                writer.write(view[start : start + _PIECE])
                await asyncio.wait_for(writer.drain(), max(self.left, 0.01))
        except TimeoutError:
            return True  # the node does not read any more, which is its right
        except OSError:
            self.done.closed_by_node += 1
            return False
        self.done.requests += 1
        self.done.bytes_sent += len(data)
        return True

    async def linger(self, link: Link) -> None:
        """Hold the connection without reading until the attack ends or the node has enough of it."""
        while self.left > 0:
            if link[1].is_closing() or link[0].at_eof():
                self.done.closed_by_node += 1
                return
            await asyncio.sleep(min(0.25, max(self.left, 0)))

    async def answer(self, link: Link) -> None:
        """Wait for something from the node, for at most a second."""
        try:
            data = await asyncio.wait_for(link[0].read(1 << 16), min(1.0, max(self.left, 0.01)))
        except TimeoutError:
            return
        except OSError:
            data = b""
        if data:
            self.done.answers += 1
        else:
            self.done.closed_by_node += 1

    async def each(self, work: Callable[[int], Awaitable[None]], per_second: float) -> None:
        """``work`` for every number below ``count``, started at a steady rate, as tasks of their own.

        The attack's time begins here, when all it sends is made; and one is tried however slow the machine is.
        """
        self.until = asyncio.get_running_loop().time() + self.seconds
        tasks: set[asyncio.Task[None]] = set()
        for number in range(self.count):
            if number and self.left <= 0:
                break
            task = asyncio.ensure_future(work(number))
            tasks.add(task)  # type: ignore[arg-type]
            await asyncio.sleep(1 / per_second)
        if tasks:
            await asyncio.wait(tasks)
            for task in tasks:
                task.result()

    @contextlib.asynccontextmanager
    async def link(self, number: int, receive_buffer: int = 0) -> AsyncIterator[tuple[str, Link | None]]:
        """The numbered connection and its listener; closed without a farewell."""
        listener = self.listener(number)
        link = await self.connect(listener, receive_buffer)
        try:
            yield listener, link
        finally:
            if link is not None:
                link[1].transport.abort()


async def idle(attack: Attack) -> None:
    """Connections that never say anything."""

    async def one(number: int) -> None:
        async with attack.link(number) as (_, link):
            if link is not None:
                await attack.linger(link)

    await attack.each(one, 2000)


async def slow_readers(attack: Attack) -> None:
    """Ask for 50 MB, or pipelines of 16 MB, and read none of it."""
    pings = frames.sbp_ping(1 << 20) * 8
    pages = b"GET /api/topics/bulk/records?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20

    async def one(number: int) -> None:
        async with attack.link(number, receive_buffer=4096) as (listener, link):
            if link is None:
                return
            link[1].transport.pause_reading()  # type: ignore[attr-defined]
            if listener == "kafka":
                data = frames.fetch(frames.BULK, attack.partitions)
            elif listener == "console":
                data = pages
            elif listener == "sbp-range-server" and attack.bulk is not None:
                data = frames.sbp_fetches(attack.bulk, 20, wait_ms=(0, 60_000)[number // 4 % 2])
            elif listener in frames.GRPC:
                data = frames.one_request(listener) * 1000
            elif listener == "pravega-segmentstore":
                data = frames.pravega_reads(attack.partitions)
            else:
                data = pings
            await attack.send(link, data)
            await attack.linger(link)

    await attack.each(one, 100)


async def drip(attack: Attack) -> None:
    """A correct request, one byte a second."""

    async def one(number: int) -> None:
        async with attack.link(number) as (listener, link):
            if link is None:
                return
            for byte in frames.one_request(listener):
                if attack.left <= 0 or not await attack.send(link, bytes((byte,))):
                    return
                await asyncio.sleep(min(1.0, max(attack.left, 0)))

    await attack.each(one, 500)


async def half_frames(attack: Attack) -> None:
    """A megabyte of a request that claims to be as large as allowed, and then nothing."""

    async def one(number: int) -> None:
        async with attack.link(number) as (listener, link):
            if link is not None and await attack.send(link, frames.half_frame(listener)):
                await attack.linger(link)

    await attack.each(one, 100)


async def garbage(attack: Attack) -> None:
    """Bytes that are no requests."""

    async def one(number: int) -> None:
        async with attack.link(number) as (listener, link):
            if link is not None and await attack.send(link, frames.garbage(attack.rng, listener)):
                await attack.answer(link)

    await attack.each(one, 150)


async def bombs(attack: Attack) -> None:
    """Small batches that inflate to very much, then requests that would make the node look into them."""
    bombs = frames.bombs()

    async def one(number: int) -> None:
        link = await attack.connect("kafka")
        if link is None:
            return
        for batch in (bombs[number % len(bombs)],) * 2:
            if not await attack.send(link, frames.produce(frames.BOMBS, batch)):
                break
            await attack.answer(link)
        await attack.send(link, frames.fetch(frames.BOMBS, 1, max_bytes=1 << 20))
        await attack.answer(link)
        link[1].transport.abort()

    await attack.each(one, 20)


async def oversized(attack: Attack) -> None:
    """Requests that name a hundred thousand things."""
    requests = frames.oversized()

    async def one(number: int) -> None:
        link = await attack.connect("kafka")
        if link is not None:
            if await attack.send(link, requests[number % len(requests)]):
                await attack.answer(link)
            link[1].transport.abort()

    await attack.each(one, 5)


async def largest(attack: Attack) -> None:
    """The largest request of every API of Kafka's, in each of its arrays."""
    topic_id = await asyncio.to_thread(hostile_largest.topic_id_of, attack.targets["kafka"], frames.BULK)
    requests = [frame for _, frame in hostile_largest.largest(topic_id)]

    async def one(number: int) -> None:
        link = await attack.connect("kafka")
        if link is not None:
            if await attack.send(link, requests[number % len(requests)]):
                await attack.answer(link)
            link[1].transport.abort()

    await attack.each(one, 5)


async def waits(attack: Attack) -> None:
    """A Fetch that waits for ever with megabytes of Produce queued behind it; Produce that nobody waits for."""
    large = frames.record_batch(bytes(900_000), 1)
    unwanted = frames.produce(frames.BOMBS, large, timeout_ms=1) * 8
    first = frames.fetch(frames.BOMBS, 1, wait_ms=frames.NEVER_MS, min_bytes=frames.NEVER_MS)
    queued = first + frames.produce(frames.BOMBS, large) * 32

    async def one(number: int) -> None:
        link = await attack.connect("kafka")
        if link is None:
            return
        if await attack.send(link, unwanted if number % 2 else queued):
            await attack.linger(link)
        link[1].transport.abort()

    await attack.each(one, 50)


async def churn(attack: Attack) -> None:
    """Connections that come, sometimes ask, and are reset."""

    async def one(number: int) -> None:
        async with attack.link(number) as (listener, link):
            if link is None:
                return
            sock = link[1].get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if number % 3:
                await attack.send(link, frames.one_request(listener))

    await attack.each(one, 300)


ATTACKS: dict[str, Callable[[Attack], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (idle, slow_readers, drip, half_frames, garbage, bombs, oversized, largest, waits, churn)
}


def load_ydb() -> None:
    """Add the attacks in YDB's words: only they need its messages and gRPC."""
    import hostile_ydb

    ATTACKS.update(hostile_ydb.ATTACKS)
    PREPARE.update(hostile_ydb.PREPARE)


def load_pravega() -> None:
    """Add the attacks in Pravega's words."""
    import hostile_pravega

    ATTACKS.update(hostile_pravega.ATTACKS)
    PREPARE.update(hostile_pravega.PREPARE)


PREPARE: dict[str, Callable[[], object]] = {"bombs": frames.bombs, "oversized": frames.oversized}
"""What is made once, before an attack begins."""


def prepare(kinds: Sequence[str]) -> None:
    """Load and make what the attacks need."""
    if any(kind.startswith("ydb") for kind in kinds):
        load_ydb()
    if any(kind.startswith("pravega") for kind in kinds):
        load_pravega()
    for kind in kinds:
        if kind in PREPARE:
            PREPARE[kind]()


async def run(args: argparse.Namespace, kind: str, count: int) -> Done:
    targets = {}
    for target in args.target:
        listener, _, address = target.partition("=")
        host, _, port = address.rpartition(":")
        if not host.startswith("127."):
            raise SystemExit(f"{host} is not on loopback")
        targets[listener] = (host, int(port))
    bulk = RangeInfo(**json.loads(args.bulk)) if args.bulk else None
    attack = Attack(targets, count, args.seconds, random.Random(args.seed), bulk, args.partitions)
    await ATTACKS[kind](attack)
    return attack.done


def forked(args: argparse.Namespace, kind: str, count: int) -> int:
    """Begin an attack; the process that carries it out."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        told = {"kind": kind, **asdict(asyncio.run(run(args, kind, count)))}
        os.write(sys.stdout.fileno(), f"{json.dumps(told)}\n".encode())  # a line is short enough to be written at once
        status = 0
    except BaseException:  # noqa: BLE001 - this process has nobody to tell but its end
        traceback.print_exc()
    os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="+", metavar="KIND=COUNT")
    parser.add_argument("--target", action="append", required=True, metavar="LISTENER=HOST:PORT")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bulk", default="", help="the range of SBP that is read slowly, as JSON")
    parser.add_argument("--partitions", type=int, default=50, help="partitions of the topic that is read slowly")
    parser.add_argument("--idle", action="store_true", help="use only what others leave of the processors")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if args.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    wanted = {kind: int(count) for kind, _, count in (attack.partition("=") for attack in args.attacks)}
    prepare(list(wanted))
    running = [forked(args, kind, count) for kind, count in wanted.items()]
    statuses = [os.waitpid(child, 0)[1] for child in running]
    sys.exit(1 if any(statuses) else 0)


if __name__ == "__main__":
    main()
