"""Partitions of a session of which all is told rest, and cost its requests nothing until there is news."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch_kit.run import turns
from bridges.auth import Principal
from bridges.errors import LogUnavailable
from bridges.log.partition.partition_log import PartitionLog
from kafka_front.context import DEFERRED
from kafka_front.service.fetch import operation as fetch_operation
from kafka_front.service.fetch.places import Places
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchRequest, FetchResponse
from tests.bridges.log.log_lab import World, batch, settle
from tests.kafka_front.test_fetch_waiting import Lab

PARTITIONS = 5


class Consumer(Lab):
    """One that reads all partitions of a topic in a session."""

    async def start(self) -> PartitionLog:
        self.world = World(partitions=PARTITIONS)
        log = await super().start()
        self.logs = [self.world.logs.get("t", number) for number in range(PARTITIONS)]
        for one in self.logs:
            assert one is not None
            await one.ready()
        self.session = 0
        self.epoch = 0
        self.looked_at = 0
        resolve = self.fetch.partitions.resolve

        def counted(*args: Any) -> None:
            self.looked_at += 1
            resolve(*args)

        self.fetch.partitions.resolve = counted  # type: ignore[method-assign]
        return log

    def append(self, partition: int) -> None:
        log = self.logs[partition]
        assert log is not None
        log.append(batch(), self.world.done)
        self.world.backend.writers[partition].acknowledge(1)

    def poll(self, wait_ms: int = 60_000, forget: int = -1, level: int = 0, **offsets: int) -> Any:
        """The next request of the session; ``p1=3``: partition 1 is read from 3 on."""
        if not self.epoch:
            offsets = {f"p{number}": 0 for number in range(PARTITIONS)}
        parts = [
            FetchRequest.FetchPartition(int(name[1:]), fetch_offset=offset, partition_max_bytes=1 << 20)
            for name, offset in offsets.items()
        ]
        forgotten = [FetchRequest.ForgottenTopic(topic="t", partitions=[forget])] if forget >= 0 else []
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=level,
            session_id=self.session,
            session_epoch=self.epoch,
            topics=[FetchRequest.FetchTopic(topic="t", partitions=parts)] if parts else [],
            forgotten_topics_data=forgotten,
        )
        self.epoch += 1
        answer = self.ask(request)
        if isinstance(answer, FetchResponse):
            self.session = answer.session_id
        return answer

    @property
    def places(self) -> Places:
        return self.service.fetch_sessions.sessions[self.session].places  # type: ignore[no-any-return]

    @property
    def waiting(self) -> list[int]:
        """How many wait for each partition."""
        return [len(log.waiters.waiting) for log in self.logs if log is not None]


def told(answer: FetchResponse) -> dict[int, int]:
    """Partition -> batches, of those that the answer names."""
    assert answer.error_code == 0
    return {
        partition.partition_index: len(partition.records or [])
        for topic in answer.responses
        for partition in topic.partitions
        if partition.error_code == 0
    }


@pytest.fixture
async def lab() -> Consumer:
    lab = Consumer()
    await lab.start()
    assert told(lab.poll(wait_ms=0)) == dict.fromkeys(range(PARTITIONS), 0)
    return lab


async def test_a_request_without_news_looks_at_no_partition(lab: Consumer) -> None:
    assert len(lab.places) == PARTITIONS
    assert lab.waiting == [1] * PARTITIONS
    lab.looked_at = 0
    for _ in range(3):
        assert lab.poll() is DEFERRED
        _, expired, args = lab.loop.timers.pop()
        expired(*args)
        assert told(lab.answers.pop()) == {}
    assert lab.looked_at == 0
    assert lab.waiting == [1] * PARTITIONS


async def test_news_end_the_wait_and_are_all_that_is_told(lab: Consumer) -> None:
    assert lab.poll() is DEFERRED
    lab.append(1)
    await settle()
    assert told(lab.answers.pop()) == {1: 1}
    assert lab.waiting == [1, 0, 1, 1, 1], "a log that has moved calls nobody who knows it"
    lab.looked_at = 0
    assert lab.poll(p1=1) is DEFERRED
    assert lab.looked_at == 1
    lab.append(1)
    lab.append(3)
    await settle()
    first = lab.answers.pop()
    assert told(first).keys() <= {1, 3}
    rest = {number: 2 if number == 1 else 1 for number in told(first)}
    answer = lab.poll(wait_ms=0, **{f"p{number}": offset for number, offset in rest.items()})
    assert {**told(first), **told(answer)}.keys() == {1, 3}


async def test_what_came_between_two_requests_is_told_by_the_second(lab: Consumer) -> None:
    lab.append(2)
    await settle()
    assert told(lab.poll()) == {2: 1}
    assert told(lab.poll(wait_ms=0)) == {2: 1}, "the client has not moved on"
    assert lab.poll(p2=1) is DEFERRED


async def test_a_request_waits_for_enough_of_what_moves(lab: Consumer) -> None:
    size = len(batch().payload)
    request = FetchRequest(
        max_wait_ms=60_000, min_bytes=3 * size, max_bytes=1 << 20, session_id=lab.session, session_epoch=1
    )
    assert lab.ask(request) is DEFERRED
    for partition in (0, 1):
        lab.append(partition)
        await settle()
        assert lab.answers == []
    lab.append(0)
    await settle()
    assert told(lab.answers.pop()) == {0: 2, 1: 1}


async def test_what_moves_while_a_request_waits_for_more_counts_as_far_as_there_is_room(
    lab: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_operation, "SLOT_BYTES", 1 << 20)  # of a budget of 16 MiB
    size = len(batch().payload)
    request = FetchRequest(
        max_wait_ms=60_000, min_bytes=3 * size, max_bytes=1 << 20, session_id=lab.session, session_epoch=1
    )
    assert lab.ask(request) is DEFERRED
    lab.append(0)
    await settle()
    assert lab.answers == []
    assert lab.budget.held == 1 << 20
    lab.append(1)
    await settle()
    assert told(lab.answers.pop()) == {0: 1, 1: 1}
    assert lab.budget.held == 0


@pytest.mark.usefixtures("slow_turns")
async def test_places_go_with_their_partition_and_with_their_session(
    lab: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PORTION", 1)
    lab.poll(wait_ms=0, forget=3)
    assert lab.waiting == [1, 1, 1, 0, 1]
    later: list[Any] = []
    sessions = lab.service.fetch_sessions
    sessions._later = later.append
    sessions.drop(lab.session)
    assert sum(lab.waiting) == 3
    while later:
        later.pop()()
    assert lab.waiting == [0] * PARTITIONS
    assert later == []


async def test_a_log_that_fails_is_looked_at_again_once_it_is_open(lab: Consumer) -> None:
    log = lab.logs[4]
    assert log is not None
    assert lab.poll() is DEFERRED
    log.fail(LogUnavailable("the backend is gone"))
    await settle()
    (partition,) = lab.answers.pop().responses[0].partitions
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert 4 in [key[1] for key in lab.places.awake]
    assert lab.poll(wait_ms=0) is DEFERRED, "it is being opened"
    await settle()
    await log.ready()
    assert told(lab.answers.pop()).keys() >= {4}
    assert told(lab.poll(wait_ms=0)) == {}
    assert len(lab.places) == PARTITIONS


@pytest.mark.parametrize("what", ["level", "principal"])
async def test_nothing_rests_for_another_reader(lab: Consumer, what: str) -> None:
    lab.looked_at = 0
    if what == "level":
        lab.poll(wait_ms=0, level=1)
    else:
        connection = lab.connection()
        connection.principal = Principal("somebody", "else")
        lab.ask(FetchRequest(max_wait_ms=0, session_id=lab.session, session_epoch=1), connection=connection)
    assert lab.looked_at == PARTITIONS
    assert len(lab.places) == PARTITIONS


async def test_a_request_beside_another_of_its_session_looks_at_everything(lab: Consumer) -> None:
    assert lab.poll() is DEFERRED
    lab.looked_at = 0
    assert told(lab.poll(wait_ms=0)) == {}
    assert lab.looked_at == PARTITIONS
    lab.append(0)
    await settle()
    assert told(lab.answers.pop()) == {0: 1}
    assert lab.waiting == [0, 1, 1, 1, 1]


async def test_a_lost_connection_leaves_the_places_to_the_next_request(lab: Consumer) -> None:
    ended: list[Any] = []
    request = FetchRequest(max_wait_ms=60_000, min_bytes=1, session_id=lab.session, session_epoch=1)
    assert lab.ask(request, on_close=ended.append) is DEFERRED
    ended[-1]()
    assert lab.places.request is None
    lab.append(2)
    await settle()
    lab.epoch = 2
    assert told(lab.poll()) == {2: 1}
