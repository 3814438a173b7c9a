"""The process's share of the system's memory, and the return of unused pages.

A node keeps freed buffers (:mod:`bridges.node.process.memory`), and each of its threads frees into an arena of its own,
of which only the top goes back by itself. After large, unrepeated work the rest must be given back explicitly.
"""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress

_PAGE = resource.getpagesize()


def resident() -> int:
    """Return the bytes of memory that the process has; takes a microsecond. Raises OSError where there is no /proc."""
    with open("/proc/self/statm", "rb", buffering=0) as statm:
        return int(statm.read().split()[1]) * _PAGE


def give_back() -> bool:
    """Give the heap's free pages back to the system; return False if there were none, or the library is not glibc.

    Takes milliseconds for a hundred megabytes, during which other allocations wait: call it in a thread, and seldom.
    """
    with suppress(AttributeError, OSError):
        return bool(ctypes.CDLL(None).malloc_trim(0))
    return False
