"""Ending somebody else's log of objects, and knowing its end, in one step. Sans-IO.

An empty fence is put at the first number that is missing, if there is none. If there is one after all, it is tried at
the next number. Once a fence is there,

* its incarnation can acknowledge nothing from there on, since it acknowledges a group only when all before it are
  there, and the fence's number is taken for ever;
* all that it has acknowledged lies below, since what was acknowledged was there, and stays: numbers from ``first`` on
  are deleted by nobody before the end of this log is written down;
* it does not matter how old the listing was from which the first try came: a number that was thought to be missing and
  is not is passed over. What a listing shows is passed over untried only where its size says that it is a group: behind
  a fence that somebody else has put there may be groups that do not count.

A server that lives may always be faster: while a fence is on its way its number is taken. So after some tries a fence
is put far ahead, where the server will meet it, and looking goes on from below up to there.

So nobody has to be asked, and no clock says that somebody is dead: it only says when to try. Two who do this at once
find the same end: the second meets the first one's fence.

The caller's duty: ``first`` comes from the same transaction that writes down that this log is being ended, after which
its own server may not give up objects any more, and a fence is never deleted. Otherwise a number that is missing since
it was deleted would be taken for the end, or the dead would come back and find their number free.
"""

from __future__ import annotations

from collections.abc import Mapping

from sbp_back.range_server.object_log.content import HEAD_BYTES, ObjectHead, ObjectKind, encode
from sbp_back.range_server.object_log.writer import Put

_TRIES = 4
"""So many numbers in a row are found taken before a fence is put ahead."""
_AHEAD = 32
"""How far at first; then twice as far each time."""

_NEVER = -(1 << 60)
"""Tries: there is a fence ahead, so looking comes to an end."""


class Takeover:
    """Ends the log of ``incarnation``, of whose objects those below ``first`` count though they may be deleted.

    ``listed``: numbers that a listing has told, however old it is, with the bytes of their objects.
    """

    __slots__ = ("_ahead", "_from", "_tries", "_unique", "end", "incarnation", "number")

    def __init__(self, incarnation: int, first: int, unique: bytes, listed: Mapping[int, int]) -> None:
        self.incarnation = incarnation
        self.number = first
        """Where the fence is put next."""
        self.end = -1
        """Once it is known: the number of the fence. What lies below is the log, what lies above was never
        acknowledged."""
        self._unique = unique
        self._tries = 0
        self._ahead = _AHEAD
        self._from = -1
        """While a fence is put ahead: the number that is looked at next."""
        while listed.get(self.number, 0) > HEAD_BYTES:
            self.number += 1

    def content(self) -> bytes:
        """The fence's object, to be put as ``number``."""
        return encode(ObjectKind.FENCE, self.incarnation, self.number, self._unique)

    def put_ended(self, outcome: Put, there: ObjectHead | None = None) -> bool:
        """The put of the fence has ended; whether the end is known now. Otherwise it is put again, as ``number`` says.

        ``there``: with ``Put.TAKEN``, the head of what took the number. Who cannot read that says ``Put.UNKNOWN``.
        """
        if self.end >= 0 or outcome is Put.UNKNOWN:
            return self.end >= 0
        passed = outcome is Put.TAKEN and (there is None or there.kind is not ObjectKind.FENCE)
        if self._from >= 0:
            self.number, self._from = self._from, -1
            self._tries = 0 if passed else _NEVER
            return False
        if passed:
            self.number += 1
            self._tries += 1
            if self._tries == _TRIES:
                self._from = self.number
                self.number += self._ahead
                self._ahead *= 2
            return False
        # Created; or an earlier try's, or that of somebody who is doing the same.
        self.end = self.number
        return True
