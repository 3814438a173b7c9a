"""The recent traffic of a node: rings of samples in bounded memory, so that charts need no other server.

A *series* has two rings: an hour in steps of :data:`FINE_S` and a day in steps of :data:`COARSE_S`. A series of a
counter sums the amounts of each step; a series of a gauge keeps the measured value (in coarse steps the highest). Steps
without a sample cost nothing. They are filled in at the next sample or read: with 0 in a counter, with the last value
in a gauge.

Times are seconds of a monotonic clock, so that setting the clock does not shift the history.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from math import isnan, nan

FINE_S = 20
"""Seconds of a step of the hour, and between two samples."""
COARSE_S = 600
_FINE_STEPS = 180
_COARSE_STEPS = 144
SERIES_BYTES = 1800
"""Memory of a series: its rings, its object, its key and its dictionary entry."""
_RATE_STEPS = 3
"""Steps over which the present rate is averaged."""
_QUIET_S = 3600.0
"""A series without a change for this long makes room for a new one."""


class Span(Enum):
    """The length of a history; the values are those of the query."""

    HOUR = "hour"
    DAY = "day"

    @property
    def step_s(self) -> int:
        """Seconds of a step."""
        return FINE_S if self is Span.HOUR else COARSE_S

    @property
    def steps(self) -> int:
        """The number of steps."""
        return _FINE_STEPS if self is Span.HOUR else _COARSE_STEPS


class Ring:
    """The last ``steps`` values. ``at`` is the number of the step written last."""

    __slots__ = ("_values", "at")

    def __init__(self, steps: int, at: int) -> None:
        self._values = array("f", bytes(4 * steps))
        for place in range(steps):
            self._values[place] = nan
        self.at = at

    def _go_to(self, step: int, fill: float) -> None:
        """Advance to ``step``, and fill the steps between; an earlier step changes nothing."""
        values = self._values
        steps = len(values)
        for missing in range(max(self.at + 1, step - steps + 1), step + 1):
            values[missing % steps] = fill
        self.at = max(self.at, step)

    def add(self, step: int, amount: float) -> None:
        self._go_to(step, 0.0)
        place = step % len(self._values)
        before = self._values[place]
        self._values[place] = amount if isnan(before) else before + amount

    def put(self, step: int, value: float, *, highest: bool) -> None:
        """Set the value of a step; with ``highest``, only if it is higher than before."""
        place = step % len(self._values)
        if step > self.at:
            self._go_to(step, self._values[self.at % len(self._values)])
            self._values[place] = nan
        before = self._values[place]
        if isnan(before) or not highest or value > before:
            self._values[place] = value

    def last(self, step: int, fill: float | None) -> list[float | None]:
        """Return the values of all steps up to and including ``step``, oldest first, None where unknown.

        Steps after the last written one have the value ``fill``; None: the last written value.
        """
        return [self.value_at(at, fill) for at in range(step - len(self._values) + 1, step + 1)]

    def value_at(self, step: int, fill: float | None) -> float | None:
        """Return the value of a step, as :meth:`last` does."""
        values, at = self._values, self.at
        if step > at:
            if fill is not None:
                return fill
            step = at
        elif step <= at - len(values):
            return None
        value = values[step % len(values)]
        return None if isnan(value) else value


class Series:
    """The history of one quantity, over an hour and a day."""

    __slots__ = ("_coarse", "_fine", "_is_counter", "changed")

    def __init__(self, now: float, *, counter: bool) -> None:
        self._fine = Ring(_FINE_STEPS, int(now // FINE_S))
        self._coarse = Ring(_COARSE_STEPS, int(now // COARSE_S))
        self._is_counter = counter
        self.changed = now

    def tell(self, now: float, value: float) -> None:
        """Add a sample: the amount since the last sample for a counter, the measured value for a gauge."""
        fine, coarse = int(now // FINE_S), int(now // COARSE_S)
        if self._is_counter:
            self._fine.add(fine, value)
            self._coarse.add(coarse, value)
        else:
            self._fine.put(fine, value, highest=False)
            self._coarse.put(coarse, value, highest=True)
        self.changed = now

    def points(self, span: Span, now: float) -> list[float | None]:
        """Return the complete steps of ``span``, oldest first: amounts per second for a counter, values for a gauge.

        The current step is not included.
        """
        ring = self._fine if span is Span.HOUR else self._coarse
        # A sample belongs to the step that has just ended, so a step is complete only one step later.
        found = ring.last(int(now // span.step_s) - 1, 0.0 if self._is_counter else None)
        if not self._is_counter:
            return found
        return [None if one is None else one / span.step_s for one in found]

    def rate(self, now: float) -> float:
        """Return a counter's amount per second over the last complete steps."""
        end = int(now // FINE_S)
        amounts = (self._fine.value_at(step, 0.0) or 0.0 for step in range(end - _RATE_STEPS, end))
        return sum(amounts) / (_RATE_STEPS * FINE_S)


class History:
    """Series by family and key.

    ``most``: largest number of series per family. ``held`` is called with each change in bytes of their memory.
    """

    def __init__(self, most: Mapping[str, int], held: Callable[[int], None]) -> None:
        self._most = most
        self._held = held
        # Series in order of their last change, the oldest first.
        self._families: dict[str, dict[Hashable, Series]] = {family: {} for family in most}
        self.left_out = dict.fromkeys(most, 0)
        """Per family, samples that were dropped because there was no room for a new series."""

    def count(self, family: str, key: Hashable, now: float, amount: float) -> None:
        """Add an amount to a counter; the series begins with the first amount that is not 0."""
        if amount:
            self._tell(family, key, now, amount, counter=True)

    def measure(self, family: str, key: Hashable, now: float, value: float) -> None:
        """Record a gauge's value. A gauge that was always 0 gets no series."""
        known = self._families[family].get(key)
        if value or known is not None:
            self._tell(family, key, now, value, counter=False)

    def _tell(self, family: str, key: Hashable, now: float, value: float, *, counter: bool) -> None:
        series = self._families[family]
        one = series.pop(key, None)
        if one is None:
            if not self._has_room(family, now):
                self.left_out[family] += 1
                return
            one = Series(now, counter=counter)
            self._held(SERIES_BYTES)
        series[key] = one
        one.tell(now, value)

    def _has_room(self, family: str, now: float) -> bool:
        series = self._families[family]
        if len(series) < self._most[family]:
            return True
        oldest = next(iter(series), None)
        if oldest is None or now - series[oldest].changed < _QUIET_S:
            return False
        self.forget(family, [oldest])
        return True

    def forget(self, family: str, keys: Iterable[Hashable]) -> None:
        for key in keys:
            if self._families[family].pop(key, None) is not None:
                self._held(-SERIES_BYTES)

    def keys(self, family: str) -> list[Hashable]:
        """Return the keys that have a series in a family."""
        return list(self._families[family])

    def points(self, family: str, key: Hashable, span: Span, now: float) -> list[float | None] | None:
        """Return :meth:`Series.points`, None without a series."""
        one = self._families[family].get(key)
        return None if one is None else one.points(span, now)

    def rate(self, family: str, key: Hashable, now: float) -> float:
        """Return :meth:`Series.rate`, 0 without a series."""
        one = self._families[family].get(key)
        return 0.0 if one is None else one.rate(now)

    def __len__(self) -> int:
        return sum(map(len, self._families.values()))


class Ends:
    """The past ends of a partition with their times, from which a lag in seconds is derived.

    A bounded number of times at which the end had changed is kept. When there are too many, every second one is
    dropped.
    """

    __slots__ = ("_ends", "_seen", "times")
    MOST = 120

    def __init__(self) -> None:
        self.times = array("d")
        self._ends = array("q")
        self._seen = 0.0

    def tell(self, now: float, end: int) -> None:
        """Record that the partition's end is now ``end``, the offset behind the last record."""
        times, ends = self.times, self._ends
        if ends and end < ends[-1]:
            del times[:], ends[:]  # another log with the same name
        if not ends or end > ends[-1]:
            if ends and self._seen > times[-1]:
                self._put(self._seen, ends[-1])  # the end had not moved until then
            self._put(now, end)
        self._seen = now

    def _put(self, now: float, end: int) -> None:
        if len(self.times) >= self.MOST:
            del self.times[1::2], self._ends[1::2]
        self.times.append(now)
        self._ends.append(end)

    def age(self, offset: int, now: float) -> tuple[float, bool] | None:
        """Return the seconds since the record at ``offset`` was appended, interpolated between two samples, and whether
        it is exact.

        False: the record is older than all samples, so it is at least as old. None: the record does not exist yet.
        """
        times, ends = self.times, self._ends
        if not ends or offset >= ends[-1]:
            return None
        if offset < ends[0]:
            return now - times[0], False
        # Find the last sample at which the record did not exist yet.
        low, high = 0, len(ends) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if ends[middle] <= offset:
                low = middle
            else:
                high = middle
        share = (offset - ends[low] + 1) / (ends[high] - ends[low])
        return max(0.0, now - (times[low] + share * (times[high] - times[low]))), True
