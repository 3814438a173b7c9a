"""Registry of stored formats and translation between them (docs/design.md, "Stored as received")."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from anabranch_kit.run.shared import SharedWorks
from anabranch_kit.run.sliced import Sliced, SlicedWorks, advance
from bridges.entry_points import entry_points
from bridges.errors import BatchInvalid, RecordInvalid
from bridges.formats.base import (
    APPEND_TIME,
    COMPACTED,
    FIRST_OF_FRONTS,
    FORMAT_MASK,
    IMPORTED,
    BatchInfo,
    FormatId,
    StoredFormat,
    records_of,
)
from bridges.formats.codecs.compression import DEFAULT_LIMIT, PIECE
from bridges.formats.columns import LEAST_RECORDS, Unusual
from bridges.formats.kafka import KafkaFormat
from bridges.formats.ledger_note import LedgerNoteFormat
from bridges.formats.pravega import PravegaFormat
from bridges.formats.raw import RawFormat
from bridges.formats.records import Buffer, Record, StoredBatch
from bridges.formats.ydb import YdbFormat

__all__ = [
    "APPEND_TIME",
    "COMPACTED",
    "FORMATS",
    "FORMAT_MASK",
    "IMPORTED",
    "BatchInfo",
    "FormatId",
    "FormatTaken",
    "StoredFormat",
    "Translator",
    "decode",
    "format_of",
    "records_of",
    "register",
]

ENTRY_POINTS = "anabranch.formats"
"""The entry-point group of formats from packages that are not fronts: each entry's name is its format number."""


class _Formats(dict[int, StoredFormat]):
    def __missing__(self, number: int) -> StoredFormat:
        if number not in _absent:
            for point in entry_points(ENTRY_POINTS):
                if point.name == str(number):
                    return self.setdefault(number, point.load()())
            _absent.add(number)
        raise KeyError(number)


_absent: set[int] = set()
"""Numbers that no installed package knows, each looked up once."""

FORMATS: dict[int, StoredFormat] = _Formats(
    {int(plug.id): plug for plug in (RawFormat(), KafkaFormat(), PravegaFormat(), YdbFormat(), LedgerNoteFormat())}
)
"""The formats that this process can read, by number. :func:`register` adds those of fronts; a format of another
installed package is loaded when its number is first met."""


_Key = tuple[int, int, int, int]
"""Stream, base offset, target format, and bytes: compaction changes the batch at an offset, and so its size."""
_AT_ONCE = 100
"""Records translated in one turn of the event loop: each takes some ten microseconds."""
_BYTES_AT_ONCE = 1024 * 1024
"""Bytes of a batch copied in one turn."""
_COLUMNS = "bridges.formats.columns.translation"
_WITH_COLUMNS = {FormatId.KAFKA, FormatId.PRAVEGA, FormatId.YDB}
_MOST_TOGETHER = 1000
"""Records of batches that are translated together."""
_OVERHEAD = 300
"""Bytes that a cached translation takes on top of its payload."""
_STEPS_AT_ONCE = 2
"""Steps of a translation on the event loop. A few bytes may decompress to very many, so a longer translation starts
again off the loop."""


class FormatTaken(Exception):
    """Two formats have one number, or a format's number is out of range."""


def register(plug: StoredFormat) -> None:
    """Register a format that a front brings; repeating it makes no difference. Raises FormatTaken."""
    number = int(plug.id)
    if not FIRST_OF_FRONTS <= number <= FORMAT_MASK:
        raise FormatTaken(
            f"stored format {plug.name!r} has number {number}; fronts' formats have {FIRST_OF_FRONTS} to {FORMAT_MASK}"
        )
    known = FORMATS.setdefault(number, plug)
    if type(known) is not type(plug):
        raise FormatTaken(f"stored formats {known.name!r} and {plug.name!r} both have number {number}")


def format_of(flags: int) -> StoredFormat:
    """Return the format that an entry's flags name. Raises BatchInvalid for a number that this version does not
    know."""
    try:
        return FORMATS[flags & FORMAT_MASK]
    except KeyError:
        raise BatchInvalid(f"stored format {flags & FORMAT_MASK} is not known to this version") from None


def decode(batch: StoredBatch) -> list[Record]:
    """Return all records of a stored batch of any format, at once: for batches known to be small. Raises
    BatchInvalid."""
    return [record for record in records_of(format_of(batch.flags), batch) if record is not None]


