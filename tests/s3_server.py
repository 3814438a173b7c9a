"""An S3 server in a process of its own: versitygw, built through the Go module proxy once, over a directory."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.drivers import Program
from tests.ports import free_port

_MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
ACCESS = {
    "AWS_ACCESS_KEY_ID": "anabranch",
    "AWS_SECRET_ACCESS_KEY": "for-tests-only",
    "AWS_REGION": "us-east-1",
}
"""What clients need in their environment, with ``AWS_ENDPOINT_URL``."""


def _build(directory: Path) -> Sequence[str]:
    return ["env", f"GOBIN={directory}", "go", "install", _MODULE]


PROGRAM = Program("versitygw", "go", [], _build, lambda directory: [str(directory / "versitygw")], variant=_MODULE)


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    """The endpoint of a server whose buckets are the directories in ``directory``."""
    port = free_port()
    environment = {
        **os.environ,
        "ROOT_ACCESS_KEY": ACCESS["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": ACCESS["AWS_SECRET_ACCESS_KEY"],
    }
    command = [*PROGRAM.command(), "--port", f"127.0.0.1:{port}", "posix", str(directory)]
    with (directory.parent / "s3.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except ConnectionError:
                assert process.poll() is None, (directory.parent / "s3.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
