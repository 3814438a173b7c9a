"""Several worker processes that serve one node's data together, and the parent that starts, watches and ends them.

The parent serves no clients and opens no file of the node except the lock of its data directory. Its children inherit
the lock: as long as one of them lives, no other node can take the directory. The children are forked, so an ended
worker is replaced without loading anything. They end when the parent does, however it ends.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from bridges.commands.failure import EXIT_CANNOT_START, EXIT_NODE_FAILED, EXIT_USAGE, Failed, fail
from bridges.commands.servers import process

if TYPE_CHECKING:
    from bridges.node.assembly import Node
    from bridges.node.settings.config import Settings
    from bridges.node.storage.data_dir import DataDirectory
    from bridges.node.workers.worker import Worker

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_STEADY_S = 60.0
"""Seconds after which a worker that ends is restarted at once."""
_PINNED_FAILURES = 3
"""A worker is restarted at its previous addresses; after this many failures at those of its settings, because another
process may have taken a port that was chosen freely.
"""
_ENDING_S = 10.0
"""Seconds that a worker may take to end, beyond the time for requests in flight."""
_LATE_S = 1.0
"""A parent that wakes up this many seconds too late could not hear its workers."""
_SILENT_TIMES = 2
"""A serving worker that is silent for this many times ``node.stall_ms`` is killed: no other process can serve its
partitions before its store is free. Its own watchdog acts earlier, unless the whole process is stopped.
"""
_PR_SET_PDEATHSIG = 1


class Child:
    """A worker as its parent knows it. With ``pid`` 0, it is to be started ``at`` that monotonic time."""

    __slots__ = ("addresses", "at", "failures", "heard", "number", "pid", "pipe", "serves", "started")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        self.at = 0.0
        self.started = 0.0
        self.heard = 0.0
        self.failures = 0
        self.pipe = -1
        """The pipe on which it sends its addresses once it serves, and then signs of life."""
        self.serves = False
        self.addresses: dict[str, str] = {}

    def ended(self, now: float) -> None:
        """Schedule a restart: the first time at once, then later each time."""
        self.pid = 0
        self.close()
        steady = self.serves and now - self.started >= _STEADY_S
        self.failures = 0 if steady else self.failures + 1
        pause = _FIRST_PAUSE_S * 2 ** (self.failures - 2) if self.failures > 1 else 0.0
        self.at = now + min(pause, _LONGEST_PAUSE_S)
        self.serves = False
        if self.failures > _PINNED_FAILURES:
            self.addresses = {}

    def close(self) -> None:
        """Close the pipe."""
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1


class Workers:
    """The parent process."""

    def __init__(self, settings: Settings, ready: Path | None) -> None:
        import structlog

        self._settings = settings
        self._ready = ready
        self._log = structlog.get_logger("anabranch.workers")
        self._children = [Child(number) for number in range(settings.node.workers)]
        self._served = False
        self._stopping = False
        self._kill_at = float("inf")
        self._code = 0
        self._silent_s = _SILENT_TIMES * settings.node.stall_ms / 1000 or float("inf")
        self._signals: socket.socket

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. Ends the process with an exit code if that is not 0."""
        from anabranch_kit.errors import StoreError
        from anabranch_kit.sql.notices import mailboxes
        from bridges.node.settings.sections import SettingsError
        from bridges.node.storage.data_dir import DataDirectory
        from bridges.node.workers.settings import check

        settings = self._settings
        try:
            check(settings, settings.fronts)
            directory = DataDirectory(settings.data_dir)
        except SettingsError as error:
            fail(str(error), EXIT_USAGE)
        except StoreError as error:
            fail(str(error), EXIT_CANNOT_START)
        process.tell(settings)
        _load()
        self._mailboxes = mailboxes(len(self._children))
        self._signals, wake = socket.socketpair()
        for one in (self._signals, wake):
            one.setblocking(False)
        for number in _SIGNALS:
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        # Memory is shared with the children as long as it is not written, so the collector must not touch it.
        gc.freeze()
        try:
            while True:
                self._start_those_due(directory)
                if self._stopping and not any(child.pid for child in self._children):
                    break
                self._wait()
        finally:
            if self._ready is not None:
                self._ready.unlink(missing_ok=True)
            directory.release()
        self._log.info("stopped", exit_code=self._code)
        if self._code:
            raise SystemExit(self._code)

    # --- children ---------------------------------------------------------------------------------------------------

    def _start_those_due(self, directory: DataDirectory) -> None:
        now = time.monotonic()
        for child in self._children:
            if not (child.pid or self._stopping) and child.at <= now:
                self._start(child, directory)

    def _start(self, child: Child, directory: DataDirectory) -> None:
        from anabranch_kit.sql.notices import Notices
        from bridges.node.settings.sections import SettingsError
        from bridges.node.workers.settings import settings_of
        from bridges.node.workers.worker import Worker

        try:
            settings = settings_of(self._settings, self._settings.fronts, child.number, child.addresses)
        except SettingsError as error:
            self._give_up(EXIT_USAGE, str(error))
            return
        reading, writing = os.pipe()
        parent = os.getpid()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            os.close(writing)
            os.set_blocking(reading, False)
            child.pid, child.pipe, child.started = pid, reading, time.monotonic()
            return
        os.close(reading)
        notices = Notices(self._mailboxes[child.number][0], [box for _, box in self._mailboxes])
        worker = Worker(child.number, len(self._children), directory, notices)
        _serve(settings, worker, parent, writing)

    def _wait(self) -> None:
        """Wait for a signal, a message of a worker, or the next deadline, and handle it."""
        signals = self._signals.fileno()
        pipes = [child.pipe for child in self._children if child.pipe >= 0]
        times = [self._kill_at]
        if not self._stopping:
            times += [child.at for child in self._children if not child.pid]
            times += [child.heard + self._silent_s for child in self._children if child.serves]
        first = min(times)
        before = time.monotonic()
        pause = None if first == float("inf") else max(0.0, first - time.monotonic())
        readable, _, _ = select.select([signals, *pipes], [], [], pause)
        if signals in readable:
            for number in self._signals.recv(4096):
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._stop()
                elif number == signal.SIGHUP:
                    self._hang_up()
        self._reap()
        if time.monotonic() - before > (pause or 0.0) + _LATE_S:
            # The delay of this process is not the workers' fault.
            for child in self._children:
                child.heard = time.monotonic()
        for child in self._children:
            if child.pipe in readable:
                self._hear(child)
            elif child.serves and not self._stopping and time.monotonic() - child.heard >= self._silent_s:
                self._log.error("a worker does not get on, and is killed", worker=child.number, pid=child.pid)
                child.heard = time.monotonic()
                os.kill(child.pid, signal.SIGKILL)
        if time.monotonic() >= self._kill_at:
            self._kill_at = float("inf")
            self._log.error("workers do not end, and are killed")
            self._code = self._code or EXIT_NODE_FAILED
            self._tell(signal.SIGKILL)

    def _hear(self, child: Child) -> None:
        told = os.read(child.pipe, 1 << 16)
        child.heard = time.monotonic()
        if not told:
            child.close()  # it has ended; SIGCHLD reports that
        if not told or child.serves:
            return
        child.addresses = json.loads(told)
        child.serves = True
        if self._served or not all(one.serves for one in self._children):
            return
        self._served = True
        self._log.info("all workers serve", workers=len(self._children))
        if self._ready is not None:
            from bridges.node.storage.data_dir import write_ready_file
            from bridges.node.workers.settings import by_name

            write_ready_file(self._ready, dict(by_name(one.addresses for one in self._children)))

    def _reap(self) -> None:
        for child in self._children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            code = os.waitstatus_to_exitcode(status)
            seconds = round(time.monotonic() - child.started, 3)
            child.ended(time.monotonic())
            if self._stopping:
                self._code = self._code or (code if code >= 0 else EXIT_NODE_FAILED if code != -signal.SIGKILL else 0)
                continue
            self._log.warning("a worker has ended", worker=child.number, exit_code=code, pid=pid, after_seconds=seconds)
            if not self._served:
                # The cause would persist at a restart, so the supervisor gets the exit code.
                self._give_up(code if code > 0 else EXIT_NODE_FAILED, f"worker {child.number} could not start")

    def _give_up(self, code: int, reason: str) -> None:
        self._code = self._code or code
        self._log.error("the workers cannot be started", reason=reason)
        self._stop()

    def _stop(self) -> None:
        """End all workers; when called again, without waiting for requests in flight."""
        if not self._stopping:
            self._stopping = True
            drain = self._settings.node.drain_timeout_ms / 1000
            self._kill_at = time.monotonic() + drain + _ENDING_S
        self._tell(signal.SIGTERM)

    def _hang_up(self) -> None:
        """Have workers with certificates reload them; otherwise stop, as a closed terminal expects."""
        if self._settings.tls or self._settings.sbp.tls:
            self._tell(signal.SIGHUP)
        else:
            self._stop()

    def _tell(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.pid:
                os.kill(child.pid, number)


def _serve(settings: Settings, worker: Worker, parent: int, writing: int) -> NoReturn:
    """Run a worker in the child process, and exit."""
    code = EXIT_NODE_FAILED
    try:
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _end_with(parent)
        # A terminal's interrupt goes only to the parent, which ends all workers.
        os.setpgid(0, 0)

        def make(settings: Settings, give_up: Callable[[str], None]) -> _Service:
            from bridges.node.assembly import Node

            return _Service(Node(settings, on_failed=give_up, worker=worker, checkup=process.check_running), writing)

        def turns() -> None:
            with suppress(BlockingIOError):
                os.write(writing, b"\n")

        process.serve(settings, make, None, worker.number, turns)
        code = 0
    except Failed as failed:
        failed.show()
        code = failed.exit_code
    finally:
        # No cleanup of the parent may run in the child.
        if (error := sys.exception()) is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(code)


class _Service:
    """A worker's node, which reports its addresses to the parent."""

    def __init__(self, node: Node, writing: int) -> None:
        self._node = node
        self._writing = writing

    @property
    def failure(self) -> str | None:
        return self._node.failure

    async def start(self, ready_file: Path | None = None) -> None:
        await self._node.start(ready_file)
        process.reload_on_hangup(self._node.settings, self._node.reload)
        told = {name: str(address) for name, address in self._node.addresses.items()}
        os.set_blocking(self._writing, False)
        os.write(self._writing, json.dumps(told).encode())

    async def stop(self) -> None:
        await self._node.stop()

    def hurry(self) -> None:
        self._node.hurry()


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends.

    Acknowledged data survives that, and a new parent need not wait for old workers.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_NODE_FAILED)


def _load() -> None:
    """Import the modules of a worker before forking."""
    for name in ("bridges.node.assembly", "bridges.cluster.service", "bridges.console.door", "sbp_back.embedded"):
        import_module(name)


def _nothing(number: int, frame: object) -> None:
    """Do nothing: the signal's number is read from the wake-up socket."""