class Translator:
    """A translator of batches for readers of another protocol. It caches the latest translations, up to ``max_bytes``,
    and reports the memory of long ones to ``held``, as changes in bytes."""

    __slots__ = ("_bytes", "_cache", "_held", "_limit", "_under_way", "max_bytes", "spent", "works")

    def __init__(
        self,
        max_bytes: int,
        works: SlicedWorks | None = None,
        limit: int = DEFAULT_LIMIT,
        held: Callable[[int], object] = lambda change: None,
    ) -> None:
        self.max_bytes = max_bytes
        self._held = held
        self.works = works or SlicedWorks()
        self._limit = limit
        self._bytes = 0
        self._cache: OrderedDict[_Key, Buffer] = OrderedDict()
        self._under_way: SharedWorks[_Key, Buffer] = SharedWorks(self._ended)
        self.spent = 0
        """Work of :meth:`payload` on the event loop so far, in records plus kilobytes."""

    def payload(
        self, stream_id: int, batch: StoredBatch, target: int, behind: Sequence[StoredBatch] = ()
    ) -> Buffer | None:
        """Return ``batch`` in the ``target`` format: its own bytes when it is stored in that format.

        Small batches of those ``behind`` it are translated with it, and come into the cache. None if the translation
        would take longer than a turn of the event loop may: then call :meth:`translate`. Raises BatchInvalid:
        RecordInvalid if records before the malformed one can be read.
        """
        source = format_of(batch.flags)
        if source.id == target:
            return batch.payload
        key = (stream_id, batch.base_offset, int(target), len(batch.payload))
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached
        group = self._group(stream_id, batch, target, behind)
        records = group[-1].end_offset - batch.base_offset
        size = sum(len(one.payload) for one in group)
        if (source.id != FormatId.RAW and records > _AT_ONCE) or size > _BYTES_AT_ONCE:
            return None
        if records >= LEAST_RECORDS and _COLUMNS not in sys.modules:
            return None  # importing them takes a tenth of a second
        self.spent += records + size // 1024
        work = translate_group(source, group, FORMATS[int(target)], self._limit)
        for _ in range(_STEPS_AT_ONCE + len(group)):
            ended, made = advance(work)
            if ended:
                return self._keep_all(stream_id, group, target, made)
        return None

    async def translate(
        self, stream_id: int, batch: StoredBatch, target: int, behind: Sequence[StoredBatch] = ()
    ) -> Buffer:
        """Translate like :meth:`payload`, in slices off the event loop, with its errors."""
        at_once = self.payload(stream_id, batch, target, behind)
        if at_once is not None:
            return at_once
        group = self._group(stream_id, batch, target, behind)
        key = (stream_id, batch.base_offset, int(target), len(batch.payload))
        return await self._under_way.wait(key, partial(self._translated, stream_id, group, target))

    def _group(
        self, stream_id: int, first: StoredBatch, target: int, behind: Sequence[StoredBatch]
    ) -> list[StoredBatch]:
        """Return the batches that are translated together."""
        group, size = [first], len(first.payload)
        if not {first.flags & FORMAT_MASK, int(target)} <= _WITH_COLUMNS:
            return group
        most = min(_BYTES_AT_ONCE, self.max_bytes) // 2  # what the cache does not keep is translated again
        for one in behind:
            size += len(one.payload)
            if (
                (one.flags ^ first.flags) & FORMAT_MASK
                or one.end_offset - first.base_offset > _MOST_TOGETHER
                or size > most
                or (stream_id, one.base_offset, int(target), len(one.payload)) in self._cache
            ):
                break
            group.append(one)
        return group

    async def _translated(self, stream_id: int, group: Sequence[StoredBatch], target: int) -> Buffer:
        # The output of each step lies in a record or in the translation, and for a while in both.
        holds, most = 2 * sum(len(batch.payload) for batch in group), 2 * self._limit

        def stepped() -> None:
            nonlocal holds
            if holds < most:
                holds += 2 * PIECE
                self._held(2 * PIECE)

        work = translate_group(format_of(group[0].flags), group, FORMATS[int(target)], self._limit)
        self._held(holds)
        try:
            made = await self.works.finish(work, group[-1].end_offset - group[0].base_offset, stepped)
        finally:
            self._held(-holds)
        return self._keep_all(stream_id, group, target, made)

    def _keep_all(self, stream_id: int, group: Sequence[StoredBatch], target: int, made: Sequence[Buffer]) -> Buffer:
        for batch, payload in zip(group, made, strict=False):
            self._keep((stream_id, batch.base_offset, int(target), len(batch.payload)), payload)
        return made[0]

    def _ended(self, key: _Key, task: asyncio.Task[Buffer]) -> None:
        if not task.cancelled():
            task.exception()  # those who wait for it raise it

    def _keep(self, key: _Key, translated: Buffer) -> Buffer:
        before = self._cache.get(key)  # a translation that ended in the turn before may be there already
        self._bytes += len(translated) - len(before) if before is not None else len(translated) + _OVERHEAD
        self._cache[key] = translated
        while self._bytes > self.max_bytes:
            _, dropped = self._cache.popitem(last=False)
            self._bytes -= len(dropped) + _OVERHEAD
        return translated


def translate_group(
    source: StoredFormat, group: Sequence[StoredBatch], target: StoredFormat, limit: int
) -> Sliced[Sequence[Buffer]]:
    """Return the translations of the leading batches of ``group``, at least one. Raises BatchInvalid if the first is
    invalid."""
    if group[-1].end_offset - group[0].base_offset >= LEAST_RECORDS:
        from bridges.formats.columns import translation  # numpy is imported with the first translation

        try:
            return (yield from translation.translate(group, target, limit))
        except (Unusual, BatchInvalid):
            yield None  # record by record below finds what is invalid, after the records before it
    made: list[Buffer] = []
    for batch in group:
        try:
            if len(group) > 1:
                made += yield from translate_group(source, [batch], target, limit)
            else:
                made.append((yield from translate_one(source, batch, target, limit)))
        except BatchInvalid:
            if not made:
                raise
            break
    return made


def translate_one(source: StoredFormat, batch: StoredBatch, target: StoredFormat, limit: int) -> Sliced[Buffer]:
    builder = target.builder(batch.base_offset, batch.end_offset)
    reached = batch.base_offset
    try:
        for record in records_of(source, batch, limit):
            if record is None:
                yield None
                continue
            builder.add(record)
            reached = record.offset + 1
            if len(builder) > _AT_ONCE and not len(builder) % _AT_ONCE:
                yield None
    except BatchInvalid as error:
        if not len(builder):
            raise
        raise RecordInvalid(str(error), reached, (yield from builder.finish_in_slices())) from error
    record = None  # release it: it may be large
    return (yield from builder.finish_in_slices())
