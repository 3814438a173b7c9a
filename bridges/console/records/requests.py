"""Records over HTTP, as lines of JSON, read and written as streams."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from aiohttp import web
from msgspec import Meta, Struct, field

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.awaited import Settle, awaited
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import Turns, gathered, worked_off
from bridges.auth import Operation
from bridges.catalog.topics.lineage import choose_partition
from bridges.catalog.topics.topic import Topic
from bridges.console import FRONT
from bridges.console.handlers import Handlers, route
from bridges.console.host import Host
from bridges.console.records.conditions import parse_conditions
from bridges.console.records.lines import parse_line
from bridges.console.records.parquet import CONTENT, ParquetSink
from bridges.console.records.reading import Answer, Order, Reader, Span
from bridges.console.records.rendering import Search
from bridges.console.schemas.registry import SchemaError
from bridges.errors import LogError, OffsetOutOfRange
from bridges.formats import FormatId
from bridges.formats.kafka import BatchBuilder
from bridges.http.errors import BadLine, RequestError, error_body, error_response, status_of
from bridges.http.memory import memory_of
from bridges.http.site import BodyStalled
from bridges.http.visits import visit
from bridges.log.partition.partition_log import Appended, Batch

if TYPE_CHECKING:
    from anabranch_kit.memory.request_memory import RequestMemory
    from bridges.clients import Client
    from bridges.formats.records import Record
    from bridges.log.remote.readable import ReadableLog

_BATCH_RECORDS = 1000
_BATCH_BYTES = 256 * 1024
_IN_FLIGHT = 16
"""Batches in flight per request, above which reading of its body pauses."""
_LINGER_S = 0.02
"""Seconds that records wait for more of the body before they are appended."""
_PENDING_BYTES = 4 * 1024 * 1024
"""Bytes of a request's records that wait for more records of their partition."""
_PENDING_PARTITION = 1024
"""Memory of a request per partition, besides its records."""
_LINE_BYTES = 64 * 1024
"""A longer line is received only when there is memory for all of it."""
_ROOM_S = 30.0
"""Seconds that a line waits for memory."""
_LOOK = 100_000
"""Records that a search examines by default."""
_LOOK_MOST = 10_000_000
_ORDERED = 50
_ORDERED_MOST = 1000
"""Most records that are sent in order of time."""
_LATE_MS = 60_000
"""How much earlier than its predecessors a record within a range of times may be."""
_LINES = "application/x-ndjson"
_Number = Annotated[int, Meta(ge=0)]


class RecordsQuery(Struct, frozen=True, kw_only=True):
    """Query for records: their place and filters."""

    partition: _Number | None = None
    offset: Annotated[str, Meta(description="a number, earliest or latest")] | None = None
    since_ms: Annotated[int, Meta(ge=0, description="instead of offset: a time")] | None = None
    until_ms: _Number | None = None
    limit: Annotated[int, Meta(ge=0, description="records in all")] | None = None
    follow: Annotated[bool, Meta(description="wait for more")] = False
    text: Annotated[str, Meta(description="in key, value or a header")] | None = None
    key: str | None = None
    header: Annotated[str, Meta(description="NAME, or NAME=TEXT")] | None = None
    json: Annotated[str, Meta(description="conditions on the value: order.items[*].qty >= 2 and state = paid")] = ""
    look: Annotated[int, Meta(ge=1, description="most records that a search examines")] | None = None
    order: Annotated[Literal["newest", "oldest"], Meta(description="Partitions are merged by time.")] | None = None
    at: Annotated[str, Meta(description="partitions, and where to begin (with newest: end) in each: 0:17,2:5")] = ""
    format: Annotated[Literal["lines", "parquet"], Meta(description="parquet needs pyarrow")] = "lines"
    decode: Annotated[bool, Meta(description="also as schemas of the registry say, which filters then see")] = False


