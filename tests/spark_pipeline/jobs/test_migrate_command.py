"""What people see of a migration: its plan as a table, options asked for once, and one row in the list of jobs."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bridges.commands.cli import main
from spark_pipeline.core.client.job_client import JobProgress
from spark_pipeline.jobs.migrate.options import recall_options, remember_options
from spark_pipeline.jobs.migrate.plan import Plan
from spark_pipeline.jobs.migrate.state import MigrationState
from tests.conftest import NodeFactory
from tests.node_process import NodeProcess
from tests.spark_pipeline.conftest import PIPELINE
from tests.spark_pipeline.jobs.migrations import migrate, target_url


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], NodeProcess]]:
    factory = NodeFactory(tmp_path / "nodes")
    try:
        yield lambda name: factory(name, listen=PIPELINE)
    finally:
        factory.dispose()


def jobs(node: NodeProcess) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{node.console}/api/jobs", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["jobs"]
    return found


def test_a_plan_is_a_table_and_its_migration_one_row(make: Callable[[str], NodeProcess], tmp_path: Path) -> None:
    source, target = make("source"), make("target")
    config = {"retention.ms": "1000000000", "segment.ms": "100"}
    admin = AdminClient({"bootstrap.servers": source.kafka})
    made = admin.create_topics([NewTopic("orders", 2, config=config)])
    made["orders"].result(30)
    producer = Producer({"bootstrap.servers": source.kafka})
    for number in range(10):
        producer.produce("orders", b"order %d" % number, partition=0)
    assert producer.flush(30) == 0
    plan = tmp_path / "plan.json"
    sides = ["--from", f"kafka://{source.kafka}", "--to", target_url(target), "-o", str(plan)]
    given = ["--source-option", "kafka.client.id=mover", "--topics", "orders"]
    done = CliRunner().invoke(main, ["migrate", "plan", *sides, *given], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    text = done.stdout
    (row,) = [line.split() for line in text.splitlines() if line.startswith("orders ") and "retention.ms" in line]
    assert row[:3] == ["orders", "2", "10"]
    changed, left = text.index("\nChanged:"), text.index("\nLeft:")
    assert changed < text.index("segment.ms = 100") < left < text.index("users and passwords")
    assert changed < text.index("leader epochs") < left
    again = CliRunner().invoke(main, ["migrate", "plan", *sides, *given, "--json"])
    assert again.exit_code == 1, "a plan never changes"
    assert json.loads(again.stderr)["kind"] == "PlanError"

    migration = Plan.load(plan).migration
    assert migrate("run", plan, "--quiet")["lag"] == 0
    assert migrate("verify", plan, "--quiet")["differences"] == []
    (job,) = jobs(target)
    assert (job["job_id"], job["state"], job["details"]["verified"]) == (migration, "done", "equal at level 2")
    assert migrate("cutover", plan, "--silence", "0.2", "--quiet")["migration"] == migration
    assert len(jobs(target)) == 1


def test_a_verification_leaves_the_row_to_a_process_that_copies(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    Plan("m", "kafka://a", "anabranch://b", 0, ()).save(path)
    with MigrationState(path, exclusive=False) as verifies:
        assert not verifies.is_busy
        with MigrationState(path) as copies:
            assert verifies.is_busy
            assert not copies.is_busy
            verifies.report("verify", {"level": 1, "differences": [{}]})
            told = copies.with_verdict(lambda: JobProgress(details={"step": "following"}))()
            assert told.details == {"step": "following", "verified": "1 difference at level 1"}
        assert not verifies.is_busy
        with MigrationState(path):
            assert verifies.is_busy, "a look locks nobody out"


def test_options_are_asked_for_once_and_secrets_are_not_stored(tmp_path: Path) -> None:
    plan, file = tmp_path / "plan.json", tmp_path / "options.json"
    given = {
        "source_option": ("kafka.client.id=a", "kafka.sasl.password=hidden", "password=@/secret"),
        "target_option": ("ydb=ydb://h:1/local",),
        "options_file": file,
    }
    none = {"source_option": (), "target_option": (), "options_file": None, "quiet": True}
    assert recall_options(plan, none) == none
    remember_options(plan, **given)
    kept = "".join(one.read_text() for one in tmp_path.rglob("*") if one.is_file())
    assert "hidden" not in kept
    assert recall_options(plan, none) == {
        "source_option": ("kafka.client.id=a", "password=@/secret"),
        "target_option": ("ydb=ydb://h:1/local",),
        "options_file": file,
        "quiet": True,
    }
    other = recall_options(plan, {**none, "source_option": ("kafka.client.id=b",), "options_file": tmp_path})
    assert other["source_option"][-1] == "kafka.client.id=b", "the last one counts"
    assert other["options_file"] == tmp_path
