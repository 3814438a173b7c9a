"""What is read ahead for a client is what it would have read, is given once, and counts until it is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from anabranch_kit.memory.budget import Kind, MemoryBudget
from bridges.log.damage.skips import Span
from bridges.log.gathering import Answer, GatherDone, Wish, gather
from bridges.log.partition.partition_log import PartitionLog
from bridges.log.transactions.partition_transactions import NEVER
from kafka_front.service.fetch.read_ahead import ReadAhead
from kafka_front.wire.messages import FetchRequest, FetchResponse
from tests.bridges.log.log_lab import World, batch, settle
from tests.kafka_front.test_fetch_waiting import Lab

MIB = 1 << 20


class Ahead:
    """What is read ahead of a log of six batches, of which none is in memory."""

    async def start(self) -> Ahead:
        self.world = World()
        log = await self.world.boot()
        for _ in range(6):
            log.append(batch(), self.world.done)
        self.world.writer.acknowledge(6)
        self.log = await self.world.boot()
        self.budget = MemoryBudget(16 * MIB, lambda call: None)
        self.account = self.budget.account(lambda: None)
        self.ahead = ReadAhead(self.account)
        self.held_back: list[Callable[[], None]] = []
        return self

    def gather(self, wishes: Iterable[Wish], room: int, done: GatherDone) -> None:
        gather(self.world.logs.client, wishes, room, done)

    def gather_later(self, wishes: Iterable[Wish], room: int, done: GatherDone) -> None:
        self.held_back.append(partial(self.gather, wishes, room, done))

    def read(self, offset: int, how: Any = None) -> None:
        turn = self.ahead.expect({self.log: offset})
        self.ahead.read(turn, how or self.gather, [Wish(self.log, offset, MIB, NEVER)], MIB)

    def take(self, offset: int, most: int = MIB, limit: int = 6) -> list[int]:
        taken = self.ahead.take(self.log, offset, most, limit)
        if taken is None:
            return []
        batches, size = taken
        assert self.budget.by_kind[Kind.READS] == size > 0
        self.account.give(Kind.READS, size)
        return [one.base_offset for one in batches]


@pytest.fixture
async def lab() -> Ahead:
    return await Ahead().start()


async def test_what_was_read_is_given_once(lab: Ahead) -> None:
    lab.read(2)
    assert lab.ahead.holds
    assert lab.ahead.expects(lab.log, 2)
    assert not lab.ahead.expects(lab.log, 3)
    assert lab.take(2) == [2, 3, 4, 5]
    assert lab.take(2) == []
    assert lab.budget.held == 0


async def test_what_does_not_fit_the_request_is_not_given(lab: Ahead) -> None:
    lab.read(2)
    assert lab.take(2, limit=4) == [2, 3]
    lab.read(2)
    assert lab.take(2, most=1) == [2]
    lab.read(2)
    assert lab.take(3) == []
    assert lab.budget.held == 0


async def test_nothing_is_given_of_what_has_changed(lab: Ahead) -> None:
    lab.read(2)
    lab.log.skip(Span((3, 4)))
    assert lab.take(2) == []
    lab.read(2)
    lab.log.epoch += 1
    assert lab.take(2) == []
    assert lab.budget.held == 0


async def test_an_answer_forgets_what_the_request_did_not_take(lab: Ahead) -> None:
    lab.read(2)
    assert lab.budget.held > 0
    lab.ahead.expect({})
    assert lab.budget.held == 0
    assert lab.take(2) == []


async def test_a_request_that_came_first_is_not_read_ahead_of(lab: Ahead) -> None:
    turn = lab.ahead.expect({lab.log: 2})
    lab.ahead.expect({lab.log: 4})
    lab.ahead.read(turn, lab.gather, [Wish(lab.log, 2, MIB, NEVER)], MIB)
    assert not lab.ahead.holds


async def test_a_request_waits_for_the_read_that_is_under_way(lab: Ahead) -> None:
    lab.read(2, lab.gather_later)
    assert lab.ahead.reading
    told: list[int] = []
    lab.ahead.when_read(lambda: told.append(1))
    lab.held_back.pop()()
    assert told == [1]
    assert lab.take(2) == [2, 3, 4, 5]


async def test_it_goes_with_its_connection(lab: Ahead) -> None:
    lab.read(2)
    lab.ahead.close()
    assert lab.budget.held == 0
    lab = await Ahead().start()
    lab.read(2, lab.gather_later)
    lab.ahead.close()
    lab.held_back.pop()()
    assert lab.budget.held == 0
    assert not lab.ahead.holds


async def test_nothing_is_read_ahead_while_memory_is_held_by_others(lab: Ahead) -> None:
    hogs = [lab.budget.account(lambda: None) for _ in range(5)]
    for hog in hogs:
        assert hog.admit(Kind.RESPONSES, MIB)
    lab.read(2)
    assert not lab.ahead.holds
    assert lab.budget.by_kind[Kind.READS] == 0


def request(offset: int, most: int) -> FetchRequest:
    partition = FetchRequest.FetchPartition(0, fetch_offset=offset, partition_max_bytes=most)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    return FetchRequest(max_wait_ms=0, max_bytes=most, topics=[topic], session_epoch=-1)


def tell(answer: FetchResponse) -> tuple[int, int]:
    """Offset of the first batch, and number of batches."""
    records: Any = answer.responses[0].partitions[0].records
    return int.from_bytes(records[0][:8], "big"), len(records)


@pytest.mark.parametrize("seeks", [False, True])
async def test_a_client_that_reads_on_is_answered_from_what_was_read_ahead(seeks: bool) -> None:
    lab = Lab()
    log: PartitionLog = await lab.start()
    soon: list[tuple[Any, tuple[Any, ...]]] = []
    lab.loop.call_soon = lambda call, *args: soon.append((call, args))  # type: ignore[attr-defined]
    backend: Any = lab.world.backend
    whole = backend.find
    backend.find = lambda offset, max_bytes, limit: whole(offset, max_bytes, limit)[:2]
    lab.fill(12)
    log.tail.clear()
    connection = lab.connection()
    assert tell(lab.ask(request(0, MIB), connection=connection)) == (0, 2)
    assert not soon, "who reads once may not read on"
    assert tell(lab.ask(request(2, MIB), connection=connection)) == (2, 2)
    ((read, args),) = soon
    reads = backend.reads
    read(*args)
    assert backend.reads == reads + 1
    assert lab.budget.held > 0
    offset = 8 if seeks else 4
    assert tell(lab.ask(request(offset, MIB), connection=connection)) == (offset, 2)
    assert backend.reads == reads + (2 if seeks else 1)
    assert lab.budget.held == 0
    await settle()


async def test_the_first_of_an_answer_is_not_read_ahead_of_room(lab: Ahead) -> None:
    """Where nothing has to be read there is nothing without room; else one batch is read of the first that has any."""
    answers: list[list[Answer]] = []
    wishes = [Wish(lab.log, 0, MIB, NEVER), Wish(lab.log, 3, MIB, NEVER)]
    backend: Any = lab.world.backend
    backend.find = lambda offset, max_bytes, limit: backend.entries[offset : offset + 1]
    for begun in (False, True):
        gather(lab.world.logs.client, wishes, 1, answers.append, begun)
    first = answers[0][0]
    assert first is not None
    assert [one.base_offset for one in first[0]] == [0]
    assert answers[0][1] is None
    assert answers[1] == [None, None]
