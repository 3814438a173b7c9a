"""How far a job is, for all that ask: in words, for a report, and for a node's list of jobs."""

from __future__ import annotations

import pytest

from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.jobs.progress import Meter

PART = TopicPartition("flights", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time it is, to be set."""
    now = [0.0]
    monkeypatch.setattr("spark_pipeline.core.client.job_client.time.monotonic", lambda: now[0])
    return now


def test_what_earlier_runs_did_is_done_but_does_not_make_this_one_look_faster(clock: list[float]) -> None:
    meter = Meter()
    assert meter.line() == ""
    meter.step = "copying"
    meter.aim(PART, 1_000, 5_000, 9_000)
    meter.copied(PART, 6_000, 20_000_000)
    clock[0] = 10.0
    now = meter.progress()
    assert (now.done, now.total, now.unit, now.rate, now.seconds_left) == (5_000, 8_000, "offsets", 100, 30.0)
    assert now.details == {"step": "copying", "throughput": "2.0 MB/s"}
    assert meter.facts() == {
        "bytes": 20_000_000,
        "offsets_left": 3_000,
        "bytes_per_second": 2_000_000,
        "offsets_per_second": 100,
        "seconds_left": 30.0,
    }
    assert meter.line() == "5,000 of 8,000 offsets, 100/s, 2.0 MB/s, 0:00:30 left"


def test_nothing_left_needs_no_time_and_something_left_at_no_speed_an_unknown_one(clock: list[float]) -> None:
    meter = Meter()
    assert meter.facts()["seconds_left"] == 0.0  # of a plan with nothing in it
    assert meter.progress().seconds_left is None  # of a job that has not said yet what there is
    meter.aim(PART, 0, 5, 5)
    clock[0] = 1.0
    assert meter.facts()["seconds_left"] == 0.0
    meter.aim(PART, 0, 5, 9)
    assert meter.facts()["seconds_left"] is None
    assert meter.line() == "5 of 9 offsets, 0/s, ? left"


def test_a_job_that_counts_one_number_is_told_the_same_way(clock: list[float]) -> None:
    meter = Meter("groups of files")
    meter.set_progress(3, 10)
    clock[0] = 1.0
    assert meter.line() == "3 of 10 groups of files, 3/s, 0:00:02 left"
    meter.set_progress(10, 10)
    meter.set_progress(2, 4)  # a second pass
    clock[0] = 2.0
    now = meter.progress()
    assert (now.done, now.total, now.rate) == (2, 4, 6)
