"""What a StreamWrite has to answer yet: requests on their way and other answers, in the order of what was asked."""

from __future__ import annotations

from collections.abc import Sequence

from bridges.log.interfaces import Appended
from ydb_topic_front.session.write_acks import Run
from ydb_topic_front.session.write_request import Part

REQUEST_BYTES = 1024
"""What a request costs besides its bytes until it is answered."""


class Request:
    """A WriteRequest on its way: what became of its parts, in their order. Times are of the monotonic clock."""

    __slots__ = ("arrived", "cost", "handed", "left", "parts", "quota", "results", "size", "stored", "undecided")

    def __init__(self, parts: list[Part], size: int, arrived: float) -> None:
        self.parts: list[Sequence[int]] = [part.seq_nos for part in parts]
        self.results: list[Appended | None] = [None] * len(parts)
        self.left = len(parts)
        """Parts that are not durable: never zero when one was refused."""
        self.size = size
        self.cost = size + REQUEST_BYTES
        self.arrived = arrived
        self.quota = 0.0
        """Seconds for which the partition's speed has held it up."""
        self.handed = arrived
        self.stored = arrived
        self.undecided = 0
        """Parts with the log, and one while they are handed over."""

    def stored_part(self, index: int, appended: Appended, place: int = 0) -> int:
        """A part is durable: all of a batch, or what begins with the message at ``place`` of one that other requests
        share. Gives the number of its messages."""
        count = len(self.parts[index])
        self.results[index] = share_of(appended, place, count)
        self.left -= 1
        return count

    @property
    def acks(self) -> int:
        """Messages that the answer tells of."""
        return sum(map(len, self.parts))

    def runs(self) -> list[Run]:
        """What the acks say."""
        runs: list[Run] = []
        for seq_nos, appended in zip(self.parts, self.results, strict=True):
            assert appended is not None
            if appended.duplicate:
                runs.append(Run(seq_nos, -1))
                continue
            if appended.skipped:
                runs.append(Run(seq_nos[: appended.skipped], -1))
                seq_nos = seq_nos[appended.skipped :]
            runs.append(Run(seq_nos, appended.base))
        return runs


def share_of(appended: Appended, place: int, count: int) -> Appended:
    """What became of ``count`` messages of a batch, the first of which lies at ``place`` in it."""
    if appended.duplicate:
        return appended
    skipped = min(max(appended.skipped - place, 0), count)
    base = appended.base + max(place - appended.skipped, 0)
    return Appended(base, base + count - skipped, skipped, skipped == count)


class Answer:
    """Something to send that is no answer to a write, in its place among those that are."""

    __slots__ = ("cost", "raw")

    left = 0
    undecided = 0

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.cost = len(raw) + REQUEST_BYTES
