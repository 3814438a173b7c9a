"""A front for a protocol of lines of text, each of which is answered with a line: the example of docs/fronts.md.

    PUT topic partition record...            OK offset-of-the-first
    GET topic partition offset               OK next-offset offset record offset record...
    MARK name topic partition offset         OK offset
    FIND name topic partition                OK offset

A record is ``key=value``, both percent-encoded, with ``*`` for none. Whatever goes wrong is answered ``ERR why``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote_from_bytes, unquote_to_bytes

from bridges.auth import ANONYMOUS, Operation, Resource, ResourceKind
from bridges.awaited import awaited
from bridges.catalog.sql import Connection, upsert
from bridges.errors import BatchInvalid, LogError
from bridges.formats.base import BatchInfo, FinishedAtOnce
from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.records import Buffer, Record, StoredBatch
from bridges.log.interfaces import Appended, Batch
from bridges.log.partition_log import PartitionLog
from bridges.net.address import Address
from bridges.net.budget import Kind
from bridges.node.front import Front, Listener, NodeServices
from bridges.node.setting import Section, Size, setting

LINES = 8  # the stored format's number


class LineFormat:
    """Eight bytes of time (ms), then a record in each line; an empty line is an offset without a record."""

    id = LINES
    name = "lines"

    def describe(self, payload: Buffer) -> BatchInfo:
        return BatchInfo(int.from_bytes(payload[:8], "big", signed=True), -1, None)

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        return None  # neither is stored in the batch

    def place(self, payload: Buffer, base_offset: int) -> Buffer:
        return payload

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        timestamp = self.describe(batch.payload).max_timestamp
        for offset, line in enumerate(bytes(batch.payload[8:]).split(b"\n"), batch.base_offset):
            if line and offset >= start:
                yield Record(*parse(line.decode("ascii", "replace")), timestamp=timestamp, offset=offset)
            if not offset % 100:
                yield None

    def times(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> Iterator[tuple[int, int] | None]:
        return (None if one is None else (one.offset, one.timestamp) for one in self.records(batch, limit))

    def event_bytes(self, payload: Buffer) -> int | None:
        return None  # only its lines tell

    def builder(self, base_offset: int, end_offset: int) -> LineBuilder:
        return LineBuilder(base_offset, end_offset)


class LineBuilder(FinishedAtOnce):
    """A batch of lines out of records of any protocol."""

    def __init__(self, base_offset: int, end_offset: int) -> None:
        self._base = base_offset
        self._lines = [""] * (end_offset - base_offset)
        self._records = 0
        self._timestamp = -1

    def __len__(self) -> int:
        return self._records

    def add(self, record: Record) -> None:
        self._lines[record.offset - self._base] = f"{_quoted(record.key)}={_quoted(record.value)}"
        self._records += 1
        self._timestamp = max(self._timestamp, record.timestamp)

    def finish(self) -> Buffer:
        return payload_of(self._timestamp, self._lines)


def payload_of(timestamp: int, lines: Sequence[str]) -> bytes:
    return timestamp.to_bytes(8, "big", signed=True) + "\n".join(lines).encode()


def parse(line: str) -> tuple[bytes | None, bytes | None]:
    """Key and value of a line. Raises BatchInvalid."""
    key, equals, value = line.partition("=")
    if not equals or "=" in value:
        raise BatchInvalid(f"{line[:40]!r} is not key=value")
    return _plain(key), _plain(value)


def _quoted(data: bytes | None) -> str:
    return "*" if data is None else quote_from_bytes(data, safe="")


def _plain(text: str) -> bytes | None:
    return None if text == "*" else unquote_to_bytes(text)


class LineSettings(Section):
    """Of the front for lines of text."""

    max_line_bytes: Size = setting(64 * 1024, ge=64, description="Longest line accepted.")
    get_bytes: Size = setting(64 * 1024, ge=1, description="Most bytes of the log one GET looks at.")
    max_connections: int = setting(100, ge=1, description="Most connections at the same time.")


def _marks(connection: Connection) -> None:
    columns = "name TEXT, topic TEXT, partition INTEGER, offset INTEGER, PRIMARY KEY (name, topic, partition)"
    connection.execute(f"CREATE TABLE front_line_marks ({columns}) STRICT, WITHOUT ROWID")


def _erase_marks(connection: Connection, topic: str) -> None:
    connection.execute("DELETE FROM front_line_marks WHERE topic = ?", (topic,))


class LineFront(Front):
    """What an entry point of ``anabranch.fronts`` names."""

    name = "line"
    listeners = (Listener("line", 7007),)
    settings = LineSettings
    connection_bounds = ("max_connections",)
    formats = (LineFormat(),)
    migrations = (_marks,)
    erasers = (_erase_marks,)

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._settings = node.section(LineSettings)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], bool] = {}
        self._draining = False

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        (name, address), *_ = listen.items()
        longest = self._settings.max_line_bytes
        self._server = await asyncio.start_server(self._serve, address.host, address.port, limit=longest)
        host, port = self._server.sockets[0].getsockname()[:2]
        return {name: Address(host, port)}

    async def drain(self) -> None:
        await self._end([task for task, busy in self._connections.items() if not busy])

    async def stop(self) -> None:
        await self._end(list(self._connections))

    async def _end(self, now: list[asyncio.Task[None]]) -> None:
        self._draining = True
        if self._server is not None:
            self._server.close()
        for task in now:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        # A stream reader keeps up to two lines of the longest kind, and a GET what it reads and its answer.
        account = self._node.budget.account(lambda: None)
        held = 2 * self._settings.max_line_bytes + 4 * self._settings.get_bytes
        full = self._draining or len(self._connections) >= self._settings.max_connections
        if full or not account.admit(Kind.REQUESTS, held):
            self._node.metrics.connection_refused()
            return writer.close()
        self._connections[task] = False
        self._node.metrics.connection_opened()
        try:
            # ValueError: a line is too long. Cancelled while nothing is under way: the front stops.
            with suppress(ConnectionError, ValueError, asyncio.CancelledError):
                while not self._draining and (line := await reader.readline()).endswith(b"\n"):
                    self._connections[task] = True
                    writer.write(await self._request(line))
                    await writer.drain()
                    self._connections[task] = False
        finally:
            del self._connections[task]
            account.give(Kind.REQUESTS, held)
            self._node.metrics.connection_closed()
            writer.close()

    async def _request(self, line: bytes) -> bytes:
        began = time.monotonic()
        word, *words = line.decode("ascii", "replace").split() or [""]
        handlers: dict[str, Callable[..., Awaitable[object]]]
        handlers = {"PUT": self._put, "GET": self._get, "MARK": self._mark, "FIND": self._find}
        counts = self._node.metrics.kind(word if word in handlers else "unknown")
        try:
            answer = f"OK {await handlers[word](*words)}" if word in handlers else "ERR there is no such request"
        except (LogError, TypeError, ValueError, OverflowError) as error:  # words that are missing, or no numbers
            counts.failed(type(error).__name__)
            answer = f"ERR {' '.join(str(error).split())}"
        counts.done(time.monotonic() - began, len(line), len(answer) + 1)
        return answer.encode("utf-8", "replace") + b"\n"

    def _log(self, operation: Operation, topic: str, partition: str) -> PartitionLog:
        if not self._node.authorizer.allows(ANONYMOUS, operation, Resource(ResourceKind.TOPIC, topic)):
            raise ValueError(f"you may not {operation.value} {topic}")
        if (log := self._node.logs.get(topic, int(partition))) is None:
            raise ValueError("there is no such partition")
        return log

    async def _put(self, topic: str, partition: str, first: str, *others: str) -> int:
        log = self._log(Operation.WRITE, topic, partition)
        records = (first, *others)
        for record in records:
            parse(record)
        now = time.time_ns() // 1_000_000
        batch = Batch(payload_of(now, records), len(records), LINES, now)
        stored: Appended = await awaited(lambda done: log.append(batch, done))
        return stored.base

    async def _get(self, topic: str, partition: str, offset: str) -> str:
        log = self._log(Operation.READ, topic, partition)
        found: list[str] = []
        begin = end = int(offset)
        for batch in await log.read_committed(begin, self._settings.get_bytes):
            lines = await self._node.translator.translate(log.stream_id, batch, LINES)
            for place, line in enumerate(bytes(lines[8:]).decode().split("\n"), batch.base_offset):
                if line and place >= begin:
                    found += (str(place), line)
            end = batch.end_offset
        return " ".join((str(end), *found))

    async def _mark(self, name: str, topic: str, partition: str, offset: str) -> str:
        log = self._log(Operation.READ, topic, partition)
        row = (name, topic, log.partition, int(offset))
        await self._node.db.run(
            lambda db: db.execute(upsert("front_line_marks", "name topic partition", "offset"), row)
        )
        return offset

    async def _find(self, name: str, topic: str, partition: str) -> int:
        place = (name, topic, self._log(Operation.READ, topic, partition).partition)
        query = "SELECT offset FROM front_line_marks WHERE name = ? AND topic = ? AND partition = ?"
        for (offset,) in await self._node.db.run(lambda db: db.execute(query, place).fetchall()):
            return int(offset)
        raise ValueError("there is no such mark")
