"""The table of keys holds what a dictionary holds, as far as there is room."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bridges.log.compaction.key_offsets import SLOT_BYTES, KeyOffsets

notes = st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 1000)), max_size=30), max_size=6)


@given(notes, st.integers(8, 90))
def test_it_knows_the_highest_offset_of_each_key_it_had_room_for(
    groups: list[list[tuple[int, int]]], slots: int
) -> None:
    table = KeyOffsets(slots * SLOT_BYTES)
    most = int(slots * 0.8)
    wanted: dict[bytes, int] = {}
    for group in groups:
        keys = [b"%d" % key for key, _ in group]
        offsets = np.array([offset for _, offset in group], np.int64)
        noted = table.put(keys, offsets)
        for key, offset in zip(keys[:noted], offsets.tolist(), strict=False):
            wanted[key] = max(offset, wanted.get(key, -1))
        if noted < len(keys):
            assert len(table) == most, "there was room"
            assert keys[noted] not in wanted
    assert len(table) == len(wanted)
    assert table.highest([*wanted, b"unknown"]).tolist() == [*wanted.values(), -1]
