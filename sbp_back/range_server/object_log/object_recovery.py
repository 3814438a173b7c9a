"""Reading a log of objects: it ends all incarnations of the log and reads what they have written.

The reader has claimed a number of the log (:mod:`.ownership.claims`); it ends the logs of the numbers below one after
the other and reads them in order. An earlier incarnation that still lives finds its next number taken; one that is just
starting finds its first one taken. Where a log says that its server has adopted another log, that is read, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct, field

from anabranch_kit.errors import StoreCorrupt, StoreError
from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log.objects.bucket import PATIENCE, Bucket, again
from sbp_back.range_server.object_log.objects.cache import Cache, source_of
from sbp_back.range_server.object_log.objects.content import HEAD_BYTES, UNIQUE_BYTES, decode_head, key_of
from sbp_back.range_server.object_log.objects.group import BEFORE_RECORDS, ObjectGroup, decode_group, records_end
from sbp_back.range_server.object_log.objects.index_object import (
    Index,
    check_whole,
    decode_index_object,
    place_rows,
    restore_state,
    unpack_crcs,
    unpack_places,
)
from sbp_back.range_server.object_log.ownership.chain import Chain, Entry
from sbp_back.range_server.object_log.ownership.logs import Logs
from sbp_back.range_server.store.index import StoredRange, StoreState
from sbp_back.range_server.store.layout.format import RecordType
from sbp_back.range_server.store.layout.idxfile import SegmentIndex
from sbp_back.range_server.store.opening.replay import apply_records
from sbp_back.range_server.store.segment import Segment

logger = logging.getLogger(__name__)

_BEGINNING = 64 * 1024
"""Bytes of an object that are read for its record headers, unless it has more of them."""
_READS = 16
"""Objects read at once."""


class ReadLog(Struct):
    """The content of a log and of the logs it has adopted: ``segments`` are its own, in order, and ``besides`` those of
    the others and the objects of ranges.
    """

    name: str
    space: int
    state: StoreState = field(default_factory=StoreState)
    segments: list[Segment] = field(default_factory=list)
    besides: list[Segment] = field(default_factory=list)
    adopted: dict[int, str] = field(default_factory=dict)
    """The names of adopted logs, by their range servers."""
    objects: int = 0
    scanned_bytes: int = 0
    entry: Entry | None = None
    """The chain's entry of the index that was read."""
    chain: Chain = field(default_factory=lambda: Chain(0, []))

    def adopt(self, server_id: int, other: ReadLog) -> list[StoredRange]:
        """Take over the content of ``other``; return its ranges."""
        taken = merge(self.state, other.state)
        for segment in (*other.segments, *other.besides):
            source_of(segment).rows = ""  # the rows are in the other log, which is given up
        self.besides += [*other.segments, *other.besides]
        self.adopted[server_id] = other.name
        self.adopted.update(other.adopted)
        self.objects += other.objects
        self.scanned_bytes += other.scanned_bytes
        return taken


def merge(state: StoreState, other: StoreState) -> list[StoredRange]:
    """Add the content of ``other``, whose ranges end where they are; a range that both have stays as it is."""
    end_ranges(other)
    taken = []
    for key, stored in other.ranges.items():
        if key in state.ranges:
            stored.drop()
            continue
        state.add(stored)
        taken.append(stored)
    for stream_id, facts in other.streams.items():
        known = state.streams.setdefault(stream_id, facts)
        known.min_offset = max(known.min_offset, facts.min_offset)
        known.first_index = max(known.first_index, facts.first_index)
    return taken


def end_ranges(state: StoreState) -> None:
    """End each range where it is: nothing more comes."""
    for stored in state.ranges.values():
        if stored.end < 0:
            stored.seal(stored.next_offset, stored.epoch)


