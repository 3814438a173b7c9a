"""Acks that are made column by column say what acks say that are made one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import advance
from ydb_topic_front.session.write_acks import Run, Times, encode_at_once, encode_response
from ydb_topic_front.wire.messages import StreamWriteFromServer
from ydb_topic_front.wire.statuses import Status

AT_ONCE = Times(0, 0, 0)
# Around the powers at which numbers take a byte more.
EDGES = st.builds(lambda power, off: max(1, (1 << 7 * power) + off), st.integers(0, 8), st.integers(-300, 300))
NUMBERS = EDGES | st.integers(1, 2**62)
OFFSETS = st.just(0) | EDGES | st.integers(0, 2**50)


def encoded(runs: list[Run], times: Times = AT_ONCE) -> bytes:
    work = encode_response(runs, 7, times)
    ended, raw = advance(work)
    while not ended:
        ended, raw = advance(work)
    assert isinstance(raw, bytes)
    return raw


def one_by_one(runs: list[Run], times: Times) -> bytes:
    message = StreamWriteFromServer(status=Status.SUCCESS)
    response = message.write_response
    for run in runs:
        for index, seq_no in enumerate(run.seq_nos):
            ack = response.acks.add(seq_no=seq_no)
            if run.offset < 0:
                ack.skipped.reason = 1
            else:
                ack.written.offset = run.offset + index
    response.partition_id = 7
    statistics = response.write_statistics
    statistics.persisting_time.nanos = round(times.persisting * 1e9)
    statistics.min_queue_wait_time.SetInParent()
    statistics.max_queue_wait_time.seconds = int(times.max_wait)
    statistics.partition_quota_wait_time.seconds = int(times.quota)
    statistics.topic_quota_wait_time.SetInParent()
    raw: bytes = message.SerializeToString()
    return raw


RANGES = st.builds(lambda first, count: range(first, first + count), NUMBERS, st.integers(0, 400))
GAPS = st.lists(NUMBERS, min_size=1, max_size=20, unique=True).map(sorted)
RUNS = st.builds(Run, RANGES | GAPS, OFFSETS | st.just(-1))


@given(st.lists(RUNS, max_size=4))
def test_it_is_what_acks_one_by_one_are(runs: list[Run]) -> None:
    times = Times(0.25, 0, 3.0, 2.0)
    got = StreamWriteFromServer.FromString(encoded(runs, times))
    assert got == StreamWriteFromServer.FromString(one_by_one(runs, times))
    at_once = encode_at_once(runs, 7, times)
    if len(runs) == 1 and isinstance(runs[0].seq_nos, range):
        assert at_once == encoded(runs, times)
    else:
        assert at_once is None


@pytest.mark.parametrize("count", [1, 127, 128, 129, 20_000])
def test_every_message_of_a_long_run_is_acknowledged(count: int) -> None:
    run = Run(range(16_000, 16_000 + count), 2_097_000)
    acks = StreamWriteFromServer.FromString(encoded([run])).write_response.acks
    assert [(ack.seq_no, ack.written.offset) for ack in acks] == [(16_000 + n, 2_097_000 + n) for n in range(count)]


def test_very_many_acks_are_made_in_slices() -> None:
    work = encode_response([Run(list(range(1, 20_001, 2)), 5)], 0, Times(0, 0, 0))
    steps = 0
    while not advance(work)[0]:
        steps += 1
    assert steps > 3
