"""Share sessions: what a member fetches, so that it need not say it with every request (KIP-932).

A session is opened by a ShareFetch of epoch 0 and counts the requests of its member from then on. It belongs to its
connection, and with that it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Client

FINAL: Final = -1
_LAST_EPOCH = 2**31 - 1

Place = tuple[bytes, int]
"""Topic id and partition."""


class ShareSession:
    """One session. ``held``: where the member may have acquired records."""

    __slots__ = ("_client", "_gone", "closed", "epoch", "group_id", "held", "member_id", "partitions")

    def __init__(self, group_id: str, member_id: str, client: Client, gone: Callable[[ShareSession], None]) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = 1
        self.partitions: dict[Place, None] = {}
        self.held: set[Place] = set()
        self.closed = False
        self._client = client
        self._gone = gone
        client.on_close(self.connection_lost)

    def connection_lost(self) -> None:
        """Its connection is gone."""
        self._gone(self)

    def detach(self) -> None:
        """It ends before its connection does."""
        self.closed = True
        self._client.forget_on_close(self.connection_lost)


class ShareSessions:
    """The sessions of a node; ``left`` is called with each that has ended."""

    def __init__(self, limit: int, left: Callable[[ShareSession], None]) -> None:
        self._limit = limit
        self._left = left
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._readers: Counter[tuple[str, bytes, int]] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, group_id: str, member_id: str, client: Client) -> ShareSession:
        """A new session, in the place of the member's old one. Raises KafkaError."""
        old = self._sessions.get((group_id, member_id))
        if old is not None:
            self.close(old)
        if len(self._sessions) >= self._limit:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, "the node has all the share sessions it may")
        session = self._sessions[(group_id, member_id)] = ShareSession(group_id, member_id, client, self.close)
        return session

    def next(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session of a request that is not its first. Raises KafkaError."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, "the member has no share session")
        if epoch != FINAL:
            if epoch != session.epoch:
                raise KafkaError(
                    ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"the session is in epoch {session.epoch}, not {epoch}"
                )
            session.epoch = epoch + 1 if epoch < _LAST_EPOCH else 1
        return session

    def add(self, session: ShareSession, place: Place) -> None:
        """The member reads this partition."""
        if place not in session.partitions:
            session.partitions[place] = None
            self._readers[(session.group_id, *place)] += 1

    def remove(self, session: ShareSession, place: Place) -> None:
        """The member reads it no more."""
        if place in session.partitions:
            del session.partitions[place]
            self._forget((session.group_id, *place))

    def reads(self, key: tuple[str, bytes, int]) -> bool:
        """Whether any session reads a share partition."""
        return key in self._readers

    def close(self, session: ShareSession) -> None:
        """End a session."""
        if session.closed:
            return
        session.detach()
        del self._sessions[(session.group_id, session.member_id)]
        for place in session.partitions:
            self._forget((session.group_id, *place))
        self._left(session)

    def _forget(self, key: tuple[str, bytes, int]) -> None:
        self._readers[key] -= 1
        if self._readers[key] <= 0:
            del self._readers[key]
