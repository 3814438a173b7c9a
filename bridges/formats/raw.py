"""Batches of bare SBP clients: the payload is opaque.

A reader of another protocol gets the payload as the value of the batch's first record. The other offsets of the batch
are gaps, because the payload does not say where their records would begin.
"""

from __future__ import annotations

from collections.abc import Iterator

from bridges.formats.base import EVENT_HEADER, BatchInfo, FinishedAtOnce, FormatId
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.pieces import copied
from bridges.formats.records import Buffer, Record, StoredBatch


class RawFormat:
    """The stored format of opaque payloads."""

    id = FormatId.RAW
    name = "raw"

    def describe(self, payload: Buffer) -> BatchInfo:
        return BatchInfo(-1, -1, None)

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        return None

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        if batch.base_offset >= start:
            yield Record(None, (yield from copied(batch.payload)), offset=batch.base_offset, written=batch.written_ms)

    def event_bytes(self, payload: Buffer) -> int | None:
        return EVENT_HEADER + len(payload)

    def builder(self, base_offset: int, end_offset: int) -> RawBuilder:
        return RawBuilder()


class RawBuilder(FinishedAtOnce):
    """A builder that concatenates the values of records."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: list[bytes] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, record: Record) -> None:
        self._values.append(record.value or b"")

    def finish(self) -> Buffer:
        return b"".join(self._values)  # a join of bytes alone releases the interpreter
