"""Who may write a log next, and when a log is closed for good. Sans-IO.

Each start of a server, and everybody who takes over a log that is not their own, *claims* the next number of its
``incarnations``, put if absent, and then ends the logs of all numbers below (:mod:`.takeover`). A claim is 16 bytes
that only its maker has; with a name behind them it is a *closing* one: the server of the log of that name has adopted
this one, and no number above is ever claimed. Therefore

* a server that comes back finds a closing claim, whenever that was made, and begins another log;
* of two who would adopt a log one finds the other's claim, and asks who has the log that is named there now;
* what a log holds below the fences never changes once it is closed, so whoever reads it, and whoever reads it after
  them, finds the same.

Numbers are claimed without a gap: a claim is put only where the one before was seen. So a listing may be as old as it
likes: it says where to look first.
"""

from __future__ import annotations

from sbp_back.range_server.object_log.content import UNIQUE_BYTES


class Claim:
    """Claims the next number of a log whose incarnations ``listed`` are known of.

    Put :attr:`content` as :attr:`number` if absent, and tell :meth:`answered` what is there then, until it says that
    the claim has ended. ``adopter``: the name of the log that is to have this one; empty: the log's own server claims.
    """

    __slots__ = ("adopted_by", "content", "number")

    def __init__(self, unique: bytes, listed: list[int], adopter: str = "") -> None:
        if len(unique) != UNIQUE_BYTES:
            raise ValueError(f"a unique id has {UNIQUE_BYTES} bytes, not {len(unique)}")
        self.content = unique + adopter.encode()
        self.number = max(listed, default=0)
        """The number that is tried; in the end the one that is claimed, or that of the closing claim. The last that is
        known of is tried, though it is taken: it may be a closing one."""
        self.adopted_by = ""
        """In the end: the name in the closing claim, if there is one that is not this."""

    def answered(self, there: bytes) -> bool:
        """``there`` is what the number has, this claim or another; whether that is the end."""
        if there == self.content:
            return True
        self.adopted_by = there[UNIQUE_BYTES:].decode()
        if self.adopted_by:
            return True
        self.number += 1
        return False
