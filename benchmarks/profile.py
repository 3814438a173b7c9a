"""What one request costs, step by step: ``python -m benchmarks.profile [produce|fetch|append] [--durability os]``.

A node runs in a process of its own, as ``anabranch serve`` would run it, and gets the same request again and again over
one connection. It runs twice: once as it is, which tells the CPU time of a whole request, and once with probes around
the functions of :mod:`benchmarks.profile_steps`, which tell how it is spread. docs/profile.md explains the table.

``append`` has no front and no connection: ``--in-flight`` writers in the process of the embedded SBP backend.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.probes import Cost, Probes, Step
from benchmarks.profile_steps import APPEND, FETCH, PRODUCE

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "profile"
_WARM = 0.2
"""Requests that are sent before anything is counted, as a share of those that are."""
_CLOSED = ("console", "sbp-pd", "sbp-range-server", "ydb", "pravega", "pravega-segmentstore")
_FRAME = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for: requests, how many of them are on their way at a time, bytes of a record's value, partitions
    of the topic that each request names; records of a batch, and batches of each partition that one request
    reads."""

    requests: int
    in_flight: int
    size: int
    partitions: int
    records: int
    batches: int


@dataclass(frozen=True, slots=True)
class Followed:
    """One kind of request. ``prepare`` is called once the topic is there; ``requests`` gives (version, message) of
    those that are repeated, one after the other. ``settings`` are the node's besides the usual."""

    steps: tuple[Step, ...]
    prepare: Callable[[Wire, Load], None]
    requests: Callable[[Load], list[tuple[int, Any]]]
    settings: Mapping[str, str] = field(default_factory=dict)


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

    def repeat(self, frames: Sequence[bytes], requests: int, in_flight: int) -> None:
        """``frames`` in turn, so many in all, ``in_flight`` of them in one go and then their responses."""
        sent = 0
        while sent < requests:
            now = min(in_flight, requests - sent)
            self._socket.sendall(b"".join(frames[number % len(frames)] for number in range(sent, sent + now)))
            for _ in range(now):
                self.response()
            sent += now

    def _read(self, size: int) -> bytes:
        parts = bytearray(size)
        view = memoryview(parts)
        filled = 0
        while filled < size:
            got = self._socket.recv_into(view[filled:])
            if not got:
                raise ConnectionError("the node has closed the connection")
            filled += got
        return bytes(parts)

    def close(self) -> None:
        self._socket.close()


# --- what is followed -----------------------------------------------------------------------------------------------


def _nothing(wire: Wire, load: Load) -> None:
    pass


def _batch(size: int, records: int) -> memoryview:
    from bridges.formats.kafka import encode
    from bridges.formats.records import Record

    now = time.time_ns() // 1_000_000
    return memoryview(encode([Record(None, bytes(size), timestamp=now) for _ in range(records)]))


def _produce_batch(partitions: int, batch: memoryview) -> tuple[int, Any]:
    from kafka_front.wire.messages import ProduceRequest

    parts = [ProduceRequest.PartitionProduceData(index, batch) for index in range(partitions)]
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=parts)
    return 9, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def _produce(load: Load) -> list[tuple[int, Any]]:
    return [_produce_batch(load.partitions, _batch(load.size, load.records))]


_RECORDS = 40
"""Of a batch that is read, unless it is said."""
_REQUESTS = 16
"""Different ones, in which all batches of each partition are read; then they are read again."""


def _fill(wire: Wire, load: Load) -> None:
    message = _produce_batch(load.partitions, _batch(load.size, load.records))
    for _ in range(_REQUESTS * load.batches):
        for partition in wire.ask(*message).responses[0].partition_responses:
            if partition.error_code:
                raise ConnectionError(f"the node refused a batch with {partition.error_code}")


def _fetch(load: Load) -> list[tuple[int, Any]]:
    """What a consumer asks for that reads on, without a session, as most do."""
    from kafka_front.wire.messages import FetchRequest

    most = load.batches * (len(_batch(load.size, load.records)) + 100)
    requests: list[tuple[int, Any]] = []
    for number in range(_REQUESTS):
        first = number * load.batches * load.records
        parts = [
            FetchRequest.FetchPartition(index, fetch_offset=first, partition_max_bytes=most)
            for index in range(load.partitions)
        ]
        topic = FetchRequest.FetchTopic(topic=TOPIC, partitions=parts)
        message = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 << 20, session_epoch=-1, topics=[topic])
        requests.append((11, message))
    return requests


FOLLOWED = {
    "produce": Followed(PRODUCE, _nothing, _produce),
    # As for what is not among the newest batches, which are kept in memory.
    "fetch": Followed(FETCH, _fill, _fetch, {"log.tail_cache_bytes": "0"}),
}

STEPS = {kind: followed.steps for kind, followed in FOLLOWED.items()} | {"append": APPEND}


# --- the node -------------------------------------------------------------------------------------------------------


async def _serve(directory: Path, durability: str, settings: dict[str, str], probes: Probes | None) -> None:
    """Says where it listens; then each line on standard input begins, or ends, a count: see :class:`NodeUnderTest`."""
    from bridges.node.assembly import Node
    from bridges.node.process.memory import collect_seldom
    from bridges.node.settings.config import load
    from kafka_front.front import KafkaFront

    flags = {"data_dir": str(directory), "sbp.durability": durability, "listen.kafka": "127.0.0.1:0"}
    flags |= {f"listen.{name}": "off" for name in _CLOSED[:3]} | settings
    node = Node(load(flags, environ={}, directory=directory).settings, fronts=[KafkaFront])
    await node.start()
    collect_seldom()
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


