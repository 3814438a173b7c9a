"""Batches and markers of transactions in the partitions of one node: what waits for what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch_kit.run.barrier import Barrier
from bridges.errors import LogError, LogUnavailable, NotOwner
from bridges.log.interfaces import NOT_APPENDED
from bridges.log.transactions.marking import End, Markers
from kafka_front.service.transactions.parts import Parts

Done = Callable[[Any, LogError | None], None]
PRODUCER = 7


class Log:
    """A log whose appends arrive when the test says."""

    def __init__(self) -> None:
        self.topic, self.partition, self.stream_id = "t", 0, 1
        self.is_open, self.epoch = True, 1
        self.state = SimpleNamespace(transactions=SimpleNamespace(open={}))
        self.waiting: list[tuple[Any, Done]] = []
        self.entries: list[Any] = []

    async def ready(self) -> None:
        if not self.is_open:
            raise NotOwner("t-0", 2)

    def append(self, batch: Any, done: Done) -> None:
        self.waiting.append((batch.value, done))

    def append_marker(self, producer_id: int, epoch: int, commit: bool, done: Done) -> None:
        self.waiting.append((commit, done))

    def arrive(self) -> None:
        value, done = self.waiting.pop(0)
        self.entries.append(value)
        found = self.state.transactions.open
        if isinstance(value, bool):
            found.pop(PRODUCER)
        else:
            found.setdefault(PRODUCER, len(self.entries))
        done(len(self.entries), None)


class Lab:
    def __init__(self) -> None:
        self.log = Log()
        self.parts = Parts(Barrier())
        self.markers = Markers(
            SimpleNamespace(get=lambda topic, number: self.log),  # type: ignore[arg-type]
            SimpleNamespace(run=self._run),  # type: ignore[arg-type]
            SimpleNamespace(slot_of=lambda topic, number: 0, holding=lambda slot: lambda connection: None),  # type: ignore[arg-type]
            self.parts.quiet,
        )
        self.told: dict[str, LogError | None] = {}
        self.asked = 0
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, value: str, epoch: int = 0) -> None:
        batch = SimpleNamespace(transaction=SimpleNamespace(producer_id=PRODUCER, epoch=epoch), value=value)
        self.parts.append(self.log, batch, self._require, lambda _, error: self.told.update({value: error}))  # type: ignore[arg-type]

    async def _require(self) -> None:
        self.asked += 1
        await asyncio.shield(self.answer)

    async def _run(self, work: Callable[[Any], bool]) -> bool:
        return work(None)

    async def end(self) -> None:
        await self.markers.write(End(PRODUCER, 0, commit=True), [("t", 0)], lambda connection: True)

    def allow(self) -> None:
        self.answer.set_result(None)

    def refuse(self) -> None:
        self.answer = asyncio.get_running_loop().create_future()
        self.answer.set_exception(LogError("it has ended"))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_it_is_asked_once_and_batches_keep_their_order() -> None:
    lab = Lab()
    lab.write("a")
    lab.write("b")
    await turns()
    assert not lab.log.waiting
    lab.allow()
    await turns()
    lab.write("c")
    assert [value for value, _ in lab.log.waiting] == ["a", "b", "c"]
    assert lab.asked == 1
    while lab.log.waiting:
        lab.log.arrive()
    ending = asyncio.create_task(lab.end())
    await turns()
    lab.log.arrive()
    await ending
    assert lab.log.entries == ["a", "b", "c", True]
    assert not len(lab.parts), "nothing is left of it"


async def test_a_marker_waits_for_what_is_on_its_way() -> None:
    lab = Lab()
    lab.allow()
    lab.write("a")
    await turns()
    ending = asyncio.create_task(lab.end())
    await turns()
    assert [value for value, _ in lab.log.waiting] == ["a"]
    lab.log.arrive()
    await turns()
    lab.log.arrive()
    await ending
    assert lab.log.entries == ["a", True]


async def test_behind_a_marker_it_is_asked_again() -> None:
    lab = Lab()
    lab.allow()
    lab.write("a")
    await turns()
    lab.log.arrive()
    ending = asyncio.create_task(lab.end())
    await turns()
    lab.refuse()
    lab.write("late")
    lab.log.arrive()
    await ending
    await turns()
    assert isinstance(lab.told["late"], LogError)
    assert lab.log.entries == ["a", True]
    assert not lab.log.waiting


async def test_what_was_being_asked_as_a_marker_came_is_asked_again() -> None:
    lab = Lab()
    lab.write("late")
    await turns()
    await lab.end()  # nothing is open: there is nothing to write
    asked = lab.answer
    lab.refuse()
    asked.set_result(None)  # it was still open when that was looked up
    await turns()
    assert lab.asked == 2
    assert isinstance(lab.told["late"], LogError)
    assert not lab.log.waiting
    assert not len(lab.parts)


async def test_what_was_asked_in_another_epoch_of_the_log_is_asked_again() -> None:
    lab = Lab()
    lab.write("late")
    await turns()
    lab.log.epoch = 3  # another node had it meanwhile, and may have written the marker
    asked = lab.answer
    lab.refuse()
    asked.set_result(None)
    await turns()
    assert lab.asked == 2
    assert isinstance(lab.told["late"], LogError)


async def test_who_has_lost_the_partition_does_not_say_that_nothing_is_open() -> None:
    lab = Lab()
    lab.allow()
    lab.write("a")
    await turns()
    ending = asyncio.create_task(lab.end())
    await turns()
    lab.log.epoch = 3
    lab.log.waiting.pop()[1](NOT_APPENDED, LogUnavailable("fenced"))  # it may be in the log
    with pytest.raises(LogUnavailable):
        await ending
    lab.log.is_open = False
    with pytest.raises(NotOwner):
        await lab.end()


async def test_markers_of_one_producer_take_turns() -> None:
    lab = Lab()
    lab.allow()
    lab.write("a")
    await turns()
    lab.log.arrive()
    ends = [asyncio.create_task(lab.end()) for _ in range(2)]
    await turns()
    assert len(lab.log.waiting) == 1
    lab.log.arrive()
    await asyncio.gather(*ends)
    assert lab.log.entries == ["a", True]