class ProduceQuery(Struct, frozen=True, kw_only=True):
    """Query for appends: schemas that encode keys and values."""

    key_schema: Annotated[str, Meta(description="subject, or id, of a schema of the registry")] = ""
    value_schema: Annotated[str, Meta(description="subject, or id, of a schema of the registry")] = ""


class _Pending(Struct):
    """Records of a partition that have not been appended yet."""

    batch: BatchBuilder = field(default_factory=BatchBuilder)
    size: int = 0


class RecordHandlers(Handlers):
    """Handlers of ``/api/topics/{topic}/records``."""

    def __init__(self, node: Host) -> None:
        super().__init__(node)
        self._traffic = node.metrics.front(FRONT)
        self._followers: set[asyncio.Task[object]] = set()
        self._reader = Reader(node.batch_inflated_bytes)

    def stop(self) -> None:
        """Cancel all streams that follow a topic; they do not end by themselves."""
        for task in self._followers:
            task.cancel()

    def close(self) -> None:
        """Stop rendering and decoding. To be called when no request is in progress."""
        self._reader.close()
        if self._node.schemas is not None:
            self._node.schemas.close()

    # --- writing ----------------------------------------------------------------------------------------------------

    @route(
        "POST /api/topics/{topic}/records",
        "Append records, a line each",
        Operation.WRITE,
        query=ProduceQuery,
        lines=True,
    )
    async def produce(self, request: web.Request, query: ProduceQuery) -> web.Response:
        """Append the lines of the body. When all are durable, answer with their number and their offsets by partition.

        An invalid line ends the request with 400, its line number, and the number of records stored. With a schema,
        keys or values are JSON that it encodes; a value that does not fit is an invalid line.
        """
        with visit(self._node.clients, FRONT, request) as client:
            return await self._produce(request, query, client)

    async def _produce(self, request: web.Request, query: ProduceQuery, client: Client) -> web.Response:
        memory = memory_of(request)
        writer = _Writer(self._node, self._topic(request), memory, client)
        lines = _Lines(request, self._node.http_line_bytes, memory)
        number, turns = 0, Turns()
        try:
            while (line := await lines.next(writer.flush)) is not None:
                number += 1
                await turns.rest()
                if line.strip():
                    record, partition = parse_line(line)
                    record.key = await self._encode("key", record.key, query.key_schema)
                    record.value = await self._encode("value", record.value, query.value_schema)
                    await writer.add(record, partition)
            await writer.finish()
        except LogError as error:
            await writer.settle()
            return error_response(error, status_of(error), line=number, stored=writer.stored)
        except BodyStalled as error:
            with suppress(LogError):  # the answer reports the number of stored records in any case
                await writer.finish()
            return error_response(error, 408, line=number, stored=writer.stored)
        finally:
            writer.abandon()
        return web.json_response({"records": writer.stored, "partitions": writer.offsets})

    async def _encode(self, name: str, data: bytes | None, schema: str) -> bytes | None:
        """Return a key or value as the subject or id says; without one as it is. Raises BadLine."""
        if data is None or not schema:
            return data
        if self._node.schemas is None:
            raise BadLine("this node has no schema registry: set schemas.registry")
        try:
            return await self._node.schemas.encode(
                int(schema) if schema.isdecimal() and len(schema) < 10 else schema, data
            )
        except SchemaError as error:
            raise BadLine(f"{name}: {error}") from None

    # --- reading ----------------------------------------------------------------------------------------------------

    @route(
        "GET /api/topics/{topic}/records",
        "Records, a line each",
        Operation.READ,
        query=RecordsQuery,
        lines=True,
        content="application/x-ndjson",
    )
    async def read(self, request: web.Request, query: RecordsQuery) -> web.StreamResponse:
        """Stream records as lines.

        With any of ``text``, ``key``, ``header``, ``json`` and ``until_ms``, only records that match all of them are
        sent. At most ``look`` records are examined, and the last line has their number (``looked``), the number whose
        values are too long to be parsed for ``json`` (``too_long``), and the offset at which to continue in each
        partition (``next``). A partition ends at its first record that is a minute later than ``until_ms``.

        With ``order``, partitions are merged by time: at least ``limit`` records are sent, and with ``key`` those of
        the key's own partition first. Lines with ``looked`` alone tell the progress.

        With ``decode``, keys and values that name a schema of the node's registry have ``key_decoded`` and
        ``value_decoded`` beside their bytes: the ``schema`` (its id or GUID), its ``type``, and the JSON ``text``, or
        an ``error``. ``json`` and ``text`` look into that.
        """
        with visit(self._node.clients, FRONT, request) as client:
            return await self._read(request, query, client)

    async def _read(self, request: web.Request, query: RecordsQuery, client: Client) -> web.StreamResponse:
        topic, limit = self._topic(request), query.limit
        order = _order(query)
        at = _places(query.at)
        logs = self._logs(topic, query.partition, at)
        if order is not None and query.follow:
            raise RequestError("order is not for a reader that follows")
        search = _search(query)
        looking = 0 if search is None else search.left
        await gathered(log.refresh() for log in logs)
        if query.follow and query.format != "lines":
            raise RequestError("a reader that follows gets lines")
        positions = await self._starts(logs, query, at, order)
        ends = await _ends(logs, query)
        memory, traffic = memory_of(request), self._traffic.topic(topic.name)
        response = web.StreamResponse(headers={"Content-Type": _LINES, "Cache-Control": "no-store"})
        sink: web.StreamResponse | ParquetSink = response
        if query.format == "parquet":
            sink = await ParquetSink.open(response, memory, decodes=query.decode)
            response.headers["Content-Type"] = CONTENT
        await response.prepare(request)
        schemas = self._node.schemas if query.decode else None
        decoder = None if schemas is None else schemas.decoder()
        most = -1 if limit is None or order is not None else limit
        answer = Answer(sink, memory, traffic, client, search, most, decoder)
        task = asyncio.current_task()
        assert task is not None
        self._followers.add(task)
        for log in positions:
            client.read(topic.name, log.partition)
        try:
            if order is not None:
                await self._read_in_order(answer, topic, positions, ends, order, query)
            else:
                await self._reader.stream(answer, positions, ends, query.follow)
                if search is not None:
                    reached = {str(log.partition): offset for log, offset in positions.items()}
                    await answer.write({"looked": looking - search.left, **_told_too_long(search), "next": reached})
        except LogError as error:
            # The status line has been sent, so the error becomes the last line.
            await answer.write(error_body(error))
        finally:
            self._followers.discard(task)
            del task  # a cancelled task's exception keeps this frame
        if isinstance(sink, ParquetSink):
            await sink.finish()
        await response.write_eof()
        return response

    async def _starts(
        self, logs: list[ReadableLog], query: RecordsQuery, at: dict[int, int], order: Order | None
    ) -> dict[ReadableLog, int]:
        """Return the offset of each partition at which to begin; with the newest records first, the lowest to send."""
        if query.since_ms is not None:
            if query.offset is not None:
                raise RequestError("either offset or since_ms is given")
            times = [await log.find_timestamp(query.since_ms) for log in logs]
            return {
                log: log.last_stable_offset if found is None else found[0]
                for log, found in zip(logs, times, strict=True)
            }
        text = query.offset or "earliest"
        if order is None:
            return {log: _nearest(log, str(at[log.partition])) if at else _position(log, text) for log in logs}
        if order.newest:
            return {log: log.log_start_offset for log in logs}
        return {log: max(log.log_start_offset, at[log.partition] if at else _nearest(log, text)) for log in logs}

    async def _read_in_order(
        self,
        answer: Answer,
        topic: Topic,
        lows: dict[ReadableLog, int],
        ends: dict[ReadableLog, int],
        order: Order,
        query: RecordsQuery,
    ) -> None:
        at, text = _places(query.at), query.offset or "latest"
        spans = [Span(log, low, ends[log]) for log, low in lows.items()]
        if order.newest:
            for span in spans:
                span.high = min(span.high, at[span.log.partition] if at else _nearest(span.log, text))
        own = []
        if query.key is not None and topic.active:
            own = [topic.active[choose_partition(query.key.encode(), len(topic.active))].index]
        first = [span for span in spans if span.log.partition in own]
        for some in (first, [span for span in spans if span not in first]):
            if len(order.times) < order.limit:
                await self._reader.in_order(answer, some, order)
        left = {str(one.log.partition): one.high if order.newest else one.low for one in spans if one.low < one.high}
        await answer.write({"looked": order.looked, **_told_too_long(answer.search), "next": left})

    def _topic(self, request: web.Request) -> Topic:
        return self._node.catalog.topic(request.match_info["topic"])

    def _logs(self, topic: Topic, partition: int | None, at: Collection[int]) -> list[ReadableLog]:
        every = list(at) or [info.index for info in topic.partitions]
        wanted = every if partition is None else [partition]
        logs = [self._node.logs.to_read(topic.name, index) for index in wanted]
        found = [log for log in logs if log is not None]
        if len(found) != len(wanted):
            raise RequestError(f"topic {topic.name!r} has no partition {partition}", 404)
        return found


