"""How the threads of a node share the interpreter.

The event loop lets go of it in each system call, some ten times for a connection that is accepted, and whichever
thread computes meanwhile keeps it for as long as Python lets it: five milliseconds by default, each time. While
requests were decoded or decompressed in threads, to take a few connections lasted up to 65 ms, of which the loop itself
computed one. A tenth of that time costs nothing that can be measured: only who waits asks for it.
"""

from __future__ import annotations

import sys

SECONDS = 0.0005


def share() -> None:
    """Have a thread that waits for the interpreter get it soon. Holds for the process."""
    sys.setswitchinterval(SECONDS)
