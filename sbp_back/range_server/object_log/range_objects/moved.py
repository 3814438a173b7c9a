"""The disk's list of objects to which old data of its log was moved (docs/storage.md, "Old data in objects").

``moved/names`` names them all; it is replaced as a whole, and a part of the log. The same bytes are in the bucket, as
``disks/NAME/index/…``, before they are on the disk, so that a bucket lists its own content. The rows of an object are
``moved/NUMBER.idx`` on the disk, and ``rows/…`` in the bucket, both as an index file. Each start has a number, and puts
it into the bucket if absent. A start that finds the number taken shares the name with another server, or with a copy of
its directory.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from anabranch_kit.disk.files import Files, ending, write_file_durably
from anabranch_kit.errors import StoreCorrupt, StoreError
from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log.objects.bucket import PATIENCE, Bucket, again
from sbp_back.range_server.object_log.objects.cache import Cache
from sbp_back.range_server.object_log.objects.content import UNIQUE_BYTES
from sbp_back.range_server.object_log.objects.index_object import unpack_crcs
from sbp_back.range_server.object_log.objects.sealed import Sealed
from sbp_back.range_server.object_log.range_objects.range_object import RangeObject
from sbp_back.range_server.store.layout.idxfile import RunColumns, SegmentIndex, encode_index, load_index
from sbp_back.range_server.store.opening.recovery import MovedRows
from sbp_back.range_server.store.segment import Segment, segment_path

NAMES = "names"
_NOWHERE = 1 << 48
"""Lowest of the positions that no log on a disk has."""
_FETCHED_BY_A_START = "a start with sbp.objects fetches it from the bucket, if it is there"


class NotOursError(OSError):
    """Another server, or another copy of this directory, uses the name in the bucket."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(
            errno.EPERM,
            f"{bucket.url} has old data of another range server, or is used by a copy of this one's directory: what "
            "sbp.object_log names there must be this one's alone",
        )


class Moved(Struct, array_like=True):
    """An object of moved data: the checksums of its parts, the places of its rows in the bucket and here, the position
    of the log from which on readers find its entries there, and the position at which its range was created. ``cut``:
    where the log was cut, if that was before; positions from there on were assigned anew.
    """

    what: RangeObject
    crcs: bytes
    rows: str
    number: int
    lsn: int
    created: int
    cut: int | None = None

    @property
    def place(self) -> int:
        """Return its own position in the order of the log."""
        return self.lsn if self.cut is None else self.cut


class Names(Struct, array_like=True):
    """The list of moved objects. ``owner``: of the directory; ``start``, ``unique``: of the newest start. ``key``: of
    this index in the bucket, of number ``written``; empty: it was never put there.
    """

    owner: bytes
    start: int = 0
    unique: bytes = b""
    written: int = 0
    key: str = ""
    objects: list[Moved] = field(default_factory=list)

    @property
    def keys(self) -> set[str]:
        """Return the names of all needed objects in the bucket."""
        return {self.key, *(one.what.key for one in self.objects), *(one.rows for one in self.objects)}


SEALED_NAMES = Sealed(Names, "the list of objects")


def begin(directory: Path, files: Files, bucket: Bucket) -> Names:
    """Return the list of moved data, with the number of a new start, which it writes to the disk. Raises ``OSError``,
    ``StoreCorrupt``.
    """
    for path in ending(directory, ".tmp"):
        files.unlink(path)
    try:
        names = SEALED_NAMES.decode((directory / NAMES).read_bytes())
    except FileNotFoundError:
        names = Names(os.urandom(UNIQUE_BYTES))
    except DecodeError as error:
        names = _fetched(directory, bucket, error)
    names.start += 1
    names.unique = os.urandom(UNIQUE_BYTES)
    write_file_durably(files, directory / NAMES, [SEALED_NAMES.encode(names)])
    known = {f"{one.number:016x}" for one in names.objects}
    for path in ending(directory, ".idx"):
        if path.stem not in known:
            files.unlink(path)
    return names


def _fetched(directory: Path, bucket: Bucket, error: DecodeError) -> Names:
    """Return the newest list in the bucket, which is as new as the one on the disk or newer by one, with the number of
    the newest start.
    """
    try:
        names = SEALED_NAMES.decode(bucket.get_again(max(bucket.list_again("index/", PATIENCE)), PATIENCE))
        names.start = _newest_start(names, bucket)
        return names
    except (OSError, DecodeError, ValueError) as other:
        raise StoreCorrupt(f"{directory / NAMES}: {error}; and there is no other in {bucket.url}: {other}") from other


