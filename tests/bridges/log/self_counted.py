"""A stored format whose header tells what a batch takes of a position in bytes, as that of Pravega's appends does."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from bridges.formats import FORMATS
from bridges.formats.base import FIRST_OF_FRONTS, BatchInfo
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.producer import EventStamp
from bridges.formats.raw import RawFormat
from bridges.formats.records import Buffer, Record, StoredBatch

SELF_COUNTED = FIRST_OF_FRONTS + 7
"""The number of a format whose header tells what a batch takes."""
WRITER = bytes(16)
_HEAD = struct.Struct(">Iq")


class SelfCounted(RawFormat):
    """A head that tells what the batch takes and the number of its event (-1: it has no writer), then events
    of a head of four bytes and a value."""

    def describe(self, payload: Buffer) -> BatchInfo:
        _, number = _HEAD.unpack_from(payload)
        return BatchInfo(-1, -1, stamped(number))

    def event_bytes(self, payload: Buffer) -> int | None:
        takes: int = _HEAD.unpack_from(payload)[0]
        return takes

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        at, offset = _HEAD.size, batch.base_offset
        while at < len(batch.payload):
            (size,) = struct.unpack_from(">I", batch.payload, at)
            yield Record(None, bytes(batch.payload[at + 4 : at + 4 + size]), offset=offset)
            yield None
            at, offset = at + 4 + size, offset + 1


def stamped(number: int) -> EventStamp | None:
    """Who wrote a batch with such a number."""
    return None if number < 0 else EventStamp(WRITER, number)


def self_counted(sizes: list[int], takes: int | None = None, number: int = -1) -> bytes:
    """A batch of values of ``sizes`` bytes which says that it takes ``takes`` bytes, by default what its events do."""
    takes = sum(8 + size for size in sizes) if takes is None else takes
    return _HEAD.pack(takes, number) + b"".join(size.to_bytes(4, "big") + bytes(size) for size in sizes)


@contextmanager
def self_counted_known() -> Iterator[None]:
    """Have the format known."""
    FORMATS[SELF_COUNTED] = SelfCounted()
    try:
        yield
    finally:
        del FORMATS[SELF_COUNTED]
