"""What went through a node lately: rings of samples in bounded memory, so that pictures need no other server.

A *series* has two rings, an hour in steps of :data:`FINE_S` and a day in steps of :data:`COARSE_S`. A series of a
counter adds up what came in each step, one of a gauge keeps what was measured (in coarse steps the highest). Steps in
which nothing was told cost nothing: they are filled in when the next value comes, or when somebody looks: with 0 in a
counter, with what was measured last in a gauge.

Times are seconds of a monotonic clock, so a clock that is set moves nothing.
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
"""What a series takes: its rings, its object, its key and its place."""
_RATE_STEPS = 3
"""Over how many steps a present rate is told."""
_QUIET_S = 3600.0
"""A series in which nothing has changed for so long makes room for a new one."""


class Span(Enum):
    """How far back; the values are what requests say."""

    HOUR = "hour"
    DAY = "day"

    @property
    def step_s(self) -> int:
        """Seconds of a step."""
        return FINE_S if self is Span.HOUR else COARSE_S

    @property
    def steps(self) -> int:
        """How many there are."""
        return _FINE_STEPS if self is Span.HOUR else _COARSE_STEPS


class Ring:
    """The last ``steps`` values; ``at`` is the number of the step that was written last."""

    __slots__ = ("_values", "at")

    def __init__(self, steps: int, at: int) -> None:
        self._values = array("f", bytes(4 * steps))
        for place in range(steps):
            self._values[place] = nan
        self.at = at

    def _go_to(self, step: int, fill: float) -> None:
        """Have ``step`` be the one that is written, those between filled; an earlier one changes nothing."""
        values = self._values
        steps = len(values)
        for missing in range(max(self.at + 1, step - steps + 1), step + 1):
            values[missing % steps] = fill
        self.at = max(self.at, step)

    def add(self, step: int, amount: float) -> None:
        """``amount`` more came in a step."""
        self._go_to(step, 0.0)
        place = step % len(self._values)
        before = self._values[place]
        self._values[place] = amount if isnan(before) else before + amount

    def put(self, step: int, value: float, *, highest: bool) -> None:
        """``value`` was measured in a step; with ``highest`` it counts if it is higher than what was."""
        place = step % len(self._values)
        if step > self.at:
            self._go_to(step, self._values[self.at % len(self._values)])
            self._values[place] = nan
        before = self._values[place]
        if isnan(before) or not highest or value > before:
            self._values[place] = value

    def last(self, step: int, fill: float | None) -> list[float | None]:
        """The values of all steps up to and with ``step``, oldest first, None where nothing is known. Steps after the
        last that was written are ``fill``; None: what was written last."""
        return [self.one(at, fill) for at in range(step - len(self._values) + 1, step + 1)]

    def one(self, step: int, fill: float | None) -> float | None:
        """The value of one step, as :meth:`last` tells it."""
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
    """An hour and a day of one thing."""

    __slots__ = ("_coarse", "_fine", "_is_counter", "changed")

    def __init__(self, now: float, *, counter: bool) -> None:
        self._fine = Ring(_FINE_STEPS, int(now // FINE_S))
        self._coarse = Ring(_COARSE_STEPS, int(now // COARSE_S))
        self._is_counter = counter
        self.changed = now

    def tell(self, now: float, value: float) -> None:
        """So much came since the last time, or: this was measured."""
        fine, coarse = int(now // FINE_S), int(now // COARSE_S)
        if self._is_counter:
            self._fine.add(fine, value)
            self._coarse.add(coarse, value)
        else:
            self._fine.put(fine, value, highest=False)
            self._coarse.put(coarse, value, highest=True)
        self.changed = now

    def points(self, span: Span, now: float) -> list[float | None]:
        """The whole steps of ``span``, oldest first: of a counter what came a second, of a gauge what was measured.

        The step that lasts still is not among them."""
        ring = self._fine if span is Span.HOUR else self._coarse
        # What comes before a sample belongs to the step that has ended: one more has to pass until it is whole.
        found = ring.last(int(now // span.step_s) - 1, 0.0 if self._is_counter else None)
        if not self._is_counter:
            return found
        return [None if one is None else one / span.step_s for one in found]

    def rate(self, now: float) -> float:
        """What came a second in the last whole steps, of a counter."""
        end = int(now // FINE_S)
        return sum(self._fine.one(step, 0.0) or 0.0 for step in range(end - _RATE_STEPS, end)) / (_RATE_STEPS * FINE_S)


class History:
    """Series by family and key. ``most`` says how many of each family there may be; ``held`` is told by how many bytes
    the memory that they take has changed."""

    def __init__(self, most: Mapping[str, int], held: Callable[[int], None]) -> None:
        self._most = most
        self._held = held
        # Those that have changed lately are behind the others.
        self._families: dict[str, dict[Hashable, Series]] = {family: {} for family in most}
        self.left_out = dict.fromkeys(most, 0)
        """Values that were not kept, since there was no room for a series of theirs."""

    def count(self, family: str, key: Hashable, now: float, amount: float) -> None:
        """So much came of something that is counted; the first time is when something did."""
        if amount:
            self._tell(family, key, now, amount, counter=True)

    def measure(self, family: str, key: Hashable, now: float, value: float) -> None:
        """This was measured. What stays as it is needs no room beyond that of its series, nor does what is 0 and never
        was anything else."""
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
        """What these were is no more."""
        for key in keys:
            if self._families[family].pop(key, None) is not None:
                self._held(-SERIES_BYTES)

    def keys(self, family: str) -> list[Hashable]:
        """Of which things there are series."""
        return list(self._families[family])

    def points(self, family: str, key: Hashable, span: Span, now: float) -> list[float | None] | None:
        """See :meth:`Series.points`; None where there is no such series."""
        one = self._families[family].get(key)
        return None if one is None else one.points(span, now)

    def rate(self, family: str, key: Hashable, now: float) -> float:
        """See :meth:`Series.rate`; 0 where there is no such series."""
        one = self._families[family].get(key)
        return 0.0 if one is None else one.rate(now)

    def __len__(self) -> int:
        return sum(map(len, self._families.values()))


class Ends:
    """When a partition had become how long: what a position's lag is in seconds.

    The end is told again and again; a bounded number of times at which it had changed is kept, every second one is
    given up when there are too many."""

    __slots__ = ("_ends", "_seen", "_times")
    MOST = 120

    def __init__(self) -> None:
        self._times = array("d")
        self._ends = array("q")
        self._seen = 0.0

    def tell(self, now: float, end: int) -> None:
        """The offset behind the last record is ``end``."""
        times, ends = self._times, self._ends
        if ends and end < ends[-1]:
            del times[:], ends[:]  # another log of this name
        if not ends or end > ends[-1]:
            if ends and self._seen > times[-1]:
                self._put(self._seen, ends[-1])  # until then it had not moved
            self._put(now, end)
        self._seen = now

    def _put(self, now: float, end: int) -> None:
        if len(self._times) >= self.MOST:
            del self._times[1::2], self._ends[1::2]
        self._times.append(now)
        self._ends.append(end)

    def age(self, offset: int, now: float) -> tuple[float, bool] | None:
        """How many seconds ago the record at ``offset`` came, spread evenly between two looks, and whether that is
        known: False if it is older than what is remembered, and so at least as old. None: it has not come."""
        times, ends = self._times, self._ends
        if not ends or offset >= ends[-1]:
            return None
        if offset < ends[0]:
            return now - times[0], False
        # The last look at which it was not there yet.
        low, high = 0, len(ends) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if ends[middle] <= offset:
                low = middle
            else:
                high = middle
        share = (offset - ends[low] + 1) / (ends[high] - ends[low])
        return max(0.0, now - (times[low] + share * (times[high] - times[low]))), True
