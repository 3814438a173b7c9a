"""kill -9 of a node at every step of what a sink asks of it: ``python -m tests.spark_proof.sink_kills [FIRST]``."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.spark_pipeline.node.write_kills import lived


def main() -> None:
    """Take the steps one by one, until there is none left at which the first life dies."""
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    kill_at = first
    while True:
        with tempfile.TemporaryDirectory() as directory:
            lives, steps = asyncio.run(lived(Path(directory), kill_at))
        if lives == 1:
            print(f"a life that is not killed has {steps} steps")
            break
        print(f"killed at step {kill_at}: each record is there once", flush=True)
        kill_at += 1
    print(f"{kill_at - first} passed, 0 failed")


if __name__ == "__main__":
    main()