class LogReader:
    """Reads logs of ``logs``; their segments are in ``cache``. One at a time."""

    def __init__(self, logs: Logs, cache: Cache) -> None:
        self._logs = logs
        self._cache = cache
        self._pool = ThreadPoolExecutor(_READS, "anabranch-recover")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read(self, name: str, writer: int) -> ReadLog:
        """End all incarnations of a log below ``writer``, which the caller has claimed, and read them: the last index,
        and what follows it.

        Raises ``StoreCorrupt`` and ``OSError``."""
        chain = self._logs.chain(name, writer)
        while True:
            if chain.fenced:
                raise StoreError(f"log {name} was taken over by a later start, or by another range server")
            log = None
            try:
                log = self._indexed(name, chain)
                for incarnation, number, group in self._groups(name, log.entry, writer):
                    self._apply(log, incarnation, number, group)
            except (StoreCorrupt, FileNotFoundError):
                if log is not None:
                    self._forget(log)
                # A missing object may have been given up after another index was written.
                if self._logs.read_on(name, chain):
                    continue
                raise
            if not self._own(log, chain):
                self._forget(log)
                continue
            check_whole(log.state, f"log {name}")
            for segment in (*log.segments, *log.besides):
                segment.sealed = True
            log.chain = chain
            return log

    def finish(self, log: ReadLog) -> None:
        """Put an entry into the chain of a closed log that lists the logs it has adopted, where its own adopter can
        read it.
        """
        chain = log.chain
        while True:
            last = chain.last
            assert last is not None
            if last.adopted is not None:
                return
            entry = Entry(
                chain.writer,
                last.incarnation,
                last.number,
                last.index,
                os.urandom(UNIQUE_BYTES),
                sorted(log.adopted),
            )
            if self._logs.put(log.name, chain, entry):
                return
            if chain.fenced:
                raise StoreError(f"log {log.name} was taken over by somebody else")

    def adopted_in(self, name: str, upto: int) -> set[int]:
        """Return the range servers that a log, closed by claim number ``upto`` or before, says it has adopted."""
        chain = self._logs.chain(name, upto)
        while True:
            last = chain.last
            if last is not None and last.adopted is not None:
                return set(last.adopted)
            try:
                entry, index = self._last_index(name, chain)
                found = set() if index is None else set(index.adopted)
                for _, _, group in self._groups(name, entry, upto):
                    found.update(record[2] for record in group.records if record[0] == RecordType.ADOPT)
            except (StoreCorrupt, FileNotFoundError):
                if self._logs.read_on(name, chain):
                    continue
                raise
            if not self._logs.read_on(name, chain):
                return found

    def _own(self, log: ReadLog, chain: Chain) -> bool:
        """Put the index that was read (the one before where the last is damaged) as one's own last entry of the chain.
        Return False if there is another one.
        """
        last = chain.last
        if self._logs.read_on(log.name, chain):
            return False
        unique = os.urandom(UNIQUE_BYTES)
        read = log.entry
        if read is None or last is None:
            mine = Entry(chain.writer, 0, 0, "", unique)
        else:
            mine = Entry(chain.writer, read.incarnation, read.number, read.index, unique, last.adopted)
        return self._logs.put(log.name, chain, mine)

    def _forget(self, log: ReadLog) -> None:
        for segment in (*log.segments, *log.besides):
            self._cache.forget(segment)

    def _index(self, name: str, entry: Entry) -> Index:
        try:
            return decode_index_object(self._logs.log(name).get_again(entry.index, PATIENCE))
        except DecodeError as error:
            raise StoreCorrupt(f"{entry.index} of log {name} is damaged: {error}") from error

    def _last_index(self, name: str, chain: Chain) -> tuple[Entry | None, Index | None]:
        """Return the last index of a log, or the one before if that is damaged, and its entry."""
        entry = chain.last
        if entry is None or not entry.index:
            return entry, None
        try:
            return entry, self._index(name, entry)
        except StoreCorrupt as error:
            before = chain.before
            if before is None or before.index == entry.index or not before.index:
                raise
            logger.error("%s: the one before is read, and what was written behind it", error)
            return before, self._index(name, before)

    def _indexed(self, name: str, chain: Chain) -> ReadLog:
        """Return the content of a log as of its last index."""
        log = ReadLog(name, self._cache.space())
        log.entry, index = self._last_index(name, chain)
        entry = log.entry
        if entry is None or index is None:
            return log
        bucket = self._logs.log(name)
        spaces = {name: log.space}
        try:
            log.state = restore_state(index)
            log.adopted = dict(index.adopted)
            fetches = [
                self._pool.submit(bucket.get_again, facts.rows, PATIENCE) if facts.rows else None
                for facts in index.segments
            ]
            for facts, fetch in zip(index.segments, fetches, strict=True):
                space = spaces.get(facts.log)
                if space is None:
                    space = spaces[facts.log] = self._cache.space()
                its = self._logs.log(facts.log)
                if facts.what is not None:
                    segment = self._cache.range_segment(facts.what, its, facts.log, unpack_crcs(facts.places))
                    log.besides.append(segment)
                else:
                    segment = self._cache.segment(space + facts.base, facts.size, its, facts.log, space)
                    segment.used = facts.used
                    unpack_places(source_of(segment), facts.places)
                    (log.segments if facts.log == name else log.besides).append(segment)
                source = source_of(segment)
                if fetch is None:
                    rows = SegmentIndex(memoryview(facts.inline))
                else:
                    source.rows = facts.rows
                    rows = self._cache.rows(segment, fetch.result())
                    segment.indexed = True
                place_rows(log.state, segment, rows)
        except DecodeError as error:
            raise StoreCorrupt(f"{entry.index} of log {name} is damaged: {error}") from error
        return log

    def _groups(self, name: str, entry: Entry | None, upto: int) -> Iterator[tuple[int, int, ObjectGroup]]:
        """End all incarnations below ``upto`` and yield their groups behind the index, with their incarnations and
        numbers.
        """
        bucket = self._logs.log(name)
        start, first = (0, 0) if entry is None else (entry.incarnation, entry.number)
        for incarnation in range(start, upto):
            begin = first if incarnation == start else 0
            end = bucket.end_log(incarnation, begin, os.urandom(UNIQUE_BYTES), PATIENCE)
            sizes = bucket.numbers(incarnation) if end > begin else {}
            tasks = ((bucket, incarnation, number, sizes.get(number, 0)) for number in range(begin, end))
            for number, group in enumerate(_ahead(self._pool, tasks), begin):
                yield incarnation, number, group

    def _apply(self, log: ReadLog, incarnation: int, number: int, group: ObjectGroup) -> None:
        segments = log.segments
        segment = segments[-1] if segments else None
        base = log.space + group.base
        if segment is None or segment.base != base:
            if segment is not None and base < segment.end:
                raise StoreCorrupt(f"object {number} of incarnation {incarnation} says that it lies in front of others")
            bucket = self._logs.log(log.name)
            segment = self._cache.segment(base, group.segment_bytes, bucket, log.name, log.space)
            segments.append(segment)
        if group.position != segment.used:
            raise StoreCorrupt(f"object {number} of incarnation {incarnation} does not follow the one before")
        source_of(segment).add(group.position, incarnation, number, group.size)

        def adopt(server_id: int, closed_at: int) -> None:
            other = self._logs.of_server(server_id)
            if other is None:
                raise StoreCorrupt(f"range server {server_id} was adopted, and its log is not known")
            log.adopt(server_id, self.read(other, closed_at))

        try:
            apply_records(log.state, segment, group, adopt)
        except StoreError as error:
            raise StoreCorrupt(f"object {number} of incarnation {incarnation}: {error}") from error
        segment.used = group.position + group.size
        log.objects += 1
        log.scanned_bytes += group.size


