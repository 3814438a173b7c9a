"""A minute of `make soak`, and that it sees what it is there to see."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.history.history import Poll
from tests.soak import soak_clients
from tests.soak.run import MEMORY_LEAST_S, check_given, grown
from tests.soak.soak_clients import Health
from tests.torture.test_torture_short import ends

MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.timeout(600)  # above all that the run itself waits for, so that it says who did not get on
def test_clients_of_all_protocols_get_on_at_one_topic(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.soak.run", "--minutes", "0.75", "--rate", "25", "--no-java"]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path / "soak"), "--json", str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, ends(done.stdout)
    told = json.loads(report.read_text())
    assert told["derived"] > 500, "hardly anything was written: nothing was tested"
    assert told["transactions"]["committed"] > 10
    assert told["transactions"]["aborted"] > 0
    assert all(told["calls"].values()), told["calls"]


def answering(after: float | None) -> Callable[[socket.socket], None]:
    """A server that answers as late, or never."""

    def serve(listener: socket.socket) -> None:
        link, _ = listener.accept()
        with link:
            link.recv(4096)
            if after is None:
                threading.Event().wait(5)
            else:
                threading.Event().wait(after)
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    return serve


@pytest.mark.parametrize(("after", "sentence"), [(None, "did not answer"), (0.4, "answered /healthz after"), (0.0, "")])
def test_a_process_that_does_not_answer_in_time_is_told_by_name(
    monkeypatch: pytest.MonkeyPatch, after: float | None, sentence: str
) -> None:
    monkeypatch.setattr(soak_clients, "SILENT_S", 1.0)
    monkeypatch.setattr(soak_clients, "HEALTH_S", 0.2)
    finish = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answering(after), args=(listener,), daemon=True).start()
        health = Health("node2", f"127.0.0.1:{listener.getsockname()[1]}", os.getpid(), finish)
        health.ask()
    assert health.is_silent == (after is None)
    assert [sentence in one and one.startswith("node2 ") for one in health.late] == [True] * bool(sentence)


def line(*sizes: int) -> dict[str, list[tuple[float, int]]]:
    """A process that had these sizes, each for as long."""
    step = 1.01 * MEMORY_LEAST_S / (len(sizes) * 16)
    every = [size * MIB for size in sizes for _ in range(16)]
    return {"node2": [(number * step, size) for number, size in enumerate(every, 1)]}


def test_memory_that_grows_is_told_by_name() -> None:
    assert grown(line(80, 100, 110, 112, 115, 115, 116, 118)) == []
    (sentence,) = grown(line(80, 90, 100, 110, 120, 140, 160, 180))
    assert sentence == "memory: node2 grew from 120 to 180 MiB in the last half"
    (sentence,) = grown({"node2": [(0.0, 80 * MIB), (1.0, 2000 * MIB)]})
    assert sentence.startswith("memory: node2 had 2000 MiB")


def test_a_group_that_was_not_given_a_record_is_told_by_name() -> None:
    """Its members together have to have all; another group has it."""
    topic = [("t/0", number, f"w:{number}:") for number in range(6)]

    def given(client: str, records: list[tuple[str, int, str]]) -> Poll:
        return Poll(client=client, invoked=0, told=0, protocol="kafka", session="1", records=records)

    events = [given("readers.0", topic[:3]), given("readers.1", topic[2:]), given("others.0", topic[:2])]
    assert check_given(events[:2], topic) == []
    (sentence,) = check_given([*events, given("others.1", topic[3:])], topic)
    assert sentence.startswith("not delivered: others was never given 1 records, as [('t/0', 2")
