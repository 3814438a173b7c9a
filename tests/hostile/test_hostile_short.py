"""Everything at once, for a few seconds and with few connections: the short form of `make hostile`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PHASES = ("all-at-once", "ydb-all-at-once", "pravega-all-at-once")
RUN = Path(__file__).resolve().parent / "run.py"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nobody_who_behaves_is_harmed_by_those_who_do_not(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, str(RUN), "--scale", "0.1", "--seconds", "5", "--megabytes", "30", "--seed", "7"]
    # Other tests run beside it: how long they hold up somebody says nothing here, and they leave nothing unused.
    command += ["--stall", "60", "--compete"]
    done = subprocess.run(
        [
            *command,
            "--only",
            *PHASES,
            "--json",
            str(report),
            "--directory",
            str(tmp_path / "node"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    result = json.loads(report.read_text())
    assert result["violations"] == []
    assert [line["phase"] for line in result["lines"]] == ["calm", *PHASES]
    for hostile in result["lines"][1:]:
        for kind, told in hostile["attacks"].items():
            assert told["connections"] > 0, f"{kind} never reached the node: nothing was tested"
        assert all(hostile["requests"].values())
