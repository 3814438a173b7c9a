"""Scanner of a segment's groups: reads one after the other, or searches for any group behind a damaged place."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from anabranch_kit.disk.files import Files, read_into, read_range
from anabranch_kit.memory.buffers import fresh
from sbp_back.range_server.store.layout.format import (
    BLOCK,
    GROUP_MAGIC,
    GroupHeader,
    Record,
    decode_group_header,
    decode_records,
    looks_like_group,
)

_FIRST_WINDOW = 64 * 1024
_WINDOW = 4 * 1024 * 1024
"""Bytes read at once: few at first, since most starts find an end at once, and twice as many each time up to this."""
_SEARCH_STEP = 256 * 1024


class Group(Struct):
    """A whole group: its header, its records and its position in the segment."""

    position: int
    header: GroupHeader
    records: list[Record]

    @property
    def body_at(self) -> int:
        return self.position + self.header.body_at

    @property
    def end(self) -> int:
        return self.position + self.header.size


class SegmentScanner:
    """Scanner of one segment file. Methods raise ``OSError``."""

    def __init__(self, files: Files, fd: int, base: int, salt: int) -> None:
        self._files = files
        self._fd = fd
        self._base = base
        self._salt = salt
        self.file_size = files.size(fd)
        self._window = bytearray()
        self._window_at = 0
        self._next_window = _FIRST_WINDOW

    def group_at(self, position: int) -> Group | None:
        """Return the group at ``position`` if it is whole, bodies included."""
        view, at = self._view(position, BLOCK)
        found = self._peek(view, at, position)
        if found is None:
            return None
        _seq, count, body_bytes = found
        # A damaged header must not make us read more than the file has.
        needed = GroupHeader(0, count, body_bytes, 0).size
        if position + needed > self.file_size:
            return None
        view, at = self._view(position, needed)
        header = decode_group_header(view, at, self._salt, self._base + position)
        if header is None:
            return None
        records = decode_records(view, at, header)
        return None if records is None else Group(position, header, records)

    def groups(self, position: int, limit: int | None = None) -> Iterator[Group]:
        """Yield whole groups that follow one another from ``position``, up to the first that is not, or to
        ``limit``.
        """
        while limit is None or position < limit:
            group = self.group_at(position)
            if group is None:
                return
            yield group
            position = group.end

    def find_group(self, position: int, min_seq: int, flushed: bool = False) -> tuple[int, int] | None:
        """Return (position, seq) of a group with an undamaged header at or after ``position``, numbered from
        ``min_seq``; with ``flushed`` only of one that was flushed.
        """
        at: int | None = position
        chunk = fresh(_SEARCH_STEP)
        while at is not None and at < self.file_size:
            data_at = self._files.next_data(self._fd, at)
            if data_at is None:
                return None
            at = max(at, data_at - data_at % BLOCK)
            # The last one may be shorter, at the end of the file.
            del chunk[read_into(self._files, self._fd, chunk, at) :]
            # Groups begin at blocks, so the first byte of each block is enough. Mostly all are zero: every start
            # searches the space that is reserved for the next groups.
            firsts = chunk[::BLOCK]
            block = firsts.find(GROUP_MAGIC[0])
            while block >= 0:
                hit = block * BLOCK
                if chunk.startswith(GROUP_MAGIC, hit):
                    header = self._header_at(at + hit)
                    if header is not None and header.seq >= min_seq and (header.flushed or not flushed):
                        return at + hit, header.seq
                block = firsts.find(GROUP_MAGIC[0], block + 1)
            at += _SEARCH_STEP
        return None

    def _header_at(self, position: int) -> GroupHeader | None:
        view, at = self._view(position, BLOCK)
        found = self._peek(view, at, position)
        if found is None:
            return None
        header_bytes = GroupHeader(0, found[1], 0, 0).body_at
        if position + header_bytes > self.file_size:
            return None
        view, at = self._view(position, header_bytes)
        return decode_group_header(view, at, self._salt, self._base + position)

    def _peek(self, view: memoryview, at: int, position: int) -> tuple[int, int, int] | None:
        if len(view) - at < BLOCK:
            return None
        return looks_like_group(view, at, self._salt, self._base + position)

    def _view(self, position: int, size: int) -> tuple[memoryview, int]:
        """Return a view that contains the bytes ``[position, position + size)``, as far as the file does, and where
        they begin.
        """
        at = position - self._window_at
        if at < 0 or at + size > len(self._window):
            window = max(size, min(self._next_window, self.file_size - position))
            self._next_window = min(2 * self._next_window, _WINDOW)
            self._window = read_range(self._files, self._fd, position, window)
            self._window_at = position
            at = 0
        return memoryview(self._window), at
