"""Answers within the time that a request allows: ``timeout_ms`` in nearly every request of the document.

When the time is up the request is answered with an unknown outcome. The work itself goes on to its end, because half a
change would be worse than one that its client learns of later; its result is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch_kit.run.deadlines import Deadlines
from sbp_back.errors import ErrorCode
from sbp_back.transport.handler import Reply
from sbp_back.wire.model import Response, Status

MAX_TIMEOUT_MS = (1 << 31) - 1
"""Largest value of a request's field."""


def too_late(timeout_ms: int) -> Status:
    """Return the status of a request that did not finish in time. No code says that it was not done: it may still be
    done.
    """
    message = f"not done in {timeout_ms} ms, the outcome is unknown"
    return Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, message)


def milliseconds(seconds: float) -> int:
    """Convert ``seconds`` for a request; never 0, which would mean no limit."""
    return max(1, int(min(seconds * 1000, MAX_TIMEOUT_MS)))


class TimedReply:
    """A reply that is called once: with the answer, or with what ``late`` makes of :func:`too_late` when that comes
    first.

    Its maker adds it to ``deadlines``, with :meth:`expire` as the callback.
    """

    __slots__ = ("_deadlines", "_late", "_reply", "_timeout_ms")

    def __init__(
        self, reply: Reply, timeout_ms: int, late: Callable[[Status], Response], deadlines: Deadlines[TimedReply]
    ) -> None:
        self._reply: Reply | None = reply
        self._timeout_ms = timeout_ms
        self._late = late
        self._deadlines = deadlines

    def __call__(self, response: Response) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            self._deadlines.remove(self)
            reply(response)

    def expire(self) -> None:
        self(self._late(too_late(self._timeout_ms)))
