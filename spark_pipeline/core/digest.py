"""Digests of records, by which two copies of a partition are compared without sending either to the other side.

A record's canonical form is its timestamp in milliseconds, the lengths of its key, value and headers, and then their
bytes; no two different records have the same form. A record's hash is XXH3 of its form. A block is 65,536 offsets of a
partition. Its digest (:class:`BlockDigest`) holds

* the number of records, the first and the last offset;
* the sum and the xor of the hashes, which show missing and changed records in whatever order they came;
* two chains of CRC-32C in the order of reading: of the hashes, which shows reordering, and of the offsets.

A digest does not depend on batches, compression, or the protocol through which the records were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from crc32c import crc32c

BLOCK = 65_536
"""Offsets in a block; block ``n`` has those from ``n * BLOCK`` on."""

ALL_FIELDS = ("key", "value", "headers", "timestamp")
"""Fields compared by default. A caller passes fewer where a protocol cannot carry a field."""
WRITERS = ("producer", "seq")
"""Further fields: the record's producer and its sequence."""

SLICE_BYTES = 256 * 1024 * 1024
_MASK = (1 << 64) - 1
_PRIME = np.uint64(0x9E3779B185EBCA87)
"""An odd number with its bits well spread: XXH64's first prime."""
_HEAD = np.dtype([("timestamp", "<i8"), ("key", "<i4"), ("value", "<i4"), ("headers", "<i4")])
_HEADER_HEAD = np.dtype([("key", "<i4"), ("value", "<i4")])

