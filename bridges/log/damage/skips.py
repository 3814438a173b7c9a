"""Unreadable offsets that an operator has declared lost: readers find a gap there, as after compaction.

A batch may be damaged on disk, or stored by a program that misreported its format. Readers get an error at its offset,
again and again, until an operator decides that what follows is worth more (skipping.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anabranch_kit.run.clock import now_ms
from bridges.catalog.database.sql import Connection, upsert
from bridges.log.state.stream_rows import KnownRows

Span = tuple[int, int]
"""First offset, and the one after the last."""


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans in order; spans that touch are merged."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)


def past(spans: Sequence[Span], offset: int) -> int:
    """Return the first offset from ``offset`` on that is not skipped."""
    for first, end in spans:
        if first <= offset < end:
            return end
    return offset


def before(spans: Sequence[Span], end: int) -> int:
    """Return the beginning of the skipped span that reaches ``end``; ``end`` itself without one."""
    for first, behind in spans:
        if first < end <= behind:
            return first
    return end


def next_after(spans: Sequence[Span], offset: int, limit: int) -> int:
    """Return the beginning of the first span behind ``offset``, at most ``limit``."""
    for first, _ in spans:
        if first > offset:
            return min(first, limit)
    return limit


class Skips(KnownRows[tuple[Span, ...]]):
    """The skipped spans of every stream."""

    __slots__ = ()

    table = "skipped_offsets"
    columns = ("first_offset", "end_offset")

    def _with_row(self, stream_id: int, row: Sequence[int]) -> tuple[Span, ...]:
        return merged([*self.spans_of(stream_id), (row[0], row[1])])

    def spans_of(self, stream_id: int) -> tuple[Span, ...]:
        """Return the skipped spans of a stream, in order and without overlap."""
        return self._known.get(stream_id, ())

    async def add(self, stream_id: int, span: Span, reason: str) -> None:
        """Skip ``span`` for good: it stays skipped whatever happens to the node, even a loss of power.

        Raises an error of the database.
        """
        now = now_ms()

        def insert(connection: Connection) -> None:
            connection.execute(
                upsert("skipped_offsets", "stream_id first_offset", "end_offset reason skipped_ms"),
                (stream_id, *span, reason, now),
            )

        if self._db is not None:
            await self._db.run(insert, flush=True)
        self._known[stream_id] = merged([*self.spans_of(stream_id), span])

    async def within(self, stream_id: int, start: int, end: int) -> tuple[Span, ...]:
        """Return the skipped spans of a log that reaches from ``start`` to ``end``.

        A span that ends behind that belongs to a history that the log has lost. It is deleted for good, so that it
        hides nothing once the log has grown past it. So are trimmed spans. Raises an error of the database.
        """
        spans = self.spans_of(stream_id)
        kept = tuple(span for span in spans if start < span[1] <= end)
        if kept != spans:
            if self._db is not None:
                await self._db.run(
                    lambda connection: connection.execute(
                        "DELETE FROM skipped_offsets WHERE stream_id = ? AND (end_offset <= ? OR end_offset > ?)",
                        (stream_id, start, end),
                    ),
                    flush=True,
                )
            self._known[stream_id] = kept
        return kept
