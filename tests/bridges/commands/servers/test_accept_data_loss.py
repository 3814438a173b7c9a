"""The way on for whoever runs a node that does not start because acknowledged data is damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NodeFactory
from tests.moving_node import MIB, settings, texts, until, write_kafka
from tests.node_process import NodeFailed
from tests.numbers import consumed, produce
from tests.test_three_protocols import consumed as read_kafka

BLOCK = 4096


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "bridges", "accept-data-loss", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


def damage(store: Path) -> tuple[Path, int, bytes]:
    """Damage a group in the middle of what came since the last checkpoint, in the segment that has the most groups:
    (segment, position, content)."""
    segment = max((store / "wal").glob("*.seg"), key=lambda path: path.read_bytes().count(b"ANBRGRP\1"))
    data = bytearray(segment.read_bytes())
    groups = [at for at in range(BLOCK, len(data), BLOCK) if data[at : at + 8] == b"ANBRGRP\1"]
    at = groups[len(groups) * 3 // 4]
    data[at + 60] ^= 0xFF
    segment.write_bytes(data)
    return segment, at, bytes(data)


def test_a_node_that_refuses_damage_starts_again_once_its_loss_is_accepted(node_factory: NodeFactory) -> None:
    node = node_factory()
    produce(node, range(30), one_by_one=True)
    assert run("--data", str(node.data)).returncode == 4, "not while it runs"
    node.kill()
    segment, at, data = damage(node.data / "sbp")
    with pytest.raises(NodeFailed, match=f"{segment.name}, position {at}"):
        node.start()

    check = run("--data", str(node.data), "--check", "--json")
    assert check.returncode == 0, check.stderr
    lost = json.loads(check.stdout)["lost"]
    assert f"segment {segment.name}, position {at}" in lost[0]
    asked = run("--data", str(node.data), stdin=b"n\n")
    assert asked.returncode == 1
    assert lost[0] in asked.stdout.decode()
    assert data == segment.read_bytes(), "nothing was changed"

    done = run("--data", str(node.data), "--yes")
    assert done.returncode == 0, done.stderr
    assert lost[0] in (node.data / "sbp" / "accepted-losses.json").read_text()
    node.start()
    produce(node, range(100, 110))
    found = list(consumed(node, 109).values())
    kept = found[: found.index(100)]
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < 30
    assert found[len(kept) :] == list(range(100, 110))
    node.terminate()
    nothing = run("--data", str(node.data))
    assert nothing.returncode == 0
    assert b"nothing to accept" in nothing.stdout


def test_a_directory_without_a_store_has_nothing_to_accept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for bucket in ((), ("--set", f"sbp.objects=file://{tmp_path / 'bucket'}")):
        assert run("--data", str(data), *bucket).returncode == 4
        assert not [*data.iterdir()], "a directory of no node stays one"


def test_a_node_whose_old_data_is_in_objects_gives_up_the_end_of_its_log_only(
    tmp_path: Path, node_factory: NodeFactory
) -> None:
    node = node_factory(settings=settings(f"file://{tmp_path}/bucket"))
    expected = texts("kafka", 600)
    write_kafka(node, "flights", expected)
    until(node, "anabranch_store_moved_bytes", 3 * MIB)
    until(node, "anabranch_store_log_bytes", 0, 3 * MIB)
    produce(node, range(30), one_by_one=True)
    node.kill()
    damage(node.data / "sbp")
    with pytest.raises(NodeFailed, match="acknowledged data is damaged"):
        node.start()
    check = run("--data", str(node.data), "--check", "--json")
    assert check.returncode == 0, check.stderr
    lost = json.loads(check.stdout)["lost"]
    assert lost
    done = run("--data", str(node.data), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lost"] == lost
    assert json.loads(done.stdout)["log"]
    node.start()
    assert [value for _, value in read_kafka(node, "flights", len(expected))] == expected
    produce(node, range(100, 110))
    found = list(consumed(node, 109).values())
    kept = found[: found.index(100)]
    assert kept == list(range(len(kept)))
    assert len(kept) < 30
