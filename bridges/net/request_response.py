"""Connections of protocols that answer one request after the other, each by a coroutine.

What remains for the protocol is how its frames are told apart and what the answer to one is. Who must say who it is and
has not is no business of the answers: its frames go elsewhere until it has (:meth:`Answers.greet`).
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
    from bridges.net.quotas import Quotas

Frame = bytes | bytearray


def _nothing() -> None:
    """Of whom nothing has to be ended."""


class Answers(Protocol):
    """What a protocol of requests and answers is."""

    def must_log_in(self, listener: str) -> bool:
        """Whether clients of a listener must say who they are."""

    async def greet(self, client: RequestConnection, frame: Frame) -> bytes:
        """The answer to a client that must still say who it is."""
        ...

    async def answer(self, client: RequestConnection, frame: Frame) -> bytes:
        """The answer to a request, bytes as they are sent; none for none."""
        ...


class RequestConnection(Connection):
    """A client. Its ``principal`` is who it has shown to be."""

    server: RequestServer

    def __init__(self, server: RequestServer, listener: str, advertised: tuple[str, int] | None) -> None:
        super().__init__(server, listener, advertised, server.framing)
        self._end_session: Callable[[], None] = _nothing
        self.on_close(self._leave)

    @property
    def must_log_in(self) -> bool:
        """Whether nothing may be answered before it has said who it is."""
        return self.principal.is_anonymous and self.server.protocol.must_log_in(self.listener)

    def log_in(self, principal: Principal, sessions: Sessions) -> None:
        """It has shown to be ``principal``, in this turn of the loop; it ends when that is not good any more."""
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
        return False  # one at a time

    def _outlives(self, slot: object) -> bool:
        return True  # whoever answers it holds it

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
    """All listeners of a front of that kind."""

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
    ) -> None:
        super().__init__(name, limits, observer, budget, barrier, quotas)
        self.framing = framing
        self.protocol = protocol

    def connection(self, listener: str, advertised: tuple[str, int] | None) -> RequestConnection:
        return RequestConnection(self, listener, advertised)
