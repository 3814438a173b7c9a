"""Checks of the machine's clock: ages of data, retention, tokens and certificates depend on it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from bridges.node.finding import Finding, fine, note, warning, wrong

_UNSYNCHRONISED = 0x40
"""adjtimex(2): STA_UNSYNC, the clock is not synchronised."""
_AHEAD_S = 5.0
"""How far in the future a file's time may lie: file systems' clocks tick seldom, and network file systems have their
own.
"""


class _Timex(ctypes.Structure):
    """The beginning of adjtimex(2)'s ``struct timex``; the kernel writes the whole structure."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def is_kept() -> bool | None:
    """Return whether the kernel knows of a time service that synchronises the clock; None if it does not say."""
    state = _Timex()
    try:
        answer = ctypes.CDLL(None).adjtimex(ctypes.byref(state))
    except (AttributeError, OSError):
        return None
    return None if answer < 0 else not state.status & _UNSYNCHRONISED


def check(data: Path, *, kept: bool | None, now_s: float) -> Iterator[Finding]:
    """Check that the clock was not set back and is synchronised.

    ``kept``: the result of :func:`is_kept`; ``now_s``: the clock's seconds since 1970.
    """
    newest = max(_times(data), default=0.0)
    if newest > now_s + _AHEAD_S:
        yield wrong(
            "clock",
            f"files in {data} are {newest - now_s:.0f} s younger than now: the clock was set back",
            "set it right before the node starts: what is appended now seems older than it is, and goes earlier",
        )
    yield from check_kept(kept=kept)


def check_kept(*, kept: bool | None) -> Iterator[Finding]:
    """Check that the clock is synchronised; ``kept``: the result of :func:`is_kept`."""
    if kept:
        yield fine("clock", "is kept right by a time service")
    elif kept is None:
        yield note("clock", "whether somebody keeps it right cannot be told here")
    else:
        yield warning(
            "clock",
            "nobody keeps it right: retention, tokens and certificates go by it",
            "run chrony or systemd-timesyncd on this machine",
        )


def _times(data: Path) -> Iterator[float]:
    for path, _, names in os.walk(data):
        for name in names:
            try:
                yield os.stat(os.path.join(path, name)).st_mtime
            except OSError:
                continue  # removed meanwhile
