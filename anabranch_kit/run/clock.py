"""The wall clock."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time in ms since the epoch. It may go back."""
    return time.time_ns() // 1_000_000
