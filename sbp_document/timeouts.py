"""Answers within the time a request allows them: ``timeout_ms`` in nearly every request of the document.

When the time is up the request is answered that its outcome is unknown. The work itself goes on to its end, because
half a change would be worse than one that its client learns of later; what comes of it goes nowhere.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch_kit.run.deadlines import Deadlines
from sbp_back.errors import ErrorCode
from sbp_back.transport.handler import Reply
from sbp_back.wire.model import Response, Status

MAX_TIMEOUT_MS = (1 << 31) - 1
"""What the field of a request holds."""


def too_late(timeout_ms: int) -> Status:
    """The status of what did not come to its end in time. No code says that it was not done: it may be, still."""
    message = f"not done in {timeout_ms} ms, the outcome is unknown"
    return Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, message)


def milliseconds(seconds: float) -> int:
    """``seconds`` as a request says it; never 0, which would be no limit."""
    return max(1, int(min(seconds * 1000, MAX_TIMEOUT_MS)))


class TimedReply:
    """Replies once: with what it is called with, or with what ``late`` makes of :func:`too_late` when that comes first.

    To be added to ``deadlines`` by whoever made it, with :meth:`expire` as what happens there.
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
