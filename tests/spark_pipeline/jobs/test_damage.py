"""A node whose disk has changed what it keeps: commands that compare say where, and look at what lies behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from spark_pipeline.core.errors import UnreadableBatch
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.jobs.archive.command import command as archive
from spark_pipeline.jobs.audit.command import command as audit
from tests.conftest import NodeFactory
from tests.node_process import ANY, NodeProcess
from tests.spark_pipeline.conftest import PIPELINE
from tests.spark_pipeline.jobs.migrations import migrate, planned, run, target_url

BATCH = 100
COUNT = 3000
DAMAGED = [(1500, 1600), (2200, 2400)]
"""What cannot be read of partition 0: one batch, and two in a row."""
LEFT = COUNT - 300

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], NodeProcess]]:
    factory = NodeFactory(tmp_path_factory.mktemp("damage"))
    try:
        yield lambda name: factory(name, listen=PIPELINE, settings={"kafka.num_partitions": "2"})
    finally:
        factory.dispose()


def filled(node: NodeProcess) -> NodeProcess:
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 10_000, "batch.num.messages": BATCH})
    for start in range(0, COUNT, BATCH):
        for number in range(start, start + BATCH):
            producer.produce("orders", b"order %05d" % number, b"k", partition=0)
        producer.produce("orders", b"other %05d" % start, partition=1)
        assert producer.flush(60) == 0
    return node


def spoil(node: NodeProcess) -> NodeProcess:
    """One byte of each batch to be damaged is another one on disk."""
    assert node.terminate() == 0
    places = [number + BATCH // 2 for start, end in DAMAGED for number in range(start, end, BATCH)]
    for path in sorted(one for one in node.data.rglob("*") if one.is_file()):
        content = path.read_bytes()
        for number in list(places):
            at = content.find(b"order %05d" % number)
            if at >= 0:
                with path.open("r+b") as file:
                    file.seek(at + 2)
                    file.write(b"X")
                places.remove(number)
    assert places == [], "every batch lies somewhere"
    return node.start()


@pytest.fixture(scope="module")
def sound(make: Callable[[str], NodeProcess]) -> NodeProcess:
    return filled(make("sound"))


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the spoiled node's topic was archived while it was sound."""
    return tmp_path_factory.mktemp("archive") / "orders"


@pytest.fixture(scope="module")
def spoiled(make: Callable[[str], NodeProcess], archived: Path) -> NodeProcess:
    node = filled(make("spoiled"))
    run(archive, 0, "run", "--from", target_url(node), "--to", archived, "--topics", "orders", "--table", "delta")
    return spoil(node)


def spans(damaged: list[dict[str, Any]]) -> list[tuple[int, int]]:
    assert {(one["topic"], one["partition"]) for one in damaged} == {("orders", 0)}
    return [(one["offset"], one["end"]) for one in damaged]


