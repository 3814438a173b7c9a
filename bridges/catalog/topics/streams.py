"""The SBP streams of topics: made before the commit that needs them, deleted after the commit that does not.

Making streams is crash-safe. An intent is written, then the streams are made, then one commit stores what needs them
and deletes the intent. A crash in between leaves streams that belong to no topic; the intent tells the next start where
to look for them. Whichever commit deletes the intent's row decides: the one that needs the streams, or one that gives
them up, because an error of the former does not prove that it failed. A commit that makes streams superfluous also
lists them as doomed, and their deletion is retried until it succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from contextlib import suppress
from enum import Enum
from typing import Protocol

import structlog
from msgspec.structs import replace

from anabranch_kit.run.barrier import Barrier
from bridges.catalog.database.sql import Connection, Database, upsert
from bridges.catalog.topics.lineage import PartitionInfo
from bridges.errors import LogError, LogUnavailable
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.wire.model import RangeInfo, StreamInfo

_log = structlog.get_logger("anabranch.catalog")

_PROBE_MISSES = 64
"""Consecutive unused stream ids that end the search for streams of an unfinished creation."""
_DELETE_CONCURRENCY = 32
_RETRY_FIRST_S = 1.0
_RETRY_LAST_S = 60.0


class _Fate(Enum):
    """The outcome of the deletion of a stream."""

    GONE = "gone"
    LATER = "later"
    LEFT = "left"


class StreamClient(Protocol):
    """The part of the backend client that the catalog needs."""

    async def create_stream(self, replica: int = 1, ack_count: int = 1, retention_ms: int = 0) -> StreamInfo: ...
    async def describe_stream(self, stream_id: int) -> StreamInfo: ...
    async def delete_stream(self, stream_id: int) -> object: ...
    async def list_ranges(self, stream_id: int) -> list[RangeInfo]: ...


class TopicStreams:
    """The maker and deleter of topics' streams. Call :meth:`start` first and :meth:`close` at the end.

    ``make`` makes one stream. ``inside``: the placement driver is in this process and knows which streams this process
    has made, so the streams of an unfinished creation may be searched by number. ``node``: this node's number among
    those that share the database; each node searches for the streams of its own unfinished creations.
    """

    def __init__(
        self,
        db: Database,
        client: StreamClient,
        make: Callable[[], Awaitable[StreamInfo]],
        barrier: Barrier,
        *,
        inside: bool,
        node: int = 0,
    ) -> None:
        self.left = 0
        """Streams that the backend cannot delete."""
        self._db = db
        self._client = client
        self._make = make
        self._barrier = barrier
        self._inside = inside
        self._node = node
        self._top_stream = -1
        self._doomed: set[int] = set()
        self._deleter: asyncio.Task[None] | None = None
        self._deleter_wake = asyncio.Event()

    @property
    def pending(self) -> int:
        """Return the number of streams that the backend still has to delete."""
        return len(self._doomed)

    async def start(self, known: Set[int]) -> None:
        """Read which streams must be deleted, and find those that a crash left behind; ``known`` are the streams of
        topics."""

        def read(connection: Connection) -> tuple[list[tuple[int, int, int]], list[int], int]:
            query = "SELECT id, first_stream_id, count FROM stream_intents WHERE node = ?"
            intents = connection.execute(query, (self._node,)).fetchall()
            doomed = [stream for (stream,) in connection.execute("SELECT stream_id FROM doomed_streams")]
            (left,) = connection.execute("SELECT count(*) FROM left_streams").fetchone()
            return intents, doomed, left

        intents, doomed, self.left = await self._db.run(read)
        self._doomed.update(doomed)
        self._top_stream = max(max(known, default=-1), max(doomed, default=-1))
        if intents:
            await self._clean_intents(intents, known)
        self._deleter = asyncio.create_task(self._delete_doomed(), name="catalog-deleter")

    async def close(self) -> None:
        """Stop; the next start deletes the remaining streams."""
        if self._deleter is not None:
            self._deleter.cancel()
            with suppress(asyncio.CancelledError):
                await self._deleter
            self._deleter = None

    async def make(
        self,
        wanted: Sequence[PartitionInfo],
        commit: Callable[[Connection, list[PartitionInfo]], None],
        then: Callable[[list[PartitionInfo]], None],
        *,
        flush: bool = False,
    ) -> None:
        """Make a stream for each of ``wanted`` and call ``commit`` with them. A crash leaves either both or an intent.
        With ``flush``, the commit also survives a loss of power. Once it is durable, ``then`` is called with them on
        the loop.

        Raises LogUnavailable (backend, or another start of this node has ended the intent), the error of ``commit``, or
        an error of the database: nothing was committed then.
        """
        count = len(wanted)
        first_stream = self._top_stream + 1

        def write_intent(connection: Connection) -> int:
            query = "INSERT INTO stream_intents (first_stream_id, count, node) VALUES (?, ?, ?) RETURNING id"
            return int(connection.execute(query, (first_stream, count, self._node)).fetchone()[0])

        def end_intent(connection: Connection) -> bool:
            return connection.execute("DELETE FROM stream_intents WHERE id = ?", (intent,)).rowcount == 1

        intent = await self._db.run(write_intent, flush=True)  # flushed: the streams survive a loss of power
        made = await asyncio.gather(*(self._make() for _ in range(count)), return_exceptions=True)
        streams = [one.stream_id for one in made if isinstance(one, StreamInfo)]
        self._top_stream = max([self._top_stream, *streams])
        infos = [replace(one, stream_id=stream) for one, stream in zip(wanted, streams, strict=False)]
        failures = [one for one in made if isinstance(one, BaseException)]
        committed = False

        def finished(_: None) -> None:
            nonlocal committed
            committed = True
            then(infos)

        try:
            if failures:
                raise failures[0]

            def finish(connection: Connection) -> None:
                if not end_intent(connection):
                    raise LogUnavailable("another start of this node has given up the streams of an unfinished change")
                commit(connection, infos)

            await self._db.run(finish, flush=flush, then=finished)
        except BaseException as error:
            if committed:
                raise

            def give_up(connection: Connection) -> bool:
                """Doom the streams, or return whether they were committed: neither an error nor a cancelled caller
                undoes a commit that is in flight to the database."""
                if end_intent(connection):
                    connection.executemany("INSERT INTO doomed_streams VALUES (?)", [(stream,) for stream in streams])
                    return False
                return any(_is_known(connection, stream) for stream in streams)

            with suppress(LogError):  # the intent stays, and the next start looks for the streams
                if not await self._db.run(give_up):
                    self.doomed(streams)
                elif isinstance(error, LogError):
                    finished(None)
                    return
            if isinstance(error, SbpError):
                raise LogUnavailable(f"the backend cannot create streams: {error}") from error
            raise

    async def _clean_intents(self, intents: list[tuple[int, int, int]], known: Set[int]) -> None:
        if not self._inside:
            # Other programs make streams there, too, and an unused stream does not name its maker: leave it alone.
            _log.warning("streams of unfinished topic creations may remain in the backend", creations=len(intents))
            orphans: list[int] = []
        else:
            try:
                orphans = await self._find_orphans(min(first for _, first, _ in intents), known)
            except SbpError as error:
                _log.warning(
                    "could not look for streams of unfinished topic creations; the next start does", error=str(error)
                )
                return

        def commit(connection: Connection) -> list[int]:
            others = "SELECT min(first_stream_id) FROM stream_intents WHERE node <> ?"
            (first,) = connection.execute(others, (self._node,)).fetchone()
            if orphans and first is not None and first <= max(orphans):
                return []  # another node may be making them now: the next start looks again
            found = [one for one in orphans if not _is_known(connection, one)]
            connection.executemany(upsert("doomed_streams", "stream_id"), [(one,) for one in found])
            connection.executemany("DELETE FROM stream_intents WHERE id = ?", [(one,) for one, _, _ in intents])
            return found

        orphans = await self._db.run(commit, frees=True)
        self._doomed.update(orphans)
        if orphans:
            _log.info("found streams of unfinished topic creations", streams=len(orphans))

    async def _find_orphans(self, first: int, known: Set[int]) -> list[int]:
        """Return streams from ``first`` on that this node has made, that were never opened and are not ``known``.
        Streams that other programs make in the node's placement driver are theirs."""
        orphans: list[int] = []
        misses, stream_id = 0, first
        while misses < _PROBE_MISSES or stream_id <= self._top_stream:
            if stream_id not in known and stream_id not in self._doomed:
                try:
                    found = await self._client.describe_stream(stream_id)
                    misses = 0
                    if found.inside and not await self._client.list_ranges(stream_id):
                        orphans.append(stream_id)
                except SbpError as error:
                    if error.code != ErrorCode.NOT_FOUND:
                        raise
                    misses += 1
            stream_id += 1
        self._top_stream = max([self._top_stream, *orphans])
        return orphans

    def doomed(self, streams: Iterable[int]) -> None:
        """Delete streams whose rows in ``doomed_streams`` are durable, and retry until it succeeds."""
        self._doomed.update(streams)
        self._deleter_wake.set()

    async def _delete_doomed(self) -> None:
        delay = _RETRY_FIRST_S
        while True:
            if not self._doomed:
                self._deleter_wake.clear()
                await self._deleter_wake.wait()
            waiting = sorted(self._doomed)
            for start in range(0, len(waiting), _DELETE_CONCURRENCY):
                try:
                    await self._delete_batch(waiting[start : start + _DELETE_CONCURRENCY])
                except Exception as error:  # noqa: BLE001 - logged, counted and tried again
                    self._barrier.caught("stream deletion", error)
            if self._doomed.isdisjoint(waiting):
                delay = _RETRY_FIRST_S
            else:
                await asyncio.sleep(delay)
                delay = min(2 * delay, _RETRY_LAST_S)

    async def _delete_batch(self, batch: list[int]) -> None:
        results = await asyncio.gather(*(self._delete_stream(stream_id) for stream_id in batch))
        gone = [(stream_id,) for stream_id, fate in zip(batch, results, strict=True) if fate is not _Fate.LATER]
        left = [(stream_id,) for stream_id, fate in zip(batch, results, strict=True) if fate is _Fate.LEFT]

        def commit(connection: Connection) -> int:
            connection.executemany(upsert("left_streams", "stream_id"), left)
            connection.executemany("DELETE FROM doomed_streams WHERE stream_id = ?", gone)
            (count,) = connection.execute("SELECT count(*) FROM left_streams").fetchone()
            return int(count)

        try:
            self.left = await self._db.run(commit, frees=True)
        except LogError as error:
            _log.warning("deleted streams could not be struck off the list", error=str(error))
        else:
            self._doomed.difference_update(stream_id for (stream_id,) in gone)
            if left:
                _log.warning(
                    "streams of deleted topics stay in the backend, which cannot delete them: their space is not given "
                    "back",
                    streams=[stream_id for (stream_id,) in left],
                    left_so_far=self.left,
                )

    async def _delete_stream(self, stream_id: int) -> _Fate:
        try:
            await self._client.delete_stream(stream_id)
        except SbpError as error:
            if error.code == ErrorCode.NOT_FOUND:
                return _Fate.GONE
            if error.code == ErrorCode.UNSUPPORTED_OPERATION:
                return _Fate.LEFT
            _log.warning(
                "a deleted topic's stream could not be deleted; it is tried again",
                stream_id=stream_id,
                error=str(error),
            )
            return _Fate.LATER
        except Exception as error:  # noqa: BLE001 - logged, counted and tried again; the others must go on
            self._barrier.caught("stream deletion", error, stream_id=stream_id)
            return _Fate.LATER
        return _Fate.GONE


def _is_known(connection: Connection, stream: int) -> bool:
    return connection.execute("SELECT 1 FROM partitions WHERE stream_id = ?", (stream,)).fetchone() is not None
