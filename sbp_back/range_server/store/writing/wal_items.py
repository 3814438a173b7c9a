"""Items that the store queues for its writer, and the groups that come back: each item carries its own outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from msgspec import Struct

from anabranch_kit.errors import StoreError
from sbp_back.range_server.store.index import StoredRange
from sbp_back.range_server.store.layout.format import RECORD_BYTES, RecordType
from sbp_back.range_server.store.segment import Segment
from sbp_back.wire.model import Entry

Done = Callable[[StoreError | None], None]


class Append(Struct, eq=False):
    """New entries, all or none. Outcome: ``error``, else the ranges they belong to, in order, in ``owners``."""

    entries: list[Entry]
    bytes: int
    done: Done
    owners: list[StoredRange] = []
    error: StoreError | None = None


class Copies:
    """Entries of an old segment to be written again at the tail; with ``replaces``, other entries to be written in the
    place of stored ones.
    """

    __slots__ = ("bytes", "done", "entries", "error", "owners", "replaces")

    def __init__(self, owners: list[StoredRange], entries: list[Entry], done: Done, *, replaces: bool = False) -> None:
        self.replaces = replaces
        self.entries = entries
        self.done = done
        self.bytes = 0
        self.owners = owners
        self.error: StoreError | None = None


class Control:
    """A control record. ``base`` of a seal may be -1: the end as of now."""

    __slots__ = ("base", "created", "done", "epoch", "error", "index", "kind", "lsn", "stream_id", "written")
    bytes: ClassVar[int] = 0

    def __init__(self, kind: RecordType, stream_id: int, index: int, epoch: int, base: int, done: Done) -> None:
        self.kind = kind
        self.stream_id = stream_id
        self.index = index
        self.epoch = epoch
        self.base = base
        self.done = done
        self.error: StoreError | None = None
        self.lsn = 0
        self.written = False
        self.created: StoredRange | None = None


class Adopt(Control):
    """The adoption of another log: from here on its ranges belong to this one; ``ranges`` are as they end there."""

    __slots__ = ("ranges",)

    def __init__(self, server_id: int, closed_at: int, ranges: Iterable[StoredRange], done: Done) -> None:
        super().__init__(RecordType.ADOPT, server_id, 0, 0, closed_at, done)
        self.ranges = ranges


class Roll:
    """A change to a new segment, so that the current one, ``segment``, can be deleted."""

    __slots__ = ("done", "error", "segment")
    bytes: ClassVar[int] = 0

    def __init__(self, segment: Segment, done: Done) -> None:
        self.segment = segment
        self.done = done
        self.error: StoreError | None = None


class Flush:
    """A flush of everything submitted before, whatever the durability."""

    __slots__ = ("done", "error")
    bytes: ClassVar[int] = 0

    def __init__(self, done: Done) -> None:
        self.done = done
        self.error: StoreError | None = None


Item = Append | Copies | Control | Roll | Flush

EVACUATION = -1
"""Number of the pseudo-stream of copied entries."""
OTHERS = -2
"""Number of the pseudo-stream of items that concern no stream."""


def bytes_by_stream(item: Item) -> Mapping[int, int]:
    """Return the bytes of log that an item takes, for each stream that it concerns."""
    if isinstance(item, Append):
        sizes: dict[int, int] = {}
        for entry in item.entries:
            size = RECORD_BYTES + len(entry.prefix) + len(entry.payload)
            sizes[entry.stream_id] = sizes.get(entry.stream_id, 0) + size
        return sizes
    if isinstance(item, Control):
        return {item.stream_id: RECORD_BYTES}
    return {EVACUATION: item.bytes} if isinstance(item, Copies) else {OTHERS: RECORD_BYTES}


class Group:
    """The items that one write made durable, for the event loop. ``segment`` differs from the last group's after a
    roll.
    """

    __slots__ = ("body_at", "bytes", "end", "entries", "flush_seconds", "items", "records", "segment", "seq")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.items: list[Item] = []
        self.seq = 0
        self.body_at = 0
        self.end = 0
        self.bytes = 0
        self.records = 0
        self.entries = 0
        self.flush_seconds = 0.0