class _Writer:
    """Groups records into batches per partition and appends them, with a bounded number in flight.

    ``memory`` counts the records that wait for more of their partition, and the batches in flight until the log has
    released them, even if the request has ended.
    """

    def __init__(self, node: Host, topic: Topic, memory: RequestMemory, client: Client) -> None:
        self.stored = 0
        self.offsets: dict[str, dict[str, int]] = {}
        self._memory = memory
        self._waiting = 0
        self._topic = topic
        self._active = topic.active
        self._logs = node.logs
        self._partitions = node.partitions
        self._pending: dict[int, _Pending] = {}
        self._futures: list[asyncio.Future[None]] = []
        self._traffic = node.metrics.front(FRONT).topic(topic.name)
        self._client = client
        self._next = 0
        self._max_bytes = node.logs.admission.rules(topic.name).max_message_bytes

    async def add(self, record: Record, partition: int | None) -> None:
        """Add a record. Raises BadLine, and LogError of earlier appends."""
        if partition is None or partition < 0:
            if not self._active:
                raise BadLine(f"topic {self._topic.name!r} was ended: all its partitions are sealed")
            place = self._next if record.key is None else choose_partition(record.key, len(self._active))
            partition = self._active[place % len(self._active)].index
        if record.timestamp == -1:
            record.timestamp = now_ms()
        size = 64 + len(record.key or b"") + len(record.value or b"")
        size += sum(24 + 4 * len(name) + len(value or b"") for name, value in record.headers)
        pending = self._pending.get(partition)
        if pending is None:
            if self._logs.get(self._topic.name, partition) is None:
                raise BadLine(f"topic {self._topic.name!r} has no partition {partition}")
            pending = self._pending[partition] = _Pending()
            self._memory.take(Kind.REQUESTS, _PENDING_PARTITION)
        if len(pending.batch) and pending.size + size > min(_BATCH_BYTES, self._max_bytes - 64):
            await self._flush(partition)
        pending.batch.add(record)
        pending.size += size
        self._waiting += size
        self._memory.take(Kind.REQUESTS, size)
        if len(pending.batch) >= _BATCH_RECORDS or pending.size >= _BATCH_BYTES:
            await self._flush(partition)
        if self._waiting > _PENDING_BYTES or self._memory.is_crowded:
            await self.flush()
            while self._futures and self._memory.is_crowded:
                await self._futures.pop(0)

    async def _flush(self, partition: int) -> None:
        pending = self._pending[partition]
        batch, waited = pending.batch, pending.size
        if not len(batch):
            return
        pending.batch, pending.size = BatchBuilder(), 0
        self._waiting -= waited
        self._next += 1  # records without a key change partition batch by batch
        self._active = self._topic.active
        # Few batches are longer than a step: those with one large record.
        payload = batch.finish() if waited <= _BATCH_BYTES else await worked_off(batch.finish_in_slices())
        newest = batch.max_timestamp
        count, size = len(batch), len(payload)
        memory = self._memory
        memory.give(Kind.REQUESTS, waited)
        memory.take(Kind.REQUESTS, size)
        memory.hold()

        def append(settle: Settle[None]) -> None:
            def stored(appended: Appended, error: LogError | None) -> None:
                memory.give(Kind.REQUESTS, size)
                memory.release()
                if error is None:
                    self._account(partition, appended.base, count, size)
                settle(None, error)

            told = Batch(payload, count, int(FormatId.KAFKA), newest)
            self._partitions.append(self._topic.name, partition, told, stored)

        self._futures.append(awaited(append))
        if len(self._futures) >= _IN_FLIGHT:
            await self._futures.pop(0)

    def _account(self, partition: int, base_offset: int, count: int, size: int) -> None:
        self.stored += count
        self._traffic.appended(1, count, size)
        self._client.wrote(self._topic.name, partition, count, size)
        span = self.offsets.setdefault(str(partition), {"first": base_offset, "next": base_offset, "records": 0})
        span["next"] = base_offset + count
        span["records"] += count

    async def finish(self) -> None:
        """Append the remaining records, and wait until all are durable. Raises LogError."""
        await self.flush()
        while self._futures:
            await self._futures.pop(0)

    async def flush(self) -> None:
        """Append all records added so far. Raises LogError."""
        for partition in list(self._pending):
            await self._flush(partition)

    def abandon(self) -> None:
        """Drop the results of the appends in flight."""
        for future in self._futures:
            if not future.cancel():
                future.exception()

    async def settle(self) -> None:
        """Wait for all appends in flight, whatever their result, so that ``stored`` is final."""
        await asyncio.gather(*self._futures, return_exceptions=True)


