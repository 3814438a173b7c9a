"""Copy of stores into another store, entry by entry, as a range server would append them there.

Offsets, epochs and the bytes of entries stay what they are. The content of the target shows how far the copy is, so it
resumes wherever it ended, and nothing can be there twice: an entry has one place in its range. Content of the target
that is no beginning of the source (which has changed since) is deleted, and copied anew.

Where a range was trimmed, entries without content stand for the missing ones and are trimmed away in turn: so the range
begins, ends and is readable at the same offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from anabranch_kit.errors import StoreCorrupt, StoreError
from anabranch_kit.run.awaited import awaited
from sbp_back.range_server.store.index import StoredRange
from sbp_back.range_server.store.store import Store
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.model import Entry

Key = tuple[int, int]
"""(stream, index of the range)."""

_READ_BYTES = 1 << 20
_UNDER_WAY_BYTES = 16 << 20
_ITEM_BYTES = 1024
"""Bytes that an operation counts for, besides its data."""
_MOST_OFFSETS = (1 << 31) - 1
"""Most offsets in one entry."""


class CopyFailed(Exception):
    """The copy cannot be made, or differs from the source; ``stream_id``: of the stream concerned, if it is one."""

    def __init__(self, message: str, stream_id: int = -1) -> None:
        super().__init__(message)
        self.stream_id = stream_id


class Held(Struct, frozen=True):
    """A range of the source, and the store that holds it."""

    store: Store
    range: StoredRange


class StoreCopy:
    """A copy of all ``sources``, of which no two hold the same range, in ``target``. All are started.

    ``pace`` is awaited with the bytes of what is about to be appended; ``told`` is called with the bytes that were
    copied.
    """

    def __init__(
        self,
        sources: Sequence[Store],
        target: Store,
        pace: Callable[[int], Awaitable[object]],
        told: Callable[[int], object],
    ) -> None:
        self._target = target
        self._pace = pace
        self._told = told
        self._way = _UnderWay(_UNDER_WAY_BYTES)
        self._held: dict[Key, Held] = {}
        for store in sources:
            for key, stored in sorted(store.ranges.items()):
                if key in self._held:
                    raise CopyFailed(f"range {key[1]} of stream {key[0]} is in two stores", key[0])
                self._held[key] = Held(store, stored)
        self._last: dict[int, int] = dict(sorted(self._held))
        self._trimmed: dict[int, int] = {}
        """Trim offset of each stream, the highest of all its ranges: the store of another range may not know it yet."""
        for stored in (held.range for held in self._held.values()):
            if stored.min_offset > stored.start:
                before = self._trimmed.get(stored.stream_id, 0)
                self._trimmed[stored.stream_id] = max(before, stored.min_offset)

    @property
    def ranges(self) -> dict[Key, Held]:
        """Return the ranges to be copied, in order: those with something to read, and those that follow on others."""
        return {key: held for key, held in sorted(self._held.items()) if self._needed(held.range)}

    @property
    def bytes(self) -> int:
        """Return the bytes of all entries to be copied."""
        return sum(held.range.live_bytes for held in self._held.values())

    def check(self) -> None:
        """Check, before anything is copied, that everything can be. Raises CopyFailed."""
        largest = self._target.largest_entry
        for held in self.ranges.values():
            stored = held.range
            name = _name(stored)
            for first, end in stored.gaps():
                raise CopyFailed(
                    f"offsets {first} to {end - 1} of {name} are lost, and a log of objects cannot begin with a hole: "
                    "trim the topic to behind them first",
                    stored.stream_id,
                )
            for run in stored.runs:
                longest = max(run.meta[1::3], default=0)
                if longest > largest:
                    raise CopyFailed(
                        f"an entry of {name} has {longest} bytes, and the target takes entries of up to {largest}: "
                        "give it larger segments (sbp.segment_bytes)",
                        stored.stream_id,
                    )

    async def run(self) -> None:
        """Copy what is not there yet. Raises CopyFailed, with the first damaged offset if there is damage."""
        wanted = self.ranges
        streams: dict[int, list[Held]] = {}
        for key, held in wanted.items():
            streams.setdefault(key[0], []).append(held)
        there: dict[int, list[StoredRange]] = {}
        for key, copy in sorted(self._target.ranges.items()):
            there.setdefault(key[0], []).append(copy)
        for stream_id, copies in there.items():
            if not self._is_beginning(copies, streams.get(stream_id, [])):
                await self.forget(stream_id)
        for held_ranges in streams.values():
            for held in held_ranges:
                await self._copy_range(held)
        await self._way.wait_until_done()

    async def forget(self, stream_id: int) -> None:
        """Delete what the target has of a stream."""
        await self._way.wait_until_done()
        await awaited(partial(self._target.delete_stream, stream_id))

    def differs(self, held: Held) -> str:
        """Return how the target's range differs from the source's, apart from its entries; empty if it is the same."""
        stored = held.range
        copy = self._target.ranges.get(stored.key)
        if copy is None:
            return "" if not self._readable(stored) and not self._is_last(stored) else "is not there"
        for what in ("start", "next_offset", "end", "epoch", "min_offset"):
            there, here = getattr(copy, what), getattr(stored, what)
            if there != here:
                return f"has {what} {there} instead of {here}"
        return ""

    def strangers(self) -> list[int]:
        """Return the streams that the target has and no source."""
        return sorted({key[0] for key in self._target.ranges} - self._last.keys())

    # --- which ranges

    def _is_last(self, stored: StoredRange) -> bool:
        return self._last[stored.stream_id] == stored.index

    def _readable(self, stored: StoredRange) -> bool:
        return max(stored.min_offset, self._trimmed.get(stored.stream_id, 0)) < stored.visible_end

    def _needed(self, stored: StoredRange) -> bool:
        if self._readable(stored) or self._is_last(stored):
            return True
        # An empty range is needed if nothing of it was trimmed, unless the target has already dropped it, as the source
        # will.
        known = self._target.streams.get(stored.stream_id)
        return stored.start == stored.next_offset and (known is None or stored.index >= known.first_index)

    @staticmethod
    def _is_beginning(copies: Iterable[StoredRange], held: Iterable[Held]) -> bool:
        """Return whether the target's ranges of a stream are a beginning of the source's, so that the copy may go on
        from them.
        """
        source: Mapping[Key, StoredRange] = {one.range.key: one.range for one in held}
        for copy in copies:
            stored = source.get(copy.key)
            if stored is None or copy.start != stored.start or copy.next_offset > stored.next_offset:
                return False
            if copy.min_offset > stored.min_offset or copy.epoch > stored.epoch:
                return False
            if copy.end >= 0 and (copy.end, copy.epoch) != (stored.end, stored.epoch):
                return False
        return True

    # --- one range

    async def _copy_range(self, held: Held) -> None:
        stored = held.range
        stream_id, index = stored.key
        target = self._target
        copy = target.ranges.get(stored.key)
        if copy is None:
            create = (stream_id, index, stored.epoch, stored.start)
            await self._way.begin(0, lambda done: target.create_range(*create, done))
        at = stored.start if copy is None else copy.next_offset
        is_open = copy is None or copy.end < 0
        if is_open:
            for filler in _fillers(stored, at):
                await self._way.begin(0, lambda done, entry=filler: target.append([entry], done))  # type: ignore[misc]
            async for entries in read_range(held, max(at, _first(stored))):
                size = sum(entry.size for entry in entries)
                await self._pace(size)
                await self._way.begin(size, lambda done, some=entries: target.append(some, done))  # type: ignore[misc]
                self._told(size)
        if stored.min_offset > (stored.start if copy is None else copy.min_offset):
            await self._way.begin(0, lambda done: target.trim_stream(stream_id, stored.min_offset, done))
        if is_open and stored.end >= 0:
            await self._way.begin(0, lambda done: target.seal_range(stream_id, index, stored.epoch, stored.end, done))


async def read_range(held: Held, at: int = -1) -> AsyncIterator[list[Entry]]:
    """Yield the entries of a range that can be read, from offset ``at`` on (-1: all), some at a time.

    Raises CopyFailed when an entry is damaged, or missing.
    """
    stored = held.range
    stream_id, index = stored.key
    at = _first(stored) if at < 0 else at
    while at < stored.visible_end:
        offset = max(at, stored.min_offset)  # the first entry may begin before it
        try:
            entries = await awaited(partial(held.store.read, stream_id, index, offset, -1, _READ_BYTES))
        except StoreCorrupt as error:
            raise CopyFailed(f"offset {offset} of {_name(stored)} is damaged: {error}", stream_id) from error
        except StoreError as error:
            raise CopyFailed(f"offset {offset} of {_name(stored)} cannot be read: {error}", stream_id) from error
        if not entries or entries[0].base_offset != at:
            raise CopyFailed(f"offset {at} of {_name(stored)} does not begin an entry", stream_id)
        yield entries
        at = entries[-1].base_offset + entries[-1].count


def _first(stored: StoredRange) -> int:
    """Return the base of the first entry that can be read."""
    place = stored.find(stored.min_offset)
    return stored.next_offset if place is None else int(stored.runs[place[0]].bases[place[1]])


def _fillers(stored: StoredRange, at: int) -> Iterable[Entry]:
    """Yield entries from ``at`` on that stand for the trimmed ones."""
    first = _first(stored)
    while at < first:
        count = min(first - at, _MOST_OFFSETS)
        yield pack_entry(stored.stream_id, stored.index, 0, at, count, 0, b"")
        at += count


def _name(stored: StoredRange) -> str:
    return f"range {stored.index} of stream {stored.stream_id}"


class _UnderWay:
    """Operations in flight, at most ``most`` bytes, that are awaited only together. Raises the failure of any."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._failed: StoreError | None = None
        self._changed = asyncio.Event()

    async def begin(self, size: int, call: Callable[[Callable[[StoreError | None], None]], object]) -> None:
        """Run ``call``, which gets a callback for its end, when there is room for ``size`` bytes. Raises CopyFailed."""
        size += _ITEM_BYTES
        await self._below(max(0, self._most - size))
        self._bytes += size

        def done(error: StoreError | None) -> None:
            self._bytes -= size
            self._failed = self._failed or error
            self._changed.set()

        call(done)

    async def wait_until_done(self) -> None:
        """Wait until nothing is in flight. Raises CopyFailed."""
        await self._below(0)

    async def _below(self, most: int) -> None:
        while self._bytes > most and self._failed is None:
            self._changed.clear()
            await self._changed.wait()
        if self._failed is not None:
            raise CopyFailed(f"the copy could not be written: {self._failed}") from self._failed
