"""Columns of Arrow encoded as Kafka's record batches (v2), without a Python step for each record.

Arrays hold the numbers in front of, between and behind keys and values, and Arrow joins them with the keys and values:
one copy of each byte. Batches of many partitions are made in one pass, since a pass costs as much as a thousand
records. Layout: KIP-98 and docs/protocols/kafka.md, "Produce".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bridges.catalog.topics.lineage import murmur2
from bridges.formats.codecs.compression import compress
from bridges.formats.columns.varints import Int64s, zigzag
from bridges.formats.columns.varints import sizes as varint_sizes
from bridges.formats.columns.weaving import Constant, Number, weave
from bridges.formats.kafka import HEADER_SIZE, LOG_OVERHEAD, MAGIC, TRANSACTIONAL
from bridges.formats.producer import SEQUENCES
from bridges.formats.records import Buffer

_OVERHEAD = 36
"""Most bytes of a record without key, value and headers: five lengths of 32 bits, a time of 64, attributes."""
_JOINED = 1 << 30
"""Most bytes joined in one pass; Arrow's offsets are 32 bits."""


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of equal length, one row per record.

    ``keys`` and ``values`` are bytes with nulls for none; ``keys`` is None if no record has a key. ``times`` are ms
    since 1970. ``headers`` are lists of (key, value) with nulls for none, or None.
    """

    keys: pa.Array | None
    values: pa.Array
    times: Int64s
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, order: Int64s) -> Records:
        """Return the rows in another order."""
        indices = pa.array(order)

        def take(array: pa.Array | None) -> pa.Array | None:
            return None if array is None else array.take(indices)

        return Records(take(self.keys), self.values.take(indices), self.times[order], take(self.headers))


def sizes(records: Records) -> Int64s:
    """Return the most bytes that each record can take uncompressed."""
    total = lengths_of(records.values) + _OVERHEAD
    if records.keys is not None:
        total = total + lengths_of(records.keys)
    if records.headers is not None:
        total = total + lengths_of(_tails(records.headers)[0])
    return total


def starts_of(bounds: Int64s, groups: Int64s, most_bytes: int, most_records: int) -> Int64s:
    """Return the indices of the records at which batches begin.

    A batch begins at each of ``groups``, which are ascending, and wherever the previous batch would exceed
    ``most_bytes``, by the bounds of :func:`sizes`, or ``most_records``. A record larger than that is alone in its
    batch.
    """
    if not len(bounds):
        return np.empty(0, np.int64)
    room = max(1, most_bytes - HEADER_SIZE)
    ends = np.cumsum(bounds)
    found: list[int] = []
    limits = [*groups[1:].tolist(), len(bounds)]
    for start, end in zip(groups.tolist(), limits, strict=True):
        while start < end:
            found.append(start)
            before = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, before + room, "right"))
            start = min(end, max(start + 1, fitting), start + most_records)
    return np.array(found, np.int64)


def encode(records: Records, starts: Int64s, codec: int = 0) -> list[EncodedBatch]:
    """Encode batches of the records from each of ``starts``, the first of which is 0, up to the next."""
    if not len(records):
        return []
    ends = np.append(starts[1:], len(records))
    made: list[EncodedBatch] = []
    weights = np.add.reduceat(sizes(records), starts)
    first = 0
    while first < len(starts):
        # As many batches as fit into one pass: nearly always all of them.
        last = first + max(1, int(np.searchsorted(np.cumsum(weights[first:]), _JOINED, "right")))
        made += _encode(records, starts[first:last], ends[first:last], codec)
        first = last
    return made


def _encode(records: Records, starts: Int64s, ends: Int64s, codec: int) -> list[EncodedBatch]:
    low, high = int(starts[0]), int(ends[-1])
    counts = ends - starts
    times = records.times[low:high]
    bases = records.times[starts]
    highest = np.maximum.reduceat(times, starts - low)
    deltas = np.arange(low, high, dtype=np.int64) - np.repeat(starts, counts)
    columns = [times - np.repeat(bases, counts), deltas]

    values = records.values.slice(low, high - low)
    value_lengths = lengths_of(values)
    value_numbers = _numbers_of(values, value_lengths)
    inner = value_lengths.copy()
    keys = None if records.keys is None else records.keys.slice(low, high - low)
    if keys is None:
        columns.append(np.full(high - low, -1, np.int64))
    else:
        key_lengths = lengths_of(keys)
        columns.append(_numbers_of(keys, key_lengths))
        inner += key_lengths
    tails = None if records.headers is None else _tails(records.headers.slice(low, high - low))[0]
    inner += 1 if tails is None else lengths_of(tails)

    zigzags = [zigzag(column) for column in columns]
    middle = zigzag(value_numbers)
    inner += 1 + varint_sizes(middle) + sum(map(varint_sizes, zigzags))
    front = _woven(Number(inner << 1), Constant(b"\0"), *map(Number, zigzags))
    parts = [front]
    if keys is not None:
        parts.append(_filled(keys))
    parts += [_woven(Number(middle)), _filled(values), pa.scalar(b"\0", pa.binary()) if tails is None else tails]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    body = memoryview(joined.buffers()[2])
    places = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1, joined.offset * 4)
    made = []
    for start, end, base, top in zip(starts.tolist(), ends.tolist(), bases.tolist(), highest.tolist(), strict=True):
        piece = body[int(places[start - low]) : int(places[end - low])]
        made.append(EncodedBatch(compress(codec, piece) if codec else piece, end - start, base, top, codec))
    return made


# --- columns --------------------------------------------------------------------------------------------------------


def _numbers_of(array: pa.Array, lengths: Int64s) -> Int64s:
    """Return the length of each value as a record stores it: -1 for a null."""
    if not array.null_count:
        return lengths
    return np.where(array.is_null().to_numpy(zero_copy_only=False), -1, lengths)


def _filled(array: pa.Array) -> pa.Array:
    return array.fill_null(b"") if array.null_count else array


def _tails(headers: pa.Array) -> tuple[pa.Array, Int64s]:
    """Return the bytes behind each value (the number of headers, then the headers), and these numbers."""
    numbers = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = headers.flatten()
    names = flat.field("key").cast(pa.binary())
    values = flat.field("value")
    name_lengths, value_lengths = lengths_of(names), lengths_of(values)
    ones = pc.binary_join_element_wise(
        _woven(Number(name_lengths << 1)),
        _filled(names),
        _woven(Number(zigzag(_numbers_of(values, value_lengths)))),
        _filled(values),
        pa.scalar(b"", pa.binary()),
    )
    each = pc.binary_join(
        pa.ListArray.from_arrays(pa.array(_bounds(np.cumsum(numbers))), ones), pa.scalar(b"", pa.binary())
    )
    return pc.binary_join_element_wise(_woven(Number(numbers << 1)), each, pa.scalar(b"", pa.binary())), numbers


def _woven(first: Number, *rest: Number | Constant) -> pa.Array:
    """Return for each row its numbers, concatenated."""
    data, ends = weave(len(first.values), [first, *rest])
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(_bounds(ends)), pa.py_buffer(data)])


def _bounds(ends: Int64s) -> npt.NDArray[np.int32]:
    return np.concatenate(([0], ends)).astype(np.int32)


_FRONT = struct.Struct(">qiibI")
_REST = struct.Struct(">hiqqqhii")


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The encoded records that follow the header, compressed by ``codec``. Times are in ms since 1970."""

    body: Buffer
    count: int
    base_timestamp: int
    max_timestamp: int
    codec: int = 0

    @property
    def size(self) -> int:
        """Return the bytes of the whole batch."""
        return HEADER_SIZE + (self.body.nbytes if isinstance(self.body, memoryview) else len(self.body))

    def header(
        self, producer_id: int = -1, epoch: int = -1, sequence: int = -1, *, transactional: bool = True
    ) -> bytes:
        """Return the 61 bytes in front of the body; ``sequence`` is the first record's, and wraps as Kafka's do."""
        rest = _REST.pack(
            self.codec | (TRANSACTIONAL if transactional else 0),
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            epoch,
            sequence % SEQUENCES if sequence >= 0 else -1,
            self.count,
        )
        checksum = crc32c.crc32c(self.body, crc32c.crc32c(rest))
        return _FRONT.pack(0, self.size - LOG_OVERHEAD, -1, MAGIC, checksum) + rest


