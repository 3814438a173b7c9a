"""Reads of a partition session that its client has not acknowledged."""

from __future__ import annotations

import pytest

from ydb_topic_front.session.direct_reads import MOST_UNACKNOWLEDGED, DirectReads
from ydb_topic_front.session.read_data import Place
from ydb_topic_front.wire.statuses import YdbError


def three() -> DirectReads:
    """Reads of ten offsets each, from 5 on."""
    reads = DirectReads(1)
    reads.begin(Place(5))
    for end in (15, 25, 35):
        reads.add(Place(end), 100)
    return reads


@pytest.mark.parametrize(
    ("acknowledged", "last", "expected"),
    [
        (0, 0, (Place(5), 300, 3)),
        (0, 2, (Place(25), 100, 1)),
        (0, 3, (Place(35), 0, 0)),
        (1, 1, (Place(15), 200, 2)),
        (3, 3, (Place(35), 0, 0)),
        # A client that has forgotten what it acknowledged gets none of it again.
        (2, 0, (Place(25), 100, 1)),
    ],
)
def test_reading_goes_on_behind_the_last_read_that_came(
    acknowledged: int, last: int, expected: tuple[Place, int, int]
) -> None:
    reads = three()
    for read_id in range(1, acknowledged + 1):
        reads.acknowledge(read_id)
    assert reads.rewind(last) == expected
    assert reads.last_id == max(acknowledged, last)
    reads.add(Place(50), 7)
    reads.acknowledge(acknowledged + 1)
    assert len(reads) == reads.last_id - acknowledged - 1


@pytest.mark.parametrize("read_id", [-1, 0, 2, 4])
def test_only_the_next_read_is_acknowledged(read_id: int) -> None:
    reads = three()
    with pytest.raises(YdbError, match="direct read"):
        reads.acknowledge(read_id)
    assert (len(reads), reads.credit) == (3, 300)


def test_nothing_is_behind_a_read_that_was_not_sent() -> None:
    with pytest.raises(YdbError, match="was not sent"):
        three().rewind(4)


def test_a_client_has_to_acknowledge() -> None:
    reads = DirectReads(1)
    for end in range(MOST_UNACKNOWLEDGED):
        assert not reads.is_full
        reads.add(Place(end), 1)
    assert reads.is_full
    reads.acknowledge(1)
    assert not reads.is_full
