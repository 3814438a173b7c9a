"""What a session's client may confirm."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ydb_topic_front.service.read.commits import ReadCommits
from ydb_topic_front.service.read.partitions import ReadPartitions
from ydb_topic_front.session.commit_ranges import CommitRanges
from ydb_topic_front.session.partition_reading import PartitionReading, ReadingState
from ydb_topic_front.session.read_data import Place
from ydb_topic_front.wire.statuses import YdbError


def commits_of(high_watermark: int, start: int = 0) -> ReadCommits:
    """Those of a session at a node that knows of so much of the partition."""
    log = SimpleNamespace(is_open=True, high_watermark=high_watermark, final_offset=None, log_start_offset=start)
    nothing: Any = lambda *_: None  # noqa: E731
    partitions: Any = SimpleNamespace(log_of=lambda reading: log, consumer="c")
    partitions.end_of = partial(ReadPartitions.end_of, partitions)
    nobody: Any = None
    return ReadCommits(partitions, nobody, nobody, nothing, nothing, nothing, lambda work: None)


def read_up_to(offset: int) -> PartitionReading:
    reading = PartitionReading(1, "flights", "/local/flights", 0)
    reading.state, reading.commits, reading.place = ReadingState.ACTIVE, CommitRanges(0), Place(offset)
    return reading


def test_what_was_sent_may_be_confirmed_by_a_node_that_knows_an_older_end() -> None:
    """After its owner has gone a node may know of less than it has sent already."""
    reading = read_up_to(1097)
    commits_of(286).add(reading, 0, 1097)
    assert reading.commits.position == 1097


def test_what_is_not_there_and_was_not_sent_is_not_confirmed() -> None:
    with pytest.raises(YdbError, match="a commit up to 301 of partition 0, which ends at 300"):
        commits_of(286).add(read_up_to(300), 0, 301)
    with pytest.raises(YdbError, match="which ends at 286"):
        commits_of(286).add(read_up_to(0), 0, 287)


def test_retention_confirms_what_it_took_and_nothing_behind_it() -> None:
    reading = read_up_to(100)
    commits_of(100, start=50).add(reading, 60, 70)
    assert reading.commits.position == 50, "what lies between may still be confirmed"
    commits_of(100, start=50).add(reading, 50, 60)
    assert reading.commits.position == 70
    commits_of(100, start=80).add(reading, 75, 90)
    assert reading.commits.position == 90, "also where it took a part"


def test_a_partition_that_moves_when_all_of_it_was_sent_is_passed_to_its_end() -> None:
    """Its next owner was not asked yet. At the end lies a transaction's marker, which no client confirms."""
    reading = read_up_to(5)
    reading.sent_end, reading.end = 4, 5
    commits_of(0).add(reading, 0, 4)
    assert reading.commits.position == 5
