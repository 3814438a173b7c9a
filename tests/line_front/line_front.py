"""A front for a protocol of lines of text, each of which is answered with a line: the example of docs/fronts.md.

    HELLO name password                               OK
    MAKE topic partitions [key=value...]              OK
    PUT topic partition [@ms] record...               OK offset-of-the-first
    ONCE writer number topic partition [@ms] record...  the same, also when it was sent before
    GET topic partition offset                        OK next-offset offset record offset record...
    MARK name topic partition offset                  OK offset
    FIND name topic partition                         OK offset

A record is ``key=value``, both percent-encoded, with ``*`` for none; ``@ms`` says when they were created. A topic's
name has colons where Kafka's has dots. Whatever goes wrong is answered ``ERR why``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import ClassVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from anabranch_kit.memory.budget import Kind
from anabranch_kit.net.line_framing import LineFraming
from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.sliced import Sliced
from bridges.auth import Operation, Resource, ResourceKind
from bridges.auth.authenticator import AuthenticationBusy
from bridges.catalog.database.sql import Connection, upsert
from bridges.catalog.topics.names import InvalidTopicName, check_topic_name
from bridges.errors import BatchInvalid, LogError
from bridges.formats.base import BatchInfo, FinishedAtOnce
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.producer import EventStamp
from bridges.formats.records import Buffer, Record, StoredBatch
from bridges.log.interfaces import Appended, Batch
from bridges.log.ledger.rules import EventNumberRule, Rule
from bridges.log.remote.partitions import Partition
from bridges.net.request_response import Frame, RequestConnection
from bridges.net.server import Limits
from bridges.node.front import Listener
from bridges.node.request_front import RequestFront
from bridges.node.settings.setting import Section, Size, setting

LINES = 8  # the stored format's number
WRITERS = 128  # and that of the kind of writers who count what they send

_HEAD = struct.Struct(">qqIB")  # time in ms, the writer's number, records, bytes of its name; then the name


class LineStamp(EventStamp):
    """Who has sent a batch, and its number."""

    __slots__ = ()
    kind: ClassVar[int] = WRITERS


class LineFormat:
    """A head, then a record in each line; an empty line is an offset without a record."""

    id = LINES
    name = "lines"

    def describe(self, payload: Buffer) -> BatchInfo:
        if len(payload) < _HEAD.size:
            raise BatchInvalid("a batch of lines is shorter than its head")
        timestamp, number, records, size = _HEAD.unpack_from(payload)
        name = bytes(payload[_HEAD.size : _HEAD.size + size])
        return BatchInfo(timestamp, -1, LineStamp(name, number, records) if name else None)

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        return None  # neither is stored in the batch

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        info = self.describe(batch.payload)
        name = b"" if info.producer is None else info.producer.key
        writer = name.decode("ascii", "replace") or None
        lines = bytes(batch.payload[_HEAD.size + len(name) :]).split(b"\n", batch.end_offset - batch.base_offset)
        for offset, line in enumerate(lines, batch.base_offset):
            if offset == batch.end_offset:
                raise BatchInvalid("a batch of lines has more of them than offsets")
            if line and offset >= start:
                key, value = parse(line.decode("ascii", "replace"))
                yield Record(key, value, [], info.max_timestamp, offset, writer, -1, batch.written_ms)
            if not offset % 100:
                yield None

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
        self._timestamp = max(self._timestamp, record.timestamp) if self._records else record.timestamp
        self._records += 1

    def finish(self) -> Buffer:
        return payload_of(self._timestamp, self._lines)


def payload_of(timestamp: int, lines: Sequence[str], writer: bytes = b"", number: int = -1) -> bytes:
    return _HEAD.pack(timestamp, number, len(lines), len(writer)) + writer + "\n".join(lines).encode()


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


def _shown(batch: StoredBatch, begin: int, room: int) -> Sliced[tuple[list[str], int]]:
    """What a client gets of a batch, and where it goes on; in slices, since it may be as large as a client's."""
    found: list[str] = []
    for record in LineFormat().records(batch, start=begin):
        if record is None:
            yield None
            continue
        if found and record.size > room:
            return found, record.offset
        found += (str(record.offset), f"{_quoted(record.key)}={_quoted(record.value)}")
        room -= record.size
    return found, batch.end_offset


class LineNames:
    """Colons for dots."""

    def derived(self, name: str) -> str | None:
        return name.replace(".", ":")

    def canonical(self, own: str) -> str:
        if "." in own:
            raise InvalidTopicName("a name has colons where others have dots")
        check_topic_name(name := own.replace(":", "."))
        return name


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


