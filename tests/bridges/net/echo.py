"""A protocol of frames with a type and a length: what comes in goes out again, some of it when it is told to."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from anabranch_kit.net.framing import Framing
from bridges.net.connection import Connection, Slot
from bridges.net.server import Limits, Server

NOW, LATER, ALONE = 1, 2, 3
FRAMING = Framing(struct.Struct(">4xi"), 0, 1 << 24, head=8)


def frame(kind: int, data: bytes = b"") -> bytes:
    """A frame; ALONE starts when everything before it is answered, LATER is answered by the test."""
    return struct.pack(">ii", kind, len(data)) + data


@dataclass(slots=True)
class Counts:
    """What the server reports."""

    opened: int = 0
    closed: int = 0
    refused: int = 0

    def connection_opened(self) -> None:
        self.opened += 1

    def connection_closed(self) -> None:
        self.closed += 1

    def connection_refused(self) -> None:
        self.refused += 1


class EchoConnection(Connection):
    """Everything overlaps but ALONE."""

    server: EchoServer

    def _may_start(self, frame: bytes | bytearray | None) -> bool:
        return frame is not None and frame[3] != ALONE

    def _start(self, frame: bytes | bytearray, arrived: float) -> None:
        slot = Slot(len(frame), arrived)
        self._slots.append(slot)
        self.server.started.append(frame[3])
        if frame[3] == LATER:
            self.server.later.append((self, slot, frame))
        else:
            self._fill(slot, [frame], len(frame))

    def answer(self, slot: Slot, frame: bytes | bytearray) -> None:
        self._fill(slot, [frame], len(frame))


class EchoServer(Server):
    """``later`` are the requests to be answered by the test, ``started`` the types of all."""

    def __init__(self, limits: Limits) -> None:
        self.counts = Counts()
        super().__init__("echo", limits, self.counts)
        self.later: list[tuple[EchoConnection, Slot, bytes | bytearray]] = []
        self.started: list[int] = []

    def connection(self, listener: str, advertised: tuple[str, int] | None) -> EchoConnection:
        return EchoConnection(self, listener, advertised, FRAMING)

    def answer_all(self) -> None:
        later, self.later = self.later, []
        for connection, slot, data in reversed(later):
            connection.answer(slot, data)


@asynccontextmanager
async def serving(limits: Limits | None = None) -> AsyncIterator[tuple[EchoServer, tuple[str, int]]]:
    """A server, and where it listens."""
    server = EchoServer(limits or Limits())
    try:
        yield server, await server.listen("echo", "127.0.0.1", 0)
    finally:
        await server.close(0.5)


async def receive(reader: asyncio.StreamReader) -> bytes:
    """The next frame."""
    head = await reader.readexactly(8)
    return head + await reader.readexactly(struct.unpack(">4xi", head)[0])
