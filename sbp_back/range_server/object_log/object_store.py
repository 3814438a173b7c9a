"""The store of a range server whose log is in object storage: the same store, written by another writer, recovered from
objects, its segments a cache of them (docs/storage.md, "Objects").

The directory holds the lock and the cache, and may be lost with all that is in it.
"""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.structs import replace

from sbp_back.errors import StoreError, StoreVersionError
from sbp_back.files import ending, make_directories
from sbp_back.range_server.object_log.bucket import Bucket
from sbp_back.range_server.object_log.cache import Cache, source_of
from sbp_back.range_server.object_log.object_recovery import RecoveredObjects, recover
from sbp_back.range_server.object_log.object_writer import ObjectWriter
from sbp_back.range_server.store.lock import DirectoryLock
from sbp_back.range_server.store.log import Log
from sbp_back.range_server.store.maintenance import Upkeep
from sbp_back.range_server.store.options import OBJECTS, StoreOptions
from sbp_back.range_server.store.recovery import Recovered
from sbp_back.range_server.store.store import Store
from sbp_back.range_server.store.writing import Writing

_CLUSTER = "identity/cluster_id"
_SERVER = "identity/server_id"
_PLACEMENT_DRIVER = "identity/placement_driver"
_PATIENCE = 15.0
_NO_BOUND = 1 << 50
"""Free bytes, as a placement driver is told, which gives a server without room no ranges."""


class ObjectStore(Store):
    """See :class:`Store`, whose promises it keeps; a store that does not answer delays what is submitted."""

    def __init__(
        self, log: Log, lock: DirectoryLock, recovered: RecoveredObjects, bucket: Bucket, cache: Cache
    ) -> None:
        """Use :meth:`open`."""
        self._bucket = bucket
        self._cache = cache
        self._incarnation = recovered.incarnation
        super().__init__(log, lock, Recovered(recovered.state, recovered.segments))

    @classmethod
    def open(cls, path: Path, options: StoreOptions) -> ObjectStore:
        """As :meth:`Store.open`. Earlier incarnations are taken over, and can acknowledge nothing more."""
        try:
            options.validate()
        except ValueError as error:
            raise StoreError(str(error)) from None
        started = time.perf_counter()
        bucket = Bucket(options.objects)
        directory = path / OBJECTS
        make_directories(options.files, directory)
        if (path / "wal").is_dir() and ending(path / "wal", ".seg"):
            raise StoreVersionError(f"{path} holds a log on disk: objects need a directory of their own")
        try:
            known = bucket.read_once(_CLUSTER), bucket.read_once(_SERVER)
            placement_driver = bucket.read_once(_PLACEMENT_DRIVER)
            lock = DirectoryLock(path, directory, _identified(options, *known))
            try:
                cluster_id = bucket.write_once(_CLUSTER, lock.cluster_id.encode(), _PATIENCE).decode()
                if cluster_id != lock.cluster_id:
                    raise StoreVersionError(
                        f"{options.objects} belongs to cluster {cluster_id!r}, not to {lock.cluster_id!r}"
                    )
                if placement_driver is not None:
                    lock.belong(placement_driver.decode())
                cache = Cache(directory, options.files, bucket)
                recovered = recover(bucket, cache, options.segment_bytes)
                log = Log(path, options, recovered.state, recovered.segments)
                store = cls(log, lock, recovered, bucket, cache)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise StoreError(f"the objects cannot be reached: {error}") from error
        stats = log.stats
        stats.disk_free = _NO_BOUND
        stats.recovery_seconds = time.perf_counter() - started
        stats.recovery_scanned_bytes = recovered.scanned_bytes
        return store

    def _make_writer(self, recovered: Recovered) -> Writing:
        log = self._log
        ranges = list(log.state.ranges.values())
        return ObjectWriter(
            log.options,
            self._bucket,
            self._cache,
            self._incarnation,
            log.active,
            ranges,
            self._hand_over,
            self._writer_failed,
        )

    def _make_maintenance(self) -> Upkeep:
        return _CacheKeeper(self._log)

    def _start_writing(self) -> None:
        self._writer.start()

    def _end_writing(self) -> None:
        self._writer.close()
        self._cache.close()

    def _zeroed_bytes(self) -> int:
        return 0

    @property
    def incarnation(self) -> int:
        return self._incarnation

    def assign_server_id(self, server_id: int) -> None:
        self._write_down(_SERVER, str(server_id))
        super().assign_server_id(server_id)
        if self.placement_driver:
            self._write_down(_PLACEMENT_DRIVER, self.placement_driver)

    def assign_placement_driver(self, identity: str) -> None:
        super().assign_placement_driver(identity)
        if self.server_id >= 0:
            self._write_down(_PLACEMENT_DRIVER, identity)

    def _write_down(self, key: str, value: str) -> None:
        there = self._bucket.write_once(key, value.encode(), _PATIENCE).decode()
        if there != value:
            raise StoreVersionError(f"{self._bucket.url} has {there!r} as its {key}, not {value!r}")


def _identified(options: StoreOptions, cluster_id: bytes | None, server_id: bytes | None) -> StoreOptions:
    """What the objects say whose they are, unless the options say it already."""
    if options.cluster_id is None and cluster_id is not None:
        options = replace(options, cluster_id=cluster_id.decode())
    if options.server_id is None and server_id is not None:
        options = replace(options, server_id=int(server_id))
    return options


class _CacheKeeper:
    """Keeps the cache within its bound: what was read the longest ago goes first."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def close(self) -> None:
        """Nothing is under way."""

    def rolled(self) -> None:
        self.look()

    def tick(self) -> None:
        self.look()

    def look(self) -> None:
        log = self._log
        # Groups of the segment behind the active one may be written already.
        sealed = [segment for segment in log.segments[:-1] if not segment.pins]
        held = sum(source_of(segment).held for segment in log.segments)
        for segment in log.opened.oldest_first(sealed):
            if held <= log.options.object_cache_bytes:
                break
            held -= source_of(segment).held
            log.opened.close(segment)
            source_of(segment).drop()

    def save_everything(self) -> None:
        """All of it is in the objects."""
