"""The writer of a log of objects: groups of appends become consecutively numbered objects, several in flight at once,
and count in the order of their numbers. Sans-IO.

A group's object goes through these states; what is not in the table cannot happen:

| state | event | next | what follows |
|---|---|---|---|
| QUEUED | room for one more in flight | UNDER_WAY | it is put, if there is none of its number |
| UNDER_WAY | the store has created it | THERE | |
| UNDER_WAY | the store has the number: this object (same unique id) | THERE | an earlier put's answer was lost |
| UNDER_WAY | the store has the number: another object | | the log is *fenced* |
| UNDER_WAY | no answer for a while | UNDER_WAY | it is put once more beside, the same bytes |
| UNDER_WAY | no answer at all, or an ambiguous one | UNKNOWN | it is put again, the same bytes |
| UNKNOWN | time to try again | UNDER_WAY | |
| THERE | all before it are there as well | *acknowledged* | |

The order matters because a server that ends this log (:mod:`.ownership.takeover`) puts a fence at the first missing
number. A group above a missing number is then no part of the log, though its object is there; so it is acknowledged
only when nothing below it is missing. A fenced log acknowledges nothing more, not even groups below the fence: their
appenders ask the server that has the ranges now. A group that is not acknowledged is *unknown*, not failed
(docs/protocols/sbp.md, "Writers").
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Generic, TypeVar

from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.object_log.objects.content import ObjectKind, encode

T = TypeVar("T")

_LATE_BYTES = 2 << 20


class Put(Enum):
    """Outcome of a put-if-absent."""

    CREATED = "created"
    TAKEN = "taken"
    """There is an object of that number; its unique id comes along."""
    UNKNOWN = "unknown"
    """No answer, or one that leaves open whether the object is there."""


class State(Enum):
    """State of a group's object; see the table above."""

    QUEUED = "queued"
    UNDER_WAY = "under way"
    UNKNOWN = "unknown"
    THERE = "there"


class Group(Generic[T]):
    """Appends that become one object. ``tokens`` are the appender's, given back when the group is acknowledged."""

    __slots__ = ("bytes", "late_at", "number", "patience", "state", "tokens", "unique")

    def __init__(self, number: int, unique: bytes) -> None:
        self.number = number
        self.unique = unique
        self.tokens: list[T] = []
        self.bytes = 0
        self.state = State.QUEUED
        self.patience = 0.0
        """Seconds to wait for the answer to the last put."""
        self.late_at = 0.0


