"""What one request costs, step by step: ``python -m benchmarks.profile [produce] [--durability os]``.

A node runs in a process of its own, as ``anabranch serve`` would run it, and gets the same request again and again over
one connection. It runs twice: once as it is, which tells the CPU time of a whole request, and once with probes around
the functions of :mod:`benchmarks.profile_steps`, which tell how it is spread. docs/profile.md explains the table.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.probes import Cost, Probes, Step
from benchmarks.profile_steps import PRODUCE

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "profile"
_WARM = 0.2
"""Requests that are sent before anything is counted, as a share of those that are."""
_CLOSED = ("console", "sbp-pd", "sbp-range-server", "ydb", "pravega", "pravega-segmentstore")
_FRAME = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for: requests, how many of them are on their way at a time, bytes of a record's value, partitions
    of the topic that each request names."""

    requests: int
    in_flight: int
    size: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Followed:
    """One kind of request. ``prepare`` is called once the topic is there; ``request`` gives (version, message)."""

    steps: tuple[Step, ...]
    prepare: Callable[[Wire, Load], None]
    request: Callable[[Load], tuple[int, Any]]


class Wire:
    """A connection that sends what it is told, and waits."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0

    def ask(self, version: int, message: Any) -> Any:
        """One request and its response."""
        from kafka_front.wire import codec

        self._socket.sendall(self.frame(version, message))
        return codec.decode_response(message.API_KEY, version, self.response())[1]

    def frame(self, version: int, message: Any) -> bytes:
        from kafka_front.wire import codec

        self._number += 1
        return b"".join(codec.encode_request(version, self._number, "profile", message))

    def response(self) -> bytes:
        """The bytes of the next response."""
        (size,) = _FRAME.unpack(self._read(_FRAME.size))
        return self._read(size)

    def repeat(self, frame: bytes, requests: int, in_flight: int) -> None:
        """``frame`` so many times, ``in_flight`` of them in one go and then their responses."""
        left = requests
        while left > 0:
            now = min(in_flight, left)
            self._socket.sendall(frame * now)
            for _ in range(now):
                self.response()
            left -= now

    def _read(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            got = self._socket.recv(size - len(parts))
            if not got:
                raise ConnectionError("the node has closed the connection")
            parts += got
        return parts

    def close(self) -> None:
        self._socket.close()


# --- what is followed -----------------------------------------------------------------------------------------------


def _nothing(wire: Wire, load: Load) -> None:
    pass


def _produce(load: Load) -> tuple[int, Any]:
    from bridges.formats.kafka import encode
    from bridges.formats.records import Record
    from kafka_front.wire.messages import ProduceRequest

    batch = memoryview(encode([Record(None, bytes(load.size), timestamp=time.time_ns() // 1_000_000)]))
    parts = [ProduceRequest.PartitionProduceData(index, batch) for index in range(load.partitions)]
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=parts)
    return 9, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


FOLLOWED = {
    "produce": Followed(PRODUCE, _nothing, _produce),
}


# --- the node -------------------------------------------------------------------------------------------------------


async def _serve(directory: Path, durability: str, probes: Probes | None) -> None:
    """Says where it listens; then each line on standard input begins, or ends, a count: see :class:`NodeUnderTest`."""
    from bridges.node.assembly import Node
    from bridges.node.config import load
    from kafka_front.front import KafkaFront

    flags = {"data_dir": str(directory), "sbp.durability": durability, "listen.kafka": "127.0.0.1:0"}
    flags |= {f"listen.{name}": "off" for name in _CLOSED[:3]}
    node = Node(load(flags, environ={}, directory=directory).settings, fronts=[KafkaFront])
    await node.start()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    address = node.addresses["kafka"]
    print(json.dumps([address.host, address.port]), flush=True)
    loop = asyncio.get_running_loop()
    used = 0.0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word, _, number = line.strip().partition(" ")
        if word == "begin":
            if probes is not None:
                probes.start()
            used = time.process_time()
            print(json.dumps(None), flush=True)
        else:
            costs = probes.costs(int(number)) if probes is not None else []
            print(json.dumps([time.process_time() - used, [asdict(cost) for cost in costs]]), flush=True)
    await node.stop()


class NodeUnderTest:
    """A node in a process of its own; ``kind``: with the probes of that kind of request, "" without any."""

    def __init__(self, directory: Path, durability: str, kind: str) -> None:
        command = [sys.executable, "-m", "benchmarks.profile", "--serve", str(directory), durability, kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        host, port = self._read()
        self.wire = Wire(host, port)

    def measure(self, followed: Followed, load: Load) -> tuple[float, list[Cost]]:
        """Microseconds of CPU of one request, and its steps if the node has probes."""
        from kafka_front.wire.messages import CreateTopicsRequest

        topic = CreateTopicsRequest.CreatableTopic(TOPIC, load.partitions, 1)
        self.wire.ask(5, CreateTopicsRequest([topic]))
        followed.prepare(self.wire, load)
        frame = self.wire.frame(*followed.request(load))
        self.wire.repeat(frame, max(1, int(load.requests * _WARM)), load.in_flight)
        self._tell("begin")
        self.wire.repeat(frame, load.requests, load.in_flight)
        seconds, costs = self._tell(f"end {load.requests}")
        return seconds / load.requests * 1e6, [Cost(**cost) for cost in costs]

    def _tell(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConnectionError("the node has ended")
        return json.loads(line)

    def stop(self) -> None:
        self.wire.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


# --- the table ------------------------------------------------------------------------------------------------------


def table(whole: float, costs: Sequence[Cost]) -> str:
    """The steps of a request that costs ``whole`` microseconds of CPU, as Markdown."""
    lines = ["| step | calls | CPU us | share | waits us |", "|---|---|---|---|---|"]
    for cost in costs:
        if cost.calls:
            waits = f"{cost.waits_us:.1f}" if cost.waits_us >= 0.05 else ""
            share = cost.cpu_us / whole
            lines.append(f"| {cost.title} | {cost.calls:.2f} | {cost.cpu_us:.1f} | {share:.0%} | {waits} |")
    rest = whole - sum(cost.cpu_us for cost in costs)
    lines.append(f"| the loop's own work, threads, and what has no row | | {rest:.1f} | {rest / whole:.0%} | |")
    lines.append(f"| **one request** | | **{whole:.1f}** | | |")
    return "\n".join(lines)


def main() -> int:
    """Run; prints a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("kind", nargs="?", default="produce", choices=sorted(FOLLOWED))
    parser.add_argument("--durability", choices=("fsync", "os"), default="os")
    parser.add_argument("--requests", type=int, default=5000, help="counted (default 5000)")
    parser.add_argument("--in-flight", type=int, default=1, help="sent in one go, then waited for (default 1)")
    parser.add_argument("--size", type=int, default=100, help="bytes of a record's value (default 100)")
    parser.add_argument("--partitions", type=int, default=1, help="of the topic, all in each request (default 1)")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench", help="directory on the disk to use")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        directory, durability, kind = args.serve
        from bridges.node import logging
        from bridges.node.memory import keep_buffers
        from sbp_back.cycle import CycleLoop

        gc.disable()
        keep_buffers()
        logging.configure("error", "text")
        probes = None
        if kind:
            probes = Probes()
            for step in FOLLOWED[kind].steps:
                probes.install(step)
        with asyncio.Runner(loop_factory=CycleLoop) as runner:
            runner.run(_serve(Path(directory), durability, probes))
        return 0
    followed = FOLLOWED[args.kind]
    load = Load(args.requests, args.in_flight, args.size, args.partitions)
    args.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.data) as scratch:
        found = []
        for kind in ("", args.kind):
            node = NodeUnderTest(Path(scratch) / (kind or "plain"), args.durability, kind)
            found.append(node.measure(followed, load))
            node.stop()
    print(f"{args.kind}, {asdict(load)}, durability {args.durability}\n\n{table(found[0][0], found[1][1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
