"""Rendering of stored batches as lines of JSON, slice by slice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from anabranch_kit.run.sliced import Sliced
from bridges.console.records.conditions import PARSED_BYTES, Condition, matches
from bridges.console.records.lines import line_parts
from bridges.console.schemas.decoding import MOST_BYTES, TOO_LONG, Decoded, Frame, frames_of
from bridges.errors import BatchInvalid
from bridges.formats import format_of, records_of
from bridges.formats.codecs.compression import PIECE
from bridges.formats.records import Record, StoredBatch, bounded

_SLICE_RECORDS = 100
_SLICE_BYTES = 64 * 1024
_PARSED_BYTES = 32 * 1024
"""Bytes of values that are parsed in a step."""
_SEARCHED = 1024 * 1024
LARGE = 1024 * 1024
"""Bytes above which a record is counted by itself; smaller ones fit into what is counted for their reader anyway."""
STEP = PIECE
"""Most bytes that a record grows by in a step, if its codec decompresses piece by piece. A block of lz4 may be larger:
it is counted once the record is decompressed.
"""


class Wanted(Struct):
    """A rendering of a partition's offsets ``[start, end)``, at most ``limit`` records (negative: no limit).

    ``records``: number rendered so far. ``held``: bytes of the large record that is being rendered or decompressed.
    ``grows``: it is being decompressed, and a step may add :data:`STEP` to it. ``search``: render only what it finds.
    ``at``: the offset behind the record examined last. ``examined``: number of records, with timestamps from ``oldest``
    to ``latest``. ``times``: timestamps of the records rendered. With ``decodes``, it ``waits`` until the reader has
    decoded the first of ``frames``, which name schemas, into ``decoded``, by offset and name.
    """

    partition: int
    start: int
    end: int
    limit: int
    records: int = 0
    held: int = 0
    grows: bool = True
    search: Search | None = None
    at: int = -1
    examined: int = 0
    oldest: int = 1 << 63
    latest: int = -1
    times: list[int] = field(default_factory=list)
    decodes: bool = False
    waits: bool = False
    frames: list[tuple[int, str, Frame]] = field(default_factory=list)
    decoded: dict[int, dict[str, Decoded]] = field(default_factory=dict)

    def examine(self, record: Record) -> bool:
        """Return whether to render ``record``, which is within the offsets."""
        self.at = record.offset + 1
        self.examined += 1
        self.oldest, self.latest = min(self.oldest, record.timestamp), max(self.latest, record.timestamp)
        if self.search is not None and not self.search.finds(record, self.decoded.get(record.offset)):
            return False
        self.records += 1
        self.times.append(record.timestamp)
        return True

    @property
    def is_over(self) -> bool:
        """Return whether the limit of records, or of the search, is reached."""
        return self.records == self.limit or (self.search is not None and self.search.left <= 0)


class Search(Struct):
    """A search for records that match all of its fields.

    ``text`` in key, value or a header's value; ``key``; a ``header`` whose value contains ``header_text``; a time from
    ``since_ms`` to ``until_ms`` (negative: any); ``conditions`` on the value's JSON. At most ``left`` more records are
    examined. Of a long value only the first mebibyte is searched. ``too_long``: records whose values were not parsed.
    """

    left: int
    text: bytes = b""
    key: bytes | None = None
    header: str = ""
    header_text: bytes = b""
    until_ms: int = -1
    since_ms: int = -1
    conditions: Sequence[Condition] = ()
    too_long: int = 0

    def parses(self, record: Record, decoded: Mapping[str, Decoded] | None) -> int:
        """Return the bytes that :meth:`finds` may have to parse."""
        return min(len(_document(record, decoded) or b""), PARSED_BYTES) if self.conditions else 0

    def finds(self, record: Record, decoded: Mapping[str, Decoded] | None) -> bool:
        """Return whether ``record`` matches; it counts as examined."""
        self.left -= 1
        if not self.may_find(record):
            return False
        if self.text and not (
            _has(record.key, self.text)
            or _has(record.value, self.text)
            or any(_has(value, self.text) for _, value in record.headers)
            or any(_has(one.text.encode(), self.text) for one in (decoded or {}).values())
        ):
            return False
        if not self.conditions:
            return True
        document = _document(record, decoded)
        if len(document or b"") > PARSED_BYTES:
            self.too_long += 1
            return False
        return matches(self.conditions, document)

    def may_find(self, record: Record) -> bool:
        """Return whether ``record`` matches, besides ``text`` and ``conditions``."""
        if self.until_ms >= 0 and record.timestamp > self.until_ms:
            return False
        if self.since_ms >= 0 and record.timestamp < self.since_ms:
            return False
        if self.key is not None and record.key != self.key:
            return False
        return not self.header or any(
            name == self.header and _has(value, self.header_text) for name, value in record.headers
        )


def _document(record: Record, decoded: Mapping[str, Decoded] | None) -> bytes | None:
    """Return the JSON of a record's value: its schema's, or its own."""
    one = (decoded or {}).get("value")
    return one.text.encode() if one is not None and one.text else record.value


def _has(data: bytes | None, text: bytes) -> bool:
    return not text if data is None else data.find(text, 0, _SEARCHED) >= 0


def _large(size: int) -> int:
    return size if size > LARGE else 0


def rendered(batches: Sequence[StoredBatch], wanted: Wanted, inflated_bytes: int) -> Sliced[None]:
    """Yield the bytes to write, often none.

    If a batch cannot be decoded, a line has the error and the offset of the bad record; the rest of the batch is
    skipped.
    """
    lines: list[bytes] = []
    size = seen = reached = parsed = 0
    for batch in batches:
        if batch.base_offset >= wanted.end:
            break
        try:
            records = records_of(format_of(batch.flags), batch, inflated_bytes, wanted.start)
            decompressed = 0  # bytes since the last record; a None may stand for decompressed bytes
            most = wanted.limit - wanted.records if wanted.limit >= 0 and wanted.search is None else -1
            records = bounded(records, most)
            for record in _decoded(records, wanted) if wanted.decodes else records:
                seen += 1
                decompressed = decompressed + STEP if record is None else 0
                wanted.grows = record is None
                wanted.held = _large(min(decompressed, inflated_bytes) if record is None else record.size)
                if record is not None:
                    reached = record.offset + 1
                if record is not None and wanted.search is not None:
                    parses = wanted.search.parses(record, wanted.decoded.get(record.offset))
                    parsed += parses
                    if parsed > _PARSED_BYTES:  # a long value is not parsed in the same step as others
                        yield b"".join(lines)
                        lines, size, seen, parsed = [], 0, 0, parses
                if record is not None and record.offset < wanted.end and wanted.examine(record):
                    for part in line_parts(record, wanted.partition, wanted.decoded.get(record.offset, {})):
                        lines.append(part)
                        size += max(len(part), 1)
                        if size >= _SLICE_BYTES:
                            yield b"".join(lines)
                            lines, size = [], 0
                if record is None or seen >= _SLICE_RECORDS:
                    yield b"".join(lines)
                    lines, size, seen, parsed = [], 0, 0, 0
                if wanted.search is not None and wanted.is_over:
                    break
        except BatchInvalid as error:
            offset = max(wanted.start, batch.base_offset, reached)
            body = {"partition": wanted.partition, "offset": offset, "end": batch.end_offset, "error": str(error)}
            lines.append(json.dumps(body).encode() + b"\n")
        if wanted.is_over:
            break
        seen += 1
    yield b"".join(lines)


def _decoded(records: Iterator[Record | None], wanted: Wanted) -> Iterator[Record | None]:
    """Yield records; a None is where the reader decodes the next of those that may be found."""
    some: list[Record] = []

    def decoded() -> Iterator[Record | None]:
        wanted.decoded.clear()
        for record in some:
            if record.offset < wanted.end and (wanted.search is None or wanted.search.may_find(record)):
                wanted.frames += [(record.offset, name, frame) for name, frame in frames_of(record)]
        for record in some:
            while wanted.frames and wanted.frames[0][0] == record.offset:
                wanted.decoded = {at: one for at, one in wanted.decoded.items() if at >= record.offset}
                wanted.waits = True
                yield None
            yield record
        some.clear()

    try:
        size = 0
        for record in records:
            is_short = record is not None and record.size <= MOST_BYTES
            if record is not None and is_short:
                some.append(record)
                size += record.size
            if not is_short or size >= _SLICE_BYTES or len(some) >= _SLICE_RECORDS:
                yield from decoded()
                size = 0
            if not is_short:
                if record is not None:
                    too_long = {name: Decoded(frame.label, error=TOO_LONG) for name, frame in frames_of(record)}
                    wanted.decoded[record.offset] = too_long
                yield record
    except BatchInvalid:
        yield from decoded()  # those before the one that cannot be read
        raise
    yield from decoded()
