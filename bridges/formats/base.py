"""The interface of a stored format (docs/design.md, "Stored as received")."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.producer import InTransaction, Stamp
from bridges.formats.records import Buffer, Record, StoredBatch

FORMAT_MASK = 0x0F
"""The bits of an entry's flags that name its format."""


IMPORTED = 0x10
"""The flag of an entry that was copied from another cluster. Producer numbers in it are that cluster's."""

APPEND_TIME = 0x20
"""The flag of an entry whose topic stamps records with the time of their append. Readers of the batch's own format get
its bytes as they are; other readers, and lookups by time, use :func:`records_of`."""

COMPACTED = 0x40
"""The flag of an entry that compaction has put in the place of the original batches."""

EVENT_HEADER = 8
"""Bytes of an event's header in a Pravega segment: its type and its length, four each (docs/protocols/pravega.md,
"Events")."""

FIRST_OF_FRONTS = 8
"""The lowest number of formats that fronts bring; lower ones belong to :class:`FormatId`."""


class FormatId(IntEnum):
    """Format numbers, stored in the low four bits of an entry's flags; never renumber. 4 belongs to a separately
    installed package (:data:`bridges.formats.ENTRY_POINTS`)."""

    RAW = 0
    KAFKA = 1
    PRAVEGA = 2
    YDB = 3
    LEDGER_NOTE = 5


class BatchInfo(NamedTuple):
    """The facts of a stored batch from which a log's state is rebuilt. ``max_timestamp`` in ms (-1 unknown), ``epoch``
    -1 when not stored.

    A ``control`` batch has no records for readers.
    """

    max_timestamp: int
    epoch: int
    producer: Stamp | None
    control: bool = False
    transaction: InTransaction | None = None


class Builder(Protocol):
    """A batch under construction."""

    def __len__(self) -> int:
        """Return the number of records so far."""

    def add(self, record: Record) -> None: ...

    def finish(self) -> Buffer:
        """Return the batch. One without records is a gap."""

    def finish_in_slices(self) -> Generator[None, None, Buffer]:
        """Return the batch, yielding now and then (:mod:`anabranch_kit.run.sliced`): a batch may be as large as its
        records."""
        ...


class FinishedAtOnce:
    """A base of builders whose ``finish`` takes no longer than one step may, or releases the interpreter while it
    copies."""

    __slots__ = ()

    if TYPE_CHECKING:

        def finish(self) -> Buffer: ...

    def finish_in_slices(self) -> Generator[None, None, Buffer]:
        return self.finish()
        yield


class StoredFormat(Protocol):
    """One layout of a batch's bytes."""

    @property
    def id(self) -> int:
        """Return the format's number in an entry's flags."""

    name: str

    def describe(self, payload: Buffer) -> BatchInfo:
        """Return the header's facts. They are the writer's claims and are not checked against the records. Raises
        BatchInvalid."""

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        """Write the offset and epoch that the log has chosen into the batch, in place, before it is stored."""

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        """Yield the records at ``start`` or above with their offsets, lazily: at most ``limit`` bytes are decompressed.

        Skipping what lies below ``start`` costs less than reading it. To read a bounded number of records or bytes,
        stop the iteration (:func:`bridges.formats.records.bounded`). None comes wherever much work was done since the
        last item, for callers that must not block. Raises BatchInvalid as soon as a record is malformed.
        """

    def event_bytes(self, payload: Buffer) -> int | None:
        """Return the bytes of a position that the batch takes, as Pravega counts them (bridges/log/byte_positions),
        from its header; None if only the records determine them.

        Called for every appended batch, once a client has asked for positions. A format's answer must never change, and
        for batches of whole events it must equal the bytes of their :meth:`records`. Raises BatchInvalid.
        """

    def builder(self, base_offset: int, end_offset: int) -> Builder:
        """Return a builder of a batch that spans ``[base_offset, end_offset)``; records keep their offsets."""


def records_of(
    plug: StoredFormat, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0
) -> Iterator[Record | None]:
    """Yield :meth:`StoredFormat.records` with the timestamps that the topic demands. Raises BatchInvalid."""
    records = plug.records(batch, limit, start)
    return _appended_at(records, batch.written_ms) if batch.flags & APPEND_TIME else records


def _appended_at(records: Iterator[Record | None], written_ms: int) -> Iterator[Record | None]:
    for record in records:
        if record is not None:
            record.timestamp = written_ms
        yield record
