"""What `make hostile` allows because of the disk."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from hostile_disk import floor  # noqa: E402


def test_the_disk_is_asked_beside_other_bytes_and_without(tmp_path: Path) -> None:
    for rate in (0.0, 50e6):
        assert 0 < floor(tmp_path, rate, 0.2) < 60
    assert list(tmp_path.iterdir()) == []
