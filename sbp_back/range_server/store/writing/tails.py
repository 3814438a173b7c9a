"""The end of every range, as the writer of the log sees it.

It runs ahead of the durable state by the group in flight: entries and control records are checked and placed here
before they are written, and taken back when the group found no room. Everything else in the store goes by
``StoredRange``, which follows when a group is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch_kit.errors import DiskFull, StoreError
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.store.index import StoredRange
from sbp_back.range_server.store.layout.format import RECORD, RecordType
from sbp_back.range_server.store.writing.wal_items import Adopt, Append, Control, Copies
from sbp_back.wire.model import Entry

_APPEND = int(RecordType.APPEND)
_RELOCATE = int(RecordType.RELOCATE)


class Tail:
    """The end of one range. ``next``: the base that the next entry must have; ``end`` -1 while open."""

    __slots__ = ("end", "epoch", "next", "short", "start", "stored")

    def __init__(self, stored: StoredRange) -> None:
        self.stored = stored
        self.start = stored.start
        self.next = stored.next_offset
        self.end = stored.end
        self.epoch = stored.epoch
        self.short = False
        """An entry was refused for lack of space: entries submitted behind it are refused for the same reason."""


class Tails:
    """Tails by (stream, index of the range). Change ``by_key`` only through the methods."""

    __slots__ = ("_by_stream", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[tuple[int, int], Tail] = {}
        self._by_stream: dict[int, set[int]] = {}

    def add(self, stored: StoredRange) -> None:
        """Add a range as it is in the state, or a new one."""
        self.by_key[stored.key] = Tail(stored)
        self._by_stream.setdefault(stored.stream_id, set()).add(stored.index)

    def place(self, item: Append, records: list[bytes], bodies: list[Buffer]) -> StoreError | None:
        """Place all entries of ``item``: append their record headers and bodies, and note their ranges. If any is
        misplaced, place none and return the error.
        """
        before = len(records)
        owners = item.owners
        tails = self.by_key
        for entry in item.entries:
            stream_id = entry.stream_id
            index = entry.range_index
            base = entry.base_offset
            count = entry.count
            tail = tails.get((stream_id, index))
            if tail is None or tail.next != base or tail.end >= 0 or count < 1:
                # This entry is refused, so none of the item's entries is in the group.
                taken = len(owners)
                for placed in reversed(item.entries[:taken]):
                    tails[placed.stream_id, placed.range_index].next = placed.base_offset
                owners.clear()
                if taken:
                    del records[before:]
                    del bodies[-2 * taken :]
                return misplaced(entry, tail)
            tail.next = base + count
            owners.append(tail.stored)
            prefix = entry.prefix
            payload = entry.payload
            length = len(prefix) + len(payload)
            records.append(
                RECORD.pack(_APPEND, entry.crc, stream_id, tail.epoch, base, entry.timestamp, index, count, length)
            )
            bodies.append(prefix)
            bodies.append(payload)
        return None

    @staticmethod
    def place_copies(item: Copies, records: list[bytes], bodies: list[Buffer]) -> None:
        """Append the record headers and bodies of entries that are written again. A copy belongs to the very range it
        was made for, which the position of that range's creation identifies.
        """
        for stored, entry in zip(item.owners, item.entries, strict=True):
            prefix, payload = entry.prefix, entry.payload
            length = len(prefix) + len(payload)
            lsn, base = stored.created_lsn, entry.base_offset
            records.append(
                RECORD.pack(
                    _RELOCATE,
                    entry.crc,
                    entry.stream_id,
                    lsn,
                    base,
                    entry.timestamp,
                    entry.range_index,
                    entry.count,
                    length,
                )
            )
            bodies += (prefix, payload)

    def mark_short(self, entries: list[Entry]) -> None:
        """Mark the ranges of entries that were refused for lack of space."""
        for entry in entries:
            tail = self.by_key.get((entry.stream_id, entry.range_index))
            if tail is not None:
                tail.short = True

    def take_back(self, entries: Sequence[Entry]) -> None:
        """Take back entries that had their places, but found no room in the end."""
        for entry in reversed(entries):
            tail = self.by_key.get((entry.stream_id, entry.range_index))
            if tail is not None:
                tail.next = entry.base_offset
                tail.short = True

    def apply(self, item: Control) -> StoreError | None:
        """Change the view as a control record will change the state, or return why that is impossible. Sets
        ``item.written`` unless there is nothing to record.
        """
        kind = item.kind
        key = (item.stream_id, item.index)
        name = f"range {item.index} of stream {item.stream_id}"
        tail = self.by_key.get(key)
        if kind == RecordType.CREATE:
            if tail is None:
                item.created = StoredRange(item.stream_id, item.index, item.epoch, item.base, item.lsn)
                self.add(item.created)
            elif (tail.start, tail.epoch, tail.end) == (item.base, item.epoch, -1):
                return None
            elif tail.end < 0 and tail.next == tail.start and item.epoch > tail.epoch:
                tail.epoch = item.epoch
                tail.start = tail.next = item.base
            else:
                return StoreError(f"{name} exists with other properties")
        elif kind == RecordType.SEAL:
            if tail is None:
                return StoreError(f"{name} does not exist")
            if item.epoch < tail.epoch:
                return StoreError(f"{name} has epoch {tail.epoch}, it cannot be sealed with {item.epoch}")
            if item.base < 0:
                item.base = tail.end if tail.end >= 0 else tail.next
            if item.base == tail.end:
                return None
            # The placement driver may decide on a lower end than the one this server sealed at, never on a higher.
            if 0 <= tail.end < item.base:
                return StoreError(f"{name} is sealed at {tail.end}")
            if not tail.start <= item.base <= tail.next:
                return StoreError(f"{name} holds offsets {tail.start} to {tail.next}, it cannot end at {item.base}")
            tail.end = item.base
            tail.epoch = item.epoch
        elif isinstance(item, Adopt):
            for stored in item.ranges:
                if stored.key not in self.by_key:
                    self.add(stored)
        elif kind == RecordType.TRIM_STREAM:
            self._forget_trimmed(item.stream_id, item.base)
        else:
            for index in self._by_stream.pop(item.stream_id, ()):
                del self.by_key[item.stream_id, index]
        item.written = True
        return None

    def _forget_trimmed(self, stream_id: int, min_offset: int) -> None:
        """Forget ranges with nothing left, except the stream's last one: the same rule as in the state."""
        indexes = sorted(self._by_stream.get(stream_id, ()))
        for index in indexes[:-1]:
            if not 0 <= self.by_key[stream_id, index].end <= min_offset:
                break
            del self.by_key[stream_id, index]
            self._by_stream[stream_id].discard(index)


def misplaced(entry: Entry, tail: Tail | None) -> StoreError:
    """Return why an entry is not the next one of its range."""
    name = f"range {entry.range_index} of stream {entry.stream_id}"
    if tail is None:
        return StoreError(f"{name} does not exist")
    if tail.end >= 0:
        return StoreError(f"{name} is sealed")
    if tail.short and entry.base_offset > tail.next:
        return DiskFull(f"{name}: an entry before this one was refused for want of space")
    return StoreError(f"{name} continues at offset {tail.next}, not at {entry.base_offset}")