class _Lines:
    """The lines of a body. At most one line and one chunk are in memory.

    ``memory`` counts them; the rest of a long line is received only when there is memory for it.
    """

    def __init__(self, request: web.Request, limit: int, memory: RequestMemory) -> None:
        self._content = request.content
        self._limit = limit
        self._memory = memory
        self._counted = 0
        # Remaining bytes of the body, None if unknown: a compressed body becomes longer than its length says.
        self._to_come = None if "Content-Encoding" in request.headers else request.content_length
        self._ready: deque[bytes] = deque()
        self._rest = bytearray()
        self._ended = False

    async def next(self, idle: Callable[[], Awaitable[None]]) -> bytes | None:
        """Return the next line, None at the end. ``idle`` is awaited when the client keeps us waiting.

        Raises BadLine if the line is too long.
        """
        while not self._ready and not self._ended:
            await self._receive(idle)
        if not self._ready:
            return None
        line = self._ready.popleft()
        if len(line) > self._limit:
            raise BadLine(f"longer than {self._limit} bytes: a client of a protocol sends larger records")
        return line

    async def _receive(self, idle: Callable[[], Awaitable[None]]) -> None:
        receiving = asyncio.ensure_future(self._content.readany())
        try:
            done, _ = await asyncio.wait({receiving}, timeout=_LINGER_S)
            if not done:
                await idle()
            chunk = await receiving
        finally:
            receiving.cancel()
        self._memory.take(Kind.REQUESTS, len(chunk))
        self._counted += len(chunk)
        if self._to_come is not None:
            self._to_come -= len(chunk)
        first, *others = chunk.split(b"\n")
        self._rest += first
        for other in others:
            self._ready.append(bytes(self._rest))
            self._rest = bytearray(other)
        self._ended = not chunk
        if (self._ended and self._rest) or len(self._rest) > self._limit:
            self._ready.append(bytes(self._rest))
            self._rest = bytearray()
        await self._count(idle)

    async def _count(self, idle: Callable[[], Awaitable[None]]) -> None:
        """Count the lines in memory, and the possible rest of a line that is long already. Raises RequestError."""
        wanted = sum(map(_room_for, self._ready)) + len(self._rest)
        if len(self._rest) > _LINE_BYTES:
            # Count the whole line at once: several lines that each hold a part and wait for more would block each
            # other.
            to_come = self._limit if self._to_come is None else self._to_come
            wanted += len(self._rest) + 2 * min(self._limit, to_come)
        if wanted > self._counted:
            await idle()  # records that wait for more lines would keep their memory
            try:
                async with asyncio.timeout(_ROOM_S):
                    await self._memory.admit(Kind.REQUESTS, wanted, instead=self._counted)
            except TimeoutError:
                raise RequestError("the node is short of memory for a line of this length, try again", 503) from None
        else:
            self._memory.give(Kind.REQUESTS, self._counted - wanted)
        self._counted = wanted


