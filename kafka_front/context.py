"""A request in progress, as its handler sees it, and the part of its connection that handlers may use."""

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
    """A handler's result other than a response."""

    DEFERRED = "deferred"
    NO_RESPONSE = "no response"


#: The handler calls ``ctx.respond`` exactly once, later, on the event loop.
DEFERRED: Final = Outcome.DEFERRED
#: The request is served and its protocol has no answer (Produce with acks=0).
NO_RESPONSE: Final = Outcome.NO_RESPONSE


class Client(net.Connection):
    """A client's connection.

    Handlers may use ``id``, ``peer`` and ``local`` (host, port), ``listener`` (name), ``advertised`` (the host and port
    that clients of this listener are given), ``attributes`` (state of services), ``principal``, ``account`` (the memory
    that it holds), ``ahead``, ``patience``, on_close, close, logged_in.
    """

    attributes: dict[str, Any]
    ahead: ReadAhead
    """Batches that the client will probably fetch next."""
    patience: Patience
    """Timer of the connection's waiting Fetch."""

    def logged_in(self, principal: Principal, until: float) -> None:
        """Set the principal as which the client has authenticated. Requests that arrive after ``until`` (monotonic
        clock, s) end the connection unless the client has authenticated again."""
        raise NotImplementedError

    def answer(self, ctx: Context, response: Message | Outcome) -> None:
        """Answer a request; see :meth:`Context.respond`."""
        raise NotImplementedError

    def answer_off_loop(self, ctx: Context, response: Message, then: Callable[[], None]) -> None:
        """Answer a request and encode the response in a thread; see :meth:`Context.respond_off_loop`."""
        raise NotImplementedError

    def room(self, ctx: Context, worth: int) -> AbstractAsyncContextManager[None]:
        """Limit the memory of a short request; see :meth:`Context.room`."""
        raise NotImplementedError

    def answer_failure(self, ctx: Context, code: int, message: str | None) -> None:
        """Answer a request with an error; see :meth:`Context.fail`."""
        raise NotImplementedError

    def unexpected(self, ctx: Context) -> None:
        """Log the current exception and answer; see :meth:`Context.crashed`."""
        raise NotImplementedError


class Context(net.Slot):
    """One request in progress."""

    __slots__ = ("client_id", "connection", "correlation_id", "key", "version")

    def __init__(self, connection: Client, header: codec.RequestHeader, size: int, arrived: float) -> None:
        # net.Slot.__init__, inlined: a call per request costs time.
        self.arrived = arrived
        self._size = size
        self._request = self._output = None
        self._sent = 0
        self._done = self._retained = False
        self.connection = connection
        self.key, self.version, self.correlation_id, self.client_id, _ = header

    @property
    def size(self) -> int:
        """Return the request's bytes."""
        return self._size

    def respond(self, response: Message | Outcome) -> None:
        """Answer a DEFERRED request; NO_RESPONSE finishes it silently. Harmless once the connection is closed.

        Raises RuntimeError when called twice: the client would take the second answer for another request's.
        """
        self.connection.answer(self, response)

    def respond_off_loop(self, response: Message, then: Callable[[], None]) -> None:
        """Answer like :meth:`respond`, but encode the response in a thread, since its many elements would block the
        event loop. ``then`` is called when the response is no longer needed."""
        self.connection.answer_off_loop(self, response, then)

    def room(self, worth: int) -> AbstractAsyncContextManager[None]:
        """Limit memory while a short request expands into much more than its own bytes: it counts as a long one of
        ``worth`` bytes. A long request is in the room of :class:`kafka_front.long_requests.LongRequests` already."""
        return self.connection.room(self, worth)

    def fail(self, code: int, message: str | None = None) -> None:
        """Answer a DEFERRED request with the API's error response for ``code``."""
        self.connection.answer_failure(self, code, message)

    def crashed(self) -> None:
        """Log the current exception and answer as Kafka does. Call it in an except clause around the work of a DEFERRED
        request."""
        self.connection.unexpected(self)

    def retain(self) -> None:
        """Count the request's memory beyond its answer, until :meth:`release`: some part of the node still holds it."""
        self._retained = True

    def release(self) -> None:
        """Free the memory of a retained request."""
        size, self._size = self._size, 0
        self.connection._release(size)

    def __repr__(self) -> str:
        name = APIS[self.key].name if self.key in APIS else str(self.key)
        return f"<{name} v{self.version} #{self.correlation_id} of {self.client_id!r}>"
