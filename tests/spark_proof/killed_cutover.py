"""A cut-over that is killed at a step: by ``kill -9``, as soon as it says that the step begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STEPS = ("reconcile", "fence", "drain", "verify", "groups", "hand over", "smoke read")
"""What it says first of each step, in order."""


def killed_at(plan: Path, step: str, *options: str) -> bool:
    """Run the cut-over of a plan and kill it when ``step`` begins; whether it came so far."""
    command = [sys.executable, "-m", "bridges", "migrate", "cutover", str(plan), "--silence", "0.3", *options]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert job.stderr is not None
    came = False
    with job.stderr as told:
        for line in told:
            if line.startswith(step):
                came = True
                break
        job.kill()
        job.wait()
    return came
