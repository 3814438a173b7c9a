"""Backup and restore of a single node's data directory (``anabranch backup``, ``anabranch restore``).

The node may serve meanwhile. Its databases decide what its logs mean, so both must be of one moment: the databases are
locked for writing while the logs are copied to their ends, which were nearly copied before. That moment is what
``kill -9`` would have left, and a restored node starts from it as after a crash.

Clients may know numbers that the original gave out later: a restored node skips more than it can have given.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from anabranch_kit.disk.files import Files, make_directories, write_file_durably
from anabranch_kit.errors import StoreCorrupt, StoreError
from anabranch_kit.sql.sqlite import SqliteEngine
from bridges.catalog.database.schema import APPLICATION_ID, HAS_CHECKSUMS, MIGRATIONS
from bridges.catalog.database.sql import Database
from bridges.cluster.marks import Marks
from bridges.node.storage.data_dir import BACKUP, DATABASE, RESTORED, DataDirectory, Restored
from bridges.node.storage.going_back import STREAMS_AHEAD
from bridges.version import version_line
from sbp_back.placement_driver.pd_service import STATE_FILE
from sbp_back.placement_driver.state import in_sqlite, skip_numbers
from sbp_back.range_server.store.options import MOVED
from sbp_back.range_server.store.upkeep.backup import FileSum, LogBackup, copy_file

_EPOCHS_AHEAD = 1_000_000
"""Epochs to skip: each start of a node takes one, and each log that is opened again."""
_NEARLY_BYTES = 32 * 1024 * 1024
"""What may be left of the logs when the databases are locked."""
_PASSES = 20
_LOCKED_S = 2.0
"""Longest time for which the databases are locked. A node's commits wait for 5 s before they fail."""
_TRIES = 5
_FILES = Files()


class Manifest(msgspec.Struct, omit_defaults=True):
    """The file ``backup.json``. ``taken``: when, in UTC; empty while the backup is being made. ``files``: by path."""

    taken: str = ""
    by: str = ""
    files: dict[str, FileSum] = {}


class _Slow(Exception):
    """A database was busy, or the rest of the logs was not copied in the time for which databases may be locked."""


def back_up(data: Path, target: Path) -> Manifest:
    """Copy the data directory ``data``, whose node may serve, into ``target``. Raises StoreError, OSError,
    sqlite3.Error.
    """
    stores = _find_stores(data)
    _begin(target)
    logs = {store: LogBackup(data / store, target / store) for store in stores}
    databases = [DATABASE, *(f"{store}/{STATE_FILE}" for store in stores if (data / store / STATE_FILE).exists())]
    with ExitStack() as stack:
        snapshots = _copy_logs(data, databases, [*logs.values()], stack)
        taken = datetime.now(UTC).isoformat(timespec="seconds")
        for name, snapshot in snapshots.items():
            with closing(sqlite3.connect(target / name)) as copy:
                snapshot.backup(copy)
    files = {f"{store}/{name}": have for store, log in logs.items() for name, have in log.copied.items()}
    for name in databases:
        copy_file(target / name, Path(os.devnull), files.setdefault(name, FileSum()))
    for name in _find_small_files(data, stores):
        copy_file(data / name, target / name, files.setdefault(name, FileSum()))
        shutil.copymode(data / name, target / name)  # keys of tokens are for their owner alone
    _flush(target, files)
    manifest = Manifest(taken, version_line(), files)
    write_file_durably(_FILES, target / BACKUP, [msgspec.json.encode(manifest)])
    return manifest


