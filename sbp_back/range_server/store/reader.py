"""Reading entries: which bytes to fetch, with how few reads, and making sure that they are the right ones."""

from __future__ import annotations

from msgspec import Struct

from sbp_back.buffers import fresh
from sbp_back.errors import DecodeError, StoreCorrupt
from sbp_back.files import Files
from sbp_back.range_server.store.index import META, StoredRange
from sbp_back.range_server.store.segment import Segment
from sbp_back.wire.entry import parse_entries
from sbp_back.wire.frame import crc32
from sbp_back.wire.model import Entry

MAX_ENTRIES = 4096
"""Entries one read returns at most: small ones cost by their number, not by their bytes."""

Row = tuple[int, int, int, int]
"""Base offset, position, length, CRC-32."""


class Span(Struct):
    """Bytes ``[begin, end)`` of one segment that are read at once, and the rows that lie in them, in order."""

    segment: Segment
    begin: int
    end: int
    rows: list[Row]


class Plan(Struct):
    """Reads that answer one request. ``gap`` is set when the index lacks what should follow."""

    stream_id: int
    index: int
    spans: list[Span]
    bytes: int
    gap: int | None = None


def plan_read(stored: StoredRange, offset: int, limit: int, max_bytes: int, gap_bytes: int) -> Plan:
    """The entries from the one that contains ``offset``, as long as they begin before ``limit`` and are contiguous.

    At least one entry, then as many as fit in ``max_bytes``, up to ``MAX_ENTRIES``.
    """
    plan = Plan(stored.stream_id, stored.index, [], 0)
    found = stored.find(offset)
    if found is None:
        plan.gap = offset
        return plan
    number, row = found
    total = 0
    left = MAX_ENTRIES
    span: Span | None = None
    runs = stored.runs
    while True:
        run = runs[number]
        segment = run.segment
        bases = run.bases
        meta = run.meta
        for at in range(row, len(bases)):
            base = bases[at]
            if base >= limit or not left:
                break
            left -= 1
            position, length, crc = meta[at * META : at * META + META]
            total += length
            if total > max_bytes and span is not None:
                total -= length
                break
            if span is not None and span.segment is segment and 0 <= position - span.end <= gap_bytes:
                span.end = position + length
                span.rows.append((base, position, length, crc))
            else:
                span = Span(segment, position, position + length, [(base, position, length, crc)])
                plan.spans.append(span)
        else:
            number += 1
            if number < len(runs) and runs[number].first == run.end and run.end < limit:
                row = 0
                continue
        break
    plan.bytes = total
    return plan


def fetch_cached(files: Files, fd: int, span: Span) -> bytearray | None:
    """The bytes of a span if they are all in the page cache. Raises ``OSError``."""
    size = span.end - span.begin
    buffer = fresh(size)
    try:
        got = files.read_cached(fd, buffer, span.begin)
    except BlockingIOError:
        return None
    return buffer if got == size else None


def decode_span(plan: Plan, span: Span, buffer: bytearray, entries: list[Entry]) -> StoreCorrupt | None:
    """Add the entries of a span, up to the first that is damaged, which is returned as an error."""
    # Read-only, like everything else that may be handed to several readers.
    view = memoryview(buffer).toreadonly()
    begin = span.begin
    for base, position, length, crc in span.rows:
        at = position - begin
        body = view[at : at + length]
        if len(body) != length or crc32(body) != crc:
            return _damaged(plan, span, base, position, "its checksum is wrong")
        try:
            (entry,) = parse_entries(body)
        except (DecodeError, ValueError):
            return _damaged(plan, span, base, position, "it is not an entry")
        if entry.base_offset != base or entry.stream_id != plan.stream_id or entry.range_index != plan.index:
            return _damaged(plan, span, base, position, "it is another entry")
        entry.crc = crc
        entries.append(entry)
    return None


def _damaged(plan: Plan, span: Span, base: int, position: int, how: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the entry at offset {base} of range {plan.index} of stream {plan.stream_id} "
        f"(segment {span.segment.path.name}, position {position}) is damaged: {how}"
    )