async def _appends(directory: Path, durability: Literal["fsync", "os"], load: Load, probes: Probes | None) -> None:
    """Says what an entry took: microseconds of CPU, and its steps."""
    from benchmarks.sbp import Appender
    from bridges.node.process.memory import collect_seldom
    from sbp_back.embedded import EmbeddedOptions, start_embedded
    from sbp_back.range_server.store.options import StoreOptions

    embedded = await start_embedded(directory, EmbeddedOptions(store=StoreOptions(durability=durability)))
    client = embedded.client
    payload = os.urandom(load.size)
    appenders = [
        Appender(await client.open((await client.create_stream()).stream_id, 0), payload) for _ in range(load.in_flight)
    ]
    collect_seldom()

    def told() -> int:
        return sum(len(one.took) for one in appenders)

    async def go(appends: int) -> None:
        wanted = told() + appends
        for one in appenders:
            one.until = float("inf")
            one.go()
        while told() < wanted:
            await asyncio.sleep(0.01)
        for one in appenders:
            one.until = 0.0
        while any(one.unconfirmed for one in appenders):
            await asyncio.sleep(0.001)

    await go(int(load.requests * _WARM))
    before = told()
    if probes is not None:
        probes.start()
    used = time.process_time()
    await go(load.requests)
    used = time.process_time() - used
    done = told() - before
    costs = probes.costs(done) if probes is not None else []
    print(json.dumps([used / done * 1e6, [asdict(cost) for cost in costs]]))
    await embedded.close()


def _measure_appends(directory: Path, durability: str, load: Load, kind: str) -> tuple[float, list[Cost]]:
    """As :meth:`NodeUnderTest.measure`, of writers in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.profile", "append"]
    command += ["--serve", str(directory), durability, json.dumps(asdict(load)), kind]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    whole, costs = json.loads(done.stdout)
    return whole, [Cost(**cost) for cost in costs]


class NodeUnderTest:
    """A node in a process of its own; ``kind``: with the probes of that kind of request, "" without any."""

    def __init__(self, directory: Path, durability: str, settings: Mapping[str, str], kind: str) -> None:
        more = json.dumps(dict(settings))
        command = [sys.executable, "-m", "benchmarks.profile", "--serve", str(directory), durability, more, kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        host, port = self._read()
        self.wire = Wire(host, port)

    def measure(self, followed: Followed, load: Load) -> tuple[float, list[Cost]]:
        """Microseconds of CPU of one request, and its steps if the node has probes."""
        from kafka_front.wire.messages import CreateTopicsRequest

        topic = CreateTopicsRequest.CreatableTopic(TOPIC, load.partitions, 1)
        self.wire.ask(5, CreateTopicsRequest([topic]))
        followed.prepare(self.wire, load)
        frames = [self.wire.frame(*request) for request in followed.requests(load)]
        self.wire.repeat(frames, max(1, int(load.requests * _WARM)), load.in_flight)
        self._tell("begin")
        self.wire.repeat(frames, load.requests, load.in_flight)
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
    parser.add_argument("kind", nargs="?", default="produce", choices=sorted(STEPS))
    parser.add_argument("--durability", choices=("fsync", "os"), default="os")
    parser.add_argument("--requests", type=int, default=5000, help="counted (default 5000)")
    parser.add_argument("--in-flight", type=int, default=1, help="sent in one go, then waited for; writers (default 1)")
    parser.add_argument("--size", type=int, default=100, help="bytes of a record's value (default 100)")
    parser.add_argument("--partitions", type=int, default=1, help="of the topic, all in each request (default 1)")
    parser.add_argument("--records", type=int, default=0, help=f"of a batch (default 1; {_RECORDS} where it is read)")
    parser.add_argument("--batches", type=int, default=4, help="of a partition that one request reads (default 4)")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench", help="directory on the disk to use")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        directory, durability, settings, kind = args.serve
        from anabranch_kit.run.cycle import CycleLoop
        from bridges.node.process import logging
        from bridges.node.process.memory import keep_buffers, switch_threads_often

        gc.disable()
        keep_buffers()
        switch_threads_often()
        logging.configure("error", "text")
        probes = None
        if kind:
            probes = Probes()
            for step in STEPS[kind]:
                probes.install(step)
        told = json.loads(settings)
        with asyncio.Runner(loop_factory=CycleLoop) as runner:
            if args.kind == "append":
                runner.run(_appends(Path(directory), durability, Load(**told), probes))
            else:
                runner.run(_serve(Path(directory), durability, told, probes))
        return 0
    records = args.records or (_RECORDS if args.kind == "fetch" else 1)
    load = Load(args.requests, args.in_flight, args.size, args.partitions, records, args.batches)
    args.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.data) as scratch:
        found = []
        for kind in ("", args.kind):
            directory = Path(scratch) / (kind or "plain")
            if args.kind == "append":
                found.append(_measure_appends(directory, args.durability, load, kind))
                continue
            followed = FOLLOWED[args.kind]
            node = NodeUnderTest(directory, args.durability, followed.settings, kind)
            found.append(node.measure(followed, load))
            node.stop()
    print(f"{args.kind}, {asdict(load)}, durability {args.durability}\n\n{table(found[0][0], found[1][1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