def restore(source: Path, data: Path) -> Manifest:
    """Make the empty directory ``data`` a data directory with the content of a backup. Raises StoreError, OSError, and
    errors of the database.
    """
    try:
        manifest = msgspec.json.decode((source / BACKUP).read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise StoreError(f"{source} is no backup: it has no {BACKUP}") from None
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{source / BACKUP} is damaged: {error}") from error
    if not manifest.taken:
        raise StoreError(f"the backup {source} was not finished: take another one, or restore an earlier one")
    _begin(data)
    for name, written in manifest.files.items():
        make_directories(_FILES, (data / name).parent)
        found = FileSum()
        copy_file(source / name, data / name, found)
        shutil.copymode(source / name, data / name)
        if found != written:
            raise StoreCorrupt(f"{source / name} is not what was written there: restore another backup")
    _flush(data, manifest.files)
    asyncio.run(_skip_given_numbers(data))
    restored = Restored(manifest.taken, datetime.now(UTC).isoformat(timespec="seconds"))
    write_file_durably(_FILES, data / RESTORED, [msgspec.json.encode(restored)])
    _FILES.unlink(data / BACKUP)
    _FILES.sync_directory(data)
    return manifest


def _find_stores(data: Path) -> list[str]:
    """Return the names of the stores below ``data``. Raises StoreError if they are not all of a node's data."""
    if (data / "cluster").exists():
        raise StoreError(f"{data} is of a node of a cluster: back up its database and its bucket (docs/operations.md)")
    if not (data / DATABASE).exists():
        raise StoreError(f"{data} is no data directory of a node: it has no {DATABASE}")
    stores = sorted(path.parent.name for path in data.glob("sbp*/wal"))
    if (data / "mark").exists() or any((data / store / MOVED).exists() for store in stores):
        raise StoreError(f"the data of {data} is in a bucket too: stop the node, and copy both (docs/operations.md)")
    if not stores:
        raise StoreError(f"{data} has no log: it is on other servers, which are to be stopped and copied with {data}")
    return stores


def _find_small_files(data: Path, stores: Sequence[str]) -> Iterator[str]:
    """Yield the paths of users, keys, identities and the like."""
    for path in data.iterdir():
        if path.is_file() and not path.name.startswith((".", DATABASE, "lock")) and path.suffix != ".lock":
            yield path.name
    for store in stores:
        for path in (data / store).iterdir():
            if path.is_file() and not path.name.startswith("pd."):
                yield f"{store}/{path.name}"


def _begin(target: Path) -> None:
    """Make ``target``, which must be empty, and mark it as unfinished: no node serves it from here on."""
    make_directories(_FILES, target)
    if any(target.iterdir()):
        raise StoreError(f"{target} is not empty: give an empty directory, or one that does not exist")
    write_file_durably(_FILES, target / BACKUP, [msgspec.json.encode(Manifest())])


def _copy_logs(
    data: Path, databases: Sequence[str], logs: Sequence[LogBackup], stack: ExitStack
) -> Mapping[str, sqlite3.Connection]:
    """Copy the logs up to a moment; return snapshots of the databases at that moment, which ``stack`` closes."""
    for _ in range(_TRIES):
        for _ in range(_PASSES):
            if sum(log.catch_up() for log in logs) <= _NEARLY_BYTES:
                break
        with suppress(_Slow), ExitStack() as locks:
            check = partial(_check_time, time.monotonic() + _LOCKED_S)
            for name in databases:
                locks.enter_context(_locked(data / name))
            snapshots = {name: stack.enter_context(closing(_open_snapshot(data / name))) for name in databases}
            for log in logs:
                log.catch_up(check)
            return snapshots
        stack.close()
    raise StoreError(f"{data} is written faster than it is copied: take the backup at a time with fewer writes")


def _check_time(until: float) -> None:
    if time.monotonic() > until:
        raise _Slow


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep others from committing to a database while entered."""
    with closing(sqlite3.connect(path, timeout=_LOCKED_S, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise _Slow from error
        yield
        connection.execute("ROLLBACK")


def _open_snapshot(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the first read decides what is seen
    return connection


def _flush(directory: Path, names: Mapping[str, FileSum]) -> None:
    for path in {directory / name for name in names}:
        fd = _FILES.open(path, os.O_RDONLY)
        try:
            _FILES.sync(fd)
        finally:
            _FILES.close(fd)
    for parent in {(directory / name).parent for name in names}:
        _FILES.sync_directory(parent)


async def _skip_given_numbers(data: Path) -> None:
    """Skip the epochs, and the ids of producers and streams, that may have been given out after the backup."""
    directory = DataDirectory(data)
    database = Database(
        SqliteEngine(data / DATABASE, MIGRATIONS, application_id=APPLICATION_ID, unwatched=HAS_CHECKSUMS)
    )
    try:
        await database.open()
        try:
            await database.run(lambda connection: Marks(directory.mark, None, "").accept(connection, _EPOCHS_AHEAD))
        finally:
            await database.close()
        driver = Database(in_sqlite(directory.backend / STATE_FILE))
        await driver.open()
        try:
            await driver.run(lambda connection: skip_numbers(connection, STREAMS_AHEAD))
        finally:
            await driver.close()
    finally:
        directory.release()
