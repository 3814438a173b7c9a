"""What tests of migrations share: the command, what it moves, and how far it is."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from bridges.commands.cli import main
from spark_pipeline.core.errors import UnknownTopic
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.endpoints.importer import Importer
from tests.node_process import NodeProcess

ALL = Columns.select(headers=True, metadata=True)
PATIENCE = 90


def target_url(node: NodeProcess) -> str:
    """A node as a target."""
    return f"anabranch://{node.addresses['pipeline']}"


def migrate(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """Run ``anabranch migrate`` here, and give its report, or its error."""
    return run(main, code, "migrate", *arguments, "--json")


def run(group: Any, code: int, *words: object) -> dict[str, Any]:
    """The report of a command, which ends with ``code``."""
    done: Result = CliRunner().invoke(group, [str(one) for one in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout or done.stderr.splitlines()[-1])
    return report


def planned(source: str, target: NodeProcess, path: Path, *topics: str) -> Path:
    """A plan to move ``topics`` from a URL to a node."""
    plan = path / f"plan-{topics[0]}.json"
    named = [word for topic in topics for word in ("--topics", topic)]
    migrate("plan", "--from", source, "--to", target_url(target), "-o", plan, *named)
    return plan


def rows(url: str, topic: str, *partitions: int) -> list[dict[str, Any]]:
    """All records, without what each side tells of its own: when a message came there."""
    side = endpoint(url)
    try:
        found = []
        for part, at in side.positions([TopicPartition(topic, one) for one in partitions]).items():
            wanted = OffsetRange(part.topic, part.partition, at.start, at.stable)
            found += [row for batch in side.read(wanted, ALL) for row in batch.to_pylist()]
    finally:
        side.close()
    return [{name: value for name, value in row.items() if name != "written"} for row in found]


def moved(importer: Importer, topic: str, job: subprocess.Popen[Any]) -> None:
    """Return when there is more at the target than there was."""
    before = None
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert job.poll() is None
        try:
            now = sum(one.high_watermark for one in importer.state(topic).partitions)
        except UnknownTopic:
            continue
        before = now if before is None else before
        if now > before:
            return
    raise AssertionError("nothing has moved")


def reached(importer: Importer, topic: str, ends: list[int], job: subprocess.Popen[Any]) -> None:
    """Return when the partitions of a topic end there at the target."""
    deadline = time.monotonic() + PATIENCE
    while [one.high_watermark for one in importer.state(topic).partitions] != ends:
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
