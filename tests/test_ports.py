"""No test opens a port on which a node of whoever runs the tests may be listening."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.node_process import ANY, NodeFailed, NodeProcess
from tests.ports import UsualPortOpened, usual_ports


def test_the_usual_ports_are_those_of_every_listener() -> None:
    named = {2136: "ydb", 8080: "console", 8090: "pipeline", 9090: "pravega", 9092: "kafka", 12378: "sbp-pd"}
    assert named.items() <= usual_ports().items()


def test_a_test_that_opens_a_usual_port_fails() -> None:
    with socket.socket() as one, pytest.raises(UsualPortOpened, match="9092, the usual port of kafka"):
        one.bind(("127.0.0.1", 9092))


def test_a_node_of_a_test_on_a_usual_port_fails(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node", listen={"kafka": ANY, "console": ANY, "sbp-range-server": "127.0.0.1:10912"})
    try:
        # Where that port is taken the node cannot start, which is no less a failure.
        with pytest.raises((UsualPortOpened, NodeFailed)):
            node.start()
        assert node.process is None
    finally:
        node.dispose()


@pytest.mark.parametrize("mode", [{}, {"sbp.mode": "embedded"}])
def test_listeners_nobody_asked_for_stay_closed(tmp_path: Path, mode: dict[str, str]) -> None:
    node = NodeProcess(tmp_path / "node", settings=mode, listen={"kafka": ANY})
    told = [after for before, after in zip(node.command(), node.command()[1:], strict=False) if before == "--listen"]
    assert {"sbp-pd=off", "sbp-range-server=off", "console=off", "pipeline=off"} <= set(told)
