"""A node in a process of its own that may be killed at a step of its life, and is started again over what it left."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

from tests.ports import free_port

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.spark_pipeline.node.write_lives", "tests.bridges.catalog.lineage_lives"])


SECONDS = 120.0
"""In which a life begins to serve, and the last one ends."""

Live = Callable[[str, str, int | None, Connection], None]


@dataclass
class _Failed:
    """Told by a life that ends with an exception."""

    text: str


def hear_life(live: Callable[..., None], *args: object) -> tuple[list[tuple[Any, ...]], int | None]:
    """Return what one life tells over the connection that is its last argument, and the exit code of its process.
    Raises AssertionError with the error of a life that fails, and when nothing is heard for long."""
    hear, tell = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_lived, args=(live, *args, tell), daemon=True)
    process.start()
    tell.close()
    heard: list[Any] = []
    try:
        while True:
            assert hear.poll(SECONDS), f"nothing was heard for {SECONDS:g} s, behind {heard[-1:]}"
            heard.append(hear.recv())
            assert not isinstance(heard[-1], _Failed), heard[-1].text
    except EOFError:
        process.join()
        return heard, process.exitcode
    finally:
        process.kill()


def _lived(live: Callable[..., None], *args: Any) -> None:
    try:
        live(*args)
    except BaseException:
        tell: Connection = args[-1]
        tell.send(_Failed(traceback.format_exc()))
        raise


@dataclass
class Lives:
    """The node, which is started again when it is killed; only its first life may be. ``live`` is one life: on a
    directory, at an address, killed at a step; it tells when it serves, and at its end how many steps there were.

    A context, at whose end the process is killed if it lives, so that nobody waits for what a failed test left."""

    path: Path
    kill_at: int | None
    live: Live
    address: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    lives: int = 0
    steps: int = -1
    error: str = ""
    process: ForkServerProcess | None = None

    def __post_init__(self) -> None:
        self.serving, self.ending, self.over = threading.Event(), threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Return when the node serves. Raises AssertionError with the error of a life that cannot."""
        self.thread.start()
        try:
            assert self.serving.wait(SECONDS), f"life {self.lives} did not serve in {SECONDS:g} s"
            assert not self.error, self.error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        while self.thread.is_alive():
            if self.process is not None and self.process.is_alive():
                self.process.kill()
            self.thread.join(0.05)

    def end(self) -> None:
        """Have the last life end when all is carried out. Raises AssertionError with the error of one that failed."""
        self.ending.set()
        self.thread.join(SECONDS)
        assert not self.error, self.error
        assert not self.thread.is_alive(), f"life {self.lives} did not end in {SECONDS:g} s"

    def _run(self) -> None:
        kill_at = self.kill_at
        while not self.over.is_set() and not self.error and self.steps < 0:
            here, there = _PROCESSES.Pipe()
            told = (self.live, str(self.path), self.address, kill_at, there)
            self.process = _PROCESSES.Process(target=_lived, args=told, daemon=True)
            self.process.start()
            there.close()
            kill_at = None
            self.lives += 1
            try:
                self._follow(here)
            except EOFError:
                self.process.join()
                code = self.process.exitcode
                if code != -signal.SIGKILL:
                    self.error = f"life {self.lives} ended with {code}"
            self.process.join()
        self.serving.set()

    def _follow(self, here: Connection) -> None:
        """One life to its end. Raises EOFError when it is killed."""
        if not isinstance(told := here.recv(), _Failed):
            self.serving.set()
            while not here.poll(0.05):
                if self.ending.is_set():
                    here.send("end")
                    break
            told = here.recv()
        if isinstance(told, _Failed):
            self.error = f"life {self.lives} failed:\n{told.text}"
        else:
            self.steps = told
