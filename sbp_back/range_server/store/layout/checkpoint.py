"""Checkpoints: the state of all ranges at one position of the log, so that recovery reads only the log after it.

``header | ranges | streams | segments | CRC-32 of all before it`` in ``ckpt/<lsn:020d>.ckpt``, little-endian. The
newest valid one counts. The one before it is kept in case the newest is damaged, with all segments that a start from
there needs. A second one at the same position is called ``<lsn:020d>-2.ckpt``.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

import msgspec

from anabranch_kit.disk.files import Files, ending, write_file_durably
from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.range_server.store.index import StoredRange, StoredStream, StoreState
from sbp_back.wire.frame import crc32

_MAGIC = b"ANBRCKP\1"
_HEADER = Struct("<8sQQQQQ")
_RANGE = Struct("<qqqqqqqQ")
_STREAM = Struct("<qqq")
_SEGMENT = Struct("<Q")
_CRC = Struct("<Q")

RangeRow = tuple[int, int, int, int, int, int, int, int]
"""Stream, index, epoch, start, min, next, end, LSN of its creation."""
StreamRow = tuple[int, int, int]
"""Stream, min offset, first index."""


class Checkpoint(msgspec.Struct):
    """State before the group at ``lsn``, which will have number ``seq``."""

    lsn: int
    seq: int
    ranges: list[RangeRow]
    streams: list[StreamRow]
    segments: list[int]
    """Bases of the segments at the time: identifies a missing file when data is missing."""


def snapshot(state: StoreState, lsn: int, seq: int, segments: list[int]) -> Checkpoint:
    """Copy the state; quick enough for the event loop (0.2 us a range), packing is left to :func:`encode`."""
    return Checkpoint(
        lsn,
        seq,
        [
            (r.stream_id, r.index, r.epoch, r.start, r.min_offset, r.next_offset, r.end, r.created_lsn)
            for r in state.ranges.values()
        ],
        [(stream_id, stream.min_offset, stream.first_index) for stream_id, stream in state.streams.items()],
        segments,
    )


def restore(checkpoint: Checkpoint) -> StoreState:
    """Return the state without its index."""
    state = StoreState()
    for stream_id, index, epoch, start, min_offset, next_offset, end, created_lsn in checkpoint.ranges:
        stored = StoredRange(stream_id, index, epoch, start, created_lsn)
        stored.min_offset = min_offset
        stored.next_offset = next_offset
        stored.end = end
        state.add(stored)
    for stream_id, min_offset, first_index in checkpoint.streams:
        state.streams[stream_id] = StoredStream(min_offset, first_index)
    return state


def encode(checkpoint: Checkpoint) -> bytes:
    counts = len(checkpoint.ranges), len(checkpoint.streams), len(checkpoint.segments)
    parts = [_HEADER.pack(_MAGIC, checkpoint.lsn, checkpoint.seq, *counts)]
    parts += [_RANGE.pack(*row) for row in checkpoint.ranges]
    parts += [_STREAM.pack(*row) for row in checkpoint.streams]
    parts += [_SEGMENT.pack(base) for base in checkpoint.segments]
    body = b"".join(parts)
    return body + _CRC.pack(crc32(body))


def decode(data: Buffer) -> Checkpoint:
    """Decode a checkpoint. Raises ``DecodeError``."""
    view = memoryview(data)
    if len(view) < _HEADER.size + _CRC.size:
        raise DecodeError("the checkpoint is cut short")
    magic, lsn, seq, ranges, streams, segments = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise DecodeError("no checkpoint magic")
    ranges_end = _HEADER.size + ranges * _RANGE.size
    streams_end = ranges_end + streams * _STREAM.size
    end = streams_end + segments * _SEGMENT.size
    if end + _CRC.size != len(view):
        raise DecodeError("the size of the checkpoint is wrong")
    if _CRC.unpack_from(view, end)[0] != crc32(view[:end]):
        raise DecodeError("the checksum of the checkpoint is wrong")
    return Checkpoint(
        lsn,
        seq,
        list(_RANGE.iter_unpack(view[_HEADER.size : ranges_end])),
        list(_STREAM.iter_unpack(view[ranges_end:streams_end])),
        [base for (base,) in _SEGMENT.iter_unpack(view[streams_end:end])],
    )


def checkpoint_path(directory: Path, lsn: int) -> Path:
    return directory / f"{lsn:020d}.ckpt"


class Kept(msgspec.Struct, frozen=True):
    """A checkpoint on disk that was found or left undamaged by this process."""

    lsn: int
    path: Path


def position_of(path: Path) -> int:
    """Return the log position in the name of a checkpoint; 0 for a name that no store gives."""
    digits = path.stem.partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def save(files: Files, directory: Path, checkpoint: Checkpoint, newest: Kept | None) -> Kept:
    """Make a checkpoint durable, then remove all others but ``newest``, from now on the second newest."""
    target = checkpoint_path(directory, checkpoint.lsn)
    if newest is not None and newest.path == target:
        target = target.with_stem(f"{target.stem}-2")
    write_file_durably(files, target, [encode(checkpoint)])
    for path in checkpoint_files(directory):
        if path != target and (newest is None or path != newest.path):
            files.unlink(path)
    return Kept(checkpoint.lsn, target)


def checkpoint_files(directory: Path) -> list[Path]:
    """Return all checkpoints, newest first."""
    return sorted(ending(directory, ".ckpt"), reverse=True)
