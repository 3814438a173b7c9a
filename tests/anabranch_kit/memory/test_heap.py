"""What lies free between blocks that are in use goes back to the system when that is asked for, and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 1024 * 1024
PROGRAM = f"""
import sys
from anabranch_kit.memory.heap import give_back, resident
from bridges.node.process.memory import keep_buffers
if not keep_buffers():
    sys.exit(3)
blocks = [bytearray(b"x") * {MIB} for _ in range(100)]
print(resident())
del blocks[:99]  # the last one lies above them
print(resident())
given = give_back()
print(resident())
assert given
"""


def test_free_memory_between_blocks_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False, text=True)
    if done.returncode == 3:
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    full, kept, given = map(int, done.stdout.split())
    assert kept > full - 10 * MIB
    assert given < full - 90 * MIB
