"""What a stored format must offer (docs/design.md, "Stored as received")."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.producer import InTransaction, Stamp
from bridges.formats.records import Buffer, Record, StoredBatch

FORMAT_MASK = 0x0F
"""The bits of an entry's flags that name its format."""


IMPORTED = 0x10
"""The bit of an entry's flags that says: copied from another cluster. Numbers of producers in it were given there."""

APPEND_TIME = 0x20
"""The bit of an entry's flags that says: in its topic the timestamp of a record is the time of its append. Readers of
the batch's own format get it as it is; others, and lookups by time, go by :func:`times_of` and :func:`records_of`."""

COMPACTED = 0x40
"""The bit of an entry's flags that says: compaction has put it in the place of what was written there."""

EVENT_HEADER = 8
"""Bytes of an event's header in a Pravega segment: its type and its length, four each (docs/protocols/pravega.md,
"Events")."""

FIRST_OF_FRONTS = 8
"""From here on numbers are for formats that fronts bring; those below are for :class:`FormatId`."""


class FormatId(IntEnum):
    """Format numbers, stored in the low four bits of an entry's flags; never renumber. 4 belongs to a package that is
    installed besides (:data:`bridges.formats.ENTRY_POINTS`)."""

    RAW = 0
    KAFKA = 1
    PRAVEGA = 2
    YDB = 3
    LEDGER_NOTE = 5


class BatchInfo(NamedTuple):
    """What a rebuild needs of a stored batch; ``max_timestamp`` in ms (-1 unknown), ``epoch`` -1 when not stored.

    A ``control`` batch has no records for readers.
    """

    max_timestamp: int
    epoch: int
    producer: Stamp | None
    control: bool = False
    transaction: InTransaction | None = None


class Builder(Protocol):
    """A batch in the making."""

    def __len__(self) -> int:
        """Records so far."""

    def add(self, record: Record) -> None: ...

    def finish(self) -> Buffer:
        """The batch, which may be one without records: a gap."""

    def finish_in_slices(self) -> Generator[None, None, Buffer]:
        """The same, yielding now and then (:mod:`anabranch_kit.run.sliced`): a batch may be as large as its records."""
        ...


class FinishedAtOnce:
    """Of builders whose ``finish`` takes no longer than one step may, or lets others go on while it copies."""

    __slots__ = ()

    if TYPE_CHECKING:

        def finish(self) -> Buffer: ...

    def finish_in_slices(self) -> Generator[None, None, Buffer]:
        return self.finish()
        yield


class StoredFormat(Protocol):
    """One way to lay out a batch's bytes."""

    @property
    def id(self) -> int:
        """Its number in an entry's flags."""

    name: str

    def describe(self, payload: Buffer) -> BatchInfo:
        """What the header says: the writer's claims, whatever lies in the records. Raises BatchInvalid."""

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        """Write what the log decides into the batch, in place, before it is stored."""

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        """The records at ``start`` or above with their offsets, lazily: at most ``limit`` bytes are decompressed.

        What lies below ``start`` is passed over for less than it costs to read. Whoever wants a bounded number of
        records or of bytes stops there (:func:`bridges.formats.records.bounded`). None stands wherever much was done
        since the last item, for callers that must not be held up. Raises BatchInvalid as soon as a record is malformed.
        """

    def times(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> Iterator[tuple[int, int] | None]:
        """Like :meth:`records`, but only (offset, timestamp in ms or -1) of each."""

    def event_bytes(self, payload: Buffer) -> int | None:
        """Return the bytes that the batch takes of a position as Pravega counts them (bridges/log/byte_positions),
        told from its header; None if only its records tell.

        Called for every batch that is appended, once somebody has asked for positions. What a format tells must never
        change, and for batches of whole events be what :meth:`records` make up. Raises BatchInvalid.
        """

    def builder(self, base_offset: int, end_offset: int) -> Builder:
        """What makes a batch that spans ``[base_offset, end_offset)`` of records at their offsets."""


def records_of(
    plug: StoredFormat, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0
) -> Iterator[Record | None]:
    """:meth:`StoredFormat.records` with the timestamps that the topic demanded. Raises BatchInvalid."""
    records = plug.records(batch, limit, start)
    return _appended_at(records, batch.written_ms) if batch.flags & APPEND_TIME else records


def _appended_at(records: Iterator[Record | None], written_ms: int) -> Iterator[Record | None]:
    for record in records:
        if record is not None:
            record.timestamp = written_ms
        yield record


def times_of(plug: StoredFormat, batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> Iterator[tuple[int, int] | None]:
    """:meth:`StoredFormat.times` with the timestamps that the topic demanded. Raises BatchInvalid."""
    times = plug.times(batch, limit)
    if not batch.flags & APPEND_TIME:
        return times
    return (None if one is None else (one[0], batch.written_ms) for one in times)
