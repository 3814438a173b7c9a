"""The ``.idx`` file of a segment: its rows, sorted by range and offset, as columns that are used in place.

``header | directory | columns | CRC-32 of all before it``. A directory row describes one run: stream, range, first
offset, end offset, number of rows and where its columns begin; the columns of a run are its bases (int64) followed by
its position, length and CRC triples (uint32). Little-endian, columns on 8-byte boundaries.
"""

from __future__ import annotations

import mmap
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

import msgspec

from anabranch_kit.disk.files import Files, write_file_durably
from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.range_server.store.index import META, Column
from sbp_back.wire.frame import crc32

_MAGIC = b"ANBRIDX\1"
_HEADER = Struct("<8sQQQQQ")
_ENTRY = Struct("<qqqqQQQ")
_CRC = Struct("<Q")


class IndexRun(msgspec.Struct, frozen=True):
    """One run in an ``.idx`` file."""

    stream_id: int
    range_index: int
    first: int
    end: int
    rows: int
    at: int
    live: int


RunColumns = tuple[int, int, int, int, int, Column, Column]
"""Stream, range, first, end, live bytes, bases and meta of a run to be written."""


def encode_index(base: int, salt: int, covers: int, runs: Sequence[RunColumns]) -> list[Buffer]:
    """Return the parts of an ``.idx`` file for the rows of the segment at ``base`` that lie before position
    ``covers``.
    """
    ordered = sorted(runs, key=lambda run: run[:3])
    at = _HEADER.size + _ENTRY.size * len(ordered)
    total_rows = sum(len(run[5]) for run in ordered)
    directory = bytearray(_HEADER.pack(_MAGIC, base, salt, covers, len(ordered), total_rows))
    columns: list[Buffer] = []
    for stream_id, range_index, first, end, live, bases, meta in ordered:
        rows = len(bases)
        directory += _ENTRY.pack(stream_id, range_index, first, end, rows, at, live)
        columns += (memoryview(bases).cast("B"), memoryview(meta).cast("B"))
        at += rows * (8 + 4 * META)
        if at % 8:
            columns.append(b"\0\0\0\0")
            at += 4
    parts: list[Buffer] = [directory, *columns]
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    # One buffer: a segment of many small streams has more parts than one write call takes.
    return [b"".join([*parts, _CRC.pack(crc)])]


def write_index(files: Files, path: Path, base: int, salt: int, covers: int, runs: Sequence[RunColumns]) -> None:
    write_file_durably(files, path, encode_index(base, salt, covers, runs))


class SegmentIndex:
    """A mapped ``.idx`` file; the columns it hands out keep the mapping alive."""

    def __init__(self, data: Buffer) -> None:
        """Read an index file. Raises ``DecodeError`` when the bytes are not a whole one."""
        view = memoryview(data)
        if len(view) < _HEADER.size + _CRC.size:
            raise DecodeError("the index file is cut short")
        magic, self.base, self.salt, self.covers, count, total_rows = _HEADER.unpack_from(view)
        if magic != _MAGIC:
            raise DecodeError("no index magic")
        if crc32(view[: -_CRC.size]) != _CRC.unpack_from(view, len(view) - _CRC.size)[0]:
            raise DecodeError("the checksum of the index file is wrong")
        limit = len(view) - _CRC.size
        directory_end = _HEADER.size + count * _ENTRY.size
        if directory_end > limit:
            raise DecodeError("the directory of the index file is cut short")
        self._view = view
        self.runs = [
            IndexRun(f[0], f[1], f[2], f[3], f[4], f[5], f[6])
            for f in _ENTRY.iter_unpack(view[_HEADER.size : directory_end])
        ]
        rows = 0
        for run in self.runs:
            rows += run.rows
            if run.rows < 1 or run.at < directory_end or run.at % 8 or run.at + run.rows * (8 + 4 * META) > limit:
                raise DecodeError("a run of the index file lies outside of it")
        if rows != total_rows:
            raise DecodeError("the rows of the index file do not add up")
        self._keys = [(run.stream_id, run.range_index, run.first) for run in self.runs]

    def columns(self, run: IndexRun) -> tuple[memoryview, memoryview]:
        """Return (bases, meta) of a run."""
        middle = run.at + run.rows * 8
        return (
            self._view[run.at : middle].cast("q"),
            self._view[middle : middle + run.rows * 4 * META].cast("I"),
        )

    def rows(self, stream_id: int, range_index: int, first: int, count: int) -> tuple[memoryview, memoryview] | None:
        """Return (bases, meta) of ``count`` rows of a range from the one with base ``first``; None when not all are
        there.
        """
        number = bisect_right(self._keys, (stream_id, range_index, first)) - 1
        if number < 0:
            return None
        run = self.runs[number]
        if (run.stream_id, run.range_index) != (stream_id, range_index) or first >= run.end:
            return None
        bases, meta = self.columns(run)
        row = bisect_right(bases, first) - 1
        if bases[row] != first or row + count > run.rows:
            return None
        return bases[row : row + count], meta[row * META : (row + count) * META]


def load_index(path: Path) -> SegmentIndex:
    """Map an index file. Raises ``OSError`` or ``DecodeError``."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise DecodeError("the index file is empty")
        return SegmentIndex(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def host_is_supported() -> bool:
    """Return whether the host is little-endian, as the files are: columns are used in place."""
    return sys.byteorder == "little" and array("I").itemsize == 4 and array("q").itemsize == 8
