"""The sampler of a node's history, run every :data:`bridges.console.history.rings.FINE_S` seconds.

A round reads the counters of all topics, which costs most for those that have changed, and the positions of a bounded
number of groups: with more groups, the others follow in later rounds. All work shares the event loop in turns.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from anabranch_kit.memory import heap
from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import Turns, in_turns, portions
from bridges.catalog.views.groups import GroupName, Place, SharedPlace, records_behind
from bridges.console.history.rings import SERIES_BYTES, Ends, History, Span
from bridges.errors import LogError
from bridges.log.partition.partition_log import PartitionLog

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget
    from anabranch_kit.run.stalls import LoopStalls
    from bridges.catalog.progress import Progress
    from bridges.console.groups.states import GroupStates
    from bridges.log.logs import Logs
    from bridges.log.remote.readable import ReadableLog
    from bridges.metrics import Metrics

NODE, TOPICS, GROUPS, PLACES = "node", "topics", "groups", "places"
"""Families of series."""
WAYS = ("records_in", "bytes_in", "records_out", "bytes_out")
"""Quantities sampled per topic and front; keys are (topic, front, way)."""
RECORDS, SECONDS = "records", "seconds"
"""Units of a lag; keys are (space, group, unit), for a partition followed by its place."""

_NODE_SERIES = 200
POSITIONS = 10_000
"""Most positions that a round reads."""
_ENDS = 2_000
"""Most partitions whose past ends are kept."""
_ENDS_BYTES = 2_300
_LEFT_PART = 4
_WINDOW = 15
"""Steps over which a trend is computed."""


ASKED_S = 3.0
"""Seconds to wait for partitions that are not open yet, and for other nodes' answers."""


async def refresh_for_a_while(logs: Iterable[ReadableLog]) -> None:
    """Refresh the state of logs for a short time; logs of other nodes that do not answer in time stay as they are."""

    async def attempt(log: ReadableLog) -> None:
        with suppress(LogError):  # shown as unknown; the node's log says why
            await log.refresh()

    asking = [asyncio.create_task(attempt(log)) async for log in in_turns(logs) if not log.is_current]
    if asking:
        try:
            await asyncio.wait(asking, timeout=ASKED_S)
        finally:
            for task in asking:
                task.cancel()


