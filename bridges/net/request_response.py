"""Connections of protocols that answer one request after the other, each in a coroutine.

The protocol adds its framing and the answer to a frame. Clients that must log in are kept apart from its answers: until
they have, their frames go to :meth:`Answers.greet`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from bridges.auth import Principal
from bridges.net.connection import Connection, Slot
from bridges.net.server import Limits, Observer, Server

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget
    from anabranch_kit.net.framing import Framing
    from anabranch_kit.net.line_framing import LineFraming
    from anabranch_kit.run.barrier import Barrier
    from bridges.auth.sessions import Sessions
    from bridges.clients import Clients
    from bridges.net.quotas import Quotas

Frame = bytes | bytearray


def _nothing() -> None:
    """Do nothing, as the end of a session that there is not."""


class Answers(Protocol):
    """A request-response protocol."""

    def must_log_in(self, listener: str) -> bool:
        """Return whether clients of a listener must log in."""

    async def greet(self, client: RequestConnection, frame: Frame) -> bytes:
        """Return the answer to a client that has not logged in yet but must."""
        ...

    async def answer(self, client: RequestConnection, frame: Frame) -> bytes:
        """Return the answer to a request as sent; empty for no answer."""
        ...


class RequestConnection(Connection):
    """A client's connection. ``principal`` is the client as it has logged in."""

    server: RequestServer

    def __init__(self, server: RequestServer, listener: str, advertised: tuple[str, int] | None) -> None:
        super().__init__(server, listener, advertised, server.framing)
        self._end_session: Callable[[], None] = _nothing
        self.on_close(self._leave)

    @property
    def must_log_in(self) -> bool:
        """Return whether the client must log in before its requests are answered."""
        return self.principal.is_anonymous and self.server.protocol.must_log_in(self.listener)

    def log_in(self, principal: Principal, sessions: Sessions) -> None:
        """Log the client in as ``principal``, in the turn in which its credential was checked.

        The connection closes when that credential becomes invalid.
        """
        self._leave()
        if self.closed:
            return
        self.principal = principal.at(self.peer[0])
        session = sessions.begin(principal, lambda: self.close("the client's login has ended"))
        self._end_session = partial(sessions.end, session)

    def _leave(self) -> None:
        end, self._end_session = self._end_session, _nothing
        end()

    def _may_start(self, frame: Frame | None) -> bool:
        return False  # one request at a time

    def _outlives(self, slot: object) -> bool:
        return True  # the coroutine that answers it holds it

    def _start(self, frame: Frame, arrived: float) -> None:
        slot = Slot(len(frame), arrived)
        self._slots.append(slot)
        self.server.spawn(self._answered(slot, frame))

    async def _answered(self, slot: Slot, frame: Frame) -> None:
        answer = b""
        try:
            protocol = self.server.protocol
            answer = await (protocol.greet if self.must_log_in else protocol.answer)(self, frame)
        except Exception as error:  # noqa: BLE001 - logged and counted; it costs this connection
            self.server.barrier.caught("request", error, front=self.server.name)
            self.close("a request failed unexpectedly")
        finally:
            self._fill(slot, [answer] if answer else [], len(answer))


class RequestServer(Server):
    """All listeners of a front with a request-response protocol."""

    def __init__(
        self,
        name: str,
        limits: Limits,
        observer: Observer,
        budget: MemoryBudget,
        barrier: Barrier,
        quotas: Quotas,
        framing: Framing | LineFraming,
        protocol: Answers,
        clients: Clients | None = None,
    ) -> None:
        super().__init__(name, limits, observer, budget, barrier, quotas, clients)
        self.framing = framing
        self.protocol = protocol

    def connection(self, listener: str, advertised: tuple[str, int] | None) -> RequestConnection:
        return RequestConnection(self, listener, advertised)
