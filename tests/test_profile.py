"""The profile of docs/profile.md, run: every step that it names is still on the way of a request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.profile import STEPS

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("kind", sorted(STEPS))
def test_every_step_has_its_row(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.profile", kind, "--requests", "100", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = {line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("|")}
    missing = [step.title for step in STEPS[kind] if step.title not in told and not step.seldom]
    assert not missing, done.stdout
