"""The upgrade of a single node to a node of a cluster: its metadata goes into PostgreSQL, its data into objects.

The upgrade changes nothing of the node until everything is copied and compared. Then, one after the other: the node's
directory names the cluster, so that nobody serves it alone any more; the metadata gets its final schema names in the
database, and is valid; the bucket records that this has happened; and the single node's files are moved aside in its
directory. If the process dies anywhere, the next run finds out how far it came, and goes on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from anabranch_kit.disk.files import Files, write_file_durably
from anabranch_kit.errors import StoreError
from anabranch_kit.sql.copying import TablesDiffer
from anabranch_kit.sql.engine import SqlFailed
from bridges.node.settings.config import Settings
from bridges.node.settings.sections import SettingsError
from bridges.node.storage import backend, databases
from bridges.node.storage.data_dir import DataDirectory
from sbp_back.placement_driver.pd_service import STATE_FILE, hold_state
from sbp_back.range_server.object_log.objects.bucket import PATIENCE, Bucket
from sbp_back.range_server.range_server_service import open_store
from sbp_back.range_server.store.options import StoreOptions
from sbp_back.range_server.store.store import Store
from sbp_back.range_server.store.upkeep.copying import CopyFailed, Held, StoreCopy, read_range
from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.jobs.upgrade import metadata as upgrade_metadata
from spark_pipeline.jobs.upgrade.metadata import Metadata

ASIDE = "single-node"
"""Subdirectory of the data directory for the single node's former files."""
_WORK = "upgrade"
"""Subdirectory of the data directory for a cache of the objects during the upgrade."""
_ENDED = "upgrade/ended"
"""Object in the bucket that marks a completed upgrade."""
_BLOCK = 65_536
"""Offsets per block whose entries are compared together."""
_PASSES = 2
"""Most passes of copying: the second copies streams anew that have changed since an earlier run."""


class UpgradeFailed(PipelineError):
    """The upgrade was not made; the text says why."""


