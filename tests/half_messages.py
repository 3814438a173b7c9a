"""A gRPC client that announces a message and sends a part of it, which no library does: HTTP/2 by hand (RFC 9113)."""

from __future__ import annotations

import asyncio
from struct import Struct
from types import TracebackType

_HEAD = Struct(">IBI")
_SETTING = Struct(">HI")
DATA, _HEADERS, SETTINGS, PING, WINDOW = 0, 1, 4, 6, 8
_ACK, _END_HEADERS = 1, 4
_INITIAL_WINDOW = 4
_INITIAL_WINDOW_BYTES = 65_535
_FRAME_BYTES = 16 * 1024
_ZEROS = bytes(1024 * 1024)


class HalfMessage:
    """One connection with one call of the method at ``path``. Leave the context to close it."""

    def __init__(self, host: str, port: int, path: str, **headers: str) -> None:
        self._place = host, port
        self._path = path
        self._headers = headers
        self._windows = {0: _INITIAL_WINDOW_BYTES, 1: _INITIAL_WINDOW_BYTES}
        self._initial_window = _INITIAL_WINDOW_BYTES
        self._moved = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        """The server has closed the connection."""

    async def __aenter__(self) -> HalfMessage:
        self._reader, self._writer = await asyncio.open_connection(*self._place)
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": self._path,
            ":authority": "x",
            "te": "trailers",
            "content-type": "application/grpc",
            **self._headers,
        }
        self._writer.write(
            frame(_HEADERS, _END_HEADERS, 1, b"".join(_field(name, value) for name, value in fields.items()))
        )
        self._task = asyncio.create_task(self._receive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        self._writer.transport.abort()
        await asyncio.gather(self._task, return_exceptions=True)

    async def send(self, announced: int, size: int) -> None:
        """Begin a message of ``announced`` bytes and send ``size`` of it, as the server lets it."""
        await self.more(announced.to_bytes(5, "big"))
        for sent in range(0, size, len(_ZEROS)):
            await self.more(memoryview(_ZEROS)[: size - sent])

    async def more(self, data: bytes | memoryview) -> None:
        """Send bytes of a message. Raises ConnectionError."""
        view = memoryview(data)
        while view:
            async with self._moved:
                await self._moved.wait_for(lambda: min(self._windows.values()) > 0 or self.ended.is_set())
                if self.ended.is_set():
                    raise ConnectionResetError("the server has closed the connection")
                size = min(len(view), _FRAME_BYTES, *self._windows.values())
                self._windows[0] -= size
                self._windows[1] -= size
            self._writer.write(frame(DATA, 0, 1, view[:size]))
            await self._writer.drain()
            view = view[size:]

    async def _receive(self) -> None:
        try:
            while True:
                length, flags, stream = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                kind, length = length & 0xFF, length >> 8
                body = await self._reader.readexactly(length)
                async with self._moved:
                    if kind == WINDOW:
                        self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(body, "big")
                    elif kind == SETTINGS and not flags & _ACK:
                        self._set(body)
                        self._writer.write(frame(SETTINGS, _ACK, 0, b""))
                    elif kind == PING and not flags & _ACK:
                        self._writer.write(frame(PING, _ACK, 0, body))
                    self._moved.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
            async with self._moved:
                self._moved.notify_all()

    def _set(self, settings: bytes) -> None:
        """Take over the server's settings, of which it sends new ones whenever it finds that more is on its way."""
        for at in range(0, len(settings), 6):
            name, value = _SETTING.unpack_from(settings, at)
            if name == _INITIAL_WINDOW:
                self._windows[1] += value - self._initial_window
                self._initial_window = value


def frame(kind: int, flags: int, stream: int, body: bytes | memoryview) -> bytes:
    return _HEAD.pack(len(body) << 8 | kind, flags, stream) + body


def _field(name: str, value: str) -> bytes:
    """A header that is not indexed, in plain text: neither is longer than 126 bytes."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
