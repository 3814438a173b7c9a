"""A program that uses a server, as a process of its own that can be killed and started again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.java_server import JavaServer


class Application(JavaServer):
    """Whatever it is written in; it serves nobody, and ``server`` is what it uses."""

    def __init__(self, directory: Path, server: str) -> None:
        super().__init__(directory, start_seconds=120.0)
        self.server = server

    @property
    def bootstrap(self) -> str:
        """Where its server is."""
        return self.server
