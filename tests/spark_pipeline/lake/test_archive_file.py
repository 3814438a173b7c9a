"""An archive's description: what several processes have to say of it at the same time is all kept."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_pipeline.core.errors import OptionError, PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake.archive import Archive, Description
from spark_pipeline.lake.store import Store

AT_ONCE = 4


@pytest.fixture
def place(tmp_path: Path) -> str:
    place = str(tmp_path / "archive")
    Archive.make(place, Description())
    return place


def _meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everybody who reads the description wait for the others to have read it, or see that they cannot come."""
    everybody = threading.Barrier(AT_ONCE)
    read = Store.read_bytes

    def waiting(store: Store, name: str) -> bytes | None:
        content = read(store, name)
        with contextlib.suppress(threading.BrokenBarrierError):
            everybody.wait(0.05)  # who holds the lock waits in vain, once for all: the barrier stays broken
        return content

    monkeypatch.setattr(Store, "read_bytes", waiting)


def test_changes_of_the_same_moment_are_all_kept(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archives = [Archive.open(place) for _ in range(AT_ONCE)]

    def change(number: int) -> None:
        archives[number].learn({"flights": (number,), f"topic-{number}": (0,)})
        archives[number].begin({TopicPartition("flights", number): 10 * number})
        archives[number].expired(number)

    _meeting(monkeypatch)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(change, range(AT_ONCE)))
    kept = Archive.open(place).description
    assert kept.topics == {"flights": (0, 1, 2, 3), **{f"topic-{number}": (0,) for number in range(AT_ONCE)}}
    assert kept.begun == {f"flights-{number}": 10 * number for number in range(AT_ONCE)}
    assert kept.expired_ms == AT_ONCE - 1


def test_of_two_who_have_a_partition_begin_elsewhere_the_second_is_told(place: str) -> None:
    part = TopicPartition("flights", 0)
    one, other = Archive.open(place), Archive.open(place)
    one.begin({part: 100})
    with pytest.raises(PipelineError, match="at offset 150, and another job has just had it begin at 100"):
        other.begin({part: 150})
    assert Archive.open(place).description.begun == {"flights-0": 100}
    other.begin({part: 100})
    # What was trimmed before it was archived, by who knows of both.
    Archive.open(place).begin({part: 120})
    assert Archive.open(place).description.begun == {"flights-0": 120}


def test_of_several_who_make_it_one_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "new")
    options = [Description(partitioning=by) for by in ("day", "hour", "none", "day")]

    def make(number: int) -> str:
        try:
            return Archive.make(place, options[number]).description.partitioning
        except OptionError:
            return "refused"

    monkeypatch.setattr(Archive, "make_tables", lambda _: None)
    _meeting(monkeypatch)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = list(pool.map(make, range(AT_ONCE)))
    decided = Archive.open(place).description.partitioning
    assert told == [one.partitioning if one.partitioning == decided else "refused" for one in options]


def test_what_changes_nothing_writes_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive.open(place)
    archive.learn({"flights": (0,)})
    monkeypatch.setattr(Store, "write_bytes", lambda *_: pytest.fail("written"))
    archive.learn({"flights": (0,)})
    assert archive.description.topics == {"flights": (0,)}
