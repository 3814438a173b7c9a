"""Interface of a log's writer to its store, wherever the log is: a thread that takes items and brings groups back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from anabranch_kit.errors import DiskFull, StoreFailed
from sbp_back.range_server.store.segment import Segment
from sbp_back.range_server.store.writing.wal_items import Append, Group, Item

logger = logging.getLogger(__name__)

STOP = object()
"""Item in the queue: write all items before it, then end."""


class Writing:
    """Takes items from ``queue`` and delivers them in that order, in groups that are durable (or whose items say why
    they are not). ``failed`` is called once, when nothing more can be acknowledged. The thread lives until :meth:`stop`
    all the same, and answers waiting and later items with that failure.
    """

    def __init__(self, name: str, failed: Callable[[StoreFailed], None]) -> None:
        self.queue: SimpleQueue[object] = SimpleQueue()
        self.refuse_appends: DiskFull | None = None
        """Set while there is no room for appends; the store clears it when there is room again."""
        self.failure: StoreFailed | None = None
        self._on_failed = failed
        self._failure_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        """Run the thread until :data:`STOP` has come out of the queue."""
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write all queued items, then end the thread."""
        if self._thread.is_alive():
            self.queue.put(STOP)
            self._thread.join()

    def close(self) -> None:
        """Let go of files and connections; the thread has ended."""

    def refuse(self, error: DiskFull) -> None:
        """Refuse appends from now on, until :meth:`accept`. Logs it the first time."""
        if self.refuse_appends is None:
            logger.error("%s", error)
        self.refuse_appends = error

    def accept(self) -> None:
        """Take appends again. Logs it if they were refused."""
        if self.refuse_appends is not None:
            logger.warning("appends are accepted again: the disk has room")
        self.refuse_appends = None

    def fail(self, error: BaseException) -> StoreFailed:
        """Stop acknowledging: the disk is failing, or there is a defect when ``error`` is no ``OSError``.

        May be called from any thread. Only the first failure counts; it is returned.
        """
        if isinstance(error, StoreFailed):
            failure = error
        elif isinstance(error, OSError):
            failure = _failure(f"writing the log failed ({error})")
        else:
            reason = f"the store met an error it does not expect ({type(error).__name__}: {error})"
            logger.critical("the store: %s", reason, exc_info=error)
            failure = _failure(reason)
        with self._failure_lock:
            if self.failure is not None:
                return self.failure
            self.failure = failure
        self._on_failed(failure)
        return failure

    def refused(self, items: Sequence[Item], failure: StoreFailed, segment: Segment) -> Group:
        """Return a group of ``items`` in which none counts."""
        group = Group(segment)
        group.items = list(items)
        for item in items:
            item.error = item.error or failure
        return group

    # --- optional abilities; called by the event loop

    def handled(self, records: int, seconds: float) -> None:
        """Note that the loop has completed a group of ``records`` records in ``seconds``."""

    def quick(self, entries: int, size: int) -> bool:
        """Return whether the event loop may write a group of this size itself, while nothing is queued or being
        written.
        """
        return False

    def write_here(self, items: Sequence[Append]) -> Group:
        """Write ``items``, which :meth:`quick` has accepted, as one group."""
        raise AssertionError("this log is written by its thread only")


def _failure(reason: str) -> StoreFailed:
    return StoreFailed(f"{reason}; nothing more is accepted, restart to recover")
