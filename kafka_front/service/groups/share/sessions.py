"""Share sessions: the partitions that a member fetches, remembered so that requests name only changes (KIP-932).

A ShareFetch of epoch 0 opens a session; from then on its epoch counts the member's requests. It ends with its
connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from anabranch_kit.run.turns import in_turns
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Client

FINAL: Final = -1
_LAST_EPOCH = 2**31 - 1

Place = tuple[bytes, int]
"""Topic id and partition."""


class ShareSession:
    """One session. ``held``: partitions of which the member may have acquired records."""

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
        """End the session: its connection is gone."""
        self._gone(self)

    def detach(self) -> None:
        """Close the session before its connection ends."""
        self.closed = True
        self._client.forget_on_close(self.connection_lost)


class ShareSessions:
    """The sessions of a node, at most ``limit``; ``left`` is called with each place of an ended one.

    Like fetch sessions, they remember at most ``partitions`` in all, and one session a tenth of that, since a request
    of a few bytes is answered for all partitions of its session.
    """

    def __init__(self, limit: int, partitions: int, left: Callable[[ShareSession, Place], None]) -> None:
        self._limit = limit
        self._most = partitions
        self._left = left
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._ending: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._readers: Counter[tuple[str, bytes, int]] = Counter()
        self.partitions = 0
        """Partitions of all sessions, including those that are being ended."""

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self, group_id: str, member_id: str, client: Client) -> ShareSession:
        """Open a session in place of the member's old one. Raises KafkaError."""
        key = (group_id, member_id)
        while (old := self._sessions.get(key)) is not None or key in self._ending:
            if old is not None:
                self.close(old)
            # Ending the old session releases all of the member's records, so the member may acquire new ones only
            # afterwards.
            await asyncio.shield(self._ending[key])
        if len(self._sessions) + len(self._ending) >= self._limit:
            text = f"the node has all the {self._limit} share sessions that it may"
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, text)
        session = self._sessions[key] = ShareSession(group_id, member_id, client, self.close)
        return session

    def next(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """Return the session of a later request, and advance its epoch. Raises KafkaError."""
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
        """Add a partition to a session. One too many closes the session and raises KafkaError."""
        if place in session.partitions or session.closed:
            return
        if self.partitions >= self._most or len(session.partitions) >= self._most // 10:
            self.close(session)
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"all share sessions together have {self._most} partitions at most, and one a tenth of that: subscribe "
                "to fewer topics",
            )
        session.partitions[place] = None
        self._readers[(session.group_id, *place)] += 1
        self.partitions += 1

    def remove(self, session: ShareSession, place: Place) -> None:
        if place in session.partitions:
            del session.partitions[place]
            self.partitions -= 1
            key = (session.group_id, *place)
            self._readers[key] -= 1
            if self._readers[key] <= 0:
                del self._readers[key]

    def reads(self, key: tuple[str, bytes, int]) -> bool:
        """Return whether any session reads a share partition."""
        return key in self._readers

    def close(self, session: ShareSession) -> None:
        """End a session; its records are released in turns with other work."""
        if session.closed:
            return
        session.detach()
        key = (session.group_id, session.member_id)
        del self._sessions[key]
        self._ending[key] = asyncio.get_running_loop().create_task(self._end(key, session))

    async def _end(self, key: tuple[str, str], session: ShareSession) -> None:
        try:
            async for place in in_turns(session.held | session.partitions.keys()):
                self.remove(session, place)
                self._left(session, place)
        finally:
            del self._ending[key]
