"""Replacement of stored entries by others: the base of compaction.

To the log a replacement is like an evacuation, an entry written again at its tail, only with other bytes; so a crash
leaves either the old or the new. An entry may replace several that follow one another. The caller names the old entries
by checksum, so nobody replaces what he has not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch_kit.errors import StoreError
from sbp_back.range_server.store.index import META, StoredRange, StoreState
from sbp_back.wire.entry import entry_crc
from sbp_back.wire.model import Entry


class Replacement:
    """A call of :meth:`sbp_back.range_server.store.store.Store.replace`."""

    __slots__ = ("done", "epoch", "new", "old")

    def __init__(
        self, epoch: int, old: Sequence[Entry], new: Sequence[Entry], done: Callable[[StoreError | None], None]
    ) -> None:
        for entry in new:
            entry_crc(entry)
        self.epoch = epoch
        self.old = old
        self.new = new
        self.done = done

    def range_of(self, state: StoreState) -> StoredRange:
        """Return the range that holds exactly the entries to be replaced. Raises ``StoreError`` if none does."""
        if not self.old or not self.new:
            raise StoreError("nothing can be replaced by nothing")
        stream_id, index = self.old[0].stream_id, self.old[0].range_index
        name = f"range {index} of stream {stream_id}"
        stored = state.ranges.get((stream_id, index))
        if stored is None or stored.dropped:
            raise StoreError(f"{name} does not exist")
        newest = max(one.epoch for one in state.ranges_of(stream_id))
        if self.epoch < newest:
            raise StoreError(f"stream {stream_id} is in epoch {newest}: nobody replaces anything in {self.epoch}")
        at = end = self.old[0].base_offset
        for entry in self.new:
            if (entry.stream_id, entry.range_index, entry.base_offset) != (stream_id, index, at) or entry.count < 1:
                raise StoreError(f"the new entry for offset {at} of {name} belongs elsewhere")
            at = entry.end_offset
        for entry in self.old:
            if (entry.stream_id, entry.range_index, entry.base_offset) != (stream_id, index, end):
                raise StoreError(f"the entry to be replaced at offset {end} of {name} belongs elsewhere")
            place = stored.find(end)
            run = None if place is None else stored.runs[place[0]]
            if place is None or run is None:
                raise StoreError(f"there is nothing at offset {end} of {name} any more")
            there = int(run.bases[place[1]]), run.row_end(place[1]), run.meta[place[1] * META + 2]
            if there != (end, entry.end_offset, entry_crc(entry)):
                raise StoreError(f"offset {end} of {name} now holds another entry")
            end = entry.end_offset
        if at != end:
            raise StoreError(f"the offsets of {name} from {self.old[0].base_offset} to {end} are not to end at {at}")
        if not stored.holds(self.old[0].base_offset, end) or end > stored.visible_end:
            raise StoreError(f"offsets up to {end} of {name} are not there to be replaced")
        return stored
