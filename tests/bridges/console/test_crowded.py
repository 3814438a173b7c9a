"""A node with thousands of topics and of clients' connections: how long its page takes, and what it costs the node.
``make console-hour`` runs it, before the hour."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from selenium.webdriver.common.by import By

from tests.bridges.console.chromium import complaints
from tests.bridges.console.page import Window
from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, FRONTS, NodeProcess

pytestmark = [pytest.mark.browser, pytest.mark.hour, pytest.mark.timeout(900)]

TOPICS = 3_000
CONNECTIONS = 10_000
PROCESSES = 4
PATIENCE = 120
MOST_BYTES = 256 * 1024
STALL_S = 0.25
"""The event loop is never held for longer by what the page asks."""
SCREENS = ("", "topics", "connections", "connections?search=app-01", "topics?sort=bytes&descending=true")

CONNECT = """
import socket, struct, sys
host, port, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
held = []
for number in range(first, first + count):
    name = f"app-{number:05}".encode()
    body = struct.pack(">hhih", 18, 0, number, len(name)) + name
    link = socket.create_connection((host, port))
    link.sendall(struct.pack(">i", len(body)) + body)
    assert link.recv(4), "the node has closed the connection"
    held.append(link)
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    few = dict.fromkeys(("ydb", "pravega", "pipeline", "sbp"), "50")
    settings = {f"{front}.max_connections": most for front, most in (few | {"kafka": str(CONNECTIONS + 100)}).items()}
    settings |= {**TEST_SETTINGS, "pravega.max_controller_connections": "50", "limits.http_connections": "200"}
    with NodeProcess(tmp_path / "data", settings=settings, listen=dict.fromkeys(FRONTS, ANY)).lent() as process:
        admin = AdminClient({"bootstrap.servers": process.kafka})
        for first in range(0, TOPICS, 500):
            made = admin.create_topics([NewTopic(f"topic-{first + number:05}", 1) for number in range(500)])
            for one in made.values():
                one.result(PATIENCE)
        yield process


@pytest.fixture
def crowd(node: NodeProcess) -> Iterator[None]:
    host, _, port = node.kafka.rpartition(":")
    share = CONNECTIONS // PROCESSES
    with ExitStack() as stack:
        connected = []
        for number in range(PROCESSES):
            command = [sys.executable, "-c", CONNECT, host, port, str(number * share), str(share)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = stack.enter_context(subprocess.Popen(command, text=True, **pipes))  # type: ignore[call-overload]
            stack.callback(process.kill)
            connected.append(process)
        for process in connected:
            assert process.stdout.readline() == "connected\n"
        yield


def longest_stall(node: NodeProcess) -> float:
    with urlopen(f"{node.console}/metrics", timeout=PATIENCE) as answer:
        (found,) = re.findall(r"^anabranch_loop_stall_longest_seconds\S* (\S+)", answer.read().decode(), re.MULTILINE)
    return float(found)


def ask(node: NodeProcess, path: str) -> tuple[float, int, Any]:
    begun = time.monotonic()
    with urlopen(node.console + path, timeout=PATIENCE) as answer:
        text = answer.read()
    return time.monotonic() - begun, len(text), json.loads(text)


def test_the_page_with_ten_thousand_connections(
    chromium: Any, node: NodeProcess, crowd: None, capsys: pytest.CaptureFixture[str]
) -> None:
    page, process = Window(chromium, f"{node.console}/"), psutil.Process(node.pid)
    stalled = longest_stall(node)
    told = [f"{process.memory_info().rss / 2**20:.0f} MiB of memory; longest stall before {stalled * 1000:.0f} ms"]
    seconds, size, answer = ask(node, "/api/connections?limit=50")
    assert answer["total"] >= CONNECTIONS
    assert len(answer["connections"]) == 50
    told.append(f"a page of connections: {seconds:.3f} s, {size} bytes")
    seconds, size, answer = ask(node, "/api/connections?search=app-09999&limit=50")
    assert [one["client"] for one in answer["connections"]] == ["app-09999"]
    told.append(f"a search in connections: {seconds:.3f} s")
    for screen in SCREENS:
        begun, cpu = time.monotonic(), sum(process.cpu_times()[:2])
        page.open(screen)
        rows = "main tbody tr"
        page.until(lambda rows=rows: page.driver.find_elements(By.CSS_SELECTOR, rows))
        taken = time.monotonic() - begun
        cost = sum(process.cpu_times()[:2]) - cpu
        sizes = page.driver.execute_script(
            "return performance.getEntriesByType('resource').map(one => one.decodedBodySize)"
        )
        told.append(f"{screen or 'overview'}: {taken:.2f} s, {cost:.2f} s of the node, largest answer {max(sizes)}")
        assert max(sizes) <= MOST_BYTES
        assert len(page.driver.find_elements(By.CSS_SELECTOR, rows)) <= 200
        assert complaints(page.driver) == []
    told.append(f"{process.memory_info().rss / 2**20:.0f} MiB; longest stall {longest_stall(node) * 1000:.0f} ms")
    with capsys.disabled():
        print("", *told, sep="\n  ")
    assert longest_stall(node) < max(STALL_S, 1.5 * stalled)
