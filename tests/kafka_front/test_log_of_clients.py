"""What clients do wrong does not fill the log: of each kind of line a few are written, the others counted."""

from __future__ import annotations

import json
import socket
import struct
import urllib.request
from collections import Counter
from contextlib import closing

import pytest

from kafka_front.wire import codec
from kafka_front.wire import messages as m
from tests.conftest import NodeFactory
from tests.node_process import NodeProcess

TIMES = 120
LEFT_OUT = "anabranch_log_lines_left_out_total"
LINES = 5


def cut(address: str, data: bytes) -> None:
    """Send ``data`` on a connection of its own; returns when the node has closed it."""
    host, _, port = address.rpartition(":")
    with closing(socket.create_connection((host, int(port)), 30)) as connection:
        connection.settimeout(30)
        try:
            connection.sendall(data)
            while connection.recv(4096):
                pass
        except ConnectionError:
            pass  # closed with a reset, because it had not read everything


def samples(node: NodeProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{node.console}/metrics") as response:
        lines = [line.rpartition(" ") for line in response.read().decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in lines}


def frame(key: int, version: int, body: bytes = b"") -> bytes:
    header = struct.pack(">hhih", key, version, 1, 4) + b"rude"
    return struct.pack(">i", len(header) + len(body)) + header + body


FLOODS = {
    "a removed version": ("kafka", frame(1, 3)),
    "an API nobody has": ("kafka", frame(999, 0)),
    "a request cut short": ("kafka", frame(3, 9, b"\xff")),
    "a frame too large": ("kafka", struct.pack(">i", 2**31 - 1)),
    "another protocol": ("kafka", b"GET / HTTP/1.1\r\n\r\n"),
    "garbage to the range server": ("sbp-range-server", b"\xff" * 64),
    "garbage to the placement driver": ("sbp-pd", b"\xff" * 64),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_client_that_repeats_its_mistake_writes_a_few_lines(node_factory: NodeFactory, flood: str) -> None:
    node = node_factory(settings={"logging.repeated_lines": str(LINES)})
    listener, data = FLOODS[flood]
    quiet = len(node.log.read_text().splitlines())
    for _ in range(TIMES):
        cut(node.addresses[listener], data)
    left_out = sum(value for name, value in samples(node).items() if name.startswith(LEFT_OUT))
    assert node.terminate() == 0
    lines = [json.loads(line) for line in node.log.read_text().splitlines()[quiet:]]
    told = [line for line in lines if line["event"] == "log lines were left out"]
    mistakes = [line for line in lines if line["level"] == "warning" and line not in told]
    assert len(mistakes) + left_out == TIMES
    # More than one period may have passed, on a slow machine many: but no more lines than in each of them.
    periods = Counter(line["time"][:18] for line in mistakes)
    assert max(periods.values()) <= 2 * LINES
    counted = sum(line["lines"] for line in told) + sum(line.get("left_out", 0) for line in mistakes)
    assert counted == left_out, "every line left out is told of once"


def test_refused_connections_are_limited_too(node_factory: NodeFactory) -> None:
    settings = {
        "logging.repeated_lines": str(LINES),
        "kafka.max_connections": "1",
        "kafka.group.initial_rebalance_delay_ms": "10m",
    }
    node = node_factory(settings=settings)
    host, _, port = node.kafka.rpartition(":")
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", b"")
    join = m.JoinGroupRequest("g", 60_000, 600_000, "", None, "consumer", [protocol])
    with closing(socket.create_connection((host, int(port)), 30)) as first:
        # It waits for its answer, so that nobody may have its place.
        first.sendall(b"".join(codec.encode_request(2, 1, "first", join)))
        while not groups(node):
            pass
        for _ in range(TIMES):
            cut(node.kafka, b"")
        values = samples(node)
    assert values['anabranch_connections_refused_total{front="kafka"}'] == TIMES
    refused = node.log.read_text().count("connection refused")
    assert refused + values[f'{LEFT_OUT}{{like="connection refused"}}'] == TIMES


def groups(node: NodeProcess) -> list[str]:
    with urllib.request.urlopen(f"{node.console}/api/groups") as response:
        return [group["group"] for group in json.load(response)["groups"]]