def _ahead(pool: ThreadPoolExecutor, tasks: Iterable[tuple[Bucket, int, int, int]]) -> Iterator[ObjectGroup]:
    """Yield the groups of objects in order, reading several at once."""
    waiting = []
    for task in tasks:
        waiting.append(pool.submit(_read_group, *task))
        if len(waiting) > _READS:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _read_group(bucket: Bucket, incarnation: int, number: int, size: int) -> ObjectGroup:
    """Return the group of an object that is part of a log; ``size`` in bytes, if known. Raises ``StoreCorrupt``."""
    key = key_of("", incarnation, number)
    try:
        if not size:
            size = len(bucket.get_again(key, PATIENCE))
        start = again(lambda: bucket.get_range(key, 0, min(size, _BEGINNING)), PATIENCE)
        head = decode_head(start, incarnation, number)
        if len(start) < BEFORE_RECORDS:
            raise DecodeError("it has no group")
        wanted = records_end(start)
        if len(start) < min(wanted, size):
            start = again(lambda: bucket.get_range(key, 0, min(wanted, size)), PATIENCE)
        group = decode_group(start, size)
        if HEAD_BYTES + head.length != size:
            raise DecodeError(f"it has {size} bytes, not {HEAD_BYTES + head.length}")
        return group
    except FileNotFoundError as error:
        raise StoreCorrupt(f"acknowledged data is missing: {error}") from error
    except DecodeError as error:
        raise StoreCorrupt(f"acknowledged data is damaged: {bucket.url}, {key}: {error}") from error
