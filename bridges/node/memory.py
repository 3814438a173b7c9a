"""Memory of a server that moves megabytes through short-lived buffers: the C allocator, and Python's collector.

By default glibc maps every large buffer anew and gives it back at once, so that each frame and each read of the log
pays for zeroed pages again: measured, half of what a node spends on reading. Kept memory is bounded: it is what the
node used at its peak, and the trim threshold beyond that.
"""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024
"""Buffers below this come from the heap; the largest value that every glibc takes."""
TRIM_THRESHOLD_BYTES = 128 * 1024 * 1024
"""Free memory at the top of the heap beyond this goes back to the system."""


def keep_buffers() -> bool:
    """Have the allocator keep and reuse large buffers; False where it cannot be told (not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES))


def collect_seldom() -> None:
    """What exists now lives as long as the process: the collector need not look at it again, and seldom at the rest
    (reference/kafka.md, section 6 rule 8)."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
