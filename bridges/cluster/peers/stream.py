"""A stream of messages between two nodes, on its own connection: TCP limits each side to what the other reads.

Both sides have already proved that they are nodes of the same cluster (:mod:`bridges.cluster.peers.peers`).

A message is its length in four bytes and that many bytes, whose meaning is up to the handler of the stream. The length
2^32 - 1 marks the end; a connection that closes without it was lost.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from anabranch_kit.memory.budget import Kind
from bridges.errors import PeerUnreachable

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget

MESSAGE_BYTES = 128 * 1024 * 1024
"""Largest message, in bytes: more than the largest request of any protocol."""
_LENGTH = struct.Struct(">I")
_END = 0xFFFFFFFF
T = TypeVar("T")


class PeerStream:
    """One side of a stream. One task reads; any may write. Errors: PeerUnreachable."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        budget: MemoryBudget,
        other: str,
        most: int = MESSAGE_BYTES,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._other = other
        self._most = most
        self._room: asyncio.Event = asyncio.Event()
        self.account = budget.account(self._room.set)
        """Counts messages that were read until their reader gives the bytes back."""
        self._writing = asyncio.Lock()
        self._on_drain: Callable[[], None] | None = None
        self._lost = ""
        self.draining = False
        """This node is stopping: handlers must begin nothing new."""

    async def read(self) -> bytes | None:
        """Return the next message, None after the other side's last one.

        Its bytes count in the account until the caller gives them back. While the node is short of memory, nothing is
        read.
        """
        while self.account.crowded:
            self._room.clear()
            self.account.wait()
            await self._room.wait()
        held = 0
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length == _END:
                return None
            if length > self._most:
                raise OSError(f"a message of {length} bytes")
            self.account.take(Kind.REQUESTS, length)
            held = length
            message = await self._reader.readexactly(length)
            held = 0
            return message
        except (OSError, EOFError) as error:
            raise self._unreachable(error) from None
        finally:
            self.account.give(Kind.REQUESTS, held)

    async def receive(self, kind: type[T]) -> T | None:
        """Return the next message decoded, None after the other side's last one. Its bytes are given back."""
        raw = await self.read()
        if raw is None:
            return None
        try:
            return msgspec.msgpack.decode(raw, type=kind)
        finally:
            self.account.give(Kind.REQUESTS, len(raw))

    async def write(self, raw: bytes) -> None:
        """Send a message; return when there is room for the next one."""
        size = len(raw)
        self.account.take(Kind.RESPONSES, size)
        try:
            async with self._writing:
                self._writer.write(_LENGTH.pack(size))
                self._writer.write(raw)
                await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise self._unreachable(error) from None
        finally:
            self.account.give(Kind.RESPONSES, size)

    async def done_writing(self) -> None:
        """Mark the end of this side's messages."""
        try:
            async with self._writing:
                self._writer.write(_LENGTH.pack(_END))
                await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise self._unreachable(error) from None

    def lose(self, reason: str) -> None:
        """Abort the stream: its readers and writers get an error."""
        self._lost = self._lost or reason
        self._writer.transport.abort()

    def close(self) -> None:
        """Close the stream after the written messages are sent."""
        self._on_drain = None
        self._writer.close()
        self.account.close()

    def when_draining(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when this node begins to stop; at once if it has."""
        self._on_drain = callback
        if self.draining:
            callback()

    def drain(self) -> None:
        """Note that the node begins to stop."""
        self.draining = True
        if self._on_drain is not None:
            self._on_drain()

    def _unreachable(self, error: Exception) -> PeerUnreachable:
        return PeerUnreachable(f"{self._other} {self._lost or str(error) or 'has closed the connection'}")
