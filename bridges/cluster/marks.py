"""Marks of the database's progress, kept outside of the database: in the bucket, and in the directory of each node.

They reveal a database or a bucket that has gone back to an older state (a lagging standby, an old backup).

A *mark* is read from the database, then put into the bucket as ``marks/CLUSTER/START-BEATS-VERSION-STARTS-EPOCH``, then
written into the directory. So at every moment the database is not behind the bucket, nor the bucket behind a directory:

| found | then |
|---|---|
| the database is behind a mark of the bucket or the directory | the database has gone back |
| the bucket has neither the directory's mark nor a later one | the bucket has gone back |

Marks are not on the path of an append. A node writes a mark when it enters; before it acts on a look (so no range is
created in an epoch that the bucket does not know); every :data:`EVERY_S` in between, because its heartbeats reveal a
smaller step back; and when it ends. If the bucket accepts no mark, a node goes on: such a bucket accepts no range
either. So one loss goes unnoticed: less than :data:`EVERY_S` in which no member, slot or epoch has changed, and after
which none of the earlier nodes is alive.

A single node has no members and no looks. It raises a counter of its database before each mark, which it writes at its
start, every :data:`EVERY_S`, and at its end (:class:`bridges.node.floors.by_itself.ByItself`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from anabranch_kit.disk.files import Files, write_file_durably
from anabranch_kit.errors import StoreError
from bridges.catalog.database.counters import advance
from bridges.catalog.database.sql import Connection, Database

if TYPE_CHECKING:
    from sbp_back.range_server.object_log.objects.bucket import Bucket

EVERY_S = 30.0
PATIENCE_S = 5.0
_AHEAD = 1000
"""Numbers of each kind that may have been given out without a trace: few are, in so short a time."""
_PRODUCERS_AHEAD = 1_000_000_000
"""Ids of producers to skip: no mark has them, and the log takes batches of a producer with a reused id for repetitions.
"""
_REMEDY = (
    "have the newest state of both back; if there is none, stop all nodes, and 'anabranch accept-data-loss' "
    "with this node's settings goes on without what is lost"
)


class WentBackError(StoreError):
    """The database, or the bucket, is older than it was."""


class Totals(Struct, frozen=True, array_like=True):
    """The growing numbers of a database: its version (of the cluster, plus the marks of single nodes), and the next
    start and epoch to be given out.
    """

    version: int = 0
    starts: int = 0
    epoch: int = 0

    def joined(self, other: Totals) -> Totals:
        """Return the maximum of each number."""
        return Totals(max(self.version, other.version), max(self.starts, other.starts), max(self.epoch, other.epoch))

    def is_behind(self, other: Totals) -> bool:
        """Return whether any number is less than the other's."""
        return self != self.joined(other)


class Mark(Struct, frozen=True, array_like=True):
    """The database's ``totals`` at the time when ``start`` had this many ``beats``."""

    start: int
    beats: int
    totals: Totals

    @property
    def key(self) -> str:
        """The name of its object, which contains the whole mark."""
        numbers = self.start, self.beats, *msgspec.structs.astuple(self.totals)
        return "-".join(f"{number:016x}" for number in numbers)

    @classmethod
    def of_key(cls, key: str) -> Mark:
        """Parse the name of an object."""
        start, beats, *totals = (int(number, 16) for number in key.split("-"))
        return cls(start, beats, Totals(*totals))


def totals(connection: Connection) -> Totals:
    row = connection.execute(_TOTALS).fetchone()
    return Totals() if row is None else Totals(*row)


_TOTALS = (
    "SELECT coalesce(version, 0) + CAST(marks.value AS BIGINT), coalesce(next_start, 0), CAST(epochs.value AS BIGINT) "
    "FROM meta epochs JOIN meta marks ON marks.key = 'next_mark' LEFT JOIN cluster_state ON TRUE "
    "WHERE epochs.key = 'next_epoch'"
)


def next_mark(connection: Connection) -> Mark:
    """Return the next mark of a database without members."""
    advance(connection, "next_mark", 1)
    return _mark(totals(connection))


def _mark(now: Totals) -> Mark:
    return Mark(0, now.version, now)


