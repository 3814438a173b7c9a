"""Environments of Python besides our own, for what does not go together with it: made once, from a lock file."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.java_server import ServerFailed
from benchmarks.tools import making


def install_environment(lock: Path, place: Path) -> Path:
    """The Python that has what ``lock`` lists, below ``place``, made once for each state of it.

    Raises ServerFailed when it cannot be had.
    """
    key = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    home = place / f"venv-{key}"
    python = home / "bin" / "python"
    if (home / "made").exists():
        return python
    with making("python"):
        if not (home / "made").exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            _step([sys.executable, "-m", "venv", str(home)])
            _step([str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)])
            (home / "made").touch()
    return python


def _step(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise ServerFailed(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-4000:]}")
