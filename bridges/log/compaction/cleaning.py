"""One pass of compaction over one partition's log: it keeps only the latest record of each key (docs/compaction.md).

A pass reads twice. First it reads what was appended since the last pass, and notes each key's highest offset
(key_offsets.py). Then it reads everything from the log's start on and removes, batch by batch, the records that a later
one replaces. The remains of some adjacent batches replace these in the backend, so that all offsets stay covered. A
crash between two replacements leaves a log that is compacted in part; the next pass does the rest.

The pass reads the log's state on the event loop. The work on records runs off the loop, slice by slice, and touches
only batches and the table.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.sliced import advance
from bridges.errors import BatchInvalid, DataCorrupt, LogError, LogUnavailable
from bridges.formats import COMPACTED, FORMAT_MASK, IMPORTED, FormatId, format_of
from bridges.formats.kafka import CONTROL, TRANSACTIONAL, Header, parse_header, transaction_of
from bridges.formats.kafka_compaction import (
    NO_HORIZON,
    emptied,
    gap,
    horizon_of,
    is_gap,
    with_horizon,
)
from bridges.formats.ledger_note import encode_note
from bridges.formats.producer import EventStamp, SeqNoStamp, Stamp
from bridges.formats.records import Buffer, StoredBatch
from bridges.log.byte_positions.event_bytes import bytes_of
from bridges.log.damage.skips import next_after, past
from bridges.log.interfaces import Replacing
from bridges.log.partition.reading import read_error
from bridges.log.transactions.partition_transactions import by_producer, is_marker, was_aborted, without_aborted
from sbp_back.client.replacing import Substitute
from sbp_back.errors import NoSpace, SbpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from anabranch_kit.run.sliced import Sliced, SlicedWorks
    from bridges.formats.columns.compaction import Compacted
    from bridges.log.compaction.key_offsets import KeyOffsets
    from bridges.log.compaction.pace import Pace
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.streams import Streams
    from sbp_back.wire.model import Entry

READ_BYTES = 512 * 1024
"""Bytes read, and replaced, at once."""
_LONGEST_GAP = 1 << 30
"""Offsets that one batch without records may span: its last offset delta is a signed 32-bit number."""
_PROMISED_SECONDS = 10.0
"""How long a replacement waits for answers that rely on the old bytes. A client that takes none of its answer for
longer loses its connection before it gets a wrong byte, and reconnects."""
_LOOK_SECONDS = 0.05
READS_END_MS = 60_000
"""After this time no answer contains what was read before."""
_STEP_SECONDS = 0.001
"""Time for which one step of work may hold up others."""

_KAFKA = int(FormatId.KAFKA)
_YDB = int(FormatId.YDB)
_NOTE = int(FormatId.LEDGER_NOTE)


class Stopped(Exception):
    """The pass ends early: the log was closed, or must not be compacted any more."""


class Damaged(LogError):
    """A batch cannot be read; nothing above it is compacted."""


class Compaction(Struct):
    """The outcome of a pass: below ``end`` only the latest record of each key is left. ``horizon_ms``: the time from
    which a pass finds something to remove without new records (-1: never). Bytes are of payload."""

    end: int = 0
    horizon_ms: int = NO_HORIZON
    read_bytes: int = 0
    written_bytes: int = 0
    replaced_bytes: int = 0
    batches: int = 0
    keys: int = 0
    aborted: set[int] = set()
    """Markers, by offset, of aborted transactions that have no batches left: these transactions may be forgotten."""


class _Piece(Struct):
    """The new contents at the offsets of some entries. ``payload`` is None for a gap. A piece with a ``stamp`` becomes
    ``instead``, with ``instead_flags``, if the ledger knows that writer only by this batch."""

    entries: list[Entry]
    payload: Buffer | None
    flags: int
    changed: bool
    stamp: Stamp | None = None
    instead: Buffer = b""
    instead_flags: int = 0


class CompactionPass:
    """One pass over one log. ``works`` runs the work on records, ``pace`` limits its speed. ``settled``: what memory
    has forgotten of transactions is durably forgotten, too. ``forgets``: the last pass was so long ago that no reader
    still reads what was there before it. ``wanted``: returns whether the topic is still to be compacted."""

    def __init__(
        self,
        log: PartitionLog,
        client: Streams,
        works: SlicedWorks,
        pace: Pace,
        table: KeyOffsets,
        *,
        delete_retention_ms: int,
        settled: bool,
        forgets: bool,
        inflated_bytes: int,
        wanted: Callable[[], bool],
    ) -> None:
        self._log = log
        self._state = log.state
        self._client = client
        self._works = works
        self._pace = pace
        self._table = table
        self._delete_retention_ms = delete_retention_ms
        self._settled = settled
        self._forgets = forgets
        self._limit = inflated_bytes
        self._wanted = wanted
        self.result = Compaction(aborted=set())
        # Producers with batches whose marker has not come yet; whether any of these batches stays.
        self._open: dict[int, bool] = {}
        # A batch stayed that should have gone: no transaction may be forgotten.
        self._unsure = False
        self._now_ms = 0
        self._end = 0

    async def run(self, dirty: int, end: int, youngest_ms: int, now_ms: int) -> Compaction:
        """Compact the log up to ``end``; the last pass ended at ``dirty``. Stop before batches that were appended after
        ``youngest_ms``, and when the table is full.

        Raises :class:`Stopped`, LogError.
        """
        self._now_ms = now_ms
        self._end = end
        end = await self._fill(dirty, end, youngest_ms)
        self.result.end = end
        self.result.keys = len(self._table)
        if end > self._log.log_start_offset:
            async for entries in self._entries(self._log.log_start_offset, end):
                await self._compact(entries)
        if self._unsure or not self._forgets:
            self.result.aborted.clear()
        return self.result

    # --- reading ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        log = self._log
        if not log.is_open or log.state is not self._state:
            raise Stopped("the partition was closed")
        column = self._state.index.column
        if column is not None and column.firm < self._end:
            raise Stopped("somebody has asked for positions in bytes meanwhile: the next pass knows of them")
        if not self._wanted():
            raise Stopped("the topic is not to be compacted any more")

    async def _entries(self, start: int, end: int) -> AsyncIterator[list[Entry]]:
        """Yield the stored entries that begin below ``end``, in pieces."""
        log = self._log
        offset = past(log.skipped, start)
        while offset < end:
            self._check()
            limit = next_after(log.skipped, offset, end)
            try:
                entries = await self._client.fetch_entries(log.stream_id, offset, READ_BYTES, limit=limit)
            except SbpError as error:
                if log.log_start_offset > offset:
                    offset = past(log.skipped, log.log_start_offset)  # it was trimmed meanwhile
                    continue
                failure = read_error(error)
                if isinstance(failure, DataCorrupt):
                    raise Damaged(f"nothing above offset {offset} is compacted: {failure}") from error
                raise failure from error
            if not entries:
                raise LogUnavailable(f"{log.topic}-{log.partition} has nothing at {offset}, below its end {end}")
            size = sum([len(entry.payload) for entry in entries])
            self.result.read_bytes += size
            yield entries
            await self._pace.spent(size)
            offset = past(log.skipped, entries[-1].end_offset)

    async def _do(self, work: Sliced[object]) -> object:
        """Run sliced work off the loop, no faster than the pace allows."""
        work = _in_steps(work)
        while True:
            ended, told = await self._works.step(work)
            seconds, value = told
            await self._pace.worked(seconds)
            if ended:
                return value

    # --- which keys there are ---------------------------------------------------------------------------------------

    async def _fill(self, start: int, end: int, youngest_ms: int) -> int:
        """Note the keys between ``start`` and ``end``; return how far that went."""
        async for entries in self._entries(start, end):
            stopped = await self._do(self._noted(entries, await self._aborted(entries), start, youngest_ms))
            assert isinstance(stopped, int)
            if stopped >= 0:
                return stopped
        return end

    async def _aborted(self, entries: Sequence[Entry]) -> Mapping[int, list[tuple[int, int]]]:
        return by_producer(await self._log.all_aborted(entries[0].base_offset, entries[-1].end_offset))

    def _noted(
        self, entries: Sequence[Entry], ranges: Mapping[int, list[tuple[int, int]]], start: int, youngest_ms: int
    ) -> Sliced[int]:
        """Note the keys of ``entries``. Return the offset at which to stop, -1 to continue."""
        from bridges.formats.columns import compaction  # numpy is imported with the first pass

        young = next((number for number, entry in enumerate(entries) if entry.timestamp > youngest_ms), len(entries))
        old = entries[:young]
        for found in compaction.all_keys([_stored(one) for one in old if _has_records(one, ranges)], self._limit):
            yield None
            if found is not None and (noted := self._table.put(found.keys, found.offsets)) < len(found.keys):
                offset = int(found.offsets[noted])
                entry = next(one for one in old if offset < one.end_offset)
                # If one batch alone has too many keys, only some are noted: duplicates of the others stay.
                return entry.base_offset if entry.base_offset > start else entry.end_offset
        return -1 if young == len(entries) else max(start, entries[young].base_offset)

    # --- what stays -------------------------------------------------------------------------------------------------

    async def _compact(self, entries: Sequence[Entry]) -> None:
        judged = await self._do(self._judge(entries, await self._aborted(entries)))
        assert isinstance(judged, list)
        durable = self._log.durable_rows()
        ledger = self._state.ledger
        pieces: list[_Piece] = []
        for piece in judged:
            # A ledger that is rebuilt from the log would not know the writer without this batch.
            if piece.stamp is not None and ledger.rests_on(piece.stamp, piece.entries[0].base_offset, durable):
                piece.payload, piece.flags = piece.instead, piece.instead_flags
                piece.changed = piece.instead is not piece.entries[0].payload
            before = pieces[-1] if pieces else None
            if before is not None and before.payload is None and piece.payload is None and _adjoin(before, piece):
                before.entries += piece.entries
                before.changed = True
            else:
                pieces.append(piece)
        self.result.batches += len(entries)
        for index in sorted({entry.range_index for entry in entries}):
            of_range = [piece for piece in pieces if piece.entries[0].range_index == index]
            changed = [number for number, piece in enumerate(of_range) if piece.changed]
            if changed:
                # Include the entries between, so that a range's data on disk becomes one run, not scattered pieces.
                await self._replace(of_range[changed[0] : changed[-1] + 1])

    def _judge(self, entries: Sequence[Entry], ranges: Mapping[int, list[tuple[int, int]]]) -> Sliced[list[_Piece]]:
        from bridges.formats.columns import compaction

        kafka = [one for one in entries if one.flags & FORMAT_MASK == _KAFKA and _has_records(one, ranges)]
        horizon = self._now_ms + self._delete_retention_ms
        found = yield from compaction.compacted(
            [_stored(one) for one in kafka], self._table.highest, self._now_ms, horizon, self._limit
        )
        compacted = dict(zip([one.base_offset for one in kafka], found, strict=True))
        pieces: list[_Piece] = []
        for entry in entries:
            piece = _as_it_is(entry)
            try:
                number = entry.flags & FORMAT_MASK
                if number == _KAFKA:
                    piece = self._judge_kafka(entry, ranges, compacted)
                elif number == _YDB:
                    piece = yield from self._judge_whole(entry)
                elif number == _NOTE:
                    stamp = format_of(entry.flags).describe(entry.payload).producer
                    piece = _nothing(entry, stamp, entry.payload, entry.flags)
            except BatchInvalid:
                self._unsure = True  # its readers get the error
            pieces.append(piece)
            yield None
        return pieces

    def _judge_kafka(
        self,
        entry: Entry,
        ranges: Mapping[int, list[tuple[int, int]]],
        compacted: Mapping[int, Compacted | None],
    ) -> _Piece:
        payload = entry.payload
        header = parse_header(payload)
        if header.attributes & CONTROL:
            return self._judge_marker(entry, header, ranges)
        if is_gap(header):
            return _Piece([entry], None, entry.flags, False)
        if header.attributes & TRANSACTIONAL and header.producer_id >= 0:
            self._open.setdefault(header.producer_id, False)
        if entry.base_offset in compacted:
            found = compacted[entry.base_offset]
            if found is None:
                self._unsure = True  # its readers get the error
                return _as_it_is(entry)
            if found.records:
                if header.producer_id in self._open:
                    self._open[header.producer_id] = True
                self._will_be_due(found.horizon_ms)
                return _as_it_is(entry) if found.payload is None else _changed(entry, found.payload)
        stamp = None if entry.flags & IMPORTED else format_of(entry.flags).describe(payload).producer
        if not header.record_count:
            return _nothing(entry, stamp, payload, entry.flags)
        return _nothing(entry, stamp, emptied(payload), entry.flags | COMPACTED)

    def _judge_marker(self, entry: Entry, header: Header, ranges: Mapping[int, list[tuple[int, int]]]) -> _Piece:
        """Keep a marker as long as its transaction has batches, and a while longer for readers that began before."""
        part = transaction_of(entry.payload, header)
        if part is None or part.commit is None:
            return _as_it_is(entry)
        stays = self._open.pop(part.producer_id, None)
        if stays is not None:
            if not stays:
                self._will_be_due(self._now_ms + READS_END_MS)
            return _as_it_is(entry)
        horizon = horizon_of(header)
        if horizon == NO_HORIZON:
            horizon = self._now_ms + self._delete_retention_ms
            self._will_be_due(horizon)
            return _changed(entry, with_horizon(entry.payload, horizon))
        if not part.commit:
            # the pass before left no batch of it
            self.result.aborted.add(entry.base_offset)
        known = is_marker(part.producer_id, entry.base_offset, ranges)
        if horizon > self._now_ms or known or not self._settled:
            # A reader that knows the aborted range looks for the marker.
            self._will_be_due(max(horizon, self._now_ms + READS_END_MS))
            return _as_it_is(entry)
        stamp = None if entry.flags & IMPORTED else format_of(entry.flags).describe(entry.payload).producer
        return _nothing(entry, stamp, entry.payload, entry.flags)

    def _judge_whole(self, entry: Entry) -> Sliced[_Piece]:
        """Keep a batch of another format whole, or remove it if every record is replaced."""
        from bridges.formats.columns import compaction

        for found in compaction.keys_of([_stored(entry)], self._limit):
            yield None
            if found is not None and (found.missing or (self._table.highest(found.keys) <= found.offsets).any()):
                return _as_it_is(entry)
        stamp = format_of(entry.flags).describe(entry.payload).producer
        if isinstance(stamp, SeqNoStamp | EventStamp):
            return _nothing(entry, stamp, encode_note(stamp), _NOTE | COMPACTED)
        return _nothing(entry)

    def _will_be_due(self, horizon_ms: int) -> None:
        if horizon_ms != NO_HORIZON:
            known = self.result.horizon_ms
            self.result.horizon_ms = horizon_ms if known == NO_HORIZON else min(known, horizon_ms)

    # --- replacing --------------------------------------------------------------------------------------------------

    async def _replace(self, pieces: Sequence[_Piece]) -> None:
        log = self._log
        old = [entry for piece in pieces for entry in piece.entries]
        new = [_substitute(piece) for piece in pieces]
        taken: int | None = None
        less = await self._event_bytes(old) - await self._event_bytes(new)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        span = log.replacing = Replacing(old[0].base_offset, old[-1].end_offset, ended)
        try:
            await self._unpromised(span)
            self._check()
            await self._client.replace(log.epoch, old, new)
            taken = less
        except NoSpace as error:
            raise LogUnavailable(f"{log.topic}-{log.partition} is not compacted: {error}") from error
        except SbpError as error:
            if log.log_start_offset > span.start:
                self._unsure = True
                return  # it was trimmed meanwhile: the next pass looks again
            raise LogUnavailable(f"{log.topic}-{log.partition} is not compacted: {error}") from error
        finally:
            log.replacing = None
            ended.set_result(None)
            log.replaced(span, taken)
        written = sum([len(one.payload) for one in new])
        self.result.written_bytes += written
        self.result.replaced_bytes += sum([len(entry.payload) for entry in old])
        await self._pace.spent(written)

    async def _event_bytes(self, some: Sequence[Entry | Substitute]) -> int:
        """Return the bytes of positions that these take; 0 if no client has asked for positions."""
        if self._state.index.column is None:
            return 0
        batches = [StoredBatch(one.base_offset, one.end_offset, one.flags, one.payload) for one in some]
        aborted = await self._log.all_aborted(batches[0].base_offset, batches[-1].end_offset)

        def count() -> Sliced[object]:
            size = 0
            for batch in without_aborted(batches, aborted):
                size += yield from bytes_of(batch, batch.base_offset, batch.end_offset, self._limit)
                yield None
            return size

        size = await self._do(count())
        assert isinstance(size, int)
        return size

    async def _unpromised(self, span: Replacing) -> None:
        """Return once no answer relies on the bytes of ``span``."""
        for _ in range(int(_PROMISED_SECONDS / _LOOK_SECONDS)):
            if not any(one.holds(span.start, span.end) for one in list(self._log.promised)):
                return
            await asyncio.sleep(_LOOK_SECONDS)


def _has_records(entry: Entry, ranges: Mapping[int, list[tuple[int, int]]]) -> bool:
    """Return whether a batch has records for readers, of which compaction removes some."""
    if entry.flags & FORMAT_MASK != _KAFKA:
        return True
    try:
        header = parse_header(entry.payload)
    except BatchInvalid:
        return False
    return bool(header.record_count) and not (header.attributes & CONTROL or _was_aborted(header, entry, ranges))


def _stored(entry: Entry) -> StoredBatch:
    return StoredBatch(entry.base_offset, entry.end_offset, entry.flags, entry.payload, entry.timestamp)


def _was_aborted(header: Header, entry: Entry, ranges: Mapping[int, list[tuple[int, int]]]) -> bool:
    if not header.attributes & TRANSACTIONAL or not ranges:
        return False
    return was_aborted(header.producer_id, entry.base_offset, ranges)


def _as_it_is(entry: Entry) -> _Piece:
    return _Piece([entry], entry.payload, entry.flags, False)


def _changed(entry: Entry, payload: Buffer) -> _Piece:
    return _Piece([entry], payload, entry.flags | COMPACTED, True)


def _nothing(entry: Entry, stamp: Stamp | None = None, instead: Buffer = b"", instead_flags: int = 0) -> _Piece:
    return _Piece([entry], None, _KAFKA | COMPACTED, True, stamp, instead, instead_flags)


def _adjoin(before: _Piece, piece: _Piece) -> bool:
    first, last, after = before.entries[0], before.entries[-1], piece.entries[-1]
    return (
        first.range_index == after.range_index
        and last.end_offset == piece.entries[0].base_offset
        and after.end_offset - first.base_offset < _LONGEST_GAP
    )


def _substitute(piece: _Piece) -> Substitute | Entry:
    first, last = piece.entries[0], piece.entries[-1]
    payload, flags = piece.payload, piece.flags
    if not piece.changed:
        return first
    if payload is None:
        payload, flags = gap(first.base_offset, last.end_offset), _KAFKA | COMPACTED
    return Substitute(first.base_offset, last.end_offset, flags, last.timestamp, payload)


def _in_steps(work: Sliced[object]) -> Sliced[tuple[float, object]]:
    """Run sliced work in steps of about a millisecond of computing. Yields (seconds, None) and returns (seconds,
    result). Seconds are computing time, which is less than the elapsed time if other threads held the interpreter."""
    while True:
        began = time.thread_time()
        while (spent := time.thread_time() - began) < _STEP_SECONDS:
            ended, value = advance(work)
            if ended:
                return time.thread_time() - began, value
        yield spent, None
