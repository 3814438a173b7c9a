"""What `benchmarks.pravega` loads servers with: the PyPI wheel `pravega`, in this process, and the Java client, in one
of its own. Both write, wait for acknowledgements one by one, and read through a reader group."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from pravega_client import StreamManager

from benchmarks.java_server import MEASURED_JAVA
from tests import drivers

POM = Path(__file__).resolve().parent.parent / "tests" / "pravega_front" / "java" / "pom.xml"
SCOPE = "bench"
WINDOW_BYTES = 8_000_000
WINDOW_EVENTS = 1000
PATIENCE_SECONDS = 60.0


def window(size: int) -> int:
    """Events of ``size`` bytes that a writer has on their way at most."""
    return max(2, min(WINDOW_EVENTS, WINDOW_BYTES // size))


class Load(Protocol):
    """A client that writes and reads streams of ``SCOPE``; times in seconds, sizes in bytes."""

    def write(self, controller: str, stream: str, size: int, count: int) -> float:
        """How long it takes until ``count`` events are acknowledged, ``window(size)`` on their way."""

    def acks(self, controller: str, stream: str, size: int, count: int) -> list[float]:
        """How long each of ``count`` events waits for its acknowledgement when there is one at a time."""

    def read(self, controller: str, stream: str, group: str, count: int) -> float:
        """Events a second that a new group's only reader takes behind what it is given first."""


class Wheel:
    """The Rust client beneath Python."""

    def write(self, controller: str, stream: str, size: int, count: int) -> float:
        data = os.urandom(size)
        manager = StreamManager(f"tcp://{controller}")  # which its writers need as long as they live
        writer = manager.create_writer(SCOPE, stream, max_inflight_events=window(size))
        began = time.perf_counter()
        for number in range(count):
            writer.write_event_bytes(data, routing_key=str(number))
        writer.flush()
        return time.perf_counter() - began

    def acks(self, controller: str, stream: str, size: int, count: int) -> list[float]:
        data = os.urandom(size)
        manager = StreamManager(f"tcp://{controller}")
        writer = manager.create_writer(SCOPE, stream)
        found = []
        for _ in range(count):
            began = time.perf_counter()
            writer.write_event_bytes(data, routing_key="key")
            found.append(time.perf_counter() - began)
        return found

    def read(self, controller: str, stream: str, group: str, count: int) -> float:
        manager = StreamManager(f"tcp://{controller}")
        reader = manager.create_reader_group(group, SCOPE, stream).create_reader("reader")

        async def events() -> float:
            began, found, first = time.perf_counter(), 0, 0
            while found < count:
                part = await asyncio.wait_for(reader.get_segment_slice_async(), PATIENCE_SECONDS)
                found += sum(1 for _ in part)
                reader.release_segment(part)
                if not first and found < count:
                    began, first = time.perf_counter(), found
            return (count - first) / (time.perf_counter() - began)

        return asyncio.run(events())  # without taking the reader offline, for which Pravega may take minutes


class Java:
    """The Java client, by a program that does what it is told."""

    def __init__(self, call: Callable[[dict[str, Any]], Sequence[float]]) -> None:
        self._call = call

    def _ask(self, op: str, controller: str, stream: str, count: int, **others: Any) -> Sequence[float]:
        address = f"tcp://{controller}"
        return self._call({"op": op, "controller": address, "scope": SCOPE, "stream": stream, "count": count, **others})

    def write(self, controller: str, stream: str, size: int, count: int) -> float:
        return self._ask("write", controller, stream, count, size=size, window=window(size))[0]

    def acks(self, controller: str, stream: str, size: int, count: int) -> list[float]:
        return list(self._ask("ack", controller, stream, count, size=size))

    def read(self, controller: str, stream: str, group: str, count: int) -> float:
        return (count - 1) / self._ask("read", controller, stream, count, group=group)[0]


@contextmanager
def java() -> Iterator[Java]:
    """The Java client's program, built if need be, with a JVM that is measured."""

    def run(directory: Path) -> Sequence[str]:
        options = [*MEASURED_JAVA, "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        return ["java", *options, "-cp", f"{directory}/classes:{directory}/jars/*", "anabranch.tests.PravegaLoad"]

    driver = replace(drivers.java("pravega-java", POM, "anabranch.tests.PravegaLoad"), run=run).start()
    try:
        yield Java(driver.call)
    finally:
        driver.close()
