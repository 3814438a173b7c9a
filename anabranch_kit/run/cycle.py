"""The end of a cycle of the event loop: everything that was ready has run, and the loop is about to ask the kernel
again.

Code that gathers work of many requests does it then: the appends of all connections go into one write, the answers of a
connection into one send. ``call_soon`` would also work, but each time a turn of the loop later, with a system call in
between; a request that is alone pays for each of them.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
from collections.abc import Callable
from enum import IntEnum
from math import ceil
from time import monotonic
from typing import Any

Work = Callable[[], None]


class _Phase(IntEnum):
    """Kinds of work that the cycle still takes."""

    NOTHING = 0
    ANSWERS = 1
    ALL = 2


class Cycle:
    """Work for the end of the cycle: first gathered work, then the answers from it and from everything else.

    Work that comes too late for a cycle is done at the end of the next, which then comes at once: so work that makes
    more work does not keep the loop from its sockets. Without ``ends``, of a loop that is no :class:`CycleLoop`, it is
    done a turn later.
    """

    __slots__ = ("_answers", "_ends", "_gathered", "_leaving", "_loop", "_phase", "began")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, ends: bool = False) -> None:
        self._loop = loop
        self._ends = ends
        self._phase = _Phase.NOTHING
        self._gathered: list[Work] = []
        self._answers: list[Work] = []
        self._leaving: list[Work] = []
        self.began = 0.0
        """When the kernel last reported what is ready (monotonic clock); 0 for a loop that is no :class:`CycleLoop`."""

    def gather(self, work: Work) -> None:
        """Do ``work`` after everything that was ready has run."""
        if self._phase == _Phase.ALL:
            self._gathered.append(work)
        elif self._ends:
            self._gathered.append(work)
            self._loop.call_soon(_nothing)
        else:
            self._loop.call_soon(work)

    def answer(self, work: Work) -> None:
        """Do ``work`` after all gathered work."""
        if self._phase:
            self._answers.append(work)
        elif self._ends:
            self._answers.append(work)
            self._loop.call_soon(_nothing)
        else:
            self._loop.call_soon(work)

    def hand_over(self, work: Work) -> None:
        """Do ``work``, which wakes another thread, as the last thing before the loop asks the kernel: a thread that
        wakes earlier finds the interpreter taken, and both wait for each other several times.

        For gathered work; done at once where answers would hold it up. It must schedule nothing on this loop.
        """
        if self._phase == _Phase.ANSWERS and not self._answers:
            self._leaving.append(work)
        else:
            work()

    @property
    def leaves(self) -> bool:
        """Return whether :meth:`leave` has something to do."""
        return bool(self._leaving)

    def leave(self) -> None:
        """Do the handed-over work: the loop asks the kernel now."""
        leaving, self._leaving = self._leaving, []
        self._do(leaving)

    def begin(self) -> None:
        """Begin a cycle: the kernel has answered what is ready."""
        self._phase = _Phase.ALL
        self.began = monotonic()

    def end(self) -> None:
        """End a cycle: everything that was ready has run."""
        self._phase = _Phase.ANSWERS
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._do(gathered)
        self._phase = _Phase.NOTHING
        if self._answers:
            answers, self._answers = self._answers, []
            self._do(answers)

    def _do(self, works: list[Work]) -> None:
        for work in works:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - told as the loop tells it of any callback; the others go on
                self._loop.call_exception_handler({"message": "work at the end of a cycle failed", "exception": error})


class _Selector(selectors.EpollSelector):
    """A selector that reports ``last`` behind everything else that is ready.

    ``select`` does what its base's does, in half the time: there are two calls for each request of a client that waits
    for its answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cycle: Cycle | None = None
        self.last: tuple[selectors.SelectorKey, int] | None = None
        self._keys: dict[int, selectors.SelectorKey] = {}
        # The base's epoll under a descriptor of our own: its object is private.
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._keys.pop(key.fd, None)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().modify(fileobj, events, data)
        self._keys[key.fd] = key
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        cycle = self.cycle
        if cycle is not None and cycle.leaves:
            cycle.leave()
        keys = self._keys
        # Rounded up, as in the base: the loop must not wake before its timer is due.
        wait = -1 if timeout is None else 0 if timeout <= 0 else ceil(timeout * 1e3) * 1e-3
        found: list[tuple[selectors.SelectorKey, int]] = []
        try:
            ready = self._epoll.poll(wait, len(keys) or 1)
        except InterruptedError:
            ready = []
        for fd, event in ready:
            key = keys.get(fd)
            if key is None:
                continue
            if event == select.EPOLLIN:  # the usual case
                mask = selectors.EVENT_READ
            else:
                mask = (event & ~select.EPOLLIN and selectors.EVENT_WRITE) | (
                    event & ~select.EPOLLOUT and selectors.EVENT_READ
                )
            found.append((key, mask & key.events))
        if cycle is not None and self.last is not None:
            cycle.begin()
            found.append(self.last)
        return found

    def close(self) -> None:
        self._epoll.close()
        super().close()


class CycleLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, with a selector that always reports one more descriptor, which the loop then comes to last.

    Timers that are due come behind it: the work that they gather is done a turn later.
    """

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        self.cycle = Cycle(self, ends=True)
        # Nothing is ever written to it: the selector just reports it as ready.
        self._end_of_cycle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.add_reader(self._end_of_cycle, self.cycle.end)
        selector.last = (selector.get_key(self._end_of_cycle), selectors.EVENT_READ)
        selector.cycle = self.cycle

    def close(self) -> None:
        if not self.is_closed() and not self.is_running():
            self.remove_reader(self._end_of_cycle)
            os.close(self._end_of_cycle)
        super().close()


def _nothing() -> None:
    """Do nothing: a scheduled call keeps the loop from waiting for the kernel."""


def cycle_of(loop: asyncio.AbstractEventLoop) -> Cycle:
    """Return the cycle of ``loop``; for any other loop than :class:`CycleLoop`, one whose work is done in the next
    turn.
    """
    return loop.cycle if isinstance(loop, CycleLoop) else Cycle(loop)