class Marks:
    """The marks of a node, in the file ``path`` and in ``bucket`` (None: in the file only)."""

    def __init__(self, path: Path, bucket: Bucket | None, cluster_id: str) -> None:
        self._path = path
        self._cluster_id = cluster_id
        self._bucket = None if bucket is None else bucket.below(f"marks/{cluster_id}")
        self._own = ""
        # A node that stops writes its last mark while the bucket may still be storing the one before.
        self._one_at_a_time = threading.Lock()
        self.mine: Mark | None = None
        """The mark that the directory had when it was loaded."""
        self.others: list[Mark] | None = None
        """The marks that the bucket had; None if they could not be read."""

    @property
    def _loaded(self) -> list[Mark]:
        return [*(self.others or ()), *([] if self.mine is None else [self.mine])]

    def load(self) -> None:
        """Read all marks. Blocks. Raises StoreError, and OSError if the bucket does not answer."""
        try:
            if self._path.exists():
                whose, mark = msgspec.json.decode(self._path.read_bytes(), type=tuple[str, Mark])
                # A directory of another cluster: its store reports the problem better.
                self.mine = mark if whose == self._cluster_id else None
            keys = () if self._bucket is None else self._bucket.list_again("", PATIENCE_S)
            self.others = [Mark.of_key(key) for key in keys]
        except OSError as error:
            raise OSError(f"the marks of the database cannot be read: {error}") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise StoreError(f"{self._path} is no mark of the database: {error}") from error

    async def begin(self, db: Database) -> None:
        """Load all marks, and check ``db`` and the bucket. No mark may be kept before, and no number be raised by which
        the database is compared.

        Raises WentBackError, and as :meth:`load` does: without the bucket's marks the directory's are checked.
        """
        try:
            await asyncio.to_thread(self.load)
        finally:
            await db.surely(self.check)

    async def keep(self, mark: Mark) -> None:
        """Write a mark. Raises WentBackError, and OSError if it should be tried again."""
        await asyncio.to_thread(self._keep, mark)

    def _keep(self, mark: Mark) -> None:
        bucket = self._bucket
        with self._one_at_a_time:
            if bucket is not None:
                former = self._own
                if former:
                    try:
                        bucket.get(former)
                    except FileNotFoundError:
                        raise WentBackError(bucket_went_back(bucket.url)) from None
                bucket.put_again(mark.key, b"", PATIENCE_S)
                self._own = mark.key
                if former not in ("", mark.key):
                    bucket.delete([former])
            self.write(mark)

    def write(self, mark: Mark) -> None:
        """Write a mark into the directory. Blocks. Raises OSError."""
        write_file_durably(Files(), self._path, [msgspec.json.encode((self._cluster_id, mark))])

    def accept(self, connection: Connection, ahead: int = _AHEAD) -> None:
        """Raise the database's numbers above all that may have been given out: the loaded marks, and those seen by
        other nodes. ``ahead``: how many epochs may have been given out without a trace.

        To be called while no node of the cluster runs; the caller removes all members. :meth:`begin_anew` follows.
        """
        known = now = totals(connection)
        for mark in self._loaded:
            known = known.joined(mark.totals)
        version, starts, epoch = msgspec.structs.astuple(known)
        advance(connection, "next_mark", version - now.version + _AHEAD)
        advance(connection, "next_epoch", epoch - now.epoch + ahead)
        advance(connection, "next_producer_id", _PRODUCERS_AHEAD)
        connection.execute("UPDATE cluster_state SET next_start = ?", (starts + _AHEAD,))

    def begin_anew(self, now: Totals) -> None:
        """Replace the loaded marks by ``now``, the database's state. Blocks. Raises OSError."""
        self._keep(_mark(now))
        self.forget(())

    def forget(self, members: Collection[int]) -> None:
        """Delete the loaded marks of starts that are not members any more; the mark of this node covers them.

        Blocks. Raises OSError.
        """
        past = [mark.key for mark in self.others or () if mark.start not in members]
        if self._bucket is not None and past:
            self._bucket.delete(past)

    def check(self, connection: Connection) -> None:
        """Raise WentBackError if the database is behind a loaded mark, or the bucket behind the directory."""
        now, mine = totals(connection), self.mine
        for mark in self._loaded:
            row = connection.execute("SELECT beats FROM cluster_nodes WHERE start = ?", (mark.start,)).fetchone()
            if now.is_behind(mark.totals) or (row is not None and row[0] < mark.beats):
                raise WentBackError(database_went_back(now, mark.totals))
        if mine is None or self._bucket is None or self.others is None:
            return
        if not any(_covers(mark, mine) for mark in self.others):
            raise WentBackError(bucket_went_back(self._bucket.url))


def _covers(mark: Mark, other: Mark) -> bool:
    """Return whether ``mark`` is ``other`` or later.

    A start's marks are deleted when it is no member any more, and that has raised the version.
    """
    if mark.start == other.start:
        return mark.beats >= other.beats
    return mark.totals.version > other.totals.version


def database_went_back(now: Totals, known: Totals) -> str:
    return (
        f"the database has gone back: it is at version {now.version}, start {now.starts} and epoch "
        f"{now.epoch}, and was at {known.version}, {known.starts} and {known.epoch} or later heartbeats, so numbers "
        f"would be given twice and acknowledged records be lost: {_REMEDY}"
    )


def bucket_went_back(url: str) -> str:
    return f"{url} has gone back: it has not what was put there before, so acknowledged records are lost: {_REMEDY}"
