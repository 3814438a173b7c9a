"""What is zeroed ahead of the log."""

from __future__ import annotations

import os
from pathlib import Path

from sbp_back.range_server.store.options import StoreOptions
from sbp_back.range_server.store.writing.prepare import SMALL_GROUP, Preparer, SegmentFactory

KIB = 1024


def zeroed(tmp_path: Path, sizes: list[int], rounds: int) -> tuple[int, int]:
    """Bytes zeroed ahead of, and written in, groups of these sizes one after the other."""
    options = StoreOptions()
    factory = SegmentFactory(tmp_path, options, "cluster", 1)
    segment, fd = factory.create(0)
    preparer = Preparer(factory, lambda error: None)  # its thread is not started: the work is done here
    position = written = 0
    try:
        preparer.follow(segment, fd, position)
        for size in sizes * rounds:
            preparer.claim(position, position + size)
            position += size
            written += size
            while preparer.wants_zeros():
                preparer.prepare()
    finally:
        os.close(fd)
    return preparer.zeroed_bytes, written


def test_small_groups_have_zeros_ahead(tmp_path: Path) -> None:
    ahead, written = zeroed(tmp_path, [4 * KIB], 2000)
    assert ahead >= written


def test_small_groups_between_large_ones_have_none(tmp_path: Path) -> None:
    """Their zeros would be the large ones' as well, and twice the bytes go to the disk."""
    ahead, written = zeroed(tmp_path, [4 * SMALL_GROUP, 4 * KIB], 12)
    assert ahead < written / 2
