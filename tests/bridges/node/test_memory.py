"""The allocator keeps large buffers: those of one answer are there for the next without new pages. The collector looks
at little at once, however much there is."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

ROUNDS, BUFFERS, SIZE = 50, 8, 1 << 20
PROGRAM = f"""
import resource, sys
from bridges.node.process.memory import keep_buffers
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


COLLECTED = """
import gc
from bridges.node.process.memory import collect_seldom
gc.disable()
collect_seldom()
most = 0
def told(phase, info):
    global most
    if phase == "start" and info["generation"] < 2:
        most = max(most, sum(len(gc.get_objects(n)) for n in range(info["generation"] + 1)))
gc.callbacks.append(told)
kept = []
for _ in range(50):
    kept.append([[] for _ in range(10_000)])
print(most)
"""


def test_the_collector_looks_at_little_at_once_however_much_was_made() -> None:
    """Everybody waits for it: a microsecond and more for each object."""
    done = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, check=True, text=True)
    assert 0 < int(done.stdout) < 15_000
