"""Plans do not change, receipts tell how far a partition is, a throttle lets so much pass and no more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bridges.formats.kafka import encode
from bridges.formats.records import Record
from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.kafka_batches import OldFormat, digest, heads, is_whole, same
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.jobs.migrate.plan import NotCarried, Plan, PlanError, PlannedPartition, PlannedTopic, carried
from spark_pipeline.jobs.migrate.state import Receipt, Receipts, ReceiptsError

PLAN = Plan(
    "m",
    "kafka://a:9092",
    "anabranch://b:8090",
    5,
    (
        PlannedTopic("a", {"cleanup.policy": "compact,delete"}, (PlannedPartition(0, 3, 10, 12),), "id"),
        PlannedTopic("b", {}, (PlannedPartition(0, 0, 0, 0), PlannedPartition(1, 5, 5, 5))),
    ),
    ("g",),
    (NotCarried("a", "x = 1", "because"),),
)


def test_a_plan_comes_back_as_it_was_and_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    assert Plan.load(path) == PLAN
    assert Plan.load(path).digest == PLAN.digest
    with pytest.raises(PlanError, match="exists"):
        PLAN.save(path)
    assert (PLAN.offsets, PLAN.topic("a").is_compacted, PLAN.topic("b").is_compacted) == (9, True, False)
    assert PLAN.partitions[1:] == [TopicPartition("b", 0), TopicPartition("b", 1)]
    with pytest.raises(PlanError):
        PLAN.topic("c")
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("change", ['"end": 12', '"m"', "sha256", "{"])
def test_a_plan_that_was_changed_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    path.write_text(path.read_text().replace(change, '"end": 13' if "end" in change else '"n"', 1))
    with pytest.raises(PlanError):
        Plan.load(path)


def test_configurations_are_carried_or_told() -> None:
    def check(key: str, value: str) -> None:
        if value == "wrong":
            raise ValueError(f"{key} cannot be {value}")

    taken, left = carried("t", {"a": "1", "b": "2", "c": "3", "d": "wrong"}, {"a": True, "b": False, "d": True}, check)
    assert taken == {"a": "1", "b": "2"}
    assert [(one.what, one.why.split()[0]) for one in left] == [("b = 2", "it"), ("c = 3", "the"), ("d = wrong", "d")]


def receipt(start: int, end: int, partition: int = 0) -> Receipt:
    return Receipt("p", 1, "t", partition, start, end, 1, end - start, 7, 0.5, 9)


def test_receipts_reach_as_far_as_they_go_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    receipts = Receipts(path, "p")
    part = TopicPartition("t", 0)
    assert receipts.reached(part, 4) == 4
    receipts.add([receipt(4, 10), receipt(20, 30)])
    receipts.add([receipt(0, 7, 1)])
    assert receipts.reached(part, 4) == 10
    receipts.add([receipt(10, 20), receipt(10, 15)])
    again = Receipts(path, "p")
    assert again.all == receipts.all
    assert again.reached(part, 4) == 15, "of two about the same beginning the later one"
    again.add([receipt(15, 20)])
    assert (again.reached(part, 4), again.reached(TopicPartition("t", 1), 0), again.bytes) == (30, 7, 43)


def test_a_torn_receipt_is_none_and_a_strange_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    Receipts(path, "p").add([receipt(0, 5)])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert len(Receipts(path, "p", writes=False).all) == 1
    assert path.read_bytes() != whole, "who only reads changes nothing"
    receipts = Receipts(path, "p")
    assert path.read_bytes() == whole
    receipts.add([receipt(5, 6)])
    assert Receipts(path, "p").reached(TopicPartition("t", 0), 0) == 6
    with pytest.raises(ReceiptsError, match="another plan"):
        Receipts(path, "q")
    path.write_text(json.dumps({"plan": "p"}) + "\n")
    with pytest.raises(ReceiptsError, match="line 1"):
        Receipts(path, "p")


def test_a_throttle_lets_so_much_pass() -> None:
    now = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    throttle = Throttle(1000.0, clock=lambda: now, sleep=sleep)
    for _ in range(10):
        throttle.take(500)
    assert 4.0 <= now - 100.0 <= 5.0
    now += 60  # a pause does not let a minute's bytes pass at once
    before = now
    for _ in range(4):
        throttle.take(500)
    assert now - before >= 1.0
    Throttle(None, sleep=sleep).take(1 << 40)
    assert (Throttle(None).piece(8), Throttle(4e6).piece(1 << 23)) == (8, 1_000_000)


def test_batches_are_told_by_their_heads() -> None:
    made = [encode([Record(None, b"x", timestamp=1)] * 3, 5), encode([Record(None, b"y", timestamp=1)], 9, count=4)]
    records = memoryview(bytes(made[0] + made[1] + made[0][:30]))
    found = list(heads(records, "t-0"))
    assert [(one.base_offset, one.end_offset, one.until - one.at) for one in found] == [
        (5, 8, len(made[0])),
        (9, 13, len(made[1])),
    ]
    assert all(is_whole(records, one) for one in found)
    other = bytearray(records)
    other[12:16] = b"\0\0\0\7"  # another leader's epoch
    assert same(memoryview(bytes(other))[: found[0].until], records[: found[0].until])
    assert digest(memoryview(bytes(other)), found[0]) == digest(records, found[0])
    other[30] ^= 1
    assert not same(memoryview(bytes(other))[: found[0].until], records[: found[0].until])
    assert digest(memoryview(bytes(other)), found[0]) != digest(records, found[0])
    assert not is_whole(memoryview(bytes(other)), found[0])
    with pytest.raises(OldFormat, match="format 1 at offset 5"):
        list(heads(memoryview(bytes(made[0][:16] + b"\1" + made[0][17:])), "t-0"))
    with pytest.raises(PipelineError, match="no batch"):
        list(heads(memoryview(bytes(made[0][:8] + bytes(4) + made[0][12:])), "t-0"))


def test_plans_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    replace(PLAN, version=2).save(path)
    with pytest.raises(PlanError, match="version 2"):
        Plan.load(path)
