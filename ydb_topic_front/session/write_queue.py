"""Items that a StreamWrite has yet to answer, in the order of the requests: writes in flight, and other answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bridges.log.interfaces import Appended
from ydb_topic_front.session.write_acks import IN_TRANSACTION, Run
from ydb_topic_front.session.write_request import Part

REQUEST_BYTES = 1024
"""Memory for a request besides its bytes until it is answered."""


class Request:
    """WriteRequest in flight, with the results of its parts in their order. Times are of the monotonic clock."""

    __slots__ = (
        "arrived", "cost", "handed", "left", "parts", "quota", "results", "size", "staged", "stored", "undecided"
    )  # fmt: skip

    def __init__(self, parts: list[Part], size: int, arrived: float) -> None:
        self.parts: list[Sequence[int]] = [part.seq_nos for part in parts]
        self.results: list[Appended | None] = [None] * len(parts)
        self.left = len(parts)
        """Parts that are not durable; stays above zero if one was refused."""
        self.size = size
        self.cost = size + REQUEST_BYTES
        self.arrived = arrived
        self.quota = 0.0
        """Seconds it waited for the write speed or a quota."""
        self.handed = arrived
        self.stored = arrived
        self.undecided = 0
        """Parts in flight, plus one while they are being handed over."""
        self.staged = False
        """Whether it is part of a transaction, and not handed to the log."""

    def staged_part(self, index: int, skipped: int) -> None:
        """Note that a part is staged, without its ``skipped`` first messages, which were staged before."""
        self.staged = True
        self.results[index] = Appended(IN_TRANSACTION, IN_TRANSACTION, skipped)
        self.left -= 1
        self.stored = time.monotonic()

    def stored_part(self, index: int, appended: Appended, place: int = 0) -> int:
        """Note that a part is durable: a whole batch, or from the message at ``place`` on in a batch shared with other
        requests. Returns the part's number of messages."""
        count = len(self.parts[index])
        self.results[index] = share_of(appended, place, count)
        self.left -= 1
        return count

    @property
    def acks(self) -> int:
        """Return the number of messages in the request."""
        return sum(map(len, self.parts))

    def runs(self) -> list[Run]:
        """Return the outcome of the messages as runs for the acks."""
        runs: list[Run] = []
        for seq_nos, appended in zip(self.parts, self.results, strict=True):
            assert appended is not None
            if appended.duplicate:
                runs.append(Run(seq_nos, -1))
                continue
            if appended.skipped:
                runs.append(Run(seq_nos[: appended.skipped], -1))
                seq_nos = seq_nos[appended.skipped :]
            if seq_nos:
                runs.append(Run(seq_nos, appended.base))
        return runs


def share_of(appended: Appended, place: int, count: int) -> Appended:
    """Return the outcome of ``count`` messages of a batch, the first of which is at ``place`` in it."""
    if appended.duplicate:
        return appended
    skipped = min(max(appended.skipped - place, 0), count)
    base = appended.base + max(place - appended.skipped, 0)
    return Appended(base, base + count - skipped, skipped, skipped == count)


class Answer:
    """Encoded message that answers no write, at its place among the answers to writes."""

    __slots__ = ("cost", "raw")

    left = 0
    undecided = 0

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.cost = len(raw) + REQUEST_BYTES