def test_a_reader_gets_all_in_front_of_damage_and_is_told_where_it_is(spoiled: NodeProcess) -> None:
    side = endpoint(target_url(spoiled))
    batches = side.read(OffsetRange("orders", 0, 0, COUNT), Columns(("offset",)))
    assert [offset for batch in islice(batches, 1) for offset in batch.column("offset").to_pylist()] == [*range(1500)]
    with pytest.raises(UnreadableBatch) as failed:
        next(batches)
    side.close()
    assert (failed.value.offset, failed.value.end) == DAMAGED[0]


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_check_names_all_damage_and_reads_on_behind_it(spoiled: NodeProcess, level: int) -> None:
    report = run(audit, 2, "check", target_url(spoiled), "--topics", "orders", "--level", level)
    assert not report["equal"]
    assert spans(report["damaged"]) == DAMAGED
    assert [one["records"] for one in report["partitions"]] == [LEFT, COUNT // BATCH]


def test_damage_is_no_gap(spoiled: NodeProcess) -> None:
    report = run(audit, 2, "gaps", target_url(spoiled), "--topics", "orders")
    assert spans(report["damaged"]) == DAMAGED
    assert [one["gaps"] for one in report["partitions"]] == [[], []]


def test_the_same_through_kafkas_protocol(spoiled: NodeProcess) -> None:
    report = run(audit, 2, "check", f"kafka://{spoiled.kafka}", "--topics", "orders")
    assert spans(report["damaged"]) == DAMAGED
    assert [one["records"] for one in report["partitions"]] == [LEFT, COUNT // BATCH]


@pytest.fixture
def closed(spoiled: NodeProcess) -> Iterator[NodeProcess]:
    """The spoiled node while it keeps its range servers to itself."""
    backend = ("sbp-pd", "sbp-range-server")
    addresses = {name: spoiled.addresses.pop(name) for name in backend}
    assert spoiled.terminate() == 0
    spoiled.listen.update(dict.fromkeys(backend, "off"))
    yield spoiled.start()
    assert spoiled.terminate() == 0
    spoiled.listen.update(dict.fromkeys(backend, ANY))
    spoiled.addresses.update(addresses)
    spoiled.start()


def test_the_same_through_a_node_that_keeps_its_range_servers_to_itself(closed: NodeProcess) -> None:
    report = run(audit, 2, "check", target_url(closed), "--topics", "orders")
    assert spans(report["damaged"]) == DAMAGED
    assert [one["records"] for one in report["partitions"]] == [LEFT, COUNT // BATCH]


def test_diff_tells_damage_beside_what_differs(sound: NodeProcess, spoiled: NodeProcess, tmp_path: Path) -> None:
    for left, right, side in ((sound, spoiled, "right"), (spoiled, sound, "left")):
        report = run(
            audit, 2, "diff", target_url(left), target_url(right), "--topics", "orders", "--fields", "key,value,headers"
        )
        told = [one for one in report["differences"] if one["what"] == "damage"]
        assert [tuple(one["offsets"]) for one in told] == DAMAGED
        assert all(f"on the {side}" in one["reason"] for one in told)
        (block,) = (one for one in report["differences"] if one["what"] == "block")
        assert block["first"]["offset"] == 1500
    kept = tmp_path / "digests.json"
    kept.write_text(
        json.dumps(run(audit, 0, "digest", target_url(sound), "--topics", "orders", "--fields", "key,value"))
    )
    report = run(audit, 2, "diff", kept, target_url(spoiled))
    assert [tuple(one["offsets"]) for one in report["differences"] if one["what"] == "damage"] == DAMAGED
    assert spans(run(audit, 2, "digest", target_url(spoiled), "--topics", "orders")["damaged"]) == DAMAGED


def test_an_archive_is_compared_around_damage_of_the_log(spoiled: NodeProcess, archived: Path) -> None:
    report = run(archive, 2, "verify", archived, "--from", target_url(spoiled))
    assert [tuple(one["offsets"]) for one in report["differences"] if one["what"] == "damage"] == DAMAGED


def test_a_damaged_file_of_an_archive_is_named_by_its_offsets(
    sound: NodeProcess, archived: Path, spoiled: NodeProcess, tmp_path: Path
) -> None:
    place = tmp_path / "orders"
    words = ("--from", target_url(sound), "--to", place, "--topics", "orders", "--step-offsets", "1000")
    run(archive, 0, "run", *words)
    files = list(place.rglob("*.parquet"))
    first = max(files, key=lambda one: one.stat().st_size)  # of partition 0
    whole = first.read_bytes()

    def verified() -> tuple[int, int]:
        report = run(archive, 2, "verify", place, "--from", target_url(sound))
        (told,) = (one for one in report["differences"] if one["what"] == "damage")
        start, end = told["offsets"]
        assert report["partitions"][0]["right"]["records"] == COUNT - (end - start)
        return start, end

    first.write_bytes(whole[:-6] + bytes(6))  # its footer
    span = verified()
    assert 900 < span[1] - span[0] <= 1000
    first.write_bytes(whole[:200] + bytes(200) + whole[400:])  # what it keeps
    assert verified() == span
    first.unlink()
    assert verified() == span


@pytest.mark.parametrize("spoiled_side", ["target", "source"])
def test_a_migration_is_verified_around_damage(
    make: Callable[[str], NodeProcess], tmp_path: Path, spoiled_side: str
) -> None:
    source, target = filled(make(f"from-{spoiled_side}")), make(f"to-{spoiled_side}")
    plan = planned(f"kafka://{source.kafka}", target, tmp_path, "orders")
    migrate("run", plan, "--quiet")
    spoil(target if spoiled_side == "target" else source)
    for level in (1, 2):
        report = migrate("verify", plan, "--quiet", "--level", level, code=2)
        assert [one["offset"] for one in report["differences"]] == [start for start, _ in DAMAGED]
        assert all(f"the {spoiled_side} says" in one["reason"] for one in report["differences"])
    assert report["records"] == LEFT + COUNT // BATCH
