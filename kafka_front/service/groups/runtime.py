"""The coordinator brought to life: an event loop's clock, one timer for all its deadlines, and its stored groups."""

from __future__ import annotations

import asyncio
import time
import uuid

from msgspec.structs import replace

from bridges.barrier import Barrier
from bridges.deadlines import Alarm
from bridges.errors import DataCorrupt

from .coordinator import Coordinator
from .journal import GroupJournal, GroupStore
from .settings import GroupSettings
from .snapshot import SnapshotError, decode_snapshot


def unix_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class GroupRuntime:
    """Owns the coordinator. Call :meth:`touched` after every use of it."""

    def __init__(self, store: GroupStore, settings: GroupSettings, barrier: Barrier | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._alarm = Alarm(self._loop, self._due)
        self._closed = False
        self.journal = GroupJournal(store, self.now_ms, unix_ms, barrier)
        self.coordinator = Coordinator(settings, self.journal, lambda prefix: f"{prefix}-{uuid.uuid4()}", barrier)

    def now_ms(self) -> int:
        """The coordinator's clock: milliseconds of the event loop's clock, which never goes back."""
        return int(self._loop.time() * 1000)

    async def load(self) -> None:
        """Bring back the groups of the last run. Raises DataCorrupt if one of them cannot be read."""
        for group_id, blob in (await self._store.load_groups()).items():
            try:
                snapshot = decode_snapshot(blob)
            except SnapshotError as error:
                raise DataCorrupt(f"consumer group {group_id!r}: {error}") from error
            if snapshot is not None:
                restored = replace(snapshot, since_ms=self.journal.from_unix(snapshot.since_ms))
                self.coordinator.restore(self.now_ms(), group_id, restored)
        self.touched()

    def touched(self) -> None:
        """Set the timer to the coordinator's next deadline, if that is nearer than what it is set to."""
        deadline = self.coordinator.next_deadline_ms
        if deadline is None or self._closed:
            return
        # Half a millisecond later, so that the clock in whole milliseconds has surely reached the deadline.
        self._alarm.set((deadline + 0.5) / 1000)

    def resign(self) -> None:
        """Answer all parked requests and let no more time pass."""
        self._closed = True
        self._alarm.cancel()
        self.coordinator.resign()

    def _due(self, now: float) -> None:
        try:
            self.coordinator.advance(int(now * 1000))
        finally:
            self.touched()
