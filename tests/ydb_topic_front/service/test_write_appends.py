"""When requests of a session are handed to the log, and which of them as one batch."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from anabranch_kit.memory.budget import MemoryBudget
from bridges.errors import LogUnavailable
from bridges.formats.producer import SeqNoStamp
from bridges.log.interfaces import NOT_APPENDED, AppendDone, Appended, Batch
from ydb_topic_front.service.write import appends as write_appends
from ydb_topic_front.service.write.appends import WriteAppends
from ydb_topic_front.session.write_batches import Batches
from ydb_topic_front.session.write_queue import Request
from ydb_topic_front.session.write_request import parts_at_once, write_body
from ydb_topic_front.wire.messages import StreamWriteFromClient


class Log:
    """Takes batches, and makes them durable when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.came = asyncio.Event()
        self._pending: list[tuple[Batch, AppendDone]] = []
        self._end = 0

    def append(self, batch: Batch, done: AppendDone) -> None:
        assert isinstance(batch.producer, SeqNoStamp)
        self.batches.append(list(batch.producer.seq_nos))
        self._pending.append((batch, done))
        self.came.set()

    def flush(self) -> None:
        pending, self._pending = self._pending, []
        for batch, done in pending:
            base, self._end = self._end, self._end + batch.count
            done(Appended(base, self._end), None)

    def fail(self) -> None:
        pending, self._pending = self._pending, []
        for _, done in pending:
            done(NOT_APPENDED, LogUnavailable("lost"))


class Lab:
    """One session's appends, in a log of their own."""

    def __init__(self) -> None:
        self.log = Log()
        self.refused = False
        budget = MemoryBudget(1 << 30, lambda _: None)
        self.appends = WriteAppends(
            budget.account(lambda: None), lambda: not self.refused, self._failed, lambda: None, lambda: None
        )
        self.appends.begin(cast(Any, self.log), Batches(b"p", b""), lambda *_: None)

    def _failed(self, error: object) -> None:
        self.refused = True

    async def take(self, number: int, size: int = 0, count: int = 1) -> Request:
        messages = [{"seq_no": number + index, "data": b"%0*d" % (size, number)} for index in range(count)]
        raw = StreamWriteFromClient(write_request={"messages": messages, "codec": 1}).SerializeToString()
        body = write_body(raw)
        assert body is not None
        found = parts_at_once(raw, body, 1000)
        assert found is not None
        request = Request(found.parts, len(raw), 0.0)
        await self.appends.take(request, found)
        return request


async def test_who_waits_for_each_answer_is_written_at_once() -> None:
    lab = Lab()
    for number in (1, 2):
        await lab.take(number)
        assert lab.log.batches[-1] == [number]
        lab.log.flush()
        lab.appends.note_answer()


async def test_what_comes_before_the_last_answer_is_one_batch() -> None:
    lab = Lab()
    await lab.take(1)
    await lab.take(2)
    await lab.take(3)
    lab.log.flush()
    await lab.take(4)
    assert lab.log.batches == [[1]]
    lab.appends.note_answer()
    assert lab.log.batches == [[1], [2, 3, 4]]
    lab.log.flush()
    await lab.take(5)
    lab.appends.note_answer()
    lab.appends.note_answer()
    await lab.take(6)
    assert lab.log.batches == [[1], [2, 3, 4]]
    lab.appends.note_answer()
    assert lab.log.batches == [[1], [2, 3, 4], [5, 6]]
    lab.log.flush()
    assert not lab.appends.in_flight


async def test_the_last_answers_hold_nobody_up() -> None:
    lab = Lab()
    for number in range(1, 10):
        await lab.take(number)
    lab.log.flush()
    lab.appends.note_answer()
    lab.log.flush()
    await lab.take(10)
    for _ in range(5):
        lab.appends.note_answer()
    assert lab.log.batches == [[1], list(range(2, 10))]
    lab.appends.note_answer()
    assert lab.log.batches == [[1], list(range(2, 10)), [10]]
    await lab.take(11)
    lab.log.flush()
    assert len(lab.log.batches) == 3
    for _ in range(3):
        lab.appends.note_answer()
    assert lab.log.batches[3:] == [[11]]


async def test_much_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_appends, "HELD_BYTES", 2000)
    lab = Lab()
    await lab.take(1)
    await lab.take(2, size=1000)
    assert lab.log.batches == [[1]]
    await lab.take(3, size=1000)
    assert lab.log.batches == [[1], [2, 3]]


async def test_what_shares_no_batch_waits_for_no_answers() -> None:
    lab = Lab()
    await lab.take(1)
    await lab.take(101, count=100)
    assert len(lab.log.batches) == 1
    lab.log.flush()
    assert lab.log.batches[1:] == [list(range(101, 201))]
    lab.log.flush()
    await lab.take(201, count=100)
    assert lab.log.batches[2:] == [list(range(201, 301))]


@pytest.mark.parametrize("flushed_first", [False, True])
async def test_answers_that_nobody_takes_hold_it_up_for_a_while(
    monkeypatch: pytest.MonkeyPatch, flushed_first: bool
) -> None:
    monkeypatch.setattr(write_appends, "PATIENCE_S", 0.0)
    lab = Lab()
    await lab.take(1)
    lab.log.came.clear()
    if flushed_first:
        lab.log.flush()
        await lab.take(2)
    else:
        await lab.take(2)
        asyncio.get_running_loop().call_later(0.01, lab.log.flush)  # the alarm has gone off in vain before
    await lab.log.came.wait()
    assert lab.log.batches == [[1], [2]]
    lab.appends.close()


async def test_nothing_is_written_behind_what_was_refused() -> None:
    lab = Lab()
    await lab.take(1)
    held = await lab.take(2)
    lab.log.fail()
    lab.appends.note_answer()
    assert lab.log.batches == [[1]]
    assert not lab.appends.in_flight
    assert not held.undecided
    await lab.appends.await_decided()
    lab.appends.close()
