"""Translation of batches by columns, and the records of batches as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anabranch_kit.run.sliced import Sliced
from bridges.formats.base import FORMAT_MASK, Builder, FormatId, StoredFormat
from bridges.formats.columns import LEAST_RECORDS, Unusual, kafka, pravega, ydb
from bridges.formats.columns.rows import Arrays, Body, Rows, decode
from bridges.formats.records import Buffer, StoredBatch

ARRAYS: dict[int, Arrays] = {FormatId.KAFKA: kafka, FormatId.PRAVEGA: pravega, FormatId.YDB: ydb}
"""Formats that are decoded and encoded as columns."""

STEP_BYTES = 512 * 1024
"""Most bytes decoded in one step."""
_WHOLE = 16 * 1024 * 1024
"""Most bytes to which :func:`rows_of` decompresses a batch, since no budget counts them."""


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
    if bodies:
        spans = np.concatenate([np.arange(body.batch.base_offset, body.batch.end_offset) for body in bodies])
        producers = [body.producer for body in bodies]
        at = 0
        for rows, counts in _decoded(arrays, bodies):
            if not np.array_equal(rows.offsets, spans[at : at + len(rows)]):
                raise Unusual  # there are gaps between the records
            encoder.encode(filled, rows, counts, producers)
            at += len(rows)
            yield None
    made: list[Buffer] = []
    for builder in builders:
        made.append((yield from builder.finish_in_slices()))
    return made


def rows_of(batches: Sequence[StoredBatch], limit: int) -> Iterator[tuple[Sequence[Body], Rows, Sequence[int]] | None]:
    """Yield bodies of batches of one format, their records, and how many of these each has; None where much was done.

    Small batches come together, and a large one in parts: its body comes with each. Raises Unusual, for few or no
    records too, and BatchInvalid, for very large batches too.
    """
    arrays = ARRAYS.get(batches[0].flags & FORMAT_MASK) if batches else None
    if arrays is None or batches[-1].end_offset - batches[0].base_offset < LEAST_RECORDS:
        raise Unusual
    bodies: list[Body] = []
    size = count = 0
    for batch in batches:
        body = yield from arrays.open_body(batch, min(limit, _WHOLE))
        if body is None:
            continue
        size += len(body.data)
        count += body.count
        if bodies and (size > STEP_BYTES or count > body.step_records):
            for rows, counts in _decoded(arrays, bodies):
                yield bodies, rows, counts
            bodies, size, count = [], len(body.data), body.count
        bodies.append(body)
    if bodies:
        for rows, counts in _decoded(arrays, bodies):
            yield bodies, rows, counts


def _decoded(arrays: Arrays, bodies: Sequence[Body]) -> Iterator[tuple[Rows, list[int]]]:
    """Yield the records of several bodies, or those of one body in parts, and how many of these each body has."""
    if len(bodies) > 1:
        yield _decode(arrays, bodies), [body.count for body in bodies]
        return
    body = bodies[0]
    data = memoryview(body.data)
    at = number = 0
    while number < body.count:
        part = body.part(data[at : at + STEP_BYTES], number, at)
        is_last = part.count <= body.step_records and len(part.data) == len(data) - at
        part.count = min(part.count, body.step_records)
        rows = _decode(arrays, [part], partial=not is_last)
        yield rows, [len(rows)]
        at += rows.behind
        number += len(rows)


def _decode(arrays: Arrays, bodies: Sequence[Body], partial: bool = False) -> Rows:
    """Return the records with headers that were read: whether a record can be read does not depend on what for."""
    rows = decode(arrays, bodies, partial)
    if rows.headers is not None:
        headers = rows.headers()
        rows.headers = lambda: headers
    return rows
