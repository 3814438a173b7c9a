"""Compaction as a chore: it chooses the partitions that are due and compacts one after the other (docs/compaction.md).

A partition is due by Kafka's rules (docs/protocols/kafka.md, rule 66): when enough of its bytes are new, when the
oldest new record has waited for long enough, or when a tombstone or marker has been there for long enough.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.rounds import Rounds
from anabranch_kit.run.sliced import SlicedWorks
from anabranch_kit.run.turns import in_turns
from bridges.errors import LogError
from bridges.log.compaction.cleaned_logs import Cleaned, CleanedLogs, correct_index
from bridges.log.compaction.cleaning import READS_END_MS, Compaction, CompactionPass, Damaged, Stopped
from bridges.log.compaction.key_offsets import KeyOffsets
from bridges.log.compaction.pace import Pace
from sbp_back.errors import SbpError

if TYPE_CHECKING:
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog

_log = structlog.get_logger("anabranch.cleaner")

_FOREVER_MS = 2**62
_OPENED_PER_ROUND = 200
"""Partitions that no client has used since the start, opened for measuring in one round."""
_LOOKS_PATIENCE_S = 1.0

Place = tuple[str, int]
STATES = ("waiting", "cleaning", "refused")
"""The states of a partition that is to be compacted."""


class CompactionPolicy(Struct, frozen=True):
    """The compaction settings in a topic's configuration; times in ms."""

    min_dirty_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int = _FOREVER_MS
    delete_retention_ms: int = 86_400_000


class CleanerOptions(Struct, frozen=True):
    """Options of the cleaner. ``table_bytes``: memory for the keys of one pass. ``bytes_per_second``: read and written,
    0: no limit."""

    table_bytes: int = 64 * 1024 * 1024
    bytes_per_second: int = 32 * 1024 * 1024


class CleanerView(Struct):
    """A partition's compaction as operators see it. ``state``: one of :data:`STATES`, with the reason in ``why``; bytes
    are of payload."""

    state: str = "waiting"
    why: str = ""
    clean_offset: int = 0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    passed_ms: int = 0
    took_ms: int = 0
    removed_bytes: int = 0
    """Bytes removed by all passes since the node started."""


class CleanerCounts(Struct):
    """Totals since the node started."""

    passes: int = 0
    failures: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    removed_bytes: int = 0


class _Due(Struct):
    place: Place
    ratio: float
    start: int
    end: int


