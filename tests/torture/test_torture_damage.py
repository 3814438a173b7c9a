"""The damage must be what it says: torn tails leave every whole group readable, a flipped bit does not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sbp_back.range_server.store.layout.format import (
    BLOCK,
    RECORD,
    RecordType,
    SegmentHeader,
    encode_group,
    encode_segment_header,
)
from sbp_back.wire.frame import crc32
from tests.torture import torture_damage as damage

SALT = 77


def make_log(data: Path, groups: int) -> Path:
    """A segment with some groups of one entry each, and room behind them."""
    wal = data / "wal"
    wal.mkdir(parents=True)
    (data / "ckpt").mkdir()
    size = 1 << 20
    content = bytearray(encode_segment_header(SegmentHeader("cluster", 1, 0, size, SALT)))
    for number in range(groups):
        body = bytes([number]) * 500
        record = RECORD.pack(RecordType.APPEND, crc32(body), 1, 1, number, 0, 0, 1, len(body))
        for part in encode_group(number + 1, SALT, len(content), [record], [body]):
            content += part
    path = wal / f"{0:020d}.seg"
    path.write_bytes(bytes(content).ljust(size, b"\0"))
    return path


@pytest.mark.parametrize("kind", damage.KINDS)
def test_a_torn_tail_changes_no_whole_group(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_log(tmp_path, 5)
    before = damage.find_tail(tmp_path)
    assert before is not None
    monkeypatch.setattr(damage, "KINDS", (kind,))
    for seed in range(20):
        assert damage.tear_tail(tmp_path, random.Random(seed)) == kind
        after = damage.find_tail(tmp_path)
        assert after is not None
        assert (after.groups, after.position) == (before.groups, before.position)
    wrote = any(path.read_bytes()[before.position :])
    assert wrote == (kind != "nothing")


def test_a_flipped_bit_breaks_a_group_that_is_not_the_last(tmp_path: Path) -> None:
    path = make_log(tmp_path, 5)
    content = path.read_bytes()
    place = damage.flip_acknowledged_bit(tmp_path, random.Random(3))
    assert place.startswith(path.name)
    changed = [at for at, (a, b) in enumerate(zip(content, path.read_bytes(), strict=True)) if a != b]
    assert len(changed) == 1
    tail = damage.find_tail(tmp_path)
    assert tail is not None
    assert len(tail.groups) == (changed[0] - BLOCK) // BLOCK < 4


def test_without_a_following_group_there_is_nothing_to_flip(tmp_path: Path) -> None:
    make_log(tmp_path, 1)
    with pytest.raises(damage.NoPlace):
        damage.flip_acknowledged_bit(tmp_path, random.Random(3))
