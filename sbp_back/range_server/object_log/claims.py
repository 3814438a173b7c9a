"""Who may write a log next, and when a log is closed for good. Sans-IO.

Each start of a server, and everybody who takes over a log that is not their own, *claims* the next number of its
``incarnations``, put if absent, and then ends the logs of all numbers below (:mod:`.takeover`). A claim is 16 bytes
that only its maker has; with a name behind them it is a *closing* one: the server of the log of that name, and nobody
else, may adopt this one. No start claims a number behind a closing claim. Therefore

* a server that comes back finds a closing claim, whenever that was made, and begins another log;
* of two who would adopt a log one finds the other's claim, and leaves it to that one;
* what a log holds below the fences never changes once it is closed, so whoever reads it, and whoever reads it after
  them, finds the same.

Who has closed a log has it once its own log says so. If its own log is closed before that, it never will: two servers
that each take the other for dead can close each other's. Once its log is fenced everybody sees that it does not say so,
and may put one more closing claim behind it.

Numbers are claimed without a gap: a claim is put only where the one before was seen. So a listing may be as old as it
likes: it says where to look first.
"""

from __future__ import annotations

from sbp_back.range_server.object_log.content import UNIQUE_BYTES


class Claim:
    """A start claims the next number of its log, whose incarnations ``listed`` are known of.

    Put :attr:`content` as :attr:`number` if absent, and tell :meth:`answered` what is there then, until it says that
    this has ended.
    """

    __slots__ = ("closed", "content", "number")

    def __init__(self, unique: bytes, listed: list[int]) -> None:
        self.content = _claim(unique)
        self.number = max(listed, default=0)
        """The number that is tried, and in the end the one that is claimed. The last that is known of is tried, though
        it is taken: it may be a closing one."""
        self.closed = False
        """In the end: somebody may have adopted the log, and nothing is claimed."""

    def answered(self, there: bytes) -> bool:
        """``there`` is what the number has, this claim or another; whether that is the end."""
        if there == self.content:
            return True
        self.closed = bool(adopter_in(there))
        if not self.closed:
            self.number += 1
        return self.closed


class Closing:
    """The log of ``adopter`` is to adopt another one, whose incarnations ``listed`` are known of.

    First the last claim is looked for: tell :meth:`looked` what :attr:`number` has until it says that this has ended.
    If :attr:`by` is the adopter itself, it is closed already. If it is somebody else, go on only where that one's log
    is closed, fenced, and says nothing of this one. Then put :attr:`content` as :attr:`number` if absent, and tell
    :meth:`put` what is there; if that does not end it, look again.
    """

    __slots__ = ("adopter", "by", "content", "number")

    def __init__(self, unique: bytes, listed: list[int], adopter: str) -> None:
        self.content = _claim(unique) + adopter.encode()
        self.adopter = adopter
        self.number = max(listed, default=0)
        """The number that is looked at or put; in the end that of the closing claim."""
        self.by = ""
        """Who has closed the log, as far as was looked; empty: nobody has."""

    def looked(self, there: bytes | None) -> bool:
        """What the number has, None: nothing; whether the last claim is known now."""
        if there is None:
            return True
        self.by = adopter_in(there)
        if self.by == self.adopter:
            return True
        self.number += 1
        return False

    @property
    def is_closed(self) -> bool:
        """Whether :attr:`number` is a closing claim of the adopter's."""
        return self.by == self.adopter

    def put(self, there: bytes) -> bool:
        """What the number has, this claim or another; whether that is the end."""
        if there == self.content:
            self.by = self.adopter
        return self.is_closed


def adopter_in(claim: bytes) -> str:
    """The log that is named in a claim; empty: it closes nothing."""
    return claim[UNIQUE_BYTES:].decode()


def _claim(unique: bytes) -> bytes:
    if len(unique) != UNIQUE_BYTES:
        raise ValueError(f"a unique id has {UNIQUE_BYTES} bytes, not {len(unique)}")
    return unique