Hashes = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlockDigest:
    """The digest of the records of one block, or of a part of it.

    ``total`` and ``xor`` are of the 64-bit hashes, modulo 2^64; ``chain`` and ``places`` are CRC-32C of the hashes and
    of the offsets, 8 bytes little-endian each, in the order of reading. Without records, ``first`` and ``last`` are -1
    and all else is 0.
    """

    count: int = 0
    first: int = -1
    last: int = -1
    total: int = 0
    xor: int = 0
    chain: int = 0
    places: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the digest for reports: hashes in hexadecimal, since many readers of JSON round above 2^53."""
        return {
            "count": self.count,
            "first": self.first,
            "last": self.last,
            "sum": f"{self.total:016x}",
            "xor": f"{self.xor:016x}",
            "chain": f"{self.chain:08x}",
            "places": f"{self.places:08x}",
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> BlockDigest:
        """Parse the result of :meth:`as_json`. Raises KeyError or ValueError for anything else."""
        return cls(
            int(told["count"]),
            int(told["first"]),
            int(told["last"]),
            int(told["sum"], 16),
            int(told["xor"], 16),
            int(told["chain"], 16),
            int(told["places"], 16),
        )


EMPTY = BlockDigest()


def hashes(batch: pa.RecordBatch, fields: tuple[str, ...] = ALL_FIELDS) -> Hashes:
    """Return the hash of each row's canonical form. A field that is not in ``fields`` counts as absent.

    ``batch`` has the columns of :mod:`spark_pipeline.core.rows` that ``fields`` name; null headers and no headers are
    the same. Raises KeyError for a missing column.
    """
    if batch.num_rows > 1 and batch.nbytes > SLICE_BYTES:  # offsets within an Arrow column are 32 bits
        half = batch.num_rows // 2
        return np.concatenate([hashes(batch.slice(0, half), fields), hashes(batch.slice(half), fields)])
    head = np.zeros(batch.num_rows, _HEAD)
    parts: list[pa.Array] = []
    if "timestamp" in fields:
        stamps = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        head["timestamp"] = pc.fill_null(stamps, -1)
    for name in ("key", "value"):
        head[name] = -1
        if name in fields:
            column = batch.column(name)
            head[name] = pc.fill_null(pc.binary_length(column), -1)
            parts.append(column.fill_null(b"") if column.null_count else column)
    if "headers" in fields:
        blobs = _headers(batch.column("headers"))
        head["headers"] = pc.binary_length(blobs)
        parts.append(blobs)
    if "producer" in fields:
        names = batch.column("producer").cast(pa.binary())
        parts += [_fixed(np.asarray(pc.fill_null(pc.binary_length(names), -1), "<i4")), names.fill_null(b"")]
    if "seq" in fields:
        parts.append(_fixed(np.asarray(pc.fill_null(batch.column("seq"), -1), "<i8")))
    canonical = pc.binary_join_element_wise(_fixed(head), *parts, b"")
    return np.fromiter(map(xxhash.xxh3_64_intdigest, canonical.to_pylist()), np.uint64, batch.num_rows)


def _fixed(rows: npt.NDArray[Any]) -> pa.Array:
    """Return the bytes of each element of a structured array, as a binary column."""
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())])


def _headers(column: pa.ListArray) -> pa.Array:
    """Return for each row the canonical bytes of all its headers, concatenated, as a binary column without nulls."""
    flat = column.flatten()  # the elements of this slice only, without values hidden under nulls
    bounds = np.zeros(len(column) + 1, np.int64)
    np.cumsum(np.asarray(pc.fill_null(column.value_lengths(), 0)), out=bounds[1:])
    keys, values = flat.field("key").cast(pa.binary()), flat.field("value")
    if flat.null_count:
        raise ValueError("a header is null: it has a name, and a value that may be null")
    head = np.zeros(len(flat), _HEADER_HEAD)
    head["key"] = pc.fill_null(pc.binary_length(keys), -1)
    head["value"] = pc.fill_null(pc.binary_length(values), -1)
    blobs = pc.binary_join_element_wise(_fixed(head), keys.fill_null(b""), values.fill_null(b""), b"")
    if isinstance(blobs, pa.ChunkedArray):
        blobs = blobs.combine_chunks()
    _, starts, content = blobs.buffers()
    starts = np.frombuffer(starts, np.int32, len(flat) + 1, blobs.offset * 4) if len(flat) else np.zeros(1, np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(column), [None, pa.py_buffer(starts[bounds].astype(np.int32)), content or pa.py_buffer(b"")]
    )


def content_sum(batch: pa.RecordBatch) -> int:
    """Return the sum, modulo 2^64, of a hash of each row's key, value, topic and headers, whichever of them exist.

    It shows whether two sets of rows are equal, whatever their order and batches. Unlike :func:`hashes` it copies no
    bytes: every written row pays for it.
    """
    rows = np.zeros(batch.num_rows, np.uint64)
    for name in ("key", "value", "topic", "headers"):
        if name in batch.schema.names:
            column = batch.column(name)
            rows = rows * _PRIME ^ _hash_each(_headers(column) if name == "headers" else column)
    return int(rows.sum())


def _hash_each(column: pa.Array) -> Hashes:
    """Return the hash of each element of a binary or string column; a null has a constant hash."""
    _, starts, content = column.buffers()
    bounds = np.frombuffer(starts, np.int32, len(column) + 1, column.offset * 4).tolist()
    elements = map(memoryview(content or b"").__getitem__, map(slice, bounds, bounds[1:]))
    found = np.fromiter(map(xxhash.xxh3_64_intdigest, elements), np.uint64, len(column))
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _PRIME
    return found


@dataclass(slots=True)
class Digester:
    """Builder of the digests of a partition's blocks, of ``block`` offsets each, from batches in the order of offsets.

    It can be sent to another process, which goes on adding.
    """

    fields: tuple[str, ...] = ALL_FIELDS
    block: int = BLOCK
    _blocks: dict[int, BlockDigest] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next records: column ``offset``, and the columns of ``fields``."""
        if batch.num_rows:
            self.add_hashes(np.asarray(batch.column("offset")), hashes(batch, self.fields))

    def add_hashes(self, offsets: Offsets, of: Hashes) -> None:
        """Add the next records, at least one, by their offsets and hashes."""
        numbers = offsets // self.block
        starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
        totals = np.add.reduceat(of, starts)
        xors = np.bitwise_xor.reduceat(of, starts)
        ends = [*starts[1:], len(offsets)]
        for start, end, total, xor in zip(starts, ends, totals, xors, strict=True):
            number = int(numbers[start])
            before = self._blocks.get(number, EMPTY)
            self._blocks[number] = BlockDigest(
                before.count + int(end - start),
                before.first if before.count else int(offsets[start]),
                int(offsets[end - 1]),
                (before.total + int(total)) & _MASK,
                before.xor ^ int(xor),
                crc32c(of[start:end].astype("<u8").tobytes(), before.chain),
                crc32c(offsets[start:end].astype("<i8").tobytes(), before.places),
            )

    @property
    def blocks(self) -> dict[int, BlockDigest]:
        """Return number of a block -> its digest; blocks without records are left out."""
        return dict(self._blocks)


def digest(
    batches: Iterable[pa.RecordBatch], fields: tuple[str, ...] = ALL_FIELDS, block: int = BLOCK
) -> dict[int, BlockDigest]:
    """Return the digests of all blocks of ``batches``, which are of one partition and in order."""
    digester = Digester(fields, block)
    for batch in batches:
        digester.add(batch)
    return digester.blocks


@dataclass(frozen=True, slots=True)
class BlockDifference:
    """A block whose two digests differ."""

    block: int
    left: BlockDigest
    right: BlockDigest

    @property
    def reason(self) -> str:
        """Return in words how the block differs, as far as the digests show it."""
        left, right = self.left, self.right
        if left.count != right.count:
            return f"{left.count} records on the left, {right.count} on the right"
        if left.places != right.places:
            return "the same number of records, at other offsets"
        if (left.total, left.xor) == (right.total, right.xor):
            return "the same records, in another order"
        return "as many records, with other contents"

    @property
    def start(self) -> int:
        """Return the first offset of the block."""
        return self.block * BLOCK


def differences(left: Mapping[int, BlockDigest], right: Mapping[int, BlockDigest]) -> Iterator[BlockDifference]:
    """Yield the blocks that differ, in order; a block that exists on one side only is compared with an empty one."""
    for block in sorted(left.keys() | right.keys()):
        one, other = left.get(block, EMPTY), right.get(block, EMPTY)
        if one != other:
            yield BlockDifference(block, one, other)