class Cleaner:
    """A node's compaction. ``policy`` returns a topic's settings, None for a topic that is not compacted (now);
    ``clock`` returns the time in ms."""

    def __init__(
        self,
        logs: Logs,
        cleaned: CleanedLogs,
        policy: Callable[[str], CompactionPolicy | None],
        options: CleanerOptions | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.clock = clock or now_ms
        self._logs = logs
        self._cleaned = cleaned
        self._policy = policy
        self.options = options or CleanerOptions()
        self._works = SlicedWorks()
        self._looks: Rounds[Place] = Rounds(logs.barrier, "compaction", patience=_LOOKS_PATIENCE_S)
        self._passes: Rounds[Place] = Rounds(logs.barrier, "compaction", at_once=1, patience=_LOOKS_PATIENCE_S)
        # There is memory for the keys of only one pass.
        self._turn = asyncio.Lock()
        self._ended = CleanerCounts()
        self._under_way = Compaction()
        # By partition: the reader of bytes that compaction waits for, and since when.
        self._readers: dict[Place, tuple[int, int]] = {}
        self.views: dict[Place, CleanerView] = {}
        """Views by partition, of those that are to be compacted."""

    async def clean(self, places: Iterable[Place], now_ms: int) -> None:
        """Measure ``places`` once, and compact those that are due; long passes continue in the background."""
        wanted: list[Place] = []
        unopened = 0
        async for place in in_turns(places):
            if self._policy(place[0]) is None or not self._logs.owns(*place):
                continue
            log = self._logs.get(*place)
            if log is None:
                continue
            if not log.is_open:
                unopened += 1
                if unopened > _OPENED_PER_ROUND:
                    continue
            wanted.append(place)
        for gone in self.views.keys() - set(wanted):
            if self._policy_or_none(gone[0]) is None or not self._logs.owns(*gone):
                del self.views[gone]
                self._readers.pop(gone, None)
        refusal = self._logs.client.cannot_replace
        if refusal:
            for place in wanted:
                self.views[place] = CleanerView("refused", refusal)
            return
        due: list[_Due] = []
        await self._looks.each(wanted, partial(self._measure, due, now_ms))
        due.sort(key=lambda one: one.ratio, reverse=True)
        found = {one.place: one for one in due}
        await self._passes.each([one.place for one in due], lambda place: self._compact(found[place]))

    def _policy_or_none(self, topic: str) -> CompactionPolicy | None:
        try:
            return self._policy(topic)
        except LogError:
            return None  # deleted

    async def close(self) -> None:
        """Stop all passes; a replacement in flight is completed."""
        await self._looks.close()
        await self._passes.close()
        await asyncio.to_thread(self._works.close)

    # --- what is due ------------------------------------------------------------------------------------------------

    async def _measure(self, due: list[_Due], now_ms: int, place: Place) -> None:
        log = self._logs.get(*place)
        policy = self._policy_or_none(place[0])
        if log is None or policy is None:
            return
        await log.ready()
        view = self.views.setdefault(place, CleanerView())
        if view.state == "cleaning":
            return
        cleaned = self._cleaned.find(log.stream_id) or Cleaned()
        view.passed_ms = cleaned.passed_ms
        first, last = log.log_start_offset, log.last_stable_offset
        dirty = cleaned.offset if cleaned.offset <= log.high_watermark else 0  # 0 for a log that has lost its end
        dirty = view.clean_offset = min(max(first, dirty), last)
        end = last
        if policy.min_lag_ms and dirty < end:
            end = await self._first_after(log, dirty, end, now_ms - policy.min_lag_ms)
        reader = self._reader_below(log, place, end)
        view.why = ""
        if reader is not None:
            view.why = f"a Pravega reader is at offset {reader}: what lies ahead of it is spared for a while"
            if reader < dirty:
                return
            end = reader
        sizes = self._logs.client.bytes_between(log.stream_id, (first, dirty, end))
        view.clean_bytes, view.dirty_bytes = sizes or (0, 0)
        if not last > first:
            return
        both = view.clean_bytes + view.dirty_bytes
        # Where no batch begins, all that is kept lies in the one that the log begins inside.
        ratio = view.dirty_bytes / both if both else 1.0
        horizon = 0 <= cleaned.due_ms <= now_ms
        late = False
        if dirty < end and policy.max_lag_ms < _FOREVER_MS and ratio <= policy.min_dirty_ratio:
            late = await self._first_after(log, dirty, dirty + 1, now_ms - policy.max_lag_ms) > dirty
        if (dirty < end and (ratio > policy.min_dirty_ratio or late)) or horizon:
            due.append(_Due(place, ratio, dirty, end))

    def _reader_below(self, log: PartitionLog, place: Place, end: int) -> int | None:
        """Return the offset of a reader of bytes that compaction up to ``end`` must wait for, or None. It waits only
        for a while: a reader that repeats the same read holds up nothing."""
        reader = self._logs.positions.lowest_read(log)
        if reader is None or reader >= end:
            self._readers.pop(place, None)
            return None
        since = self._readers.get(place)
        if since is None or since[0] != reader:
            since = self._readers[place] = reader, self.clock()
        return reader if self.clock() - since[1] < self._logs.options.positions_idle_ms else None

    async def _first_after(self, log: PartitionLog, start: int, end: int, ms: int) -> int:
        """Return the first offset from ``start`` on whose batch was appended after ``ms``, by the node's clock; ``end``
        if there is none below."""
        while start < end:
            middle = (start + end) // 2
            entries = await self._logs.client.fetch_entries(log.stream_id, middle, 1, limit=end)
            if not entries or entries[0].timestamp <= ms:
                start = entries[0].end_offset if entries else middle + 1
            else:
                end = max(start, entries[0].base_offset)
        return end

    # --- doing it ---------------------------------------------------------------------------------------------------

    async def _compact(self, due: _Due) -> None:
        async with self._turn:
            log = self._logs.get(*due.place)
            policy = self._policy_or_none(due.place[0])
            view = self.views.get(due.place)
            if log is None or policy is None or view is None or not log.is_open:
                return
            view.state, view.why = "cleaning", ""
            began = time.monotonic()
            try:
                await self._run(log, policy, due, view)
                view.state = "waiting"
            except Stopped as error:
                view.state, view.why = "waiting", str(error)
            except (LogError, SbpError) as error:
                self._ended.failures += 1
                view.state, view.why = "refused" if isinstance(error, Damaged) else "waiting", str(error)
                _log.warning("compaction failed", topic=log.topic, partition=log.partition, error=str(error))
            finally:
                if view.state == "cleaning":
                    view.state = "waiting"
                view.took_ms = int((time.monotonic() - began) * 1000)

    async def _run(self, log: PartitionLog, policy: CompactionPolicy, due: _Due, view: CleanerView) -> None:
        now_ms = self.clock()
        cleaned = self._cleaned.find(log.stream_id) or Cleaned()
        options = self.options
        work = CompactionPass(
            log,
            self._logs.client,
            self._works,
            Pace(options.bytes_per_second),
            KeyOffsets(min(options.table_bytes, KeyOffsets.bytes_for(due.end - due.start))),
            delete_retention_ms=policy.delete_retention_ms,
            settled=cleaned.settled,
            forgets=now_ms - cleaned.passed_ms >= READS_END_MS,
            inflated_bytes=self._logs.options.inflated_bytes,
            wanted=lambda: self._policy_or_none(log.topic) is not None,
        )
        self._under_way = work.result
        # The log keeps only the last batch of each producer, but the ledger knows five.
        await log.upkeep.keep_knowledge_below(due.end)
        try:
            await self._logs.positions.loosen(log, due.end)
            done = await work.run(due.start, due.end, now_ms - policy.min_lag_ms, now_ms)
        finally:
            self._count(work.result, view)
            if log.is_open:
                await correct_index(self._logs.client, log.stream_id, log.state, lambda: log.high_watermark)
        await self._settle(log, cleaned, done)
        view.clean_offset = done.end
        view.passed_ms = now_ms
        self._ended.passes += 1
        _log.info(
            "compacted",
            topic=log.topic,
            partition=log.partition,
            up_to=done.end,
            keys=done.keys,
            read_bytes=done.read_bytes,
            removed_bytes=_removed(done),
        )

    @property
    def counts(self) -> CleanerCounts:
        """Return the totals, the present pass included: one over a large partition takes minutes."""
        return _with(self._ended, self._under_way)

    def _count(self, done: Compaction, view: CleanerView) -> None:
        view.removed_bytes += _removed(done)
        self._ended, self._under_way = _with(self._ended, done), Compaction()

    async def _settle(self, log: PartitionLog, cleaned: Cleaned, done: Compaction) -> None:
        """Save the outcome of a pass, durably."""
        settled = cleaned.settled
        if done.aborted and log.is_open:
            await self._logs.aborted.forget(log.stream_id, log.state.transactions, done.aborted)
            settled = False
        if not settled:
            settled = await self._logs.snapshotter.take_fresh(log) is None
        passed_ms = self.clock()
        await self._cleaned.save(log.stream_id, Cleaned(done.end, done.horizon_ms, passed_ms, settled))


def _removed(done: Compaction) -> int:
    return done.replaced_bytes - done.written_bytes


def _with(counts: CleanerCounts, done: Compaction) -> CleanerCounts:
    return CleanerCounts(
        counts.passes,
        counts.failures,
        counts.read_bytes + done.read_bytes,
        counts.written_bytes + done.written_bytes,
        counts.removed_bytes + _removed(done),
    )
