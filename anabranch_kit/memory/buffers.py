"""Memory to receive and to read into, wherever that is done."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

Buffer = bytes | bytearray | memoryview
"""Bytes in whatever they lie."""


def _allocator() -> Callable[[int], bytearray]:
    """CPython's own way to make a bytearray of bytes that nobody has set, where there is one."""
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
"""A buffer of so many bytes to read into. They are whatever was in memory there: nobody may see one that was not read.

Zeroing them first costs as much as a fourth of reading them.
"""
