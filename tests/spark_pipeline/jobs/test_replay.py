"""Records come back into topics at the offsets they had, with their times, keys and headers; also after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bridges.formats.kafka import check_batch
from spark_pipeline.core.digest import digest
from spark_pipeline.core.errors import Conflict, OptionError, PipelineError
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.jobs.audit.audit import Audit, Side
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.jobs.replay import replay as replay_module
from spark_pipeline.jobs.replay.replay import Piece, Replay, batches
from spark_pipeline.lake.archive import Archive, Description
from tests.spark_pipeline.lake.records import NOON, records, written
from tests.spark_pipeline.node.pipeline_lab import Lab, open_lab

PARTS = (TopicPartition("flights", 0), TopicPartition("flights", 2))
START = {PARTS[0]: 0, PARTS[1]: 12_345}
COUNT = 25_000
COLUMNS = Columns(("key", "value", "offset", "timestamp", "headers"))


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = await open_lab(tmp_path / "node")
    yield made
    await made.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive with gaps, of a partition that begins late beside one that does not."""
    place = tmp_path_factory.mktemp("replay") / "archive"
    archive = Archive.make(str(place), Description(partitioning="none"))
    archive.learn({"flights": (0, 1, 2)})
    for part, start in START.items():
        some = [
            records(begin, begin + 5000, part, every=timedelta(milliseconds=20), skip=777)
            for begin in range(start, start + COUNT, 5000)
        ]
        archive.begin({part: start})
        archive.records.commit(written(archive.records, some, part, "none"), {}, {part: start + COUNT})
    return f"archive://{place}"


def replay_of(lab: Lab, source: str, **named: Any) -> Replay:
    url = f"anabranch://{lab.node.addresses['pipeline']}"
    return Replay(source, {}, url, {"patienceMs": "2000"}, ["flights"], LocalEngine(2), "again", **named)


async def test_everything_is_where_it_was(lab: Lab, source: str) -> None:
    replay = replay_of(lab, source)
    assert replay.plan()["offsets"] == 2 * COUNT
    report = await lab.ask(replay.run)
    assert report["records"] == sum(1 for start in START.values() for n in range(start, start + COUNT) if n % 777)
    assert report["handed_over"]
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    assert lab.node.catalog.topic("flights").config == report["config"] == kept, "what is old by today's clock stays"
    target = endpoint(replay.target, {})
    found = await lab.ask(target.positions, PARTS)
    assert {part: (one.start, one.stable) for part, one in found.items()} == {
        PARTS[0]: (1, COUNT),  # 0 is one of the gaps
        PARTS[1]: (START[PARTS[1]], START[PARTS[1]] + COUNT),
    }
    audit = Audit(LocalEngine(2))
    told = await lab.ask(audit.diff, Side(source), Side(replay.target), ["flights"], 3, same_ends=False)
    assert told["equal"], told["differences"]
    assert told["records"] == report["records"]
    again = await lab.ask(replay.run)
    assert (again["records"], again["handed_over_before"]) == (0, ["flights"])
    await lab.append("flights", [b"new"], partition=2)  # the topic is a topic like any other by now
    await lab.ask(target.close)


