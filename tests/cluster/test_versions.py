"""Nodes of two releases over one PostgreSQL: one after the other is replaced, and who is too far away is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bridges.cluster.versions import OURS
from tests.cluster.load import PARTITIONS, PATIENCE, TOPIC, Writer, await_leaders, read_all
from tests.cluster.test_failover import commanded
from tests.cluster.together import together
from tests.node_process import NodeFailed, NodeProcess
from tests.postgres import Postgres
from tests.releases.write import RUN_TREE, kept_releases
from tests.test_releases import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_SCRIPT = str(Path(__file__).with_name("as_version.py"))
OLD = {"says": OURS.says, "stores": OURS.stores}
NEW = {"says": OURS.says, "stores": OURS.stores + 1}


@contextmanager
def running(tmp_path: Path, postgres: Postgres, *python: str) -> Iterator[list[NodeProcess]]:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{bucket}", "sbp.object_linger_ms": "10"}
    listeners = ("kafka", "console", "sbp-pd", "sbp-range-server")

    def settings(number: int) -> dict[str, str]:
        return stored | {"sbp.object_log": f"{number}"}

    with together(tmp_path, 2, postgres.made(), listeners, settings, python) as made:
        yield made


@pytest.fixture
def nodes(tmp_path: Path, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    with running(tmp_path, postgres, sys.executable) as made:
        yield made


def become(node: NodeProcess, version: dict[str, int] | None) -> None:
    """What its next start is of; None: what is there."""
    more = [] if version is None else [_SCRIPT, f"{version['says']}", f"{version['stores']}"]
    node.python = [sys.executable, *more]


def status(node: NodeProcess) -> tuple[dict[str, int], dict[int, dict[str, int]]]:
    """The cluster's level, and the versions of its nodes."""
    found: dict[str, Any] = json.loads(commanded(node, "status", "--json"))
    return found["level"], {one["node_id"]: one["version"] for one in found["nodes"]}


def refused(node: NodeProcess, sentence: str) -> None:
    with pytest.raises(NodeFailed, match=sentence):
        node.start()


def test_nodes_are_replaced_one_after_the_other(nodes: list[NodeProcess]) -> None:
    first, second = nodes
    bootstrap = ",".join(node.kafka for node in nodes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    assert status(first) == (OLD, {1: OLD, 2: OLD})

    second.stop()
    become(second, {"says": OURS.says, "stores": OURS.stores + 2})
    refused(second, f"this node stores version {OURS.stores + 2}, and its cluster is at version {OURS.stores}")
    become(second, {"says": OURS.says + 2, "stores": OURS.stores})
    refused(second, f"this node says version {OURS.says + 2}")

    become(second, NEW)
    second.start()
    assert status(first) == (OLD, {1: OLD, 2: NEW})
    assert "node 2 could do more" in commanded(first, "status")
    await_leaders(admin, {1, 2})
    written = Writer(bootstrap)
    written.write(1)
    # The release before has not seen the tables that the newer one has made, and goes on with them.
    first.kill()
    first.start()
    await_leaders(admin, {1, 2})
    written.write(1)
    assert status(second) == (OLD, {1: OLD, 2: NEW})

    first.stop()
    become(first, NEW)
    first.start()
    assert status(second) == (NEW, {1: NEW, 2: NEW})
    written.write(1)
    written.close()
    assert written.failed == []
    assert read_all(bootstrap) == written.acknowledged

    first.stop()
    become(first, None)
    refused(first, f"all nodes of its cluster were raised to version {NEW['stores']}: start the newer release again")


@pytest.mark.long
def test_a_cluster_of_the_former_release_is_replaced_node_by_node(tmp_path: Path, postgres: Postgres) -> None:
    commit = kept_releases()[-1].name.removesuffix(".tar.xz").rpartition("-")[2]
    packed = tmp_path / "former.tar"
    made = subprocess.run(["git", "-C", ROOT, "archive", "--output", packed, commit], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"the history of this clone does not have {commit}")
    with tarfile.open(packed) as sources:
        sources.extractall(tmp_path / "former", filter="data")
    with running(tmp_path, postgres, sys.executable, RUN_TREE, str(tmp_path / "former")) as nodes:
        bootstrap = ",".join(node.kafka for node in nodes)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
        written = Writer(bootstrap)
        written.write(1)
        for node in nodes:
            node.stop()
            node.python = [sys.executable]
            node.start()
            await_leaders(admin, {1, 2})
            written.write(1)
        written.close()
        assert written.failed == []
        assert read_all(bootstrap) == written.acknowledged
