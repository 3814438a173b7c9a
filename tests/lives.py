"""A node in a process of its own that may be killed at a step of its life, and is started again over what it left."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tests.ports import free_port

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.spark_pipeline.node.write_lives"])


@dataclass
class Lives:
    """The node, which is started again when it dies; only its first life may be killed. ``live`` is one life: on a
    directory, at an address, killed at a step; it tells when it serves, and at its end how many steps there were."""

    path: Path
    kill_at: int | None
    live: Callable[[str, str, int | None, Connection], None]
    address: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    lives: int = 0
    steps: int = -1

    def run(self) -> None:
        """Until it is ended by :meth:`end`."""
        kill_at = self.kill_at
        while True:
            here, there = _PROCESSES.Pipe()
            process = _PROCESSES.Process(target=self.live, args=(str(self.path), self.address, kill_at, there))
            process.start()
            there.close()
            kill_at = None
            self.lives += 1
            try:
                here.recv()
                self.serving.set()
                while not here.poll(0.05):
                    if self.ending.is_set():
                        here.send("end")
                        self.steps = here.recv()
                        process.join()
                        return
                here.recv()  # there is nothing to be told: it is dead
            except EOFError:
                process.join()

    def __post_init__(self) -> None:
        self.serving, self.ending = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Have the last life end when all is carried out."""
        self.ending.set()
        self.thread.join()
