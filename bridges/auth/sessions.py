"""Sessions of users: connections and streams that end when the user is removed or gets another password.

Connections and streams live for weeks, and a client that has shown a password or a token is not asked for it again. So
each session is kept with the credential it began with, and is ended when that credential is not valid any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.turns import in_turns
from bridges.auth import Principal

ENDED = "the user was removed, or has another password now"
"""The reason given to the client, or in the log, when a session is ended."""


class Session:
    """A session of a user. ``find`` returns the credential with which it began, as it is now."""

    __slots__ = ("_credential", "_ended", "_find", "principal")

    def __init__(self, principal: Principal, find: Callable[[], object], ended: Callable[[], None]) -> None:
        self.principal = principal
        self._find = find
        self._credential = find()
        self._ended = ended

    @property
    def is_outdated(self) -> bool:
        return self._find() != self._credential

    def tell(self) -> None:
        """Call the session's callback: its credential is not valid any more."""
        self._ended()


class Sessions:
    """All sessions of a node. Belongs to the event loop.

    ``credential`` returns a user's present credential for a mechanism, None if the user does not exist.
    """

    __slots__ = ("_barrier", "_by_user", "_credential")

    def __init__(self, credential: Callable[[Principal, str], object], barrier: Barrier | None = None) -> None:
        self._credential = credential
        self._barrier = barrier or Barrier()
        self._by_user: dict[Principal, dict[Session, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_user.values()))

    def begin(
        self,
        principal: Principal,
        ended: Callable[[], None],
        mechanism: str = "",
        find: Callable[[], object] | None = None,
    ) -> Session:
        """Have ``ended`` called, once, when the credential that ``principal`` has just shown becomes invalid.

        ``mechanism`` is the SCRAM mechanism with which the user logged in; empty: with the password itself, or with a
        token issued for it. ``find`` returns any other credential. To be called in the turn of the event loop in which
        the credential was checked.
        """
        session = Session(principal.at(""), find or partial(self._credential, principal, mechanism), ended)
        self._by_user.setdefault(session.principal, {})[session] = None
        return session

    def end(self, session: Session | None) -> None:
        """Forget a session that is over. Does nothing if that has been done, or for None."""
        if session is not None and (of_user := self._by_user.get(session.principal)) is not None:
            of_user.pop(session, None)
            if not of_user:
                del self._by_user[session.principal]

    async def end_outdated(self) -> None:
        """End the sessions whose users have other credentials now."""
        async for principal in in_turns(list(self._by_user)):
            async for session in in_turns(list(self._by_user.get(principal, ()))):
                if session.is_outdated and session in self._by_user.get(principal, ()):
                    self.end(session)
                    self._barrier.call("end of a session", session.tell)
