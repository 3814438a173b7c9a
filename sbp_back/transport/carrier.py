"""Carriers: they take a request to its server and bring its answer back.

:class:`InProcessCarrier` calls a handler of the same process, the carrier of ``tcp_carrier.py`` speaks frames over a
socket. A caller observes no difference. Everything runs on the event loop; a request costs no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.deadlines import Alarm
from sbp_back.errors import ConnectionLost
from sbp_back.transport.handler import DEFECT, Handler
from sbp_back.wire import model as m

Answer = m.Response | ConnectionLost
AnswerTo = Callable[[Answer], None]


class Carrier(Protocol):
    """A way to one server."""

    def submit(self, request: m.Request, reply: AnswerTo, timeout: float | None = None) -> None:
        """Hand over ``request``. Requests are served in the order of submission.

        ``reply`` is called exactly once on the event loop, possibly before this returns, with the response or with
        ``ConnectionLost``: the peer is gone, or ``timeout`` seconds have passed (None: the carrier's own default), and
        whether the request took effect is unknown. A ``GoAway`` is not replied to. An answer of the document's dialect
        that comes in several parts is the exception to "once": ``reply`` is called for each, and all but the final one
        are a ``DocumentResponse`` with ``last`` False.
        """

    async def call(self, request: m.Request, timeout: float | None = None) -> m.Response:
        """Submit a request and return its response. Raises ``ConnectionLost``."""
        return await awaited(lambda settle: self.submit(request, settle, timeout))

    async def close(self) -> None:
        """Close the carrier: requests in flight, and later ones, are answered with ``ConnectionLost``. Idempotent."""


class TimedCall:
    """A request in flight, which waits for its answer until ``deadline`` at most, on the loop's clock."""

    __slots__ = ("_barrier", "_reply", "deadline")

    def __init__(self, reply: AnswerTo, deadline: float, barrier: Barrier) -> None:
        self._reply = reply
        self._barrier = barrier
        self.deadline = deadline

    def reply(self, answer: Answer) -> None:
        """Deliver the answer. Never raises: a defect of the caller must not affect others."""
        try:
            self._reply(answer)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self._barrier.caught("reply", error)


def time_out(calls: Iterable[TimedCall]) -> None:
    """Answer these calls with a time-out."""
    for call in calls:
        call.reply(ConnectionLost("no answer in time"))


def _nobody(response: m.Response) -> None:
    """Ignore the response."""


class InProcessCarrier(Carrier):
    """Carries requests to a handler in this process; messages and the bytes they refer to are not copied.

    Without a ``timeout`` a request waits for as long as its handler does.
    """

    def __init__(self, handler: Handler, barrier: Barrier | None = None) -> None:
        self._handler = handler
        self._barrier = barrier or Barrier()
        self._calls: dict[int, TimedCall] = {}
        self._last = 0
        self._alarm: Alarm | None = None
        self._closed = False

    def submit(self, request: m.Request, reply: AnswerTo, timeout: float | None = None) -> None:
        if self._closed:
            self._barrier.call("reply", reply, ConnectionLost("the carrier is closed"))
            return
        if timeout is None:
            deadline = float("inf")
        else:
            loop = asyncio.get_running_loop()
            if self._alarm is None:
                self._alarm = Alarm(loop, self._expire)
            deadline = loop.time() + timeout
            self._alarm.set(deadline)
        self._last = number = self._last + 1
        calls = self._calls
        if not isinstance(request, m.GoAway):
            calls[number] = TimedCall(reply, deadline, self._barrier)

        def answered(response: m.Response) -> None:
            partial = isinstance(response, m.DocumentResponse) and not response.last
            call = calls.get(number) if partial else calls.pop(number, None)
            if call is not None:
                call.reply(response)

        try:
            self._handler.handle(request, answered)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self._barrier.caught(type(request).__name__, error)
            answered(m.SystemErrorResponse(DEFECT))

    def tell(self, request: m.Request) -> None:
        """Hand over a request whose answer is not needed: in one process it cannot be lost."""
        if self._closed:
            return
        try:
            self._handler.handle(request, _nobody)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self._barrier.caught(type(request).__name__, error)

    async def close(self) -> None:
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.reply(ConnectionLost("the carrier is closed"))

    def _expire(self, now: float) -> None:
        late = [number for number, call in self._calls.items() if call.deadline <= now]
        expired = [self._calls.pop(number) for number in late]
        if self._alarm is not None and self._calls:
            earliest = min(call.deadline for call in self._calls.values())
            if earliest < float("inf"):
                self._alarm.set(earliest)
        time_out(expired)
