"""Registry of stored formats and translation between them (design, section 3)."""

from __future__ import annotations

from collections import OrderedDict

from bridges.errors import BatchInvalid
from bridges.formats.base import FORMAT_MASK, BatchInfo, FormatId, StoredFormat
from bridges.formats.document import DocumentFormat
from bridges.formats.kafka import KafkaFormat
from bridges.formats.raw import RawFormat
from bridges.records import Buffer, Record, StoredBatch

__all__ = ["FORMATS", "FORMAT_MASK", "BatchInfo", "FormatId", "StoredFormat", "Translator", "decode", "format_of"]

FORMATS: dict[int, StoredFormat] = {int(plug.id): plug for plug in (RawFormat(), KafkaFormat(), DocumentFormat())}


def format_of(flags: int) -> StoredFormat:
    """The format an entry's flags name. Raises BatchInvalid for a number this version does not know."""
    try:
        return FORMATS[flags & FORMAT_MASK]
    except KeyError:
        raise BatchInvalid(f"stored format {flags & FORMAT_MASK} is not known to this version") from None


def decode(batch: StoredBatch) -> list[Record]:
    """All records of a stored batch, whatever wrote it, at once: for batches known to be small. Raises BatchInvalid."""
    return [record for record in format_of(batch.flags).records(batch) if record is not None]


class Translator:
    """Translates batches for readers of another protocol, remembering the latest up to ``max_bytes``."""

    __slots__ = ("_bytes", "_cache", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0
        self._cache: OrderedDict[tuple[int, int, int], Buffer] = OrderedDict()

    def payload(self, stream_id: int, batch: StoredBatch, target: FormatId) -> Buffer:
        """``batch`` in the ``target`` format: its own bytes when it is stored so. Raises BatchInvalid."""
        source = format_of(batch.flags)
        if source.id == target:
            return batch.payload
        key = (stream_id, batch.base_offset, int(target))
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached
        translated = FORMATS[int(target)].encode(decode(batch), batch.base_offset, batch.end_offset)
        self._cache[key] = translated
        self._bytes += len(translated)
        while self._bytes > self.max_bytes:
            _, dropped = self._cache.popitem(last=False)
            self._bytes -= len(dropped)
        return translated
