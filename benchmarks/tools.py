"""What is fetched or built once and kept below `.tools`, whoever needs it first."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"


@contextmanager
def making(toolchain: str) -> Iterator[None]:
    """Hold out every other process that makes something below ``TOOLS`` with this toolchain.

    Tests run in several processes, and Maven's own repository is not for two at a time. Whoever gets in looks again
    whether there is still anything to make. The lock ends with the process that holds it.
    """
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / f"{toolchain}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
