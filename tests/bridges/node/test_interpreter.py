"""A node's process has its threads wait little for each other, and its collector look at little at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node_process import NodeProcess

TOLD = """
import atexit, gc, os, sys

def told():
    with open(os.environ["TOLD"], "w") as file:
        file.write(f"{sys.getswitchinterval()} {gc.get_threshold()} {gc.isenabled()}")

atexit.register(told)
"""


def test_a_node_shares_the_interpreter_and_collects_little_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(TOLD)
    told = tmp_path / "told"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TOLD", str(told))
    node = NodeProcess(tmp_path / "data")
    with node.lent():
        node.terminate()
    assert told.read_text() == "0.0005 (3000, 2, 6700) True"
