"""A man in the middle, between a range server and an S3 server: it answers for the server, loses its answers, cuts off
what goes either way, and changes bytes."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import urlsplit

Fault = Callable[["Handler"], bool]
"""Does something instead of what was asked for; whether it did."""


class Faults:
    """``fault``: what happens to every request; None: nothing. ``change``: what becomes of bodies that are read.
    ``seen``: (method, path) of all that came."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.change: Callable[[str, bytes], bytes] = lambda path, data: data
        self.seen: list[tuple[str, str]] = []
        self.met = 0


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.0"
    faults: ClassVar[Faults]
    server_address: ClassVar[tuple[str, int]]
    body: bytes

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.faults.seen.append((self.command, self.path))
        fault = self.faults.fault
        if fault is not None and fault(self):
            self.faults.met += 1
            return
        status, headers, data = self.forward(self.body)
        if self.command == "GET":
            data = self.faults.change(self.path, data)
        self.answer(status, headers, data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """What the server says."""
        connection = http.client.HTTPConnection(*self.server_address, timeout=20)
        try:
            connection.request(self.command, self.path, body or None, dict(self.headers))
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, sent: int | None = None) -> None:
        """``sent``: so many bytes of the body only, and then the connection ends."""
        self.send_response(status)
        length = None
        for name, value in headers:
            if name.lower() == "content-length":
                length = value
            elif name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:sent])
        if sent is not None:
            self.cut()

    def error(self, status: int, code: str) -> bool:
        """An error as S3 tells it."""
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by a test</Message></Error>".encode()
        self.answer(status, [("Content-Type", "application/xml")], body)
        return True

    def cut(self) -> bool:
        """End the connection without an answer."""
        self.close_connection = True
        return True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """With the usual 5 some connections would be made as late as the kernel tries again."""


@contextmanager
def between(endpoint: str) -> Iterator[tuple[str, Faults]]:
    """An endpoint that leads to ``endpoint``, and what happens on the way."""
    parts = urlsplit(endpoint)
    assert parts.hostname is not None
    assert parts.port is not None
    faults = Faults()
    handler = type("OfTest", (Handler,), {"faults": faults, "server_address": (parts.hostname, parts.port)})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
