"""The image's health check asks the console as it is, with TLS or without."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.compose.engine import COMPOSE

SCRIPT = COMPOSE / "image" / "healthy"


@contextmanager
def console(status: int, certificate: tuple[Path, Path] | None) -> Iterator[int]:
    class Console(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *values: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Console) as server:
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_finds_how_the_node_is(status: int, encrypted: bool, tmp_path: Path) -> None:
    certificate = Authority(tmp_path, "authority").issue("node") if encrypted else None
    with console(status, certificate) as port:
        done = subprocess.run([sys.executable, "-IS", SCRIPT, str(port)], capture_output=True, timeout=60)
    assert (done.returncode == 0) == (status == 200), done.stderr


def test_a_console_that_does_not_answer_is_unhealthy() -> None:
    with console(200, None) as port:
        pass
    done = subprocess.run([sys.executable, "-IS", SCRIPT, str(port)], capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"does not answer" in done.stderr