def _room_for(line: bytes) -> int:
    """Return the bytes that a line takes; a long line counts twice, because parsing makes a copy."""
    return len(line) if len(line) <= _LINE_BYTES else 2 * len(line)


def _position(log: ReadableLog, text: str) -> int:
    if text in ("earliest", "latest"):
        return _nearest(log, text)
    offset = _number(text, "offset")
    if not log.log_start_offset <= offset <= log.high_watermark:
        raise OffsetOutOfRange(
            f"offset {offset} of {log.topic}-{log.partition} is outside [{log.log_start_offset}, {log.high_watermark}]"
        )
    return offset


async def _ends(logs: list[ReadableLog], query: RecordsQuery) -> dict[ReadableLog, int]:
    """Return the offset of each partition up to which to read."""
    ends = {log: log.last_stable_offset for log in logs}
    if query.until_ms is not None:
        for log in logs:
            if (found := await log.find_timestamp(query.until_ms + _LATE_MS)) is not None:
                ends[log] = min(found[0], ends[log])
    return ends


def _told_too_long(search: Search | None) -> dict[str, int]:
    return {} if search is None or not search.too_long else {"too_long": search.too_long}


def _nearest(log: ReadableLog, text: str) -> int:
    """Return the offset that ``text`` says, or the nearest that there is."""
    if text == "latest":
        return log.last_stable_offset
    offset = 0 if text == "earliest" else _number(text, "offset")
    return max(min(offset, log.last_stable_offset), log.log_start_offset)


