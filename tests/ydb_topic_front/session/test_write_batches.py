"""Small requests that share a batch: what is stored, and what each is told of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.formats import FormatId
from bridges.formats.records import StoredBatch
from bridges.formats.ydb import YdbFormat
from bridges.log.interfaces import Appended
from ydb_topic_front.session import write_batches
from ydb_topic_front.session.write_acks import Run
from ydb_topic_front.session.write_batches import Batches, Held, joined, together
from ydb_topic_front.session.write_queue import Request
from ydb_topic_front.session.write_request import parts_at_once, write_body
from ydb_topic_front.wire.messages import StreamWriteFromClient

YDB = int(FormatId.YDB)


class Wanted(NamedTuple):
    """A request: its numbers, its codec, when its messages were created (0: not told)."""

    numbers: list[int]
    codec: int = 1
    created: int = 0


def held_of(wanted: Wanted) -> Held:
    messages: list[dict[str, Any]] = [{"seq_no": number, "data": b"m%d" % number} for number in wanted.numbers]
    if wanted.created:
        for message in messages:
            message["created_at"] = {"seconds": wanted.created}
    raw = StreamWriteFromClient(write_request={"messages": messages, "codec": wanted.codec}).SerializeToString()
    body = write_body(raw)
    assert body is not None
    found = parts_at_once(raw, body, 1000)
    assert found is not None
    (part,) = found.parts
    return Held(Request(found.parts, len(raw), 0.0), part, found.codec)


def stored(held: list[Held], producer: bytes = b"p") -> tuple[StoredBatch, Any]:
    """What they are together, at offset 100."""
    part = joined([one.part for one in held])
    batch = Batches(producer, b"").batch(part, held[0].codec)
    return StoredBatch(100, 100 + batch.count, YDB, batch.payload, 7), batch


WANTED = st.builds(
    Wanted,
    st.lists(st.integers(1, 300), min_size=1, max_size=5, unique=True).map(sorted),
    st.sampled_from([1, 1, 1, 2, 10_007]),
    st.integers(0, 2**33),
)


@given(st.lists(WANTED, min_size=1, max_size=12))
def test_all_are_there_in_their_order_and_no_batch_goes_back(wanted: list[Wanted]) -> None:
    held = [held_of(one) for one in wanted]
    groups = [list(group) for group in together(held)]
    assert [one for group in groups for one in group] == held
    for group in groups:
        assert len({one.codec for one in group}) == 1
        numbers = [number for one in group for number in one.part.seq_nos]
        assert numbers == sorted(set(numbers))
    for group, following in pairwise(groups):
        rises = following[0].part.seq_nos[0] > group[-1].part.seq_nos[-1]
        assert not rises or following[0].codec != group[-1].codec, "they could have been together"


@given(st.lists(st.integers(1, 4), min_size=2, max_size=30), st.booleans(), st.integers(0, 2**33))
def test_the_batch_has_the_messages_of_each(counts: list[int], gaps: bool, created: int) -> None:
    held, number = [], 1
    for count in counts:
        held.append(held_of(Wanted(list(range(number, number + count)), 10_007, created)))
        number += count + gaps
    found, batch = stored(held)
    numbers = [number for one in held for number in one.part.seq_nos]
    assert list(batch.producer.seq_nos) == numbers
    assert isinstance(batch.producer.seq_nos, list) == gaps
    records = [record for record in YdbFormat().records(found) if record is not None]
    assert [(record.sequence, record.value) for record in records] == [(number, b"m%d" % number) for number in numbers]
    assert {record.timestamp for record in records} == {created * 1000 if created else -1}
    assert batch.max_timestamp == (created * 1000 if created else -1)


@pytest.mark.parametrize(
    ("appended", "told"),
    [
        (Appended(10, 16), [[Run(range(1, 3), 10)], [Run(range(3, 6), 12)], [Run(range(6, 7), 15)]]),
        (
            Appended(10, 13, skipped=3),
            [[Run(range(1, 3), -1)], [Run(range(3, 4), -1), Run(range(4, 6), 10)], [Run(range(6, 7), 12)]],
        ),
        (Appended(10, 11, skipped=5), [[Run(range(1, 3), -1)], [Run(range(3, 6), -1)], [Run(range(6, 7), 10)]]),
        (
            Appended(3, 9, duplicate=True),
            [[Run(range(1, 3), -1)], [Run(range(3, 6), -1)], [Run(range(6, 7), -1)]],
        ),
    ],
)
def test_each_is_told_of_its_own(appended: Appended, told: list[list[Run]]) -> None:
    requests = [held_of(Wanted(numbers)).request for numbers in ([1, 2], [3, 4, 5], [6])]
    place = 0
    for request in requests:
        place += request.stored_part(0, appended, place)
    assert [request.runs() for request in requests] == told
    assert [request.left for request in requests] == [0, 0, 0]


def test_what_is_known_is_left_out_wherever_it_ends() -> None:
    _, batch = stored([held_of(Wanted(numbers)) for numbers in ([1, 2], [5], [6, 9])])
    rest = batch.rest(3)
    records = YdbFormat().records(StoredBatch(0, 2, YDB, rest.payload, 7))
    assert [record.sequence for record in records if record is not None] == [6, 9]


def test_large_requests_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    many = held_of(Wanted(list(range(1, 80))))
    few = [held_of(Wanted([number])) for number in (90, 91, 92)]
    assert [len(group) for group in together([many, *few])] == [1, 3]
    assert [len(group) for group in together([held_of(Wanted([1])), held_of(Wanted(list(range(2, 80))))])] == [1, 1]
    monkeypatch.setattr(write_batches, "TOGETHER_BYTES", 2 * len(few[0].part.messages))
    assert [len(group) for group in together(few)] == [2, 1]
