"""Nodes that tests share: what one test ends fails no other."""

from __future__ import annotations

import os
import signal

import pytest

from tests.node_process import NodeFailed, NodeProcess


def test_a_shared_node_that_has_ended_runs_again_for_the_next_test(node: NodeProcess) -> None:
    assert node.process is not None
    first = node.pid
    os.kill(first, signal.SIGKILL)
    node.process.wait()
    node.revive()
    assert node.pid != first
    second = node.pid
    node.revive()
    assert node.pid == second, "it runs"
    node.terminate()
    node.revive()
    assert node.process is None, "it was told to end"


def test_a_shared_node_whose_start_took_too_long_is_started_again(node: NodeProcess) -> None:
    node.start_seconds, patience = 0.0, node.start_seconds
    with pytest.raises(NodeFailed, match="not ready"):
        node.restart(kill=True)
    node.start_seconds = patience
    node.revive()
    assert node.process is not None