# --- partitions by keys, as Kafka's default partitioner chooses them --------------------------------------------------

UInt32s = npt.NDArray[np.uint32]

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_LONG = 4096
"""Longest key, in bytes, that is hashed as an array: each four bytes cost a pass over all keys that have them."""


def offsets_of(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the start of each value of an array of bytes in its data, and the end of the last one."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)


def lengths_of(array: pa.Array) -> Int64s:
    """Return the bytes of each value of an array of bytes, 0 for a null."""
    found = np.diff(offsets_of(array)).astype(np.int64)
    if array.null_count:
        found[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def murmur2_of(keys: pa.Array) -> UInt32s:
    """Return the hash that Kafka's clients compute of each key; a null hashes like an empty key."""
    lengths = lengths_of(keys)
    offsets = offsets_of(keys).astype(np.int64)
    starts = offsets[:-1]
    data = keys.buffers()[2]
    raw = b"".join((b"" if data is None else data, bytes(8)))
    words: UInt32s = np.ndarray((len(raw) - 3,), np.dtype("<u4"), raw, strides=(1,))
    found: UInt32s = _SEED ^ lengths.astype(np.uint32)
    short = lengths <= _LONG
    whole = np.where(short, lengths >> 2, 0)
    everywhere = int(whole.min()) if len(whole) else 0
    for number in range(everywhere):
        word = words[starts + 4 * number] * _M
        found = (found * _M) ^ ((word ^ (word >> np.uint32(24))) * _M)
    for number in range(everywhere, int(whole.max()) if len(whole) else 0):
        some = np.flatnonzero(whole > number)
        word = words[starts[some] + 4 * number] * _M
        word = (word ^ (word >> np.uint32(24))) * _M
        found[some] = (found[some] * _M) ^ word
    rest = np.flatnonzero((lengths & 3).astype(bool) & short)
    left = (lengths[rest] & 3).astype(np.uint32)
    tail = words[starts[rest] + (lengths[rest] & ~3)] & ((np.uint32(1) << (left * np.uint32(8))) - np.uint32(1))
    found[rest] = (found[rest] ^ tail) * _M
    found = (found ^ (found >> np.uint32(13))) * _M
    found ^= found >> np.uint32(15)
    for row in np.flatnonzero(~short).tolist():
        found[row] = murmur2(keys[row].as_py())
    return found


def partitions_of(keys: pa.Array, partitions: int) -> Int64s:
    """Return the partition of each key, as Kafka's default partitioner chooses it."""
    found: Int64s = (murmur2_of(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions
    return found
