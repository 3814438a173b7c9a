"""Fetch sessions: epochs, forgetting, news only, eviction (KIP-227)."""

from __future__ import annotations

import asyncio

import pytest

from kafka_front.service.fetch.sessions import FetchedPartition, FetchSession, FetchSessions, SessionError
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchRequest, FetchResponse
from tests.kit.waiting import until


def fetch(session_id: int, epoch: int, *partitions: tuple[str, int, int]) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic, partitions=[FetchRequest.FetchPartition(partition, fetch_offset=offset)]
            )
            for topic, partition, offset in partitions
        ],
    )


def opened(sessions: FetchSessions, *partitions: tuple[str, int, int], now: float = 0) -> FetchSession:
    session, _ = sessions.resolve(fetch(0, 0, *partitions), False, now)
    assert session is not None
    return session


def refused(sessions: FetchSessions, request: FetchRequest, uses_ids: bool = False) -> ErrorCode:
    with pytest.raises(SessionError) as caught:
        sessions.resolve(request, uses_ids, 0)
    return caught.value.code


async def test_incremental_requests_name_only_what_changes() -> None:
    sessions = FetchSessions(10)
    session = opened(sessions, ("a", 0, 5), ("a", 1, 6))
    same, partitions = sessions.resolve(fetch(session.id, 1), False, 1)
    assert same is session
    assert {key: part.fetch_offset for key, part in partitions.items()} == {("a", 0): 5, ("a", 1): 6}
    request = fetch(session.id, 2, ("a", 1, 9), ("b", 0, 1))
    request.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic="a", partitions=[0])]
    _, partitions = sessions.resolve(request, False, 2)
    assert {key: part.fetch_offset for key, part in partitions.items()} == {("a", 1): 9, ("b", 0): 1}