class Upgrade:
    """The upgrade of one node. ``settings`` are those that it will have in the cluster.

    ``told`` is called with the current step, the bytes done, and their total.
    """

    def __init__(self, settings: Settings, throttle: Throttle, told: Callable[[str, int, int], object]) -> None:
        self._settings = settings
        self._throttle = throttle
        self._told = told
        self._done = self._total = 0
        self._step = ""

    async def run(self) -> dict[str, Any]:
        """Upgrade, or finish an earlier upgrade; return a report. Raises SettingsError, UpgradeFailed and OSError."""
        _check(self._settings)
        data = self._settings.data_dir
        if not await asyncio.to_thread(data.is_dir):
            raise UpgradeFailed(f"there is no directory {data}")
        try:
            async with AsyncExitStack() as stack:
                directory = await asyncio.to_thread(DataDirectory, data)
                stack.callback(directory.release)
                return await self._run(stack, directory)
        except (StoreError, SqlFailed, TablesDiffer, CopyFailed) as error:
            raise UpgradeFailed(str(error)) from error

    async def _run(self, stack: AsyncExitStack, directory: DataDirectory) -> dict[str, Any]:
        self._begin("looking at what is there")
        marked = await asyncio.to_thread(databases.told_by, directory.cluster)
        if marked and (directory.path / ASIDE / directory.backend.name).is_dir():
            # All earlier steps are done. Without node.db this one is done, too: the other files are the cluster node's.
            if directory.database.exists():
                await asyncio.to_thread(self._set_aside, directory)
            return {"cluster_id": marked, "finished": True}
        if not directory.database.exists():
            raise UpgradeFailed(f"{directory.path} has no node.db: it is not the directory of a node by itself")
        if not (directory.backend / "wal").is_dir():
            raise UpgradeFailed(f"{directory.backend} has no log on disk (wal), which is what goes into objects")
        state = directory.backend / STATE_FILE
        if not state.exists():
            raise UpgradeFailed(f"{state} is missing: the node's streams are not its own")
        lock = await asyncio.to_thread(hold_state, directory.backend)
        stack.callback(lock.release)
        with upgrade_metadata.opened(self._settings, directory, state) as metadata:
            if marked not in ("", metadata.cluster_id):
                raise UpgradeFailed(f"{directory.path} says that it is of cluster {marked}, and is not")
            if await self._is_switched(metadata, marked):
                report: dict[str, Any] = {"cluster_id": metadata.cluster_id}
            else:
                report = await self._copy(directory, metadata)
                self._begin("naming the cluster")
                name = f"{metadata.cluster_id}\n".encode()
                await asyncio.to_thread(write_file_durably, Files(), directory.cluster, [name])
                self._begin("switching")
                await asyncio.to_thread(upgrade_metadata.switch, self._settings, metadata.cluster_id)
        self._begin("setting aside")
        root = Bucket(self._settings.sbp.objects)
        await asyncio.to_thread(root.write_once, _ENDED, metadata.cluster_id.encode(), PATIENCE)
        await asyncio.to_thread(self._set_aside, directory)
        self._begin("done")
        return {**report, "finished": True}

    async def _is_switched(self, metadata: Metadata, marked: str) -> bool:
        """Return whether an earlier run came so far that the metadata in the database is valid.

        Raises UpgradeFailed if the database or the bucket belongs to another cluster.
        """
        settings = self._settings
        there = await asyncio.to_thread(upgrade_metadata.cluster_there, settings)
        if there is not None:
            if there == metadata.cluster_id == marked:
                return True
            whose = f"cluster {there}" if there else "a cluster"
            raise UpgradeFailed(f"cluster.database has the metadata of {whose} already: give it an empty database")
        root = Bucket(settings.sbp.objects)
        ended = await asyncio.to_thread(root.read_once, _ENDED)
        if ended is not None:
            raise UpgradeFailed(
                f"{settings.sbp.objects} has the data of cluster {ended.decode()}, which is complete, and its metadata "
                "is not in cluster.database: give the upgrade an empty bucket or prefix, or the cluster's database"
            )
        return False

    # --- data

    async def _copy(self, directory: DataDirectory, metadata: Metadata) -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            sources = []
            for path in [directory.backend, *sorted(directory.path.glob("sbp-*/"))]:
                source = await open_store(path, StoreOptions(evacuate_below=0.0))
                stack.callback(source.close)
                if source.placement_driver not in ("", metadata.placement_driver):
                    raise UpgradeFailed(f"{path} belongs to placement driver {source.placement_driver}")
                if source.server_id >= 0:
                    sources.append(source)
            if not sources:
                raise UpgradeFailed(f"{directory.backend} has never been served: there is nothing to be taken along")
            work = directory.path / _WORK
            report = await self._copy_data(sources, metadata, work)
            self._begin("copying metadata")
            servers = [source.server_id for source in sources]

            def tell(table: str) -> None:
                self._told(f"copying metadata, table {table}", 0, 0)

            found = await asyncio.to_thread(upgrade_metadata.make, self._settings, metadata, servers, tell)
            await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        tables = {name: digest.rows for name, digest in found.items() if digest.rows}
        return {"cluster_id": metadata.cluster_id, **report, "rows": tables}

    async def _copy_data(self, sources: Sequence[Store], metadata: Metadata, work: Path) -> dict[str, Any]:
        copied = 0

        def moved(size: int) -> None:
            nonlocal copied
            copied += size
            self._progress(size)

        wrong: dict[int, str] = {}
        for _ in range(_PASSES):
            async with AsyncExitStack() as stack:
                target = await self._target(stack, sources, metadata, work)
                copy = StoreCopy(sources, target, self._pace, moved)
                copy.check()
                for stream_id in wrong:
                    await copy.forget(stream_id)
                self._begin("copying data", copy.bytes)
                try:
                    await copy.run()
                except CopyFailed as error:
                    raise self._name_failure(metadata, error) from error
            async with AsyncExitStack() as stack:
                # With an empty cache, so that the objects in the bucket are compared.
                target = await self._target(stack, sources, metadata, work)
                copy = StoreCopy(sources, target, self._pace, moved)
                self._begin("comparing", copy.bytes)
                wrong, entries = await self._compare(copy, target, metadata)
            if not wrong:
                ranges = copy.ranges
                streams = len({key[0] for key in ranges})
                found = {"streams": streams, "ranges": len(ranges), "entries": entries, "bytes": copy.bytes}
                return {**found, "copied_bytes": copied}
        stream_id, why = min(wrong.items())
        name = upgrade_metadata.partition_of(metadata, stream_id)
        raise UpgradeFailed(f"the copy of {name} is not what was copied: {why}")

    async def _target(self, stack: AsyncExitStack, sources: Sequence[Store], metadata: Metadata, work: Path) -> Store:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        options = backend.store_options(self._settings.sbp)
        target = await open_store(work, replace(options, cluster_id=sources[0].cluster_id, retention_bytes=None))
        stack.callback(target.close)
        await asyncio.to_thread(target.assign_placement_driver, metadata.placement_driver)
        await asyncio.to_thread(target.assign_server_id, sources[0].server_id)
        return target

    async def _pace(self, size: int) -> None:
        await asyncio.to_thread(self._throttle.take, size)

    async def _compare(self, copy: StoreCopy, target: Store, metadata: Metadata) -> tuple[dict[int, str], int]:
        """Return what is wrong, by stream of the copy, and the number of compared entries."""
        wrong = dict.fromkeys(copy.strangers(), "the source has none")
        entries = 0
        for key, held in copy.ranges.items():
            if key[0] in wrong:
                continue
            if why := copy.differs(held):
                wrong[key[0]] = f"range {key[1]} {why}"
                continue
            if key not in target.ranges:
                continue
            try:
                here = await self._digests(held)
            except CopyFailed as error:
                raise self._name_failure(metadata, error) from error
            try:
                there = await self._digests(Held(target, target.ranges[key]), told=False)
            except CopyFailed as error:
                wrong[key[0]] = str(error)
                continue
            entries += sum(count for count, _ in here.values())
            for start in sorted(start for start in here.keys() | there.keys() if here.get(start) != there.get(start)):
                wrong[key[0]] = f"range {key[1]} differs in its entries from offset {start} on"
                break
        return wrong, entries

    async def _digests(self, held: Held, *, told: bool = True) -> dict[int, tuple[int, bytes]]:
        """Return the number of entries and their digest for each block, by the block's first offset."""
        counts: Counter[int] = Counter()
        hashes: defaultdict[int, blake2b] = defaultdict(partial(blake2b, digest_size=16))
        async for entries in read_range(held):
            for entry in entries:
                block = entry.base_offset // _BLOCK * _BLOCK
                counts[block] += 1
                hashes[block].update(entry.prefix)  # contains the length of the payload
                hashes[block].update(entry.payload)
            if told:
                self._progress(sum(entry.size for entry in entries))
        return {block: (count, hashes[block].digest()) for block, count in counts.items()}

    @staticmethod
    def _name_failure(metadata: Metadata, error: CopyFailed) -> UpgradeFailed:
        if error.stream_id < 0:
            return UpgradeFailed(str(error))
        return UpgradeFailed(f"{upgrade_metadata.partition_of(metadata, error.stream_id)}: {error}")

    # --- the end

    @staticmethod
    def _set_aside(directory: DataDirectory) -> None:
        """Move the single node's files aside; ``node.db``, which marks a single node's directory, goes last."""
        aside = directory.path / ASIDE
        aside.mkdir(exist_ok=True)
        stores = sorted(path.name for path in directory.path.glob("sbp-*/"))
        marks = sorted(path.name for path in directory.path.glob(f"{directory.mark.name}*"))
        others = (f"{directory.database.name}{suffix}" for suffix in ("-wal", "-shm", "-reserve", "-opening"))
        for names in ((directory.backend.name, *stores, *marks, *others), (directory.database.name,)):
            for name in names:
                if (directory.path / name).exists():
                    (directory.path / name).rename(aside / name)
            for path in (aside, directory.path):
                Files().sync_directory(path)

    # --- progress

    def _begin(self, step: str, total: int = 0) -> None:
        self._step, self._done, self._total = step, 0, total
        self._told(step, 0, total)

    def _progress(self, size: int) -> None:
        self._done += size
        self._told(self._step, self._done, self._total)


def _check(settings: Settings) -> None:
    """Raise SettingsError unless the settings are those of a cluster's node that can take the data over."""
    if not settings.cluster.database:
        raise SettingsError("cluster.database is not set: the PostgreSQL that the metadata is to go to")
    if settings.sbp.mode != "embedded" or settings.sbp.durability != "object" or not settings.sbp.objects:
        raise SettingsError("the data is to go into objects: set sbp.durability=object and sbp.objects")
