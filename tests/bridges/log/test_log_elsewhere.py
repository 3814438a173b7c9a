"""Readers of another node's log are woken, whatever happens to the question that watches it."""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from bridges.errors import LogUnavailable
from bridges.log.remote.log_elsewhere import Answer, LogElsewhere, Op, Question, State
from tests.kit.waiting import until


class Owner:
    """The owner of a log. It answers a watch when it is told to."""

    def __init__(self) -> None:
        self.owners = None
        self.barrier = Barrier()
        self.tasks = TaskSet()
        self.state = State(high=1, stable=1)
        self.watches: list[asyncio.Future[None]] = []

    async def ask(self, question: Question, patience_s: float) -> Answer:
        if question.op == Op.WATCH:
            self.watches.append(asyncio.get_running_loop().create_future())
            await self.watches[-1]
        return Answer(question.number, self.state, [], 0, None)


class Waiter:
    def __init__(self, woken: asyncio.Event) -> None:
        self._woken = woken

    def log_moved(self, log: object) -> None:
        self._woken.set()


async def test_a_reader_is_woken_when_another_learns_what_the_watch_failed_to_tell() -> None:
    owner: Any = Owner()
    log = LogElsewhere(owner, "t", 0, 1, b"i")
    await log.ready()
    woken = asyncio.Event()
    log.add_waiter(Waiter(woken))
    await until(lambda: owner.watches)
    owner.state = State(high=5, stable=5, final=5)
    await log.read_committed(1, 1000)  # of another reader
    owner.watches[0].set_exception(LogUnavailable("t-0 is opened anew"))
    async with asyncio.timeout(60):
        await woken.wait()
    await owner.tasks.close()
