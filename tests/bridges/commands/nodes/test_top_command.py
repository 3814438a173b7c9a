"""``anabranch top``: what it makes of two scrapes, and that it goes on where a node ends and comes again."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from rich.console import Console

from bridges.commands.nodes.top_figures import Figures, Scrape, all_figures, figures, scrape
from bridges.commands.nodes.top_screen import caught_up, count, screen, size
from tests.node_process import NodeProcess

METRICS = """\
# TYPE anabranch_connections gauge
anabranch_connections{front="kafka"} 3.0
# TYPE anabranch_appended_records counter
anabranch_appended_records_total{front="kafka",topic="a"} %(a)s
anabranch_appended_records_total{front="kafka",topic="b"} 7.0
# TYPE anabranch_appended_bytes counter
anabranch_appended_bytes_total{front="kafka",topic="a"} %(a)s
# TYPE anabranch_group_lag_records gauge
anabranch_group_lag_records{group="g",partition="0",space="kafka",topic="a"} %(lag)s
anabranch_group_lag_records{group="g",partition="1",space="kafka",topic="a"} 10
# TYPE anabranch_group_lag_seconds gauge
anabranch_group_lag_seconds{group="g",space="kafka"} 7.5
# TYPE anabranch_loop_stall_seconds histogram
anabranch_loop_stall_seconds_bucket{le="0.001"} %(beats)s
anabranch_loop_stall_seconds_bucket{le="0.25"} %(late)s
anabranch_loop_stall_seconds_bucket{le="+Inf"} %(late)s
# TYPE anabranch_cpu_seconds counter
anabranch_cpu_seconds_total %(cpu)s
"""


def seen(before: dict[str, float], now: dict[str, float], seconds: float = 2.0) -> Figures:
    first, second = ((METRICS % one).splitlines(keepends=True) for one in (before, now))
    return figures(scrape(first, 10.0), scrape(second, 10.0 + seconds))


EARLIER = {"a": 100, "lag": 50, "beats": 10, "late": 10, "cpu": 1}


def test_rates_are_of_the_time_between_two_scrapes() -> None:
    found = seen(EARLIER, {"a": 300, "lag": 90, "beats": 20, "late": 20, "cpu": 2})
    (kafka,) = found.protocols
    assert (kafka.connections, kafka.flow.records_in, kafka.flow.bytes_in) == (3, 100, 100)
    assert [(one.name, one.flow.records_in) for one in found.topics] == [("a", 100), ("b", 0)]
    assert [(one.name, one.lag, one.late, one.trend) for one in found.groups] == [("g", 100, 7.5, 20)]
    assert (found.cpu, found.stall_s) == (0.5, 0.0)


def test_nodes_of_a_cluster_are_added_up_and_told_apart() -> None:
    def scraped(at: float, **more: float) -> Scrape:
        return scrape((METRICS % (EARLIER | more)).splitlines(keepends=True), at)

    before = {"node 1": scraped(10), "node 2": scraped(10), "node 3": scraped(10)}
    now = {"node 1": scraped(12, a=300, cpu=2), "node 2": scraped(12, late=11, beats=10)}
    found = all_figures(before, now, 1)
    assert [(one.name, one.cpu, one.flow.records_in, one.stall_s) for one in found.nodes] == [
        ("node 1", 0.5, 100, 0.0),
        ("node 2", 0.0, 0, 0.25),
    ]
    assert (found.unheard, found.cpu, found.protocols[0].connections, found.stall_s) == (1, 0.5, 6, 0.25)
    assert found.topics[0].flow.records_in == 100, "a node that does not answer has taken nothing back"
    console = Console(width=100)
    with console.capture() as capture:
        console.print(screen(found, "here", 40))
    assert "2 nodes, 1 do not answer" in capture.get()


def test_the_longest_stall_is_that_of_the_interval() -> None:
    assert seen(EARLIER, EARLIER | {"beats": 20, "late": 21}).stall_s == 0.25
    long_ago = EARLIER | {"late": 30}
    assert seen(long_ago, long_ago | {"beats": 20, "late": 40}).stall_s == 0.0


def test_a_node_that_began_anew_counts_from_nothing() -> None:
    found = seen(EARLIER, {"a": 30, "lag": 0, "beats": 1, "late": 1, "cpu": 0.5})
    assert (found.topics[0].flow.records_in, found.cpu) == (15, 0.25)


def test_figures_for_people() -> None:
    assert [count(one) for one in (0, 7, 0.5, 999, 1000, 49_400, 1.5e9)] == [
        "0",
        "7",
        "0.5",
        "999",
        "1k",
        "49.4k",
        "1.5G",
    ]
    assert [size(one) for one in (0, 1024, 300 * 1024**2, 2**70)] == ["0 B", "1 KiB", "300 MiB", "1073741824 TiB"]
    assert [caught_up(*one) for one in ((0, 5), (10, 0), (10, 1), (10, -1), (7200, -1), (90, -1), (86400, -0.5))] == [
        "now", "-", "-", "10s", "2.0h", "1.5m", "2.0d"
    ]  # fmt: skip


@pytest.mark.parametrize("lines", [6, 24, 60])
def test_a_small_window_has_the_busiest(lines: int) -> None:
    found = seen(EARLIER, EARLIER | {"a": 200})
    console = Console(width=80, height=lines)
    with console.capture() as capture:
        console.print(screen(found, "node", lines))
    text = capture.get()
    assert text.index("kafka") < text.index("\na ")
    assert "…" not in text


def test_what_a_client_called_its_topic_cannot_move_the_cursor() -> None:
    lines = METRICS.replace('topic="a"', 'topic="a\x1b[2J"') % EARLIER
    found = figures(scrape(lines.splitlines(keepends=True), 1), scrape(lines.splitlines(keepends=True), 2))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(screen(found, "node", 40))
    assert "\x1b[2J" not in capture.get()


def top(node: NodeProcess, *words: str) -> list[str]:
    program = [sys.executable, "-m", "bridges", "top", "--node", node.console]
    return [*program, "--interval", "0.3", *words]


def test_one_look_at_a_node_as_text_and_for_programs(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        producer = Producer({"bootstrap.servers": node.bootstrap})
        producer.produce("orders", b"x")
        assert producer.flush(30) == 0
        text = subprocess.run(top(node, "--once"), capture_output=True, text=True, timeout=60, check=True).stdout
        assert "orders" in text
        assert "1 topics, " in text
        given = subprocess.run(top(node, "--json"), capture_output=True, text=True, timeout=60, check=True).stdout
        found = json.loads(given)
        assert found["resident_bytes"] > 10 * 1024**2
        assert {"kafka", "http"} <= {one["name"] for one in found["protocols"]}
        assert found["free_bytes"] > 0
    gone = subprocess.run(top(node, "--once"), capture_output=True, text=True, timeout=60, check=False)
    assert gone.returncode == 3
    assert "no node answers" in gone.stderr


def test_it_goes_on_when_its_node_ends_and_comes_again(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        master, slave = pty.openpty()
        environ = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        process = subprocess.Popen(top(node), stdin=slave, stdout=slave, stderr=slave, env=environ)
        os.close(slave)
        try:
            shows(master, "PROTOCOL")
            node.kill()
            shows(master, "no node answers")
            node.start()
            shows(master, "PROTOCOL")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            os.close(master)


def shows(master: int, text: str, seconds: float = 60.0) -> None:
    """Read what is drawn from now on until ``text`` is in it."""
    seen = ""
    deadline = time.monotonic() + seconds
    while text not in seen:
        left = deadline - time.monotonic()
        assert left > 0, seen[-2000:]
        ready, _, _ = select.select([master], [], [], left)
        if ready:
            seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(master, 65536).decode("utf-8", "replace"))


def test_all_workers_are_told(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", settings={"node.workers": "2", "node.worker_port_step": "0"}) as node:
        found = json.loads(subprocess.run(top(node, "--json"), capture_output=True, check=True, timeout=60).stdout)
        assert [one["name"] for one in found["nodes"]] == ["node 0", "node 1"]
        assert sum(one["resident_bytes"] for one in found["nodes"]) == found["resident_bytes"]
        alone = subprocess.run(top(node, "--json", "--alone"), capture_output=True, check=True, timeout=60).stdout
        assert json.loads(alone)["nodes"] == []