def _newest_start(names: Names, bucket: Bucket) -> int:
    starts = (int(key.rpartition("/")[2], 16) for key in bucket.list_again("starts/", PATIENCE))
    return max(names.start, *starts)


def go_back(directory: Path, files: Files, bucket: Bucket) -> None:
    """Let the next start be the newest one, though the directory is an older copy: what was moved since is lost.

    To be called where no store of the directory or of a copy is open. Raises ``StoreCorrupt``, ``OSError``.
    """
    names = _read(directory)
    if names is not None:
        names.start = _newest_start(names, bucket)
        write_file_durably(files, directory / NAMES, [SEALED_NAMES.encode(names)])


def claim(bucket: Bucket, names: Names, seconds: float) -> None:
    """Make this start the newest one. Raises ``NotOursError``, and ``OSError`` when there is no answer."""
    mine = names.owner + names.unique
    if bucket.write_once(_start(names.start), mine, seconds) != mine:
        raise NotOursError(bucket)
    check(bucket, names, seconds)


def check(bucket: Bucket, names: Names, seconds: float) -> None:
    """Check that this start is still the newest one. Raises as :func:`claim` does."""
    try:
        again(lambda: bucket.get(_start(names.start + 1)), seconds)
    except FileNotFoundError:
        return
    raise NotOursError(bucket)


def _start(number: int) -> str:
    return f"starts/{number:016x}"


def encode_rows(one: Moved, columns: list[RunColumns]) -> Buffer:
    (rows,) = encode_index(one.lsn, one.number, one.what.size, columns)
    return rows


def rows_path(directory: Path, one: Moved) -> Path:
    return directory / f"{one.number:016x}.idx"


def load(directory: Path, files: Files, cache: Cache, bucket: Bucket, one: Moved) -> MovedRows:
    """Return an object as a segment, and its rows: those in the bucket where those on the disk are damaged. Raises
    ``StoreError`` and ``OSError``.
    """
    path = rows_path(directory, one)
    try:
        rows = _checked(path, one)
    except (FileNotFoundError, DecodeError) as error:
        try:
            write_file_durably(files, path, [bucket.get_again(one.rows, PATIENCE)])
            rows = _checked(path, one)
        except (OSError, DecodeError) as other:
            text = f"where entries lie in {one.what.key} is not known here ({error}), nor in the bucket: {other}"
            raise StoreError(text) from other
    try:
        segment = cache.range_segment(one.what, bucket, bucket.url, unpack_crcs(one.crcs))
    except DecodeError as error:
        raise StoreCorrupt(f"{directory / NAMES}: {error}") from error
    segment.indexed = True
    return MovedRows(segment, rows, one.place, one.created)


def _read(directory: Path) -> Names | None:
    """Return the list of moved data from this disk alone; None: nothing was moved. Raises ``StoreCorrupt``,
    ``OSError``.
    """
    try:
        return SEALED_NAMES.decode((directory / NAMES).read_bytes())
    except FileNotFoundError:
        return None
    except DecodeError as error:
        raise StoreCorrupt(f"{directory / NAMES}: {error}; {_FETCHED_BY_A_START}") from error


def moved_rows(directory: Path) -> list[MovedRows]:
    """Return the rows of moved data from the disk alone, for callers that read none of the objects. Raises
    ``StoreCorrupt``, ``OSError``.
    """
    found = []
    at = _NOWHERE
    names = _read(directory)
    for one in [] if names is None else names.objects:
        segment = Segment(at, one.what.size, 0, segment_path(directory, at))
        at = segment.end
        segment.used, segment.sealed, segment.indexed = one.what.size, True, True
        try:
            found.append(MovedRows(segment, _checked(rows_path(directory, one), one), one.place, one.created))
        except (FileNotFoundError, DecodeError) as error:
            text = f"where entries lie in {one.what.key} is not known here ({error}); {_FETCHED_BY_A_START}"
            raise StoreCorrupt(text) from error
    return found


def moved_before(directory: Path, files: Files, end: int) -> None:
    """Drop the objects that were moved after position ``end``, where the log ends now; the next start tells the bucket.
    Raises ``StoreCorrupt``, ``OSError``.
    """
    names = _read(directory)
    if names is None or all(one.place <= end for one in names.objects):
        return
    objects = [replace(one, cut=end) if one.place > end else one for one in names.objects]
    # The bucket has no copy of this list: the next start sees that by listing, and puts one.
    write_file_durably(files, directory / NAMES, [SEALED_NAMES.encode(replace(names, key="", objects=objects))])


def _checked(path: Path, one: Moved) -> SegmentIndex:
    rows = load_index(path)
    if (rows.base, rows.salt) != (one.lsn, one.number):
        raise DecodeError(f"{path.name} is of another object")
    return rows