async def test_a_replay_that_died_goes_on(lab: Lab, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "REQUEST_BYTES", 50_000)
    append = Importer.append
    left = 5

    def dying(self: Importer, *arguments: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise PipelineError("the process died")
        return append(self, *arguments)

    monkeypatch.setattr(Importer, "append", dying)
    replay = replay_of(lab, source)
    with pytest.raises(PipelineError, match="died"):
        await lab.ask(replay.run)
    ended = await lab.ask(endpoint(replay.target, {}).positions, PARTS)
    assert 0 < sum(one.high_watermark - one.start for one in ended.values()) < 2 * COUNT
    monkeypatch.setattr(Importer, "append", append)
    report = await lab.ask(replay_of(lab, source).run)
    assert 0 < report["records"] < 2 * (COUNT - COUNT // 777)
    told = await lab.ask(Audit(LocalEngine(2)).diff, Side(source), Side(replay.target), ["flights"], 2, same_ends=False)
    assert told["equal"], told["differences"]


async def test_some_records_under_another_name(lab: Lab, source: str) -> None:
    since, until = NOON + timedelta(milliseconds=20 * 3000), NOON + timedelta(milliseconds=20 * 20_000)
    replay = replay_of(
        lab,
        source,
        rename={"flights": "some"},
        offsets=(100, 18_000),
        since_us=round(since.timestamp() * 1e6),
        until_us=round(until.timestamp() * 1e6),
        codec="none",
        config={"retention.ms": "5000"},
        hand_over=False,
    )
    report = await lab.ask(replay.run)
    assert not report["handed_over"]
    target = endpoint(replay.target, {})
    some = TopicPartition("some", 0)
    told = (await lab.ask(target.positions, [some]))[some]
    assert (told.start, told.stable) == (3000, 18_000)
    range_ = OffsetRange("some", 0, 3000, 18_000)
    found = await lab.ask(lambda: digest(target.read(range_, COLUMNS)))
    assert found == digest(endpoint(source).read(OffsetRange("flights", 0, 3000, 18_000), COLUMNS))
    assert lab.node.catalog.topic("some").config["retention.ms"] == "5000"
    await lab.ask(target.close)


async def test_another_replay_is_not_taken_for_the_one_before(lab: Lab, source: str, tmp_path: Path) -> None:
    first = {"offsets": (0, 1_000), "rename": {"flights": "few"}, "hand_over": False}
    await lab.ask(replay_of(lab, source, **first).run)
    others: list[dict[str, Any]] = [
        {"offsets": (0, 2_000)},
        {"since_us": 1},
        {"until_us": 1},
        {"offsets": (None, None)},
    ]
    for other in others:
        with pytest.raises(Conflict, match=r"topic 'few' is filled by 'again' with something else"):
            await lab.ask(replay_of(lab, source, **{**first, **other}).run)
    assert (await lab.ask(replay_of(lab, source, **{**first, "hand_over": True}).run))["records"] == 0
    for other in others:
        with pytest.raises(Conflict, match=r"topic 'few' was filled by 'again' with something else, and handed over"):
            await lab.ask(replay_of(lab, source, **{**first, **other}).run)
    place = tmp_path / "another"
    archive = Archive.make(str(place), Description(partitioning="none"))
    archive.learn({"flights": (0, 1, 2)})
    with pytest.raises(Conflict, match="with something else"):
        await lab.ask(replay_of(lab, f"archive://{place}", **first).run)


async def test_a_replay_of_what_has_grown_does_not_say_that_it_is_done(lab: Lab) -> None:
    await lab.node.catalog.create_topic("flights", 1)
    await lab.append("flights", [b"a", b"b"])
    url = f"anabranch://{lab.node.addresses['pipeline']}"
    copied = {"rename": {"flights": "copy"}}
    assert (await lab.ask(replay_of(lab, url, **copied).run))["records"] == 2
    assert (await lab.ask(replay_of(lab, url, **copied).run))["handed_over_before"] == ["copy"]
    await lab.append("flights", [b"c"])
    with pytest.raises(Conflict, match="up to offset 2 and was handed over to clients, and flights-0 now ends at 3"):
        await lab.ask(replay_of(lab, url, **copied).run)
    await lab.node.catalog.delete_topic("flights")
    await lab.node.catalog.create_topic("flights", 1)
    with pytest.raises(Conflict, match="with something else"):
        await lab.ask(replay_of(lab, url, **copied).run)


async def test_two_topics_never_become_one(lab: Lab, tmp_path: Path) -> None:
    archive = Archive.make(str(tmp_path / "two"), Description(partitioning="none"))
    archive.learn({"a": (0,), "b": (0,)})
    replay = replace(replay_of(lab, f"archive://{tmp_path / 'two'}"), topics=["a", "b"], rename={"a": "b"})
    with pytest.raises(OptionError, match="would become one"):
        await lab.ask(replay.run)


def test_large_records_are_held_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "HELD_BYTES", 1000)
    piece = Piece("", {}, "", {}, "", 0, OffsetRange("t", 0, 0, 200), PARTS[0], None, None, 0, False, None)
    some = list(replay_module.choose(iter([records(start, start + 10) for start in range(0, 200, 10)]), piece))
    assert [n for one in some for n in one.column("offset").to_pylist()] == list(range(200))
    assert len(some) > 5


def test_batches_have_offsets_in_a_row() -> None:
    made = batches(records(5, 40, skip=10), 0)
    headers = [check_batch(memoryview(one)) for one in made]
    assert [(one.base_offset, one.record_count) for one in headers] == [(5, 5), (11, 9), (21, 9), (31, 9)]
    twice = pa.Table.from_batches([records(3, 5), records(4, 6)]).combine_chunks().to_batches()[0]
    with pytest.raises(PipelineError, match="offset 4 is there twice"):
        batches(twice, 0)
