"""A client of the segment store's wire that says what it is told to, and nothing else."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import TypeVar

from pravega_front.wire.commands import Command
from pravega_front.wire.frames import HEAD, decode, encode

C = TypeVar("C", bound=Command)


def event(data: bytes) -> bytes:
    """Return an event as it lies in a segment."""
    return struct.pack(">ii", 0, len(data)) + data


class Closed(Exception):
    """The server has closed the connection."""


class RawClient:
    """One connection. ``address`` is ``host:port``."""

    def __init__(self, address: str, timeout: float = 120.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, *commands: Command | bytes) -> None:
        """Send commands, or whole frames, in one write."""
        parts = [one if isinstance(one, bytes) else b"".join(encode(one)) for one in commands]
        self._socket.sendall(b"".join(parts))

    def receive_frame(self) -> bytes:
        """The next frame. Raises Closed."""
        try:
            head = self._stream.read(HEAD.size)
            if len(head) < HEAD.size:
                raise Closed
            (size,) = struct.unpack_from(">4xi", head)
            data = self._stream.read(size)
        except ConnectionError as error:
            raise Closed from error
        return head + data

    def receive(self, kind: type[C]) -> C:
        """The next command, which is of a kind. Raises Closed."""
        command = decode(self.receive_frame())
        assert isinstance(command, kind), command
        return command

    def ask(self, command: Command, kind: type[C]) -> C:
        """Send a command and give the next one that comes."""
        self.send(command)
        return self.receive(kind)

    def ends(self) -> bool:
        """Whether the server closes the connection, after whatever it still sends."""
        try:
            while True:
                self.receive_frame()
        except Closed:
            return True
        except TimeoutError:
            return False
