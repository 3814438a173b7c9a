"""Translation of batches by columns, and the records of a batch in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anabranch_kit.run.sliced import Sliced
from bridges.formats.base import FORMAT_MASK, Builder, FormatId, StoredFormat
from bridges.formats.columns import Unusual, kafka, pravega, ydb
from bridges.formats.columns.rows import Arrays, Body, Rows, decode
from bridges.formats.columns.varints import Int64s
from bridges.formats.records import Buffer, StoredBatch

ARRAYS: dict[int, Arrays] = {FormatId.KAFKA: kafka, FormatId.PRAVEGA: pravega, FormatId.YDB: ydb}
"""Formats that are decoded and encoded as columns."""

STEP_BYTES = 512 * 1024
STEP_RECORDS = 2000
"""Most bytes and records decoded in one step: it takes some two milliseconds."""


def translate(batches: Sequence[StoredBatch], target: StoredFormat, limit: int) -> Sliced[list[Buffer]]:
    """Return the leading ``batches``, which are of one format, in the ``target`` format, at least one. As many are
    decoded together as decompress to what one step may decode.

    Raises Unusual, and BatchInvalid.
    """
    arrays = ARRAYS.get(batches[0].flags & FORMAT_MASK)
    encoder = ARRAYS.get(int(target.id))
    if arrays is None or encoder is None:
        raise Unusual
    builders: list[Builder] = []
    filled: list[Builder] = []
    bodies: list[Body] = []
    size = 0
    for batch in batches:
        body = yield from arrays.open_body(batch, limit)
        if body is not None:
            size += len(body.data)
            if bodies and size > STEP_BYTES:
                break
            if body.count != batch.end_offset - batch.base_offset:
                raise Unusual
        builders.append(target.builder(batch.base_offset, batch.end_offset))
        if body is not None:
            bodies.append(body)
            filled.append(builders[-1])
    if len(bodies) > 1:
        rows = _decode(arrays, bodies)
        spans = [np.arange(body.batch.base_offset, body.batch.end_offset) for body in bodies]
        _require_whole(rows, np.concatenate(spans))
        encoder.encode(filled, rows, [body.count for body in bodies], [body.producer for body in bodies])
    elif bodies:
        offset = bodies[0].batch.base_offset
        for rows in _parts(arrays, bodies[0]):
            _require_whole(rows, np.arange(offset, offset + len(rows)))
            encoder.encode(filled, rows, [len(rows)], [bodies[0].producer])
            offset += len(rows)
            yield None
    made: list[Buffer] = []
    for builder in builders:
        made.append((yield from builder.finish_in_slices()))
    return made


def _decode(arrays: Arrays, bodies: Sequence[Body], partial: bool = False) -> Rows:
    """Return the records with headers that were read: whether a record can be read does not depend on what for."""
    rows = decode(arrays, bodies, partial)
    if rows.headers is not None:
        headers = rows.headers(None)
        rows.headers = lambda chosen: headers
    return rows


def _require_whole(rows: Rows, offsets: Int64s) -> None:
    """Raise Unusual for records with gaps between them."""
    if not np.array_equal(rows.offsets, offsets):
        raise Unusual


def rows_of(batch: StoredBatch, limit: int) -> Iterator[Rows | None]:
    """Yield the records of a batch in parts, and None where much was done. Raises Unusual, and BatchInvalid."""
    arrays = ARRAYS.get(batch.flags & FORMAT_MASK)
    if arrays is None:
        raise Unusual
    body = yield from arrays.open_body(batch, limit)
    if body is not None:
        yield from _parts(arrays, body)


def _parts(arrays: Arrays, body: Body) -> Iterator[Rows]:
    data = memoryview(body.data)
    at = number = 0
    while number < body.count:
        part = body.part(data[at : at + STEP_BYTES], number, at)
        is_last = part.count <= STEP_RECORDS and len(part.data) == len(data) - at
        part.count = min(part.count, STEP_RECORDS)
        rows = _decode(arrays, [part], partial=not is_last)
        yield rows
        at += rows.behind
        number += len(rows)
