"""Archiving: each committed record once, whatever the process is killed in.

What is archived here is another archive: it is read through the same interface as a node, and needs none.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from spark_pipeline.core.digest import digest
from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, OptionError, PipelineError, UnknownTopic
from spark_pipeline.core.ranges import OffsetRange, Patience, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import Endpoint, endpoint
from spark_pipeline.jobs.archive.run import ArchiveRun, Bounds, Told
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.lake.archive import Archive, Description
from spark_pipeline.lake.table import Overtaken
from tests.spark_pipeline.lake.records import records, written

PARTS = (TopicPartition("flights", 0), TopicPartition("flights", 7), TopicPartition("other", 0))
COLUMNS = Columns.select(headers=True)


class Source:
    """An archive that stands for the log, in which every fifth offset is a gap."""

    def __init__(self, place: Path) -> None:
        self.url = f"archive://{place}"
        self.archive = Archive.make(str(place), Description(partitioning="none"))
        self.archive.learn({"flights": (0, 7), "other": (0,)})
        self.ends = dict.fromkeys(PARTS, 0)

    def append(self, count: int) -> None:
        """``count`` more offsets in each partition."""
        for part, start in self.ends.items():
            batch = records(start, start + count, part, every=timedelta(minutes=11), skip=5)
            files = written(self.archive.records, [batch], part, "none")
            before = {part: start} if start else {}
            self.archive.records.commit(files, before, {part: start + count})
            self.ends[part] = start + count


@pytest.fixture
def source(tmp_path: Path) -> Source:
    made = Source(tmp_path / "log")
    made.append(100)
    return made


def run_of(source: Source, place: Path, description: Description, **named: Any) -> ArchiveRun:
    return ArchiveRun(source.url, {}, str(place), (".*",), description, LocalEngine(2), **named)


def rows(url: str, part: TopicPartition, columns: Columns = COLUMNS) -> list[dict[str, Any]]:
    read = endpoint(url).read(OffsetRange(part.topic, part.partition, 0, 1 << 60), columns)
    return [row for batch in read for row in batch.to_pylist()]


def assert_same(source: Source, place: Path) -> None:
    for part in PARTS:
        assert rows(f"archive://{place}", part) == rows(source.url, part)
        everything = OffsetRange(part.topic, part.partition, 0, 1 << 60)
        assert digest(endpoint(source.url).read(everything, COLUMNS)) == digest(
            endpoint(f"archive://{place}").read(everything, COLUMNS)
        )


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_is_there_is_archived_and_then_what_comes(kind: str, source: Source, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    seen: list[int] = []
    run = run_of(
        source,
        place,
        Description(kind),
        step_offsets=90,
        piece_offsets=20,
        on_step=lambda told: seen.append(told.left),
    )
    assert run.plan()["offsets"] == 297
    told = run.available_now()
    assert (told.rows, told.steps, told.left) == (240, 4, 0)
    assert seen == sorted(seen, reverse=True)
    assert_same(source, place)
    assert run_of(source, place, Description(kind)).available_now().steps == 0
    source.append(50)
    again = run_of(source, place, Description(kind)).available_now()
    assert (again.rows, again.steps) == (120, 1)
    assert again.as_json()["partitions"][0] == {"topic": "flights", "partition": 0, "from": 100, "to": 150}
    assert_same(source, place)
    ends = endpoint(f"archive://{place}").positions(PARTS)
    assert {part: one.stable for part, one in ends.items()} == source.ends


STEPS = (
    "before-stage",
    "after-stage",
    "records:before-commit",
    "records:after-commit",
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_killed_at_every_step_each_record_is_archived_once(kind: str, source: Source, tmp_path: Path) -> None:
    """One archive is killed at one step after the other, goes on each time, and ends whole."""
    place = tmp_path / "archive"
    description = Description(kind)
    told = {
        "url": source.url,
        "place": str(place),
        "description": json.loads(description.encode()),
        "step_offsets": 60,
        "piece_offsets": 15,
        "steps": [*STEPS, ""],
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark_pipeline.jobs.killed", json.dumps(told)],
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [signal.SIGKILL] * len(STEPS) + [0], done.stderr
    assert_same(source, place)
    assert run_of(source, place, description).available_now().steps == 0


def test_of_two_archiving_processes_one_ends(source: Source, tmp_path: Path) -> None:
    place = tmp_path / "archive"

    def overtaken(step: str) -> None:
        if step == "after-stage":
            run_of(source, place, Description()).available_now()

    with pytest.raises(Overtaken):
        run_of(source, place, Description(), crash=overtaken).available_now()
    assert_same(source, place)


class Interrupted(ArchiveRun):
    """Between the look at the table and the step, something else happens, once."""

    happens: Callable[[], object]

    def _bounds(self, source: Endpoint, archive: Archive) -> Bounds:
        found = super()._bounds(source, archive)
        happens, self.happens = self.happens, lambda: None
        happens()
        return found


def test_what_is_archived_between_the_look_and_the_step_is_archived_once(source: Source, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    slow = Interrupted(source.url, {}, str(place), (".*",), Description(), LocalEngine(2))
    slow.happens = run_of(source, place, Description(), step_offsets=100).available_now
    with pytest.raises(Overtaken):
        slow.available_now()
    assert_same(source, place)


def test_a_topic_that_is_deleted_meanwhile_is_left_out(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "archive"
    run = Interrupted(source.url, {}, str(place), (".*",), Description(), LocalEngine(2), step_offsets=100)
    left = [part for part in PARTS if part.topic == "flights"]
    run.happens = lambda: monkeypatch.setattr("spark_pipeline.jobs.archive.run.matching", lambda source, topics: left)
    run.available_now()
    assert rows(f"archive://{place}", PARTS[0]) == rows(source.url, PARTS[0])


def test_a_new_archive_that_is_killed_begins_where_it_would_have(source: Source, tmp_path: Path) -> None:
    """What comes after the first look is archived, although the run that looked came to nothing."""
    place = tmp_path / "archive"
    assert run_of(source, place, Description(), begin="latest").available_now().steps == 0
    source.append(10)
    told = run_of(source, place, Description(), begin="latest").available_now()
    assert told.rows == 24
    assert {told.before[part] for part in PARTS} == {100}
    assert run_of(source, place, Description(), begin="latest").available_now().steps == 0


def test_partitions_that_come_later_are_archived_from_their_beginning(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the children of one that was split do: who began with the latest record has missed nothing of theirs."""
    place = tmp_path / "archive"
    with monkeypatch.context() as before:
        before.setattr("spark_pipeline.jobs.archive.run.matching", lambda source, topics: [PARTS[0]])
        assert run_of(source, place, Description(), begin="latest").available_now().steps == 0
    told = run_of(source, place, Description(), begin="latest").available_now()
    assert told.after == {PARTS[1]: 100}
    assert rows(f"archive://{place}", PARTS[1]) == rows(source.url, PARTS[1])


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(source: Source, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    run_of(source, place, Description()).available_now()
    again = Source(tmp_path / "again")
    again.append(30)
    with pytest.raises(PipelineError, match="made anew"):
        run_of(again, place, Description()).available_now()
    assert_same(source, place)


def test_a_follower_waits_for_a_system_that_is_away(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "archive"
    away = iter([True, False, True, True, False])

    class Away(Interrupted):
        def _bounds(self, source: Endpoint, archive: Archive) -> Bounds:
            if next(away, False):
                raise EndpointUnavailable("it is restarted")
            return super()._bounds(source, archive)

    stop = Event()
    run = Away(source.url, {}, str(place), (".*",), Description(), LocalEngine(2), stop=stop)
    run.on_step = lambda told: source.append(10) if told.steps == 1 else stop.set()
    run.happens = lambda: None
    assert run.follow(Patience(1, 60_000), poll_seconds=0.001).steps == 2
    assert_same(source, place)
    monkeypatch.setattr("spark_pipeline.core.repeating.AWAY_S", -1.0)
    away = iter([True])
    stop.clear()
    with pytest.raises(EndpointUnavailable):
        run.follow(Patience(1, 60_000), poll_seconds=0.001)


def test_following_takes_what_comes_and_ends_when_told(source: Source, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    stop = Event()

    def more(told: Told) -> None:
        if told.steps < 3:
            source.append(10)
        else:
            stop.set()

    run = run_of(source, place, Description(), stop=stop, on_step=more)
    told = run.follow(Patience(1, 60_000), poll_seconds=0.01)
    assert told.steps == 3
    assert_same(source, place)


def test_following_in_short_steps_leaves_few_files(source: Source, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    stop = Event()

    def more(told: Told) -> None:
        if told.steps < 33:
            source.append(3)
        else:
            stop.set()

    run = run_of(source, place, Description("delta", "none"), stop=stop, on_step=more)
    told = run.follow(Patience(1, 60_000), poll_seconds=0.001)
    files = Counter(one.partition for one in Archive.open(str(place)).records.files())
    assert told.steps == 33
    assert max(files.values()) <= 20, files
    assert_same(source, place)


def test_where_a_new_archive_begins(source: Source, tmp_path: Path) -> None:
    run = run_of(source, tmp_path / "latest", Description(), begin="latest")
    assert run.available_now().steps == 0
    source.append(10)
    assert run.available_now().rows == 24
    assert [row["offset"] for row in rows(f"archive://{tmp_path}/latest", PARTS[0])] == [
        101,
        102,
        103,
        104,
        106,
        107,
        108,
        109,
    ]
    moment = rows(source.url, PARTS[0])[40]["timestamp"]
    told = run_of(
        source, tmp_path / "timed", Description(), begin=str(round(moment.timestamp() * 1000))
    ).available_now()
    assert told.before[PARTS[0]] == rows(source.url, PARTS[0])[40]["offset"]


def test_what_the_log_has_lost_is_told(source: Source, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    run_of(source, place, Description()).available_now()
    source.append(20)
    first = source.archive.records.files()
    source.append(10)
    source.archive.records.replace([one for one in first if one.last < 130], [], same_records=False)
    with pytest.raises(OffsetsGone):
        run_of(source, place, Description()).available_now()
    told = run_of(source, place, Description(), allow_loss=True).available_now()
    assert [str(one) for one in told.lost] == [f"{part}[100, 121)" for part in PARTS]
    assert told.rows == 24


def test_an_archive_is_not_changed_into_another(source: Source, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    run_of(source, place, Description()).available_now()
    for other in (Description("iceberg"), Description(partitioning="hour")):
        with pytest.raises(OptionError, match="made with other options"):
            run_of(source, place, other).available_now()
    for damaged in (b"", b"[]", b'{"version": 1}'):
        (tmp_path / "damaged").mkdir(exist_ok=True)
        (tmp_path / "damaged/archive.json").write_bytes(damaged)
        with pytest.raises(PipelineError, match="cannot be read"):
            Archive.open(str(tmp_path / "damaged"))
    with pytest.raises(UnknownTopic, match="nowhere"):
        replace(run_of(source, place, Description()), topics=("nowhere",)).available_now()
    with pytest.raises(OptionError):
        Description("csv")


class Waits(Event):
    """Says at once that nobody has stopped the run, and for how long it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return False


def test_an_archive_takes_so_many_bytes_a_second_and_waits_where_it_can_be_stopped(
    source: Source, tmp_path: Path
) -> None:
    sizes = [0]
    stop = Waits()
    run = run_of(source, tmp_path / "a", Description(), step_offsets=90, bytes_per_second=1.0, stop=stop)
    run.on_step = lambda told: sizes.append(told.bytes)
    told = run.available_now()
    assert told.steps > 2
    # Each step's bytes are waited for before the next one is taken behind it; the clock stands still here.
    assert stop.seconds == pytest.approx([0.0, *sizes[1:-1]][1:], abs=20.0)
    free = run_of(source, tmp_path / "b", Description(), step_offsets=90, stop=Waits())
    assert free.available_now().bytes == told.bytes
    assert isinstance(free.stop, Waits)
    assert not free.stop.seconds
