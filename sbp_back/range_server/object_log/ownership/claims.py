"""Claims of a log: who may write it next, and when it is closed for good. Sans-IO.

Each start of a server, and each server that takes over another's log, *claims* the next number of the log's
``incarnations``, put if absent, and then ends the logs of all numbers below (:mod:`.takeover`). A claim is 16 bytes
that only its maker has. A *closing* claim has a log's name behind them: only the server of that log may adopt this one.
No start claims a number behind a closing claim. Therefore

* a server that comes back finds a closing claim, whenever that was made, and begins another log;
* of two servers that would adopt a log, one finds the other's claim and leaves the log to it;
* the content of a log below the fences never changes once it is closed, so all its readers see the same, at any time.

A server that has closed a log owns it once its own log says so. If its own log is closed before that, it never will:
two servers that each take the other for dead can close each other's. Once its log is fenced everybody sees that it does
not record the adoption, and may put one more closing claim behind it.

Numbers are claimed without a gap: a claim is put only behind a claim that was read. So a listing may be stale: it only
says where to look first.
"""

from __future__ import annotations

from sbp_back.range_server.object_log.objects.content import UNIQUE_BYTES


class Claim:
    """A claim of the next number of a log by a start, which knows the incarnations ``listed``.

    Put :attr:`content` as :attr:`number` if absent, and pass :meth:`answered` the content that is there then, until it
    returns that the claim has ended.
    """

    __slots__ = ("closed", "content", "number")

    def __init__(self, unique: bytes, listed: list[int]) -> None:
        self.content = _claim(unique)
        self.number = max(listed, default=0)
        """The number to try next; in the end the claimed one. The last known number is tried first, though it is taken:
        it may be a closing claim.
        """
        self.closed = False
        """In the end: another server may have adopted the log, and nothing is claimed."""

    def answered(self, there: bytes) -> bool:
        """Take ``there``, the content of the number: this claim or another. Return whether the claim has ended."""
        if there == self.content:
            return True
        self.closed = bool(adopter_in(there))
        if not self.closed:
            self.number += 1
        return self.closed


class Closing:
    """The closing of a log, whose incarnations ``listed`` are known, by the log of ``adopter``, which is to adopt it.

    First find the last claim: pass :meth:`take_claim` the content of :attr:`number` until it returns that it is known.
    If :attr:`by` is the adopter itself, the log is closed already. If it is another log, go on only where that log is
    closed, fenced, and does not record the adoption. Then put :attr:`content` as :attr:`number` if absent, and pass
    :meth:`put` the content that is there; if that does not end it, look again.
    """

    __slots__ = ("adopter", "by", "content", "number")

    def __init__(self, unique: bytes, listed: list[int], adopter: str) -> None:
        self.content = _claim(unique) + adopter.encode()
        self.adopter = adopter
        self.number = max(listed, default=0)
        """The number to read or put next; in the end that of the closing claim."""
        self.by = ""
        """The log that has closed this one, as far as was read; empty: none has."""

    def take_claim(self, there: bytes | None) -> bool:
        """Take the content of the number (None: nothing there); return whether the last claim is known now."""
        if there is None:
            return True
        self.by = adopter_in(there)
        if self.by == self.adopter:
            return True
        self.number += 1
        return False

    @property
    def is_closed(self) -> bool:
        """Return whether :attr:`number` is a closing claim of the adopter's."""
        return self.by == self.adopter

    def put(self, there: bytes) -> bool:
        """Take the content of the number, this claim or another; return whether the log is closed for the adopter."""
        if there == self.content:
            self.by = self.adopter
        return self.is_closed


def adopter_in(claim: bytes) -> str:
    """Return the log that a claim names; empty for a claim that closes nothing."""
    return claim[UNIQUE_BYTES:].decode()


def _claim(unique: bytes) -> bytes:
    if len(unique) != UNIQUE_BYTES:
        raise ValueError(f"a unique id has {UNIQUE_BYTES} bytes, not {len(unique)}")
    return unique