class LineFront(RequestFront):
    """What an entry point of ``anabranch.fronts`` names."""

    name = "line"
    listeners = (Listener("line", 7007, tls=True, authentication=("password",)),)
    settings = LineSettings
    connection_bounds = ("max_connections",)
    formats = (LineFormat(),)
    ledger_rules: ClassVar[dict[int, Rule]] = {WRITERS: EventNumberRule()}
    names = LineNames()
    migrations = (_marks,)
    erasers = (_erase_marks,)

    def framing(self) -> LineFraming:
        return LineFraming(self.node.section(LineSettings).max_line_bytes)

    def bounds(self) -> Limits:
        return Limits(max_connections=self.node.section(LineSettings).max_connections)

    async def greet(self, client: RequestConnection, frame: Frame) -> bytes:
        word, *words = frame.decode("ascii", "replace").split() or [""]
        if word != "HELLO" or len(words) != 2:
            return b"ERR say HELLO name password first\n"
        authenticator = self.node.authenticator
        try:
            principal = await authenticator.verify(words[0], words[1], client.peer[0])
        except AuthenticationBusy:
            return b"ERR too many are logging in, come again\n"
        if principal is None:
            return b"ERR name and password do not belong together\n"
        client.log_in(principal, authenticator.sessions)
        return b"OK\n"

    async def answer(self, client: RequestConnection, frame: Frame) -> bytes:
        began = time.monotonic()
        word, *words = frame.decode("ascii", "replace").split() or [""]
        handlers: dict[str, Callable[..., Awaitable[object]]] = {
            "MAKE": self._make, "PUT": self._put, "ONCE": self._once,
            "GET": self._get, "MARK": self._mark, "FIND": self._find,
        }  # fmt: skip
        counts = self.node.metrics.kind(word if word in handlers else "unknown")
        try:
            answer = (
                f"OK {await handlers[word](client, *words)}" if word in handlers else "ERR there is no such request"
            )
        except (LogError, TypeError, ValueError, OverflowError) as error:  # words that are missing, or no numbers
            counts.failed(type(error).__name__)
            answer = f"ERR {' '.join(str(error).split())}"
        counts.done(time.monotonic() - began, len(frame), len(answer) + 1)
        return answer.encode("utf-8", "replace") + b"\n"

    async def _log(self, client: RequestConnection, operation: Operation, name: str, partition: str) -> Partition:
        topic = await self.node.catalog.find(self.name, name)
        told = name if topic is None else topic.name
        if not self.node.authorizer.allows(client.principal, operation, Resource(ResourceKind.TOPIC, told)):
            raise ValueError(f"you may not {operation.value} {name}")
        found = None if topic is None else await self.node.partitions.find(topic.name, int(partition))
        if found is None:
            raise ValueError("there is no such partition")
        return found

    async def _make(self, client: RequestConnection, name: str, partitions: str, *config: str) -> str:
        canonical = self.names.canonical(name)
        if not self.node.authorizer.allows(client.principal, Operation.CREATE, Resource(ResourceKind.TOPIC, canonical)):
            raise ValueError(f"you may not create {name}")
        settings = dict(one.split("=", 1) for one in config)
        return (await self.node.catalog.create_topic(canonical, int(partitions), settings)).names[self.name]

    async def _put(self, client: RequestConnection, topic: str, partition: str, *words: str) -> int:
        return await self._append(client, await self._log(client, Operation.WRITE, topic, partition), words)

    async def _once(
        self, client: RequestConnection, writer: str, number: str, topic: str, partition: str, *words: str
    ) -> int:
        log = await self._log(client, Operation.WRITE, topic, partition)
        return await self._append(client, log, words, writer, int(number))

    async def _append(
        self, client: RequestConnection, log: Partition, words: Sequence[str], writer: str = "", number: int = -1
    ) -> int:
        now = time.time_ns() // 1_000_000
        if words and words[0].startswith("@"):
            now, words = int(words[0][1:]), words[1:]
        for record in words:
            parse(record)
        if not words:
            raise ValueError("there is no record")
        if len(writer.encode()) > 64:
            raise ValueError("a writer's name has 64 bytes at most")
        stamp = LineStamp(writer.encode(), number, len(words)) if writer else None
        payload = payload_of(now, words, writer.encode(), number)
        stored: Appended = await awaited(lambda done: log.append(Batch(payload, len(words), LINES, now, stamp), done))
        client.client.wrote(log.topic, log.partition, len(words), len(payload))
        return stored.base

    async def _get(self, client: RequestConnection, topic: str, partition: str, offset: str) -> str:
        log = await self._log(client, Operation.READ, topic, partition)
        most = self.node.section(LineSettings).get_bytes
        begin = end = int(offset)
        found: list[str] = []
        client.account.take(Kind.READS, 4 * most)
        try:
            for batch in await log.read_committed(begin, most):
                lines = await self.node.translator.translate(log.stream_id, batch, LINES)
                work = _shown(batch._replace(payload=lines, flags=LINES), begin, most - sum(map(len, found)))
                more, end = await self.node.works.finish(work, batch.end_offset - batch.base_offset)
                found += more
                if end < batch.end_offset:
                    break
        finally:
            client.account.give(Kind.READS, 4 * most)
        client.client.read(log.topic, log.partition, len(found), sum(map(len, found)))
        return " ".join((str(end), *found))

    async def _mark(self, client: RequestConnection, name: str, topic: str, partition: str, offset: str) -> str:
        log = await self._log(client, Operation.READ, topic, partition)
        row = (name, log.topic, log.partition, int(offset))
        await self.node.db.run(lambda db: db.execute(upsert("front_line_marks", "name topic partition", "offset"), row))
        return offset

    async def _find(self, client: RequestConnection, name: str, topic: str, partition: str) -> int:
        log = await self._log(client, Operation.READ, topic, partition)
        query = "SELECT offset FROM front_line_marks WHERE name = ? AND topic = ? AND partition = ?"
        place = (name, log.topic, log.partition)
        for (offset,) in await self.node.db.run(lambda db: db.execute(query, place).fetchall()):
            return int(offset)
        raise ValueError("there is no such mark")
