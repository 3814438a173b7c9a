"""One request in progress, as handlers see it, and what they may know of the connection that it came on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bridges.net import connection as net
from kafka_front.wire.apis import APIS

if TYPE_CHECKING:
    from bridges.auth import Principal
    from kafka_front.service.fetch.patience import Patience
    from kafka_front.service.fetch.read_ahead import ReadAhead
    from kafka_front.wire import codec
    from kafka_front.wire.message import Message


class Outcome(Enum):
    """What a handler may return instead of a response."""

    DEFERRED = "deferred"
    NO_RESPONSE = "no response"


#: The handler calls ``ctx.respond`` exactly once, later, on the event loop.
DEFERRED: Final = Outcome.DEFERRED
#: The request is served and its protocol has no answer (Produce with acks=0).
NO_RESPONSE: Final = Outcome.NO_RESPONSE


class Client(net.Connection):
    """A client's connection.

    Public for handlers: ``id``, ``peer`` and ``local`` (host, port), ``listener`` (name), ``advertised`` (the host and
    port clients of this listener must be told), ``attributes`` (state of services), ``principal``, ``account`` (the
    memory it holds), ``ahead``, ``patience``, on_close, close, logged_in.
    """

    attributes: dict[str, Any]
    ahead: ReadAhead
    """What it will probably fetch next."""
    patience: Patience
    """How long its waiting request may wait."""

    def logged_in(self, principal: Principal, until: float) -> None:
        """The client has proved who it is, and may do what that one may. Requests that come after ``until`` (monotonic
        clock, s) end the connection unless it has done so again."""
        raise NotImplementedError

    def answer(self, ctx: Context, response: Message | Outcome) -> None:
        """See :meth:`Context.respond`."""
        raise NotImplementedError

    def answer_off_loop(self, ctx: Context, response: Message, then: Callable[[], None]) -> None:
        """See :meth:`Context.respond_off_loop`."""
        raise NotImplementedError

    def room(self, ctx: Context, worth: int) -> AbstractAsyncContextManager[None]:
        """See :meth:`Context.room`."""
        raise NotImplementedError

    def answer_failure(self, ctx: Context, code: int, message: str | None) -> None:
        """See :meth:`Context.fail`."""
        raise NotImplementedError

    def unexpected(self, ctx: Context) -> None:
        """See :meth:`Context.crashed`."""
        raise NotImplementedError


class Context(net.Slot):
    """One request in progress."""

    __slots__ = ("client_id", "connection", "correlation_id", "key", "version")

    def __init__(self, connection: Client, header: codec.RequestHeader, size: int, arrived: float) -> None:
        # What the slot would do, without a call: there is one with every request.
        self.arrived = arrived
        self._size = size
        self._request = self._output = None
        self._sent = 0
        self._done = self._retained = False
        self.connection = connection
        self.key, self.version, self.correlation_id, self.client_id, _ = header

    @property
    def size(self) -> int:
        """Bytes of the request."""
        return self._size

    def respond(self, response: Message | Outcome) -> None:
        """Answer a DEFERRED request; NO_RESPONSE finishes it silently. Harmless once the connection is closed.

        Raises RuntimeError when called twice: the client would take the second answer for another request's.
        """
        self.connection.answer(self, response)

    def respond_off_loop(self, response: Message, then: Callable[[], None]) -> None:
        """Like :meth:`respond`, for a response of so many elements that writing it would take others' time. ``then`` is
        called when nothing of it is needed any more."""
        self.connection.answer_off_loop(self, response, then)

    def room(self, worth: int) -> AbstractAsyncContextManager[None]:
        """Work in here on what a short request has made of more than itself: as much as of one of ``worth`` bytes. See
        :class:`kafka_front.long_requests.LongRequests`, in whose room a long one is already."""
        return self.connection.room(self, worth)

    def fail(self, code: int, message: str | None = None) -> None:
        """Answer a DEFERRED request with the API's error response for ``code``."""
        self.connection.answer_failure(self, code, message)

    def crashed(self) -> None:
        """In an except clause of whatever was called for a DEFERRED request: log it, and answer as Kafka does."""
        self.connection.unexpected(self)

    def retain(self) -> None:
        """Have the request's memory counted beyond its answer, until :meth:`release`: something still holds it."""
        self._retained = True

    def release(self) -> None:
        """The memory of a retained request is free now."""
        size, self._size = self._size, 0
        self.connection._release(size)

    def __repr__(self) -> str:
        name = APIS[self.key].name if self.key in APIS else str(self.key)
        return f"<{name} v{self.version} #{self.correlation_id} of {self.client_id!r}>"
