"""Three kills under load with the whole verdict: the short form of `make torture`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def ends(output: str) -> str:
    """How a run went wrong, and how it ended: what threads say when they are given up may be long."""
    first = output.find("Traceback")
    return output if len(output) < 12_000 else f"{output[max(0, first) :][:6_000]}\n[...]\n{output[-6_000:]}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker", ["node", pytest.param("document", marks=pytest.mark.long)])
def test_promises_are_kept_over_three_kills(tmp_path: Path, broker: str) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.torture.run", "--cycles", "3", "--life", "0.5", "1.5"]
    done = subprocess.run(
        [*command, "--json", str(report), "--broker", broker, "--no-java", "--directory", str(tmp_path / "node")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, ends(done.stdout)
    result = json.loads(report.read_text())
    assert result["kills"] == 3
    assert result["verdict"]["violations"] == []
    assert result["verdict"]["acknowledged"] > 1000, "hardly anything was acknowledged: nothing was tested"
    # Of two with one name, or of two members of a group, one may have been left out.
    for name in ("ydb-placed-gzip", "ydb-pinned-raw", "ydb-nameless"):
        assert result["producers"][name]["acknowledged"] > 0, name
    assert result["readers"]["both"]["committed"] > 0
    assert result["producers"]["pravega-writer"]["acknowledged"] > 0
    assert result["producers"]["pravega-transactions"]["committed"] > 0
    assert result["readers"]["pravega-reader"]["read"] > 0
    assert sum(result["readers"][f"ydb-member-{number}"]["committed"] for number in range(2)) > 0
    if broker == "node":
        assert "refused" in result["flipped_bit"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_histories_of_three_protocols_in_one_topic_have_no_anomaly(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.torture.mixed", "--seconds", "4", "--json", str(report)]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, ends(done.stdout)
    result = json.loads(report.read_text())
    assert result["violations"] == []
    assert sum(result["faults"].values()) >= 1
    assert result["events"] > 1000
    assert result["transactions"]["committed"] > 0
    assert result["derived"] > 0
    assert all(result["calls"].values()), result["calls"]