class Recorder:
    """Fills the :attr:`history` of a node, in at most ``most_bytes``, which count in the node's budget."""

    def __init__(
        self,
        metrics: Metrics,
        stalls: LoopStalls,
        logs: Logs,
        progress: Progress,
        group_states: GroupStates,
        budget: MemoryBudget,
        most_bytes: int,
    ) -> None:
        self._metrics = metrics
        self._stalls = stalls
        self._logs = logs
        self._progress = progress
        self._group_states = group_states
        self._budget = budget
        most = min(most_bytes, budget.total // _LEFT_PART) // SERIES_BYTES
        shares = {NODE: min(_NODE_SERIES, most), TOPICS: most * 3 // 4, GROUPS: most // 8, PLACES: most // 8}
        self.history = History(shares, lambda change: budget.attach(change, Kind.HISTORY))
        self.lags: dict[GroupName, tuple[int, float, bool]] = {}
        """Lag of groups that are behind, as last sampled: records, seconds, and whether the seconds are exact
        (otherwise it is at least as many).
        """
        self._most_lags = shares[GROUPS] * 4
        self.shared: dict[GroupName, list[SharedPlace]] = {}
        """Partitions of groups whose members share records, as last sampled."""
        self._ends: dict[Place, Ends] = {}
        self._most_ends = min(_ENDS, most // 8)
        self._waiting: Iterator[GroupName] = iter(())
        self._before: tuple[float, float] | None = None
        self.is_on = most > 0

    async def sample(self, _: int = 0) -> None:
        """Run one round."""
        if not self.is_on:
            return
        now = monotonic()
        self._node_itself(now)
        await self._topics(now)
        await self._groups(now)

    # --- the node ---------------------------------------------------------------------------------------------------

    def _node_itself(self, now: float) -> None:
        history = self.history
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu, late = usage.ru_utime + usage.ru_stime, self._stalls.seconds
        if self._before is not None:
            history.count(NODE, "cpu", now, cpu - self._before[0])
            history.count(NODE, "late", now, late - self._before[1])
        self._before = cpu, late
        with suppress(OSError):  # no /proc
            history.measure(NODE, "memory", now, heap.resident())
        history.measure(NODE, "held", now, self._budget.held)
        for front in self._metrics.fronts.values():
            history.measure(NODE, ("connections", front.name), now, front.connections)

    # --- topics -----------------------------------------------------------------------------------------------------

    async def _topics(self, now: float) -> None:
        for front in [*self._metrics.fronts.values()]:
            async for some in portions([*front.topics.items()]):
                for topic, traffic in some:
                    seen = (traffic.records_in, traffic.bytes_in, traffic.records_out, traffic.bytes_out)
                    if seen == traffic.sampled or front.topics.get(topic) is not traffic:
                        continue
                    for way, total, before in zip(WAYS, seen, traffic.sampled, strict=True):
                        if total != before:
                            self.history.count(TOPICS, (topic, front.name, way), now, total - before)
                            self.history.count(NODE, (front.name, way), now, total - before)
                    traffic.sampled = seen

    def rates(self, topic: str) -> dict[str, dict[str, float]]:
        """Return the traffic per second of each front through which a topic is written or read now."""
        now, found = monotonic(), dict[str, dict[str, float]]()
        for front in self._metrics.fronts.values():
            if topic in front.topics:
                rates = {way: self.history.rate(TOPICS, (topic, front.name, way), now) for way in WAYS}
                if any(rates.values()):
                    found[front.name] = rates
        return found

    def flow(self, topic: str, way: str, span: Span) -> list[float | None] | None:
        """Return the traffic of a topic in one ``way``, summed over all fronts; None if there was none."""
        now, total = monotonic(), None
        for front in self._metrics.fronts:
            points = self.history.points(TOPICS, (topic, front, way), span, now)
            if points is not None:
                total = points if total is None else [_sum(a, b) for a, b in zip(total, points, strict=True)]
        return total

    def topic_gone(self, topic: str, partitions: int) -> None:
        """Forget a deleted topic, so that a new topic of its name has a history of its own."""
        self.history.forget(TOPICS, [(topic, front, way) for front in self._metrics.fronts for way in WAYS])
        for number in range(partitions):
            if self._ends.pop((topic, number), None) is not None:
                self._budget.attach(-_ENDS_BYTES, Kind.HISTORY)

    # --- groups -----------------------------------------------------------------------------------------------------

    async def _groups(self, now: float) -> None:
        progress, turns = self._progress, Turns()
        left = POSITIONS
        asked: set[Place] = set()
        ask_until = now + ASKED_S
        begun = False
        while left > 0:
            name = next(self._waiting, None)
            if name is None:
                if begun:
                    return
                begun = True
                self._waiting = chain(self._group_states.sharing(), progress.names())
                await self._forget_gone()
                continue
            if not self._group_states.is_here(name):
                # Its coordinator samples its positions.
                self.lags.pop(name, None)
                self.shared.pop(name, None)
                await turns.rest()
                continue
            # Copy the places: they may change while the event loop serves others.
            places = [(place, one.offset, 0) for place, one in progress.of_group(name).items()]
            if self._group_states.is_sharing(name):
                shared = await self._sample_shared(name)
                places += [((one.topic, one.partition), one.start, one.done) for one in shared]
                left -= 1
            if monotonic() < ask_until:
                fresh = [place for place, *_ in places if place not in asked]
                asked.update(fresh)
                await refresh_for_a_while(log for place in fresh if (log := self._logs.find_elsewhere(*place)))
            records, seconds, known = 0, 0.0, True
            for place, offset, done in places:
                left -= 1
                behind = self._behind(place, offset, done, now)
                if behind is not None:
                    records += behind[0]
                    if behind[1] > seconds:
                        seconds, known = behind[1], behind[2]
                    self.history.measure(PLACES, (*name, RECORDS, *place), now, behind[0])
                    self.history.measure(PLACES, (*name, SECONDS, *place), now, behind[1])
                await turns.rest()
            self.history.measure(GROUPS, (*name, RECORDS), now, records)
            self.history.measure(GROUPS, (*name, SECONDS), now, seconds)
            self.lags.pop(name, None)
            if records and len(self.lags) < self._most_lags:
                self.lags[name] = (records, seconds, known)
            await turns.rest()

    async def _sample_shared(self, name: GroupName) -> list[SharedPlace]:
        try:
            shared = await self._group_states.shared(name)
        except LogError:
            return self.shared.get(name, [])  # read again in the next round
        if name in self.shared or len(self.shared) < self._most_lags:
            self.shared[name] = shared
        return shared

    async def _forget_gone(self) -> None:
        progress, history, is_sharing = self._progress, self.history, self._group_states.is_sharing
        async for name in in_turns([*self.shared]):
            if not is_sharing(name):
                del self.shared[name]
        async for some in portions([*self.lags]):
            for name in some:
                if not (progress.has_positions(name) or is_sharing(name)):
                    del self.lags[name]
        for family in (GROUPS, PLACES):
            async for keys in portions(history.keys(family)):
                for key in keys:
                    space, group, _, *place = cast("tuple[Any, ...]", key)
                    positions = progress.of_group((space, group))
                    if is_sharing((space, group)):
                        continue
                    if not positions or (place and tuple(place) not in positions):
                        history.forget(family, [key])

    def _behind(self, place: Place, offset: int, done: int, now: float) -> tuple[int, float, bool] | None:
        log = self._logs.in_use(*place)
        if log is None:
            return None
        records = max(0, records_behind(offset, log.log_start_offset, log.high_watermark) - done)
        ends = self._ends.get(place)
        if ends is None:
            if len(self._ends) < self._most_ends:
                ends = self._ends[place] = Ends()
                self._budget.attach(_ENDS_BYTES, Kind.HISTORY)
            elif not records:
                return 0, 0.0, True
        if ends is not None:
            ends.tell(now, log.high_watermark)
        return records, *(self._age(log, offset, ends, now) if records else (0.0, True))

    def age(self, log: ReadableLog, offset: int) -> tuple[float, bool]:
        """Return the seconds since the record at ``offset``, or the first kept one after it, was appended to an open
        log.

        Also return whether that is exact; if not, it is at least as long ago.
        """
        now, ends = monotonic(), self._ends.get((log.topic, log.partition))
        if ends is not None:
            ends.tell(now, log.high_watermark)  # include the records since the last sample
        return self._age(log, offset, ends, now)

    def _age(self, log: ReadableLog, offset: int, ends: Ends | None, now: float) -> tuple[float, bool]:
        offset = max(offset, log.log_start_offset)
        found = None if ends is None else ends.age(offset, now)
        if found is not None and found[1]:
            return found
        # The index has the latest time of a stretch of the log around the record; only the owner has the index.
        stamp = log.state.index.time_at(offset) if isinstance(log, PartitionLog) else None
        least = 0.0 if stamp is None else max(0.0, now_ms() - stamp) / 1000
        return max(least, 0.0 if found is None else found[0]), False

    def trend(self, name: GroupName) -> float | None:
        """Return the growth of a group's lag over the last minutes, in records per second; None if unknown."""
        return trend_of(self.history.points(GROUPS, (*name, RECORDS), Span.HOUR, monotonic()))

    def lag_in(
        self, name: GroupName, places: Iterable[Place], what: str, span: Span
    ) -> Generator[None, None, list[float | None] | None]:
        """Compute the recent lag of a group in some of its partitions, one partition per step.

        The result is the sum of records, or the most of seconds; None if no partition has a series.
        """
        now, total = monotonic(), None
        both = _sum if what == RECORDS else _most
        for place in places:
            points = self.history.points(PLACES, (*name, what, *place), span, now)
            if points is not None:
                total = points if total is None else [both(a, b) for a, b in zip(total, points, strict=True)]
            yield
        return total


def trend_of(points: Sequence[float | None] | None) -> float | None:
    """Return the growth per second over the last minutes of an hour's points."""
    return None if points is None else slope(points[-_WINDOW:], Span.HOUR.step_s)


def _most(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def slope(points: Iterable[float | None], step_s: float) -> float | None:
    """Return the growth per second: the slope of the least-squares line through the known values. None for fewer than
    two.
    """
    known = [(place * step_s, value) for place, value in enumerate(points) if value is not None]
    if len(known) < 2:
        return None
    middle = sum(at for at, _ in known) / len(known)
    mean = sum(value for _, value in known) / len(known)
    over = sum((at - middle) * (value - mean) for at, value in known)
    return over / sum((at - middle) ** 2 for at, _ in known)
