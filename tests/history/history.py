"""What clients did and were told, as events: the history that :mod:`checks` judges.

One event is one call of one client: when it was made, when its answer was there (both in seconds of one clock of the
machine), and what it said. Outcomes are three, as in Jepsen: it happened, it certainly did not, or nobody can say. Each
value is written once, ever, by its writer's name and number, so that what is read tells whose it is.

Events of a client go to a file of its own, a line of JSON each, as they come: a history outlives whoever kept it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import IO

import msgspec

Partition = str
"""``topic/number``: the same partition whichever protocol reads it."""


class Outcome(Enum):
    """What is known of a call."""

    DONE = "done"
    NOT_DONE = "not done"
    UNKNOWN = "unknown"


class Event(msgspec.Struct, kw_only=True, tag_field="kind"):
    """``client``: who; ``invoked``, ``told``: seconds, when it was asked and answered (of an unknown outcome: when it
    was given up)."""

    client: str
    invoked: float
    told: float


class Send(Event, tag="send"):
    """A record was written. ``order``: the client's sends to one partition are in the order of these numbers, whether
    or not it waited between them. ``offset``: where it was told that it lies. ``key``: for compacted topics."""

    partition: Partition | None
    value: str
    outcome: Outcome
    order: int = 0
    offset: int | None = None
    transaction: str | None = None
    key: str | None = None


class Poll(Event, tag="poll"):
    """Records were given. Polls of one ``session`` go on where the last one ended; a new session says that the client
    began somewhere else. ``whole``: read from the beginning to the end when no write was under way any more."""

    protocol: str
    session: str
    records: list[tuple[Partition, int, str]]
    committed: bool = True
    whole: bool = False


class End(Event, tag="end"):
    """A transaction was ended, as committed or not."""

    transaction: str
    commit: bool
    outcome: Outcome


class Commit(Event, tag="commit"):
    """A group's position was stored: the next offset to read."""

    group: str
    partition: Partition
    offset: int
    outcome: Outcome


class Committed(Event, tag="committed"):
    """A group's position was asked for; None: there is none."""

    group: str
    partition: Partition
    offset: int | None


class Tail(Event, tag="tail"):
    """Where a partition ends was asked for: the offset of the next record."""

    partition: Partition
    end: int


class Begin(Event, tag="begin"):
    """From here on a partition is kept: what lies below may be gone (trims, retention)."""

    partition: Partition
    offset: int


Told = Send | Poll | End | Commit | Committed | Tail | Begin
"""What a history is made of."""


class Recorder:
    """Keeps the events of one client in a file. Methods may be called from any thread."""

    def __init__(self, path: Path, client: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self.clock = clock
        self._encoder = msgspec.json.Encoder()
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def now(self) -> float:
        """For ``invoked``."""
        return self.clock()

    def keep(self, event: Told) -> None:
        """One event, at once."""
        line = self._encoder.encode(event) + b"\n"
        with self._lock:
            self._file.write(line)

    def close(self) -> None:
        self._file.close()


def read(paths: Iterable[Path]) -> Iterator[Told]:
    """All events in files. A last line that its writer was killed in the middle of is passed over."""
    decoder = msgspec.json.Decoder(Told)
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield decoder.decode(line)
