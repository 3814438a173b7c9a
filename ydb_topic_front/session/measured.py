"""Sliding-window measures of reading and writing for the Describe calls: recent lags and bytes.

Times are in ms since the epoch, lags in ms. Nothing is durable: measures begin at zero when the node starts.
"""

from __future__ import annotations

from array import array

_MINUTE_MS = 60_000
WINDOWS = (("per_minute", _MINUTE_MS), ("per_hour", 60 * _MINUTE_MS), ("per_day", 24 * 60 * _MINUTE_MS))
"""Windows of a MultipleWindowsStat: name and length in ms."""
_PARTS = 12
"""Slots per window: the resolution of its ends."""


class RecentMost:
    """Highest value of the last minute; 0 if there was none, or none above it."""

    __slots__ = ("_slot", "_values", "last_ms")

    def __init__(self) -> None:
        self._values = array("q", bytes(8 * _PARTS))
        self._slot = 0
        self.last_ms = 0
        """Time of the last value."""

    def tell(self, now_ms: int, value: int) -> None:
        """Add a value seen at ``now_ms``."""
        self._turn(now_ms)
        self.last_ms = now_ms
        at = self._slot % _PARTS
        if value > self._values[at]:
            self._values[at] = value

    def most(self, now_ms: int) -> int:
        """Return the highest value of the minute before ``now_ms``."""
        self._turn(now_ms)
        return max(self._values)

    def _turn(self, now_ms: int) -> None:
        slot = now_ms * _PARTS // _MINUTE_MS
        # A clock that was set back clears the window.
        for passed in range(max(0, slot - _PARTS) if slot < self._slot else max(self._slot, slot - _PARTS), slot):
            self._values[(passed + 1) % _PARTS] = 0
        self._slot = slot


class RecentSums:
    """Sums over the last minute, hour and day; each window is exact to a twelfth of its length."""

    __slots__ = ("_slots", "_values")

    def __init__(self) -> None:
        self._values = array("q", bytes(8 * _PARTS * len(WINDOWS)))
        self._slots = [0] * len(WINDOWS)

    def add(self, now_ms: int, value: int) -> None:
        """Add a value seen at ``now_ms``."""
        self._turn(now_ms)
        for number, slot in enumerate(self._slots):
            self._values[number * _PARTS + slot % _PARTS] += value

    def sums(self, now_ms: int) -> dict[str, int]:
        """Return the sums of all windows by name."""
        self._turn(now_ms)
        return {
            name: sum(self._values[number * _PARTS : (number + 1) * _PARTS]) for number, (name, _) in enumerate(WINDOWS)
        }

    def _turn(self, now_ms: int) -> None:
        for number, (_, window_ms) in enumerate(WINDOWS):
            slot, before = now_ms * _PARTS // window_ms, self._slots[number]
            if slot != before:
                for passed in range(max(0, slot - _PARTS) if slot < before else max(before, slot - _PARTS), slot):
                    self._values[number * _PARTS + (passed + 1) % _PARTS] = 0
                self._slots[number] = slot


class ReadMeasure:
    """Reads of one consumer from one partition."""

    __slots__ = ("last_ms", "last_offset", "read_lag", "size", "write_lag")

    def __init__(self) -> None:
        self.size = RecentSums()
        """Bytes."""
        self.read_lag = RecentMost()
        """Time from writing to reading of a message."""
        self.write_lag = RecentMost()
        """Time from creation to writing of a message that was read."""
        self.last_ms = 0
        self.last_offset = -1

    def read(self, now_ms: int, size: int, offset: int, written_ms: int, write_lag: int) -> None:
        """Record a read of ``size`` bytes up to ``offset``, whose first message was written at ``written_ms`` (-1:
        unknown)."""
        self.size.add(now_ms, size)
        if written_ms >= 0:
            self.read_lag.tell(now_ms, now_ms - written_ms)
        self.write_lag.tell(now_ms, write_lag)
        self.last_ms, self.last_offset = now_ms, offset
