"""The store of a range server whose log is on disk, and whose old data is in objects (docs/storage.md, "Old data in
objects"): the same store, which also recovers the moved data, moves more, and reads from the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from anabranch_kit.disk.files import make_directories
from anabranch_kit.errors import StoreVersionError
from sbp_back.range_server.object_log.objects.bucket import Bucket
from sbp_back.range_server.object_log.objects.cache import Cache
from sbp_back.range_server.object_log.range_objects.moved import Moved, Names, NotOursError, begin, claim, load
from sbp_back.range_server.object_log.range_objects.offload import Offload
from sbp_back.range_server.store.gather import Gathers
from sbp_back.range_server.store.layout.lock import DirectoryLock
from sbp_back.range_server.store.log import Log
from sbp_back.range_server.store.opening.recovery import Recovered, Recovery
from sbp_back.range_server.store.options import MOVED, READ_THREADS, StoreOptions
from sbp_back.range_server.store.segment import Segment
from sbp_back.range_server.store.stats import StoreStats
from sbp_back.range_server.store.store import Store
from sbp_back.range_server.store.upkeep.maintenance import Maintenance
from sbp_back.range_server.store.upkeep.moving import Moving

_CACHE = "cache"
START_PATIENCE = 3.0
_READ_PATIENCE = 2.0
"""Seconds after which a reader gets a retriable error when a store does not answer."""


class _There(Struct):
    """Parts of such a store beyond those of every store. ``claimed``: the bucket knows of this start."""

    cache: Cache
    bucket: Bucket
    names: Names
    objects: dict[Segment, Moved]
    claimed: bool


class _Opened(Recovered, kw_only=True):
    there: _There


class OffloadStore(Store):
    """A :class:`Store` with old data in a bucket. While the bucket does not answer, the disk grows and reads of old
    data fail.
    """

    def __init__(self, log: Log, lock: DirectoryLock, recovered: Recovered) -> None:
        """Use :meth:`open` instead."""
        assert isinstance(recovered, _Opened)
        self.there = recovered.there
        log.elsewhere = list(recovered.there.objects)
        log.stats.objects = recovered.there.bucket.requests
        log.stats.local_limit_bytes = log.options.local_bytes or 0
        self._far = ThreadPoolExecutor(READ_THREADS, "anabranch-far")
        self.moving_thread = ThreadPoolExecutor(1, "anabranch-move")
        super().__init__(log, lock, recovered)

    @classmethod
    def _recover(cls, path: Path, options: StoreOptions, lock: DirectoryLock) -> Recovered:
        files = options.files
        bucket = Bucket(options.objects).below(f"disks/{options.object_log}")
        for directory in (path / MOVED, path / _CACHE):
            make_directories(files, directory)
        names = begin(path / MOVED, files, bucket)
        messages = []
        claimed = True
        try:
            claim(bucket, names, START_PATIENCE)
        except NotOursError as error:
            raise StoreVersionError(str(error.strerror)) from error
        except OSError as error:
            claimed = False
            messages.append(f"the objects cannot be reached, so old data stays on the disk and is not read: {error}")
        # Positions in objects must not be those of the log, which begin at 0.
        cache = Cache(path / _CACHE, files, first=1, patience=_READ_PATIENCE)
        try:
            moved = [load(path / MOVED, files, cache, bucket, one) for one in names.objects]
            recovered = Recovery(path / "wal", path / "ckpt", options, lock.cluster_id, moved).run()
        except BaseException:
            cache.close()
            raise
        objects = {rows.segment: one for rows, one in zip(moved, names.objects, strict=True)}
        there = _There(cache, bucket, names, objects, claimed)
        recovered.messages += messages
        return _Opened(**{**asdict(recovered), "there": there})

    def _make_gathers(self) -> Gathers:
        return Gathers(self.log, self._pool, self._hand_over, self._report, self._far)

    def _make_maintenance(self) -> Moving:
        there = self.there
        upkeep = OffloadMaintenance(self.log, self._background, self._submit, self._space_is, self.disk_failing)
        upkeep.offload = self.offload = Offload(
            self.log,
            there.cache,
            there.bucket,
            there.names,
            there.objects,
            there.claimed,
            partial(self._on_thread, self.moving_thread),
            upkeep.note,
            upkeep.list_settled,
            self._later,
            upkeep.start_chores,
        )
        return upkeep

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        self._require_loop().call_later(seconds, self._guarded, work)

    def close(self) -> None:
        if not self._closed:
            self.offload.close()
            self.there.cache.close()
            self.moving_thread.shutdown()  # its thread writes into the directory
            self._far.shutdown()
        super().close()

    @property
    def stats(self) -> StoreStats:
        stats = super().stats
        stats.moved_bytes = sum(segment.live for segment in self.log.elsewhere)
        stats.live_bytes += stats.moved_bytes
        return stats

    def count_memory(self, counted: Callable[[int], None]) -> None:
        def tell(change: int) -> None:
            with suppress(RuntimeError):  # the loop has ended before the last fetch
                self._require_loop().call_soon_threadsafe(counted, change)

        self.there.cache.counted = tell


class OffloadMaintenance(Maintenance):
    """Maintenance of segments whose old data is moved to objects."""

    offload: Offload

    def close(self) -> None:
        super().close()
        self.offload.close()

    def note(self, error: Exception) -> None:
        """Note a failure of work that is retried."""
        self._note(error)

    def list_settled(self) -> list[Segment]:
        """Return the segments that may be moved: a start needs only their rows, which are in their index files."""
        return self._list_settled()

    def start_chores(self) -> None:
        super().start_chores()
        self.offload.start_chores()

    def _evacuate(self) -> None:
        if not self.offload.moving:
            super()._evacuate()

    def _delete_dead(self) -> None:
        # Until an index names an object, a start would look for its entries in their old segment.
        if self.offload.named:
            super()._delete_dead()

    @staticmethod
    def _weight(segment: Segment) -> int:
        return segment.live  # the rest was moved elsewhere by now
