"""The client of a node: answers that break off, as those of a node that is killed while it answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_pipeline.core.client.node_client import NodeClient, NodeOptions, NodeUnavailable

BODY = b'{"already": false, "visible": true}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)


@contextmanager
def answering(*answers: bytes) -> Iterator[NodeClient]:
    """A client of a server that gives each of ``answers`` to one connection and closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                asked = b""
                while b"\r\n\r\n{}" not in asked:
                    asked += connection.recv(65536)
                connection.sendall(answer)
        listener.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    client = NodeClient(NodeOptions.parse(f"anabranch://127.0.0.1:{listener.getsockname()[1]}"))
    try:
        yield client
    finally:
        client.close()
        thread.join(30)


@pytest.mark.parametrize("cut", [0, 1, 20, len(BODY) - 1])
def test_an_answer_that_breaks_off_is_asked_for_again(cut: int) -> None:
    with answering(HEAD + BODY[:cut], HEAD + BODY) as client:
        assert client.post("/v1/sink/commit", {}) == {"already": False, "visible": True}


def test_a_head_that_breaks_off_is_none() -> None:
    with answering(HEAD[:20], b"", HEAD + BODY) as client:
        assert client.post("/v1/sink/commit", {}) == {"already": False, "visible": True}


def test_without_patience_it_is_said() -> None:
    with (
        answering(HEAD + BODY[:5]) as client,
        pytest.raises(NodeUnavailable, match="cannot be reached: IncompleteRead"),
    ):
        client.post("/v1/sink/commit", {}, patience=0)
