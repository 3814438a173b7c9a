"""Kafka's default partitioner for all rows of a column of keys at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bridges.catalog.partitioner import murmur2

UInt32s = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]

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
