"""The commands of archives and audits on a node as users run it, whose topic Kafka's client has written."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from deltalake import DeltaTable

from spark_pipeline.core.digest import digest
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.jobs.archive.command import command as archive
from spark_pipeline.jobs.audit.command import command as audit
from spark_pipeline.jobs.replay.command import command as replay
from spark_pipeline.lake.archive import Archive
from tests.node_process import ANY, FRONTS, SELDOM, NodeProcess

COUNT = 3000
DAY = 24 * 3600 * 1000
NOON = 1_357_041_600_000


@dataclass
class Ran:
    """How a command ended, and the report that it printed."""

    code: int
    report: Any
    output: str


def run(group: Any, *words: str) -> Ran:
    result = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    report = json.loads(result.stdout) if result.stdout.startswith("{") else None
    return Ran(result.exit_code, report, result.output)


def produce(kafka: str, topic: str, start: int, end: int, codec: str = "zstd") -> None:
    """Records over three days, in two partitions by key."""
    producer = Producer(
        {"bootstrap.servers": kafka, "enable.idempotence": True, "compression.type": codec, "linger.ms": 5}
    )
    for number in range(start, end):
        producer.produce(
            topic,
            b'{"n":%d,"carrier":"UA"}' % number if number % 50 else b"cancelled",
            b"key-%d" % (number % 17),
            timestamp=NOON + number * DAY // 1000,
            headers=[("n", b"%d" % number), ("none", None)] if number % 3 else None,
        )
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    listen = dict.fromkeys((*FRONTS, *SELDOM), ANY)
    made = NodeProcess(tmp_path_factory.mktemp("lake") / "node", listen=listen, settings={"kafka.num_partitions": "2"})
    made.start()
    try:
        produce(made.kafka, "flights", 0, COUNT // 2)
        produce(made.kafka, "flights", COUNT // 2, COUNT, "gzip")
        yield made
    finally:
        made.dispose()


@pytest.fixture(scope="module")
def url(node: NodeProcess) -> str:
    return f"anabranch://{node.addresses['pipeline']}"


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_archive_compact_verify(kind: str, url: str, tmp_path: Path) -> None:
    place = str(tmp_path / "archive")
    given = ("run", "--from", url, "--to", place, "--topics", "fl.*", "--table", kind)
    planned = run(archive, *given, "--dry-run")
    assert (planned.code, planned.report["offsets"] >= COUNT) == (0, True)
    assert not (tmp_path / "archive").exists()
    ran = run(archive, *given, "--step-offsets", "1000", "--piece-offsets", "300")
    assert ran.code == 0, ran.output
    assert ran.report["records"] == COUNT
    assert ran.report["left"] == 0
    status = run(archive, "status", place, "--from", url)
    assert (status.report["records"], status.report["behind"]) == (COUNT, 0)
    verified = run(archive, "verify", place, "--from", url)
    assert verified.code == 0, verified.output
    assert verified.report["records"] == COUNT
    files = status.report["files"]
    assert run(archive, "compact", place, "--dry-run").report["files_before"] > 8
    compacted = run(archive, "compact", place)
    assert compacted.report["files_after"] < compacted.report["files_before"] <= files
    assert run(archive, "compact", place).report["groups"] == 0
    assert run(archive, "verify", place, "--from", url).code == 0
    if kind == "delta":
        assert DeltaTable(tmp_path / "archive" / "records").to_pyarrow_table().num_rows == COUNT
    expired = run(archive, "expire", place, "--before", "2013-01-03", "--vacuum", "2999-01-01")
    assert expired.report["records"] > 800
    assert run(archive, "status", place).report["records"] == COUNT - expired.report["records"]
    assert run(archive, "verify", place, "--from", url).code == 0


def test_the_node_lists_what_is_done(node: NodeProcess, url: str, tmp_path: Path) -> None:
    place = str(tmp_path / "archive")
    run(archive, "run", "--from", url, "--to", place, "--topics", "flights")
    with urllib.request.urlopen(f"http://{node.addresses['console']}/api/jobs", timeout=30) as answer:
        jobs = json.load(answer)["jobs"]
    (mine,) = [one for one in jobs if one["name"] == f"flights to {place}"]
    assert (mine["kind"], mine["state"], mine["done"], mine["total"]) == ("archive", "done", COUNT, COUNT)


def test_verify_finds_what_an_archive_lost(url: str, tmp_path: Path) -> None:
    place = str(tmp_path / "archive")
    run(archive, "run", "--from", url, "--to", place, "--topics", "flights", "--partition-by", "hour")
    kept = Archive.open(place)
    lost = min(kept.records.files(), key=lambda one: (one.partition, one.first))
    kept.records.replace([lost], [], same_records=False)
    ran = run(archive, "verify", place, "--from", url)
    assert ran.code == 2
    first = ran.report["differences"][0]
    assert (first["partition"], first["first"]["offset"], first["first"]["reason"]) == (
        lost.partition,
        lost.first,
        "missing on the right",
    )
    assert run(archive, "verify", str(tmp_path / "nothing"), "--from", url).code == 1


def test_replay_brings_back_what_was_archived(url: str, tmp_path: Path) -> None:
    place = str(tmp_path / "archive")
    assert run(archive, "run", "--from", url, "--to", place, "--topics", "flights").code == 0
    given = ("--from", f"archive://{place}", "--to", url, "--topics", "flights", "--rename", "flights=again")
    assert run(replay, *given, "--dry-run").report["offsets"] == COUNT
    ran = run(replay, *given, "--codec", "lz4")
    assert (ran.code, ran.report["records"]) == (0, COUNT)
    copy = str(tmp_path / "copy")
    assert run(archive, "run", "--from", url, "--to", copy, "--topics", "again").code == 0
    there, back = (read(f"archive://{one}", topic) for one, topic in ((place, "flights"), (copy, "again")))
    assert there == back


def read(place: str, topic: str) -> dict[int, Any]:
    """Digests of all partitions."""
    columns = Columns(("key", "value", "offset", "timestamp", "headers"))
    return {number: digest(endpoint(place).read(OffsetRange(topic, number, 0, 1 << 60), columns)) for number in (0, 1)}


def test_audits_of_a_node(url: str, tmp_path: Path) -> None:
    checked = run(audit, "check", url, "--topics", "flights")
    assert checked.code == 0, checked.output
    assert checked.report["records"] == COUNT
    assert checked.report["batches"]["checked"] >= 4
    assert checked.report["damaged"] == []
    assert [one["gaps"] for one in checked.report["partitions"]] == [[], []]
    assert run(audit, "gaps", url, "--topics", "flights").report["records"] == COUNT
    path = tmp_path / "digests.json"
    assert run(audit, "digest", url, "--topics", "flights", "--report", str(path)).code == 0
    assert run(audit, "diff", str(path), url).code == 0
    assert run(audit, "diff", url, url, "--topics", "flights", "--level", "3").code == 0
    assert run(audit, "check", url, "--topics", "nowhere").code == 1
    nobody = ("anabranch://127.0.0.1:1", "--option", "patienceMs=100")
    assert run(audit, "check", *nobody, "--topics", "flights").code == 1


@pytest.mark.parametrize(("topic", "count"), [("flights", COUNT), ("orders.of-2013", 100)])
def test_every_protocol_reads_the_same(node: NodeProcess, url: str, topic: str, count: int) -> None:
    """Whatever it calls the topic: with a dot in its name it is a path, or a stream of another scope."""
    if topic != "flights":
        produce(node.kafka, topic, 0, count)
    listeners = [word for name in ("kafka", "ydb", "pravega") for word in (f"--{name}", node.addresses[name])]
    crossed = run(audit, "cross", url, "--topic", topic, *listeners)
    assert crossed.code == 0, crossed.output
    told = crossed.report["protocols"]
    assert {name: one["records"] for name, one in told.items() if name != "positions"} == dict.fromkeys(
        ("kafka", "ydb", "pravega"), count
    )
    assert run(audit, "cross", url, "--topic", topic).code == 1


def test_what_a_protocol_cannot_tell_is_no_difference_and_ends(node: NodeProcess, url: str) -> None:
    """Headers of one name, names that are a key's or a tombstone's in YDB's items, tombstones and empty values."""
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(10):
        repeated = [("h", b"1"), ("h", b"2"), ("h", None), ("__key", b"x"), ("g", b"")]
        producer.produce("odd", b"value %d" % number, b"key", headers=repeated)
    producer.produce("odd", None, b"key")
    producer.produce("odd", b"", b"key", headers=[("h", b"1"), ("h", b"2")])
    assert producer.flush(60) == 0
    listeners = [word for name in ("kafka", "ydb", "pravega") for word in (f"--{name}", node.addresses[name])]
    crossed = run(audit, "cross", url, "--topic", "odd", *listeners)
    assert crossed.code == 0, crossed.output
    told = crossed.report["protocols"]
    assert (told["kafka"]["records"], told["ydb"]["records"]) == (12, 12)
    assert (told["pravega"]["records"], told["pravega"]["not_comparable"]) == (10, 2)


def test_the_line_for_spark(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["check", url, "--topics", "flights", "--print-submit", "--master", "spark://host:7077"]
    monkeypatch.setattr("sys.argv", ["anabranch", "audit", *words])
    line = run(audit, *words).output
    assert line.startswith("spark-submit --master spark://host:7077 ")
    assert line.strip().endswith(f"audit check {url} --topics flights --master spark://host:7077 --engine spark")
