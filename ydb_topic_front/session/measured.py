"""What is measured of reading and writing for those who describe topics and consumers: lags and bytes, lately.

Times are in ms since the epoch, lags in ms. Nothing of it is durable: after a start it is measured anew.
"""

from __future__ import annotations

from array import array

_MINUTE_MS = 60_000
WINDOWS = (("per_minute", _MINUTE_MS), ("per_hour", 60 * _MINUTE_MS), ("per_day", 24 * 60 * _MINUTE_MS))
"""The windows of a MultipleWindowsStat: name and ms."""
_PARTS = 12
"""Into how many parts a window is divided: what it holds is known to within one of them."""


class RecentMost:
    """The highest number that was told within the last minute; 0 if there was none, or none above it."""

    __slots__ = ("_slot", "_values", "last_ms")

    def __init__(self) -> None:
        self._values = array("q", bytes(8 * _PARTS))
        self._slot = 0
        self.last_ms = 0
        """When something was told."""

    def tell(self, now_ms: int, value: int) -> None:
        """``value`` was seen now."""
        self._turn(now_ms)
        self.last_ms = now_ms
        at = self._slot % _PARTS
        if value > self._values[at]:
            self._values[at] = value

    def most(self, now_ms: int) -> int:
        """The highest of the minute before now."""
        self._turn(now_ms)
        return max(self._values)

    def _turn(self, now_ms: int) -> None:
        slot = now_ms * _PARTS // _MINUTE_MS
        # A clock that was set back begins anew as well.
        for passed in range(max(0, slot - _PARTS) if slot < self._slot else max(self._slot, slot - _PARTS), slot):
            self._values[(passed + 1) % _PARTS] = 0
        self._slot = slot


class RecentSums:
    """What came in within the last minute, hour and day, each to within a twelfth."""

    __slots__ = ("_slots", "_values")

    def __init__(self) -> None:
        self._values = array("q", bytes(8 * _PARTS * len(WINDOWS)))
        self._slots = [0] * len(WINDOWS)

    def add(self, now_ms: int, value: int) -> None:
        """So much came in now."""
        self._turn(now_ms)
        for number, slot in enumerate(self._slots):
            self._values[number * _PARTS + slot % _PARTS] += value

    def sums(self, now_ms: int) -> dict[str, int]:
        """The sums of all windows by name."""
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
    """What one consumer has read of one partition."""

    __slots__ = ("last_ms", "last_offset", "read_lag", "size", "write_lag")

    def __init__(self) -> None:
        self.size = RecentSums()
        """Bytes."""
        self.read_lag = RecentMost()
        """From when a message was written until it was read."""
        self.write_lag = RecentMost()
        """From when a message that was read had been created until it was written."""
        self.last_ms = 0
        self.last_offset = -1

    def read(self, now_ms: int, size: int, offset: int, written_ms: int, write_lag: int) -> None:
        """``size`` bytes were read, up to ``offset``: the first of them was written at ``written_ms`` (-1: unknown)."""
        self.size.add(now_ms, size)
        if written_ms >= 0:
            self.read_lag.tell(now_ms, now_ms - written_ms)
        self.write_lag.tell(now_ms, write_lag)
        self.last_ms, self.last_offset = now_ms, offset
