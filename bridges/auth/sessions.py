"""What is under way in somebody's name: it ends with the user, or with the password that was shown.

Connections and streams live for weeks, and who has shown a password or a token once is not asked for it again. So each
is kept here with what was shown, and told when that is good for nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.turns import in_turns
from bridges.auth import Principal

ENDED = "the user was removed, or has another password now"
"""What a client, or the log, is told of why its session has ended."""


class Session:
    """One that was begun. ``mechanism``: of SCRAM, with which the user has proved who it is; empty: with the password
    itself, or a token that was given for it."""

    __slots__ = ("_ended", "credential", "mechanism", "principal")

    def __init__(self, principal: Principal, mechanism: str, credential: object, ended: Callable[[], None]) -> None:
        self.principal = principal
        self.mechanism = mechanism
        self.credential = credential
        self._ended = ended

    def tell(self) -> None:
        """It has ended."""
        self._ended()


class Sessions:
    """All of a node. Belongs to the event loop. ``credential`` gives what a user is known by now with a mechanism, None
    for nobody."""

    __slots__ = ("_barrier", "_by_user", "_credential")

    def __init__(self, credential: Callable[[Principal, str], object], barrier: Barrier | None = None) -> None:
        self._credential = credential
        self._barrier = barrier or Barrier()
        self._by_user: dict[Principal, dict[Session, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_user.values()))

    def begin(self, principal: Principal, ended: Callable[[], None], mechanism: str = "") -> Session:
        """Have ``ended`` called, once, when what ``principal`` has shown just now is good for nothing any more.

        To be called in the same turn of the loop in which that was found good.
        """
        session = Session(principal.at(""), mechanism, self._credential(principal, mechanism), ended)
        self._by_user.setdefault(session.principal, {})[session] = None
        return session

    def end(self, session: Session | None) -> None:
        """It is over. Harmless if it is already, or there is none."""
        if session is not None and (of_user := self._by_user.get(session.principal)) is not None:
            of_user.pop(session, None)
            if not of_user:
                del self._by_user[session.principal]

    async def look(self) -> None:
        """End those whose users are others now."""
        async for principal in in_turns(list(self._by_user)):
            now: dict[str, object] = {}
            async for session in in_turns(list(self._by_user.get(principal, ()))):
                mechanism = session.mechanism
                if mechanism not in now:
                    now[mechanism] = self._credential(principal, mechanism)
                if session.credential != now[mechanism] and session in self._by_user.get(principal, ()):
                    self.end(session)
                    self._barrier.call("end of a session", session.tell)
