"""Buffers to receive and to read into."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

Buffer = bytes | bytearray | memoryview
"""Any object that holds bytes."""


def _allocator() -> Callable[[int], bytearray]:
    """Return CPython's own function for a bytearray that is not zeroed, where there is one."""
    try:
        make = ctypes.pythonapi.PyByteArray_FromStringAndSize
    except AttributeError:
        return bytearray
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)

    def fresh(size: int) -> bytearray:
        made: bytearray = make(None, size)
        return made

    return fresh


fresh = _allocator()
"""Return a buffer of so many bytes to read into. Its content is undefined: show no byte that was not read into it.

Zeroing the bytes first would cost as much as a fourth of reading them.
"""
