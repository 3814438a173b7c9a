"""A schema registry that answers as Confluent's does, as far as serializers and a node ask; where told, wrongly."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

Answer = tuple[int, bytes]


class FakeRegistry:
    """Schemas by id, GUID and subject. ``fault`` answers instead, if it is set; ``asked`` has each GET's path."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.logins: set[str | None] = set()
        self.fault: Callable[[str], Answer | None] = lambda path: None
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def register(self, subject: str, schema: object, kind: str = "AVRO", references: object = ()) -> int:
        """Register a schema, or find it; return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": kind, "references": list(references)}  # type: ignore[call-overload]
        with self._lock:
            if body not in self._schemas:
                self._schemas.append(body)
            number = self._schemas.index(body) + 1
            versions = self._subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
        return number

    def answer(self, method: str, path: str, body: Mapping[str, Any]) -> Answer:
        """Answer a request."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match method, parts:
            case "POST", ["subjects", subject, *_]:
                kind = body.get("schemaType") or "AVRO"
                number = self.register(subject, body["schema"], kind, body.get("references") or [])
                return self._shown(number, subject)
            case "GET", ["schemas", "ids", number] if number.isdigit() and 0 < int(number) <= len(self._schemas):
                return self._shown(int(number))
            case "GET", ["schemas", "guids", guid]:
                return self._shown(UUID(guid).int)
            case "GET", ["subjects", subject, "versions", version] if subject in self._subjects:
                versions = self._subjects[subject]
                return self._shown(versions[-1 if version == "latest" else int(version) - 1], subject)
        return 404, b'{"error_code": 40403, "message": "Schema not found"}'

    def _shown(self, number: int, subject: str | None = None) -> Answer:
        if not 0 < number <= len(self._schemas):
            return 404, b"{}"
        shown = {**self._schemas[number - 1], "guid": str(UUID(int=number))}
        if subject is not None:
            shown |= {"subject": subject, "id": number, "version": self._subjects[subject].index(number) + 1}
        return 200, json.dumps(shown).encode()


@contextmanager
def registry() -> Iterator[FakeRegistry]:
    """Serve a registry at a free port."""
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if self.command == "GET":
                fake.asked.append(path)
                fake.logins.add(self.headers.get("Authorization"))
            status, answer = fake.fault(path) or fake.answer(self.command, path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            try:
                self.wfile.write(answer)
            except OSError:
                self.close_connection = True  # it has read enough

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()


def silence(seconds: float) -> Callable[[str], Answer | None]:
    """Return a fault: an answer that comes later."""

    def wait(path: str) -> None:
        time.sleep(seconds)  # as a slow registry does

    return wait
