"""An archiving process that is killed at a step, for tests: ``python -m tests.spark_pipeline.jobs.killed JSON``.

The process imports everything once and forks a child for each run before any library has threads. A child is killed
(SIGKILL) at the step it was told, or runs to its end. Prints the exit status of each child, as os.waitpid has it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from spark_pipeline.jobs.archive.run import ArchiveRun
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.lake import delta, iceberg
from spark_pipeline.lake.archive import Description

LOADED = (delta, iceberg)


def dying_at(step: str) -> Callable[[str], None]:
    def crash(now: str) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return crash


def archive(told: dict[str, Any], step: str) -> None:
    ArchiveRun(
        told["url"],
        {},
        told["place"],
        (".*",),
        Description.decode(json.dumps(told["description"]).encode()),
        LocalEngine(2),
        step_offsets=told["step_offsets"],
        piece_offsets=told["piece_offsets"],
        crash=dying_at(step),
    ).available_now()


def main() -> None:
    told = json.loads(sys.argv[1])
    statuses = []
    for step in told["steps"]:
        child = os.fork()
        if not child:
            archive(told, step)  # what it raises ends the child with 1 and stands in its stderr
            os._exit(0)
        statuses.append(os.waitpid(child, 0)[1])
    print(json.dumps(statuses))


if __name__ == "__main__":
    main()