class LogWriter(Generic[T]):
    """Writes the log of one incarnation, whose number no other writer was ever given.

    ``unique`` returns 16 bytes that are unique to each call. A group closes when it has ``most_bytes``; or when it has
    ``enough_bytes`` and one more can be put right away; or ``linger`` seconds after the group before. While all groups
    before it are acknowledged it closes at once, if fewer than one group per ``linger`` was closed in the last
    ``saved`` seconds: a lone appender waits for the store only, and ``linger`` bounds the number of small objects.
    ``most_under_way`` groups are put at once. One that has no answer after ``late`` seconds, and as long again for each
    2 MiB, is put once more, then after twice as long, and so on: a store that swallows a request for a moment holds up
    nobody until that times out. Times are the caller's, in seconds, and never go back; they decide only when something
    is tried.
    """

    def __init__(
        self,
        incarnation: int,
        unique: Callable[[], bytes],
        *,
        linger: float = 0.05,
        saved: float = 60.0,
        late: float = 1.0,
        most_bytes: int = 8 << 20,
        enough_bytes: int = 1 << 20,
        most_under_way: int = 4,
    ) -> None:
        self.incarnation = incarnation
        self.fenced = False
        """Another server has ended this log: nothing is put or acknowledged any more."""
        self._unique = unique
        self._linger = linger
        self._saved = saved
        self._late = late
        self._most_bytes = most_bytes
        self._enough_bytes = enough_bytes
        self._most_under_way = most_under_way
        self._next_number = 0
        # All that are not acknowledged, in order; the last may still be open.
        self._groups: deque[Group[T]] = deque()
        self._open: Group[T] | None = None
        self._opened_at = 0.0
        self._closed_at = -math.inf
        self._spent_until = -math.inf
        """The time that the closed groups have used up, each ``linger``; what is not used within ``saved`` is lost."""

    @property
    def acknowledged(self) -> int:
        """Return the number of objects that count: all of lower numbers exist."""
        return self._next_number - len(self._groups)

    @property
    def pending(self) -> int:
        """Return the number of groups that are not acknowledged, the open one included."""
        return len(self._groups)

    @property
    def fresh(self) -> bool:
        """Return whether the next append begins a group."""
        return self._open is None

    def append(self, size: int, token: T, now: float) -> None:
        """Take ``size`` bytes into the open group. ``token`` is given back once, however often it comes in a row.

        Raises ValueError when the log is fenced."""
        if self.fenced:
            raise ValueError("somebody else has ended this log")
        group = self._open
        if group is None:
            group = self._open = Group(self._next_number, self._unique())
            self._groups.append(group)
            self._next_number += 1
            self._opened_at = now
        if not group.tokens or group.tokens[-1] is not token:
            group.tokens.append(token)
        group.bytes += size
        if group.bytes >= self._most_bytes:
            self.close_group(now)

    def abandon(self) -> list[T]:
        """Stop putting and acknowledging; return the tokens of all groups that are not acknowledged, in order."""
        self.fenced = True
        self._open = None
        tokens = [token for group in self._groups for token in group.tokens]
        self._groups.clear()
        return tokens

    def close_group(self, now: float) -> None:
        """Close the open group, if there is one, without waiting for more."""
        if self._open is not None:
            self._open = None
            self._closed_at = now
            self._spent_until = min(max(self._spent_until, now - self._saved), now) + self._linger

    def closes_at(self) -> float | None:
        """Return the time at which the open group has waited long enough; None without an open group, or when the log
        is fenced.
        """
        if self._open is None or self.fenced:
            return None
        due = self._closed_at + self._linger
        if len(self._groups) == 1:
            due = min(due, self._spent_until)
        return max(self._opened_at, due)

    def late_at(self) -> float | None:
        """Return the time at which a group is to be put once more beside the put that has no answer; None without."""
        return min((group.late_at for group in self._groups if group.state is State.UNDER_WAY), default=None)

    def puts(self, now: float) -> Iterator[Group[T]]:
        """Yield the groups to be put now, each if no object has its number; each ends with :meth:`put_ended`."""
        if self.fenced:
            return
        closes_at = self.closes_at()
        if closes_at is not None and now >= closes_at:
            self.close_group(now)
        under_way = sum(group.state is State.UNDER_WAY for group in self._groups)
        if (
            self._open is not None
            and self._open.bytes >= self._enough_bytes
            and len(self._groups) <= self._most_under_way
        ):
            self.close_group(now)
        for group in list(self._groups):
            if group.state is State.UNDER_WAY and now >= group.late_at:
                group.patience *= 2
            elif (
                group.state in (State.QUEUED, State.UNKNOWN)
                and group is not self._open
                and under_way < self._most_under_way
            ):
                group.state = State.UNDER_WAY
                group.patience = self._late * (1 + group.bytes / _LATE_BYTES)
                under_way += 1
            else:
                continue
            group.late_at = now + group.patience
            yield group

    def content(self, group: Group[T], body: Buffer) -> list[Buffer]:
        """Return the bytes of a group's object, in parts: the same each time, for the same ``body``."""
        return [encode(ObjectKind.GROUP, self.incarnation, group.number, group.unique, body), body]

    def put_ended(self, group: Group[T], outcome: Put, there: bytes = b"") -> list[T]:
        """End a put; return the tokens of all appends that are acknowledged by it, in order.

        ``there``: the unique id of the object that took the number, with ``Put.TAKEN``. If it cannot be read, pass
        ``Put.UNKNOWN``.
        """
        if self.fenced or group.state is State.THERE:
            return []  # the answer of an earlier try
        if outcome is Put.UNKNOWN:
            if group.state is State.UNDER_WAY:
                group.state = State.UNKNOWN
            return []
        if outcome is Put.TAKEN and there != group.unique:
            self.fenced = True
            self._open = None
            return []
        group.state = State.THERE
        acknowledged: list[T] = []
        while self._groups and self._groups[0].state is State.THERE:
            acknowledged += self._groups.popleft().tokens
        return acknowledged
