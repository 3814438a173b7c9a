"""The store of a range server whose log is in object storage: the same store with another writer, recovered from
objects, with segments that only cache them (docs/storage.md, "Objects").

The directory holds the lock and the cache, and may be lost with all that is in it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from anabranch_kit.disk.files import ending, make_directories
from anabranch_kit.errors import StoreError, StoreVersionError
from anabranch_kit.run.awaited import Settle, awaited
from sbp_back.range_server.object_log.object_recovery import LogReader, ReadLog, end_ranges
from sbp_back.range_server.object_log.object_upkeep import ObjectUpkeep
from sbp_back.range_server.object_log.object_writer import ObjectWriter
from sbp_back.range_server.object_log.objects.bucket import Bucket
from sbp_back.range_server.object_log.objects.cache import Cache, range_object, source_of
from sbp_back.range_server.object_log.ownership.logs import SERVER_ID, AdoptedElsewhereError, Logs
from sbp_back.range_server.object_log.range_objects.range_object import RangeObject
from sbp_back.range_server.store.index import StoredRange
from sbp_back.range_server.store.layout.lock import DirectoryLock
from sbp_back.range_server.store.log import Log
from sbp_back.range_server.store.opening.recovery import Recovered
from sbp_back.range_server.store.options import OBJECTS, StoreOptions
from sbp_back.range_server.store.segment import Segment
from sbp_back.range_server.store.store import Store
from sbp_back.range_server.store.upkeep.moving import Moving
from sbp_back.range_server.store.writing.interface import Writing
from sbp_back.range_server.store.writing.wal_items import Adopt, Control, Done
from sbp_back.wire.model import ObjectInfo, ObjectMetadata

logger = logging.getLogger(__name__)

_CLUSTER = "identity/cluster_id"
_PLACEMENT_DRIVER = "identity/placement_driver"
_PATIENCE = 15.0
_RUNS_LOOKED_AT = 1000
_NO_BOUND = 1 << 50
"""Free bytes reported to a placement driver, which gives a server without room no ranges."""


class ObjectStore(Store):
    """A store with its log in objects; it keeps the promises of :class:`Store`. While the object store does not answer,
    submissions are delayed.
    """

    def __init__(self, log: Log, lock: DirectoryLock, opened: _Opened) -> None:
        """Use :meth:`open` instead."""
        self.opened = opened
        self._incarnation = opened.incarnation
        self._bucket = opened.logs.log(opened.own.name)
        self._adopting = asyncio.Lock()
        super().__init__(log, lock, Recovered(opened.own.state, opened.segments))

    @classmethod
    def open(cls, path: Path, options: StoreOptions) -> ObjectStore:
        """Open the store as :meth:`Store.open` does. Earlier incarnations are taken over, and can acknowledge nothing
        more.
        """
        try:
            options.validate()
        except ValueError as error:
            raise StoreError(str(error)) from None
        started = time.perf_counter()
        logs = Logs(Bucket(options.objects))
        directory = path / OBJECTS
        make_directories(options.files, directory)
        if (path / "wal").is_dir() and ending(path / "wal", ".seg"):
            raise StoreVersionError(f"{path} holds a log on disk: objects need a directory of their own")
        try:
            cluster_id = logs.root.read_once(_CLUSTER)
            if options.cluster_id is None and cluster_id is not None:
                options = replace(options, cluster_id=cluster_id.decode())

            def name_cluster() -> str:
                # Range servers that start together in an empty bucket are of one cluster: the first one names it.
                return logs.root.write_once(_CLUSTER, str(uuid.uuid4()).encode(), _PATIENCE).decode()

            lock = DirectoryLock(path, directory, options, name_cluster)
            try:
                opened = _open(logs, lock, options, Cache(directory, options.files))
                log = Log(path, options, opened.own.state, opened.segments)
                store = cls(log, lock, opened)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise StoreError(f"the objects cannot be reached: {error}") from error
        stats = log.stats
        stats.disk_free = _NO_BOUND
        stats.recovery_seconds = time.perf_counter() - started
        stats.recovery_scanned_bytes = opened.own.scanned_bytes
        stats.objects = logs.root.requests
        return store

    def _make_writer(self, recovered: Recovered) -> Writing:
        log = self.log
        ranges = list(log.state.ranges.values())
        self._objects = ObjectWriter(
            log.options,
            self._bucket,
            self.opened.cache,
            self._incarnation,
            self.opened.own.name,
            self.opened.own.space,
            log.active,
            ranges,
            self._hand_over,
            self._writer_failed,
        )
        return self._objects

    def is_fenced(self) -> bool:
        return self._objects.is_fenced()

    def _make_maintenance(self) -> Moving:
        opened = self.opened
        self._upkeep = ObjectUpkeep(
            self.log,
            opened.logs,
            opened.cache,
            opened.own,
            self._incarnation,
            self._background,
            self._submit,
            self.disk_failing,
        )
        return self._upkeep

    def _start_writing(self) -> None:
        self.writer.start()

    def _end_writing(self) -> None:
        self.writer.close()
        self.opened.reader.close()
        self.opened.cache.close()

    def _zeroed_bytes(self) -> int:
        return 0

    @property
    def incarnation(self) -> int:
        return self._incarnation

    def assign_server_id(self, server_id: int) -> None:
        # Write the way from the number to the log first: a number without a log counts as unused.
        _write_down(self.opened.logs.root, f"servers/{server_id}", self.opened.own.name)
        _write_down(self._bucket, SERVER_ID, str(server_id))
        super().assign_server_id(server_id)
        if self.placement_driver:
            _write_down(self.opened.logs.root, _PLACEMENT_DRIVER, self.placement_driver)

    def assign_placement_driver(self, identity: str) -> None:
        super().assign_placement_driver(identity)
        if self.server_id >= 0:
            _write_down(self.opened.logs.root, _PLACEMENT_DRIVER, identity)

    def count_memory(self, counted: Callable[[int], None]) -> None:
        def tell(change: int) -> None:
            with suppress(RuntimeError):  # the loop has ended before the last fetch
                self._require_loop().call_soon_threadsafe(counted, change)

        self.opened.cache.counted = tell

    # --- objects of ranges

    def range_objects(self, stream_id: int, index: int, first: int, end: int, most: int) -> list[ObjectMetadata]:
        stored = self.log.state.ranges.get((stream_id, index))
        place = None if stored is None else stored.find(first)
        found: dict[RangeObject, ObjectMetadata] = {}
        if stored is None or place is None:
            return []
        for run in stored.runs[place[0] : place[0] + _RUNS_LOOKED_AT]:
            what = range_object(run.segment)
            if run.first >= end or len(found) == most:
                break
            if what is not None and run.segment.indexed and what.end <= end and what.is_plain:
                key = f"logs/{source_of(run.segment).log}/{what.key}"
                found[what] = ObjectMetadata(key, what.first, what.end - what.first, what.size, what.sparse)
        return list(found.values())

    def untold_objects(self, most: int) -> list[ObjectInfo]:
        untold = self._upkeep.untold
        found: list[ObjectInfo] = []
        while untold and len(found) < most:
            segment = untold.popleft()
            what = range_object(segment)
            if what is not None and what.is_plain:
                epoch = next((run.owner.epoch for run in segment.runs), -1)
                place = what.stream_id, what.index, epoch, what.first, what.end - what.first
                found += [ObjectInfo(*place, what.size, what.sparse)] if segment.runs else []
        return found

    # --- others' logs

    @property
    def adopted(self) -> list[int]:
        return list(self.opened.own.adopted)

    async def adopt(self, server_id: int) -> list[StoredRange]:
        async with self._adopting:  # one at a time: adoptions take much memory, and are rare
            taken: list[StoredRange] = []
            wanted = [server_id]
            while wanted:
                try:
                    await self._adopt(wanted[-1], taken)
                    wanted.pop()
                except AdoptedElsewhereError as error:
                    if not error.closed:
                        raise
                    wanted.append(error.server_id)
                except OSError as error:
                    raise StoreError(f"the log of range server {server_id} cannot be taken over: {error}") from error
            return taken

    async def _adopt(self, server_id: int, taken: list[StoredRange]) -> None:
        if server_id in self.opened.own.adopted:
            return
        closed_at, other = await asyncio.to_thread(self._take_over, server_id)
        before = len(taken)

        def submit(settle: Settle[None]) -> None:
            self._submit(_Adoption(server_id, closed_at, other, taken, settle))

        await awaited(submit)
        logger.info("%d ranges of range server %d are served here from now on", len(taken) - before, server_id)

    def _take_over(self, server_id: int) -> tuple[int, ReadLog]:
        """End a log for good, and read it. Runs on a thread."""
        opened = self.opened
        name = opened.logs.of_server(server_id)
        if name is None:
            raise StoreError(f"range server {server_id} has no log in {opened.logs.root.url}")
        if name == opened.own.name:
            raise StoreError(f"range server {server_id} is this one")

        def has(other: str, upto: int) -> bool:
            return server_id in opened.reader.adopted_in(other, upto)

        closed_at = opened.logs.close(name, opened.own.name, has)
        other = opened.reader.read(name, closed_at)
        opened.reader.finish(other)
        end_ranges(other.state)
        return closed_at, other

    def _apply_control(self, item: Control) -> None:
        if not isinstance(item, _Adoption):
            super()._apply_control(item)
            return
        item.taken += self.opened.own.adopt(item.stream_id, item.other)
        self.log.segments[-1:-1] = [*item.other.segments, *item.other.besides]


class _Adoption(Adopt):
    """The adoption of a log as a control item. ``taken``: the ranges that the store gets by it, once applied."""

    __slots__ = ("other", "taken")

    def __init__(self, server_id: int, closed_at: int, other: ReadLog, taken: list[StoredRange], done: Done) -> None:
        super().__init__(server_id, closed_at, list(other.state.ranges.values()), done)
        self.other = other
        self.taken = taken


class _Opened(Struct):
    """Parts of an open store of objects beyond those of every store. ``segments``: all of them, the last empty."""

    logs: Logs
    cache: Cache
    reader: LogReader
    own: ReadLog
    incarnation: int
    segments: list[Segment]


def _open(logs: Logs, lock: DirectoryLock, options: StoreOptions, cache: Cache) -> _Opened:
    cluster_id = logs.root.write_once(_CLUSTER, lock.cluster_id.encode(), _PATIENCE).decode()
    if cluster_id != lock.cluster_id:
        raise StoreVersionError(f"{options.objects} belongs to cluster {cluster_id!r}, not to {lock.cluster_id!r}")
    name, incarnation = logs.open(options.object_log)
    server_id = logs.server_of(name)
    if options.server_id not in (None, -1, server_id) and server_id >= 0:
        raise StoreVersionError(f"log {name} belongs to range server {server_id}, not to {options.server_id}")
    # The directory may be that of an earlier log, which another server has adopted.
    lock.follow(server_id)
    placement_driver = logs.root.read_once(_PLACEMENT_DRIVER)
    if placement_driver is not None:
        lock.belong(placement_driver.decode())
    reader = LogReader(logs, cache)
    try:
        own = reader.read(name, incarnation)
        base = own.segments[-1].end if own.segments else own.space
        active = cache.segment(base, options.segment_bytes, logs.log(name), name, own.space)
    except BaseException:
        reader.close()
        cache.close()
        raise
    return _Opened(logs, cache, reader, own, incarnation, [*own.besides, *own.segments, active])


def _write_down(bucket: Bucket, key: str, value: str) -> None:
    there = bucket.write_once(key, value.encode(), _PATIENCE).decode()
    if there != value:
        raise StoreVersionError(f"{bucket.url} has {there!r} as its {key}, not {value!r}")
