"""kill -9 of a process that writes at full speed: everything it acknowledged is there, whole and in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.sbp_back.range_server.store.store_harness import Driver, entry_bytes, make_entry
from tests.sbp_back.range_server.store.store_kill_child import kill_options

ROOT = Path(__file__).parents[4]
CYCLES = 6


@pytest.mark.timeout(300)
@pytest.mark.parametrize("durability", ["fsync", "os", "object"])
async def test_kill_9_at_full_speed(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "store"
    options = kill_options(path, durability)
    acknowledged: dict[int, int] = {}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for cycle in range(CYCLES):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.sbp_back.range_server.store.store_kill_child", str(path), durability],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
        )
        assert child.stdout is not None
        # Killed after a number of acknowledgements, so that slow machines do the same work.
        for _ in range(700 + 331 * cycle):
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            stream, end = map(int, line.split())
            acknowledged[stream] = max(acknowledged.get(stream, 0), end)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                stream, end = map(int, line.split())
                acknowledged[stream] = max(acknowledged.get(stream, 0), end)
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        async with Driver(path, options) as driver:
            for stream, end in acknowledged.items():
                stored = driver.store.ranges[stream, 0]
                assert stored.next_offset >= end
                entries = await driver.read_all(stream, stored.min_offset)
                assert entries[-1].end_offset == stored.next_offset
                for entry in entries:
                    base = entry.base_offset
                    assert entry_bytes(entry) == entry_bytes(make_entry(stream, base, 1 + base % 3, 50 + base % 1500))
                assert all(a.end_offset == b.base_offset for a, b in pairwise(entries))
    assert sum(acknowledged.values()) > 5000
