"""The allocator keeps large buffers: those of one answer are there for the next without new pages."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

ROUNDS, BUFFERS, SIZE = 50, 8, 1 << 20
PROGRAM = f"""
import resource, sys
from bridges.node.memory import keep_buffers
if "tuned" in sys.argv and not keep_buffers():
    sys.exit(3)
for _ in range({ROUNDS}):
    buffers = [bytearray({SIZE}) for _ in range({BUFFERS})]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
PAGES = BUFFERS * SIZE // resource.getpagesize()
"""Pages of the buffers of one round."""


def faults(*arguments: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, check=False, text=True)
    if done.returncode == 3:
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_reused_buffers_take_no_new_pages() -> None:
    assert faults("tuned") < 5 * PAGES
    assert faults() > ROUNDS // 2 * PAGES, "without the setting nearly every round takes its pages anew"
