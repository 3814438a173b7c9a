"""Sharing of the interpreter's lock between the threads of a node.

The event loop releases the lock in each system call, about ten times per accepted connection. A thread that computes
meanwhile keeps it for Python's switch interval, 5 ms by default, each time. While requests were decoded or decompressed
in threads, accepting a few connections took up to 65 ms, of which the loop computed one. A tenth of the interval has no
measurable cost: only a waiting thread requests the lock.
"""

from __future__ import annotations

import sys

SECONDS = 0.0005


def share() -> None:
    """Shorten the interpreter's switch interval, for the whole process."""
    sys.setswitchinterval(SECONDS)
