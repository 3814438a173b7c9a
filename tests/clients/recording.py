"""A relay in front of a broker that notes which versions of which APIs its clients ask for."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16


class Recorder:
    """Relays connections to ``target`` (host:port), which is set before clients come and must tell them ``address``."""

    def __init__(self) -> None:
        self.target = ""
        self.asked: dict[int, set[int]] = {}
        """Versions by API key."""
        recorder = self

        class Relay(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                recorder._relay(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _relay(self, client: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        with socket.create_connection((host, int(port))) as broker:
            threading.Thread(target=_copy, args=(broker, client), daemon=True).start()
            unread = bytearray()
            while chunk := _received(client):
                unread += chunk
                self._note(unread)
                broker.sendall(chunk)

    def _note(self, unread: bytearray) -> None:
        while len(unread) >= 8:
            size, key, version = struct.unpack_from(">ihh", unread)
            if len(unread) < 4 + size:
                return
            self.asked.setdefault(key, set()).add(version)
            del unread[: 4 + size]


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_CHUNK)
    except OSError:
        return b""


def _copy(source: socket.socket, target: socket.socket) -> None:
    while chunk := _received(source):
        try:
            target.sendall(chunk)
        except OSError:
            return
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
