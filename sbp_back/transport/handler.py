"""Interface of a server of requests: a range server, a placement driver, or a stand-in for either in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, runtime_checkable

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.wire.model import Request, Response, Status, SystemErrorResponse

Reply = Callable[[Response], None]

DEFECT = Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "unexpected error, see the server's log")
"""The answer to a request whose handler raised an unexpected exception."""


NO_TICKETS = Status(ErrorCode.UNSUPPORTED_OPERATION, "no tickets are demanded here")
"""The answer to a ticket that no gate has taken (:mod:`sbp_back.transport.gate`)."""


class Handler(Protocol):
    """Serves requests of any carrier.

    ``handle`` is called on the event loop and must not raise; if it does, its caller answers :data:`DEFECT`. ``reply``
    is called exactly once, on the loop, before ``handle`` returns or at any later time; a
    :class:`~sbp_back.wire.model.GoAway` is never replied to. Only a :class:`~sbp_back.wire.model.DocumentRequest` may
    be replied to in several parts, all but the last with ``last`` False.
    """

    def handle(self, request: Request, reply: Reply) -> None: ...


class Session(Handler, Protocol):
    """Serves the requests of one connection."""

    def ended(self) -> None:
        """React to the end of the connection; answers to requests in flight go nowhere."""


@runtime_checkable
class HasSessions(Protocol):
    """A handler that needs to know which requests come over the same connection."""

    def session(self) -> Session:
        """Return a session for a new connection."""


class Answers(TaskSet):
    """Tasks that make the answers to requests; each request is answered exactly once, also when its task is
    cancelled.
    """

    __slots__ = ("_barrier",)

    def __init__(self, barrier: Barrier) -> None:
        super().__init__()
        self._barrier = barrier

    def give(self, reply: Callable[[Any], None], work: Coroutine[Any, Any, Response]) -> None:
        """Reply with the result of ``work``, or its ``SbpError`` as a system error."""

        def ended(task: asyncio.Task[Response]) -> None:
            # Reply here, not in the task: a task that is cancelled before its first step never runs.
            self._barrier.call("reply", reply, self._outcome(task))

        self.spawn(work).add_done_callback(ended)

    def _outcome(self, task: asyncio.Task[Response]) -> Response:
        if task.cancelled():
            return SystemErrorResponse.from_code(ErrorCode.RS_INTERNAL_SERVER_ERROR, "the server is shutting down")
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, SbpError):
            return SystemErrorResponse.from_code(error.code, error.message)
        self._barrier.caught("answering a request", error)
        return SystemErrorResponse(DEFECT)