def _order(query: RecordsQuery) -> Order | None:
    """Return the order of time of a query, None without one. Raises RequestError."""
    if query.order is None:
        return None
    if query.limit == 0:
        raise RequestError("limit = 0 is not a whole number from 1 on")
    return Order(query.order == "newest", min(query.limit or _ORDERED, _ORDERED_MOST))


def _places(at: str) -> dict[int, int]:
    """Return the offsets by partition that a query continues at. Raises RequestError."""
    places = (place.partition(":") for place in filter(None, at.split(",")))
    return {_number(partition, "at"): _number(offset, "at") for partition, _, offset in places}


def _search(query: RecordsQuery) -> Search | None:
    conditions = parse_conditions(query.json)
    if not conditions and (query.text, query.key, query.header, query.until_ms, query.look) == (None,) * 5:
        return None
    name, _, text = (query.header or "").partition("=")
    return Search(
        min(query.look or _LOOK, _LOOK_MOST),
        (query.text or "").encode(),
        None if query.key is None else query.key.encode(),
        name,
        text.encode(),
        -1 if query.until_ms is None else query.until_ms,
        -1 if query.since_ms is None else query.since_ms,
        conditions,
    )


def _number(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise RequestError(f"{what} = {text!r} is not a whole number")
    return int(text)
