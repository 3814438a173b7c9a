"""Records as fronts exchange them when one protocol reads what another wrote (docs/design.md, "Stored as received")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct, field

Buffer = bytes | bytearray | memoryview

CODEC_HEADER = "anabranch.codec"
"""The header that tells readers of other protocols that a value is still encoded, and with which codec."""

LOSSY_HEADER = "anabranch.lossy"
"""The header that tells readers of other protocols which headers differ from the written ones, by place, with commas
between: a number for a name that is not UTF-8 and has U+FFFD instead, a range for headers that were left out."""


class Record(Struct):
    """One record; ``offset`` is -1 until it is stored.

    ``timestamp`` is its creation time by its writer's claim, and ``written`` is when the log stored it; both in ms
    since the epoch, -1 unknown. ``producer`` and ``sequence`` name the writer if its protocol does. ``codec`` names the
    encoding of the value, None when it is plain. ``attributes`` are protocol-specific facts besides headers; formats
    that have no place for them leave them out.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    timestamp: int = -1
    offset: int = -1
    producer: str | None = None
    sequence: int = -1
    written: int = -1
    codec: str | None = None
    attributes: Sequence[tuple[str, bytes]] = ()

    @property
    def size(self) -> int:
        """Return the bytes of key, value and headers."""
        size = len(self.key or b"") + len(self.value or b"")
        return size + sum(len(name) + len(value or b"") for name, value in self.headers) if self.headers else size


class StoredBatch(NamedTuple):
    """A batch as the log stores it: offsets ``[base_offset, end_offset)``, format flags, the format's own bytes, and
    the wall clock (ms) of its append, -1 unknown."""

    base_offset: int
    end_offset: int
    flags: int
    payload: Buffer
    written_ms: int = -1


def told_headers(record: Record) -> list[tuple[str, bytes | None]]:
    """Return the headers for a reader whose protocol cannot name a value's encoding: an additional header names it."""
    if record.codec is None:
        return record.headers
    return [*record.headers, (CODEC_HEADER, record.codec.encode())]


def bounded(records: Iterator[Record | None], max_records: int = -1, max_bytes: int = -1) -> Iterator[Record | None]:
    """Yield the first of ``records``: at most ``max_records``, and at most ``max_bytes`` of keys, values and headers.

    Negative: no limit. The first record comes even if it alone is larger, so that a reader always makes progress. None
    items between records are passed on (:meth:`bridges.formats.base.StoredFormat.records`). Nothing is decoded after
    the first record that exceeds a limit.
    """
    count = size = 0
    while count != max_records and (max_bytes < 0 or not count or size < max_bytes):
        try:
            record = next(records)
        except StopIteration:
            return
        if record is not None:
            if max_bytes >= 0:
                size += record.size
                if count and size > max_bytes:
                    return
            count += 1
        yield record
