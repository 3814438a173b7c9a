"""Batches whose records take long to look at: nothing of their connection overtakes them, and others do not wait."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from bridges.barrier import Barrier
from bridges.errors import LogError
from bridges.log.partition_log import Appended, Batch, PartitionLog
from bridges.sliced import Sliced, SlicedWorks
from kafka_front.service.batch_check import Refusal, Unchecked
from kafka_front.service.deferred_appends import DeferredAppends
from kafka_front.session import Connection
from kafka_front.wire.errors import ErrorCode

ONE, OTHER = cast(Connection, object()), cast(Connection, object())


class Log:
    """Remembers what is appended, and answers at once."""

    def __init__(self) -> None:
        self.appended: list[Any] = []

    def append(self, batch: Batch, done: Any) -> None:
        self.appended.append(bytes(batch.payload))
        done(Appended(len(self.appended) - 1, len(self.appended)), None)


class Answer:
    def __init__(self) -> None:
        self.offset: int | None = None
        self.refusal: Refusal | None = None
        self.told = asyncio.Event()

    def __call__(self, appended: Appended, error: LogError | None) -> None:
        assert error is None
        self.offset = appended.base
        self.told.set()

    def refused(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.told.set()


def unchecked(name: bytes, outcome: Exception | None = None) -> Unchecked:
    def work() -> Sliced[None]:
        for _ in range(10):
            yield None
        if outcome is not None:
            raise outcome

    return Unchecked(Batch(name, 1, 1), work())


def plain(name: bytes) -> Batch:
    return Batch(name, 1, 1)


async def test_nothing_of_a_connection_overtakes_a_batch_that_is_looked_at() -> None:
    works = SlicedWorks()
    deferred = DeferredAppends(works, Barrier())
    log, elsewhere = Log(), Log()
    answers = [Answer() for _ in range(6)]
    partition = cast(PartitionLog, log)
    assert not deferred.queues
    deferred.append(ONE, partition, unchecked(b"1"), answers[0])
    assert deferred.queues
    deferred.append(ONE, partition, plain(b"2"), answers[1])
    deferred.append(ONE, partition, unchecked(b"3"), answers[2])
    deferred.append(ONE, partition, plain(b"4"), answers[3])
    deferred.append(OTHER, partition, plain(b"other"), answers[4])
    deferred.append(ONE, cast(PartitionLog, elsewhere), plain(b"elsewhere"), answers[5])
    assert log.appended == [b"other"], "another connection does not wait"
    assert elsewhere.appended == [b"elsewhere"], "nor does another partition"
    for answer in answers:
        await asyncio.wait_for(answer.told.wait(), 10)
    assert log.appended == [b"other", b"1", b"2", b"3", b"4"]
    await asyncio.sleep(0)
    assert not deferred.queues
    works.close()


async def test_a_refused_batch_costs_only_itself() -> None:
    works, barrier = SlicedWorks(), Barrier()
    deferred = DeferredAppends(works, barrier)
    log = Log()
    answers = [Answer() for _ in range(3)]
    wrong = Refusal(ErrorCode.INVALID_RECORD, "no key", [(3, "no key")])
    for taken, answer in zip(
        (unchecked(b"1", wrong), unchecked(b"2", RuntimeError("a defect")), plain(b"3")), answers, strict=True
    ):
        deferred.append(ONE, cast(PartitionLog, log), taken, answer)
    for answer in answers:
        await asyncio.wait_for(answer.told.wait(), 10)
    assert log.appended == [b"3"]
    assert answers[0].refusal is wrong
    assert answers[1].refusal is not None
    assert answers[1].refusal.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert barrier.failures == {"batch check": 1}
    works.close()