async def test_a_wrong_epoch_an_unknown_session_and_mixed_ids_are_refused() -> None:
    sessions = FetchSessions(10)
    session = opened(sessions, ("a", 0, 5))
    assert refused(sessions, fetch(session.id, 2)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refused(sessions, fetch(session.id ^ 1, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refused(sessions, fetch(0, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refused(sessions, fetch(session.id, 1), uses_ids=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


async def test_epochs_wrap_to_one() -> None:
    sessions = FetchSessions(10)
    session = opened(sessions, ("a", 0, 5))
    session.epoch = 2**31 - 1
    sessions.resolve(fetch(session.id, 2**31 - 1), False, 0)
    sessions.resolve(fetch(session.id, 1), False, 0)


async def test_a_full_request_replaces_its_session_and_a_final_one_closes_it() -> None:
    sessions = FetchSessions(10)
    first = opened(sessions, ("a", 0, 5))
    second, _ = sessions.resolve(fetch(first.id, 0, ("a", 0, 7)), False, 0)
    assert second is not None
    assert second.id != first.id
    assert refused(sessions, fetch(first.id, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    closing, partitions = sessions.resolve(fetch(second.id, -1, ("a", 0, 8)), False, 0)
    assert closing is None
    assert len(partitions) == 1
    assert len(sessions) == 0


async def test_only_idle_sessions_make_room() -> None:
    sessions = FetchSessions(1, evict_after=120)
    first = opened(sessions, ("a", 0, 0), now=0)
    assert sessions.resolve(fetch(0, 0, ("b", 0, 0)), False, 100)[0] is None
    assert opened(sessions, ("b", 0, 0), now=121).id != first.id
    assert FetchSessions(0).resolve(fetch(0, 0, ("b", 0, 0)), False, 0)[0] is None


async def test_news_are_told_once() -> None:
    part = FetchedPartition("a", bytes(16), FetchRequest.FetchPartition(0))

    def data(**changes: object) -> FetchResponse.PartitionData:
        values: dict[str, object] = {"high_watermark": 5, "log_start_offset": 0, "records": b""} | changes
        return FetchResponse.PartitionData(**values)  # type: ignore[arg-type]

    assert part.news(data())
    assert not part.news(data())
    assert part.news(data(records=b"x"))
    assert part.news(data(high_watermark=6))
    assert part.news(data(high_watermark=6, log_start_offset=1))
    assert part.news(data(high_watermark=-1, error_code=6))
    assert part.news(data(high_watermark=6, log_start_offset=1)), "the end of an error is news"


async def test_partitions_that_delivered_are_served_last() -> None:
    sessions = FetchSessions(10)
    session = opened(sessions, ("a", 0, 0), ("a", 1, 0), ("a", 2, 0))
    session.served([("a", 0), ("a", 9)])
    assert list(session.partitions) == [("a", 1), ("a", 2), ("a", 0)]


def named(count: int, topic: str = "a") -> list[tuple[str, int, int]]:
    return [(topic, index, 0) for index in range(count)]


async def test_a_request_for_very_many_partitions_is_answered_without_a_session() -> None:
    sessions = FetchSessions(10, partitions=100)
    found, partitions = sessions.resolve(fetch(0, 0, *named(11)), False, 0)
    assert (found, len(partitions), len(sessions)) == (None, 11, 0)
    assert len(opened(sessions, *named(10)).partitions) == 10


async def test_a_session_cannot_grow_beyond_its_share() -> None:
    sessions = FetchSessions(10, partitions=100)
    session = opened(sessions, *named(10))
    sessions.resolve(fetch(session.id, 1, *named(10)), False, 0)
    assert refused(sessions, fetch(session.id, 2, ("b", 0, 0))) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0
    # What the client does next; it goes on without a session.
    assert sessions.resolve(fetch(0, 0, *named(10), ("b", 0, 0)), False, 0)[0] is None


async def test_all_sessions_together_remember_a_bounded_number_of_partitions() -> None:
    sessions = FetchSessions(1_000, evict_after=120, partitions=100)
    held = [opened(sessions, *named(10), now=number) for number in range(10)]
    assert sessions.resolve(fetch(0, 0, ("b", 0, 0)), False, 60)[0] is None, "none of them is idle yet"
    assert len(opened(sessions, *named(5, "b"), now=120).partitions) == 5
    assert refused(sessions, fetch(held[0].id, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "it made room"
    request = fetch(held[1].id, 1)
    request.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic="a", partitions=list(range(10)))]
    sessions.resolve(request, False, 120)
    assert opened(sessions, *named(10, "c"), now=120).id
    sessions.resolve(fetch(held[2].id, -1), False, 120)
    assert opened(sessions, *named(10, "d"), now=120).id, "a session that was closed made room"


def changing(session: FetchSession, named: int, forgotten: int) -> FetchRequest:
    request = fetch(session.id, session.epoch, *((f"n{index}", 0, 7) for index in range(named)))
    request.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic="a", partitions=list(range(forgotten)))]
    return request


async def test_a_session_is_changed_in_turns_and_by_one_request_at_a_time() -> None:
    sessions = FetchSessions(10)
    session = opened(sessions, *named(20_000))
    request = changing(session, 20_000, 20_000)
    work = asyncio.ensure_future(sessions.resolve_in_turns(request, False, 1))
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
        if session.busy:
            assert refused(sessions, fetch(session.id, 1)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert turns > 3
    same, partitions = await work
    assert same is session
    assert session.epoch == 2
    assert len(partitions) == 20_000
    assert ("n5", 0) in partitions
    assert sessions.resolve(fetch(session.id, 2), False, 2)[0] is session


@pytest.mark.parametrize("how", ["dropped", "cancelled", "too large"])
async def test_a_session_that_was_changed_in_part_is_gone_and_counts_no_more(how: str) -> None:
    sessions = FetchSessions(10, partitions=200_000)
    session = opened(sessions, *named(15_000))
    request = changing(session, 30_000 if how == "too large" else 5_000, 0)
    work = asyncio.ensure_future(sessions.resolve_in_turns(request, False, 1))
    await until(lambda: session.busy)
    if how == "dropped":
        sessions.resolve(fetch(session.id, -1), False, 1)
    elif how == "cancelled":
        work.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else SessionError):
        await work
    assert len(sessions) == 0
    for _ in range(10):  # all of what there may be is free
        opened(sessions, *named(20_000))
