"""The parts of an object log by themselves: bytes, the writer's order, the fence."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log.objects.content import (
    HEAD_BYTES,
    ObjectHead,
    ObjectKind,
    decode,
    decode_head,
    encode,
    key_of,
)
from sbp_back.range_server.object_log.ownership.takeover import Takeover
from sbp_back.range_server.object_log.writer import Group, LogWriter, Put

UNIQUE = bytes(range(16))
numbers = st.integers(0, 2**64 - 1)


@given(numbers, numbers, st.binary(min_size=16, max_size=16), st.binary(min_size=1))
def test_an_object_is_read_as_it_was_written(incarnation: int, number: int, unique: bytes, body: bytes) -> None:
    data = encode(ObjectKind.GROUP, incarnation, number, unique, body) + body
    head, found = decode(data, incarnation, number)
    assert (head.kind, head.unique, bytes(found)) == (ObjectKind.GROUP, unique, body)
    assert len(data) == HEAD_BYTES + len(body)


@given(st.integers(0, HEAD_BYTES + 99), st.integers(1, 255))
def test_a_changed_byte_is_noticed(position: int, change: int) -> None:
    body = bytes(100)
    data = bytearray(encode(ObjectKind.GROUP, 1, 2, UNIQUE, body) + body)
    data[position] ^= change
    with pytest.raises(DecodeError, match="object 2 of incarnation 1"):
        decode(data, 1, 2)


@given(st.binary())
def test_any_bytes_are_an_object_or_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data, 1, 2)


def test_what_is_cut_off_or_lies_elsewhere_is_refused() -> None:
    data = encode(ObjectKind.GROUP, 1, 2, UNIQUE, b"abc") + b"abc"
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:length], 1, 2)
    with pytest.raises(DecodeError, match="says that it is object 2 of incarnation 1"):
        decode_head(data, 1, 3)


def test_a_listing_tells_fences_from_groups() -> None:
    assert len(encode(ObjectKind.FENCE, 1, 2, UNIQUE)) == HEAD_BYTES
    with pytest.raises(ValueError, match="a fence has no body"):
        encode(ObjectKind.GROUP, 1, 2, UNIQUE)
    with pytest.raises(ValueError, match="a fence has no body"):
        encode(ObjectKind.FENCE, 1, 2, UNIQUE, b"x")


def test_names_lie_in_the_order_of_numbers() -> None:
    keys = [key_of("p/", 7, number) for number in (0, 1, 9, 10, 255, 256, 2**32)]
    assert keys == sorted(keys)


def writer_of(**options: float) -> LogWriter[str]:
    unique = (b"%016d" % number for number in count())
    return LogWriter(1, lambda: next(unique), **options)  # type: ignore[arg-type]


def test_groups_count_in_the_order_of_their_numbers() -> None:
    writer = writer_of(linger=0)
    groups: list[Group[str]] = []
    for name in "abc":
        writer.append(1, name, 0.0)
        groups += writer.puts(0.0)
    assert writer.put_ended(groups[2], Put.CREATED) == []
    assert writer.put_ended(groups[0], Put.UNKNOWN) == []
    assert writer.put_ended(groups[1], Put.CREATED) == []
    assert [group.number for group in writer.puts(0.0)] == [0]
    assert writer.put_ended(groups[0], Put.TAKEN, groups[0].unique) == ["a", "b", "c"]
    assert (writer.acknowledged, writer.pending) == (3, 0)


def test_a_group_waits_for_others_for_a_while_only() -> None:
    writer = writer_of(linger=0.05, most_bytes=4)
    writer.append(1, "alone", 1.0)
    assert [group.tokens for group in writer.puts(1.0)] == [["alone"]]
    writer.append(1, "a", 1.01)
    assert list(writer.puts(1.04)) == []
    assert writer.closes_at() == pytest.approx(1.05)
    writer.append(1, "b", 1.04)
    writer.append(1, "b", 1.04)
    (group,) = writer.puts(1.05)
    assert group.tokens == ["a", "b"]
    writer.append(4, "full", 1.06)
    assert [group.tokens for group in writer.puts(1.06)] == [["full"]]
    writer.append(1, "pressing", 1.07)
    assert not writer.fresh
    writer.close_group(1.07)
    assert [group.tokens for group in writer.puts(1.07)] == [["pressing"]]


def test_a_lone_appender_waits_for_the_store_alone_until_what_was_saved_is_spent() -> None:
    writer = writer_of(linger=0.05, saved=1.0)

    def closings(now: float, until: float) -> list[float]:
        """Times of the groups of one who appends again a millisecond behind each answer."""
        times = []
        while now < until:
            writer.append(1, "lone", now)
            closes_at = writer.closes_at()
            assert closes_at is not None
            (group,) = writer.puts(closes_at)
            times.append(closes_at)
            assert writer.put_ended(group, Put.CREATED) == ["lone"]
            now = closes_at + 0.001
        return times

    times = closings(10.0, 10.5)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses[:20] == pytest.approx([0.001] * 20), "a second without groups pays for twenty"
    assert pauses[21:] == pytest.approx([0.05] * len(pauses[21:])), "then one for each linger"
    assert len(closings(20.0, 20.02)) == 20, "never more than a second is saved"


def test_groups_beside_those_under_way_wait_whatever_is_saved() -> None:
    writer = writer_of(linger=0.05)
    writer.append(1, "a", 0.0)
    (first,) = writer.puts(0.0)
    writer.append(1, "b", 0.01)
    assert writer.closes_at() == pytest.approx(0.05)
    assert writer.put_ended(first, Put.CREATED) == ["a"]
    assert writer.closes_at() == pytest.approx(0.01), "nothing is under way any more"
    assert [group.tokens for group in writer.puts(0.02)] == [["b"]]


def test_a_put_without_an_answer_is_made_once_more_beside() -> None:
    writer = writer_of(linger=0, late=1.0)
    writer.append(2 << 20, "a", 0.0)
    (group,) = writer.puts(0.0)
    assert writer.late_at() == pytest.approx(2.0), "a second, and one for 2 MiB"
    assert list(writer.puts(1.9)) == []
    assert list(writer.puts(2.0)) == [group]
    assert writer.late_at() == pytest.approx(6.0), "twice as long"
    assert list(writer.puts(2.1)) == []
    assert writer.put_ended(group, Put.TAKEN, group.unique) == ["a"], "the first one had been made"
    assert writer.late_at() is None
    assert writer.put_ended(group, Put.UNKNOWN) == []
    assert list(writer.puts(100.0)) == []


def test_so_many_are_under_way_at_once() -> None:
    writer = writer_of(linger=0, most_under_way=2)
    groups: list[Group[str]] = []
    for name in "abc":
        writer.append(1, name, 0.0)
        groups += writer.puts(0.0)
    assert [group.number for group in groups] == [0, 1]
    writer.put_ended(groups[1], Put.CREATED)
    assert [group.number for group in writer.puts(0.0)] == [2]


def test_a_fenced_log_says_nothing_more() -> None:
    writer = writer_of(linger=0)
    groups: list[Group[str]] = []
    for name in "ab":
        writer.append(1, name, 0.0)
        groups += writer.puts(0.0)
    assert writer.put_ended(groups[1], Put.TAKEN, UNIQUE) == []
    assert writer.fenced
    assert writer.put_ended(groups[0], Put.CREATED) == []
    assert list(writer.puts(9.0)) == []
    with pytest.raises(ValueError, match="somebody else has ended this log"):
        writer.append(1, "c", 9.0)


def test_an_object_is_the_same_bytes_at_each_try() -> None:
    writer = writer_of(linger=0)
    writer.append(1, "a", 0.0)
    (group,) = writer.puts(0.0)
    first = b"".join(writer.content(group, b"a"))
    writer.put_ended(group, Put.UNKNOWN)
    assert [b"".join(writer.content(again, b"a")) for again in writer.puts(0.0)] == [first]
    assert bytes(decode(first, 1, 0)[1]) == b"a"


def head(kind: ObjectKind, number: int) -> ObjectHead:
    return ObjectHead(kind, 1, number, UNIQUE, 0, 0)


def test_a_fence_passes_over_groups_and_stops_at_a_fence() -> None:
    takeover = Takeover(1, 5, UNIQUE, {5: HEAD_BYTES + 1, 6: HEAD_BYTES + 9, 8: HEAD_BYTES + 1})
    assert takeover.number == 7
    assert not takeover.put_ended(Put.UNKNOWN)
    assert not takeover.put_ended(Put.TAKEN, head(ObjectKind.GROUP, 7))
    assert takeover.number == 8
    assert not takeover.put_ended(Put.TAKEN, head(ObjectKind.GROUP, 8))
    assert takeover.put_ended(Put.TAKEN, head(ObjectKind.FENCE, 9))
    assert takeover.end == 9


def test_a_fence_in_the_listing_is_where_it_is_tried() -> None:
    assert Takeover(1, 0, UNIQUE, {0: HEAD_BYTES + 1, 1: HEAD_BYTES, 2: HEAD_BYTES + 1}).number == 1


def test_a_server_that_is_faster_than_any_fence_meets_one_that_lies_ahead() -> None:
    objects = dict.fromkeys(range(10), ObjectKind.GROUP)
    takeover = Takeover(7, 0, bytes(16), {})
    fenced, puts = False, 0
    while True:
        # While the fence is on its way the server has put three more.
        for number in range(max(objects) + 1, max(objects) + 4):
            fenced = fenced or objects.get(number) is ObjectKind.FENCE
            if not fenced:
                objects.setdefault(number, ObjectKind.GROUP)
        puts += 1
        assert puts < 1000
        there = objects.setdefault(takeover.number, ObjectKind.FENCE)
        head = ObjectHead(there, 7, takeover.number, bytes(16), 0, 0)
        if takeover.put_ended(Put.TAKEN, head):
            break
    assert all(objects[number] is ObjectKind.GROUP for number in range(takeover.end))
    assert objects[takeover.end] is ObjectKind.FENCE


def test_a_group_that_is_large_enough_waits_for_no_linger_while_there_is_room() -> None:
    writer: LogWriter[int] = LogWriter(1, lambda: bytes(16), linger=10.0, enough_bytes=100, most_under_way=2)
    writer.append(1, 0, 0.0)
    (first,) = writer.puts(0.0)
    writer.append(99, 1, 0.1)
    assert not list(writer.puts(0.1)), "too little, and the linger is not over"
    writer.append(1, 2, 0.2)
    (second,) = writer.puts(0.2)
    writer.append(500, 3, 0.3)
    assert not list(writer.puts(0.3)), "two are under way: more can come into it"
    writer.append(500, 4, 0.4)
    assert writer.put_ended(first, Put.CREATED) == [0]
    (third,) = writer.puts(0.5)
    assert [*second.tokens, *third.tokens] == [1, 2, 3, 4]
