"""Processes of a Spark application that a proof kills: found below the one that started it, never by name alone."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil


def below(pid: int) -> list[psutil.Process]:
    """All processes that it has started, and these, as they are now."""
    return psutil.Process(pid).children(recursive=True)


def _says(process: psutil.Process, word: str) -> bool:
    with suppress(psutil.Error):
        return any(word in one for one in process.cmdline())
    return False


def executors(pid: int) -> list[psutil.Process]:
    """Those of a cluster that runs below ``pid``: each is a Java of its own."""
    return [one for one in below(pid) if _says(one, "CoarseGrainedExecutorBackend")]


def python_workers(pid: int) -> list[psutil.Process]:
    """Those of executors, which run tasks: forked by a daemon, which forks others when one is dead."""
    found = []
    for executor in executors(pid) or [psutil.Process(pid)]:
        for one in below(executor.pid):
            with suppress(psutil.Error):
                parent = one.parent()
                if _says(one, "pyspark.daemon") and parent is not None and _says(parent, "pyspark.daemon"):
                    found.append(one)
    return found


def kill(processes: list[psutil.Process]) -> int:
    """kill -9; how many were there to be killed."""
    killed = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
            killed += 1
    return killed


def kill_application(pid: int) -> None:
    """A driver and all that it has started, Java first: nothing gets a chance to finish."""
    kill(below(pid))
    os.kill(pid, signal.SIGKILL)
