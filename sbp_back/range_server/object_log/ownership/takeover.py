"""Takeover of another server's log of objects: ends the log and finds its end, in one step. Sans-IO.

The caller puts an empty fence at the first missing number, if absent. If an object is there after all, it tries the
next number. Once a fence is there,

* its incarnation can acknowledge nothing from there on, since it acknowledges a group only when all before it are
  there, and the fence's number is taken for ever;
* everything that it has acknowledged lies below, since acknowledged objects exist, and stay: nobody deletes numbers
  from ``first`` on before the end of this log is written down;
* the age of the listing that gave the first number does not matter: a number wrongly taken for missing is passed over.
  A listed number is passed over untried only where its size shows that it is a group: behind another server's fence
  there may be groups that do not count.

A living server may always be faster: while a fence is on its way its number is taken. So after some tries a fence is
put far ahead, where the server will meet it, and the search goes on from below up to there.

So the takeover asks no server, and no clock declares a server dead: the clock only says when to try. Two servers that
do this at once find the same end: the second meets the first one's fence.

The caller's duty: ``first`` comes from the same transaction that writes down that this log is being ended, after which
its own server may not give up objects any more, and a fence is never deleted. Otherwise a deleted number would be taken
for the end, or the dead server would come back and find its number free.
"""

from __future__ import annotations

from collections.abc import Mapping

from sbp_back.range_server.object_log.objects.content import HEAD_BYTES, ObjectHead, ObjectKind, encode
from sbp_back.range_server.object_log.writer import Put

_TRIES = 4
"""Numbers in a row that may turn out to be taken before a fence is put ahead."""
_AHEAD = 32
"""Distance of the first fence ahead; then twice as far each time."""

_NEVER = -(1 << 60)
"""No more fences ahead: one exists, so the search ends."""


class Takeover:
    """The end of the log of ``incarnation``, whose objects below ``first`` count though they may be deleted.

    ``listed``: numbers from a listing, which may be stale, with the bytes of their objects.
    """

    __slots__ = ("_ahead", "_from", "_tries", "_unique", "end", "incarnation", "number")

    def __init__(self, incarnation: int, first: int, unique: bytes, listed: Mapping[int, int]) -> None:
        self.incarnation = incarnation
        self.number = first
        """Number of the next put of the fence."""
        self.end = -1
        """The number of the fence, once known. Objects below it are the log, objects above were never acknowledged."""
        self._unique = unique
        self._tries = 0
        self._ahead = _AHEAD
        self._from = -1
        """While a fence is put ahead: the number to try next below it."""
        while listed.get(self.number, 0) > HEAD_BYTES:
            self.number += 1

    def content(self) -> bytes:
        """Return the fence's object, to be put as ``number``."""
        return encode(ObjectKind.FENCE, self.incarnation, self.number, self._unique)

    def put_ended(self, outcome: Put, there: ObjectHead | None = None) -> bool:
        """Take the outcome of putting the fence; return whether the end is known now. Otherwise put it again, as
        ``number`` says.

        ``there``: with ``Put.TAKEN``, the head of the object that took the number. If it cannot be read, pass
        ``Put.UNKNOWN``.
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
        # Created now, by an earlier try, or by another server that does the same.
        self.end = self.number
        return True
