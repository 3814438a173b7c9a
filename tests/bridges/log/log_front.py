"""A front for tests that kill nodes: lets the test do to a partition's log what no client of today does.

Each line is one request, and is answered with one line, in the order they came:

    DATA topic partition producer value           OK offset     (producer -: of no transaction)
    END topic partition producer commit|abort     OK offset
    EVENT topic partition number position size    OK offset length   (of one writer; position -1: anywhere)
    TRIM topic partition position                 OK position of the first byte
    SPAN topic partition                          OK position of the first byte, length
    PLACE topic partition offset                  OK position
    SPLIT topic partition partition               OK None            (neighbours are sealed, three partitions made)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import pairwise

from anabranch_kit.net.address import Address
from anabranch_kit.run.awaited import awaited
from bridges.catalog.topics.lineage import KeyRange
from bridges.errors import LogError
from bridges.formats import FormatId, pravega
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.producer import EventStamp, InTransaction
from bridges.formats.records import Record
from bridges.log.interfaces import Appended, Batch, Guard
from bridges.log.partition.partition_log import PartitionLog
from bridges.node.front import Front, Listener, NodeServices

_WRITER = bytes(range(16))
_NOW_MS = 1_700_000_000_000


class LogFront(Front):
    """What the entry point names."""

    name = "steps"
    listeners = (Listener("steps", 7008),)

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        (name, address), *_ = listen.items()
        self._server = await asyncio.start_server(self._serve, address.host, address.port)
        host, port = self._server.sockets[0].getsockname()[:2]
        return {name: Address(host, port)}

    async def drain(self) -> None:
        return None  # its nodes are killed

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        answers: asyncio.Queue[Awaitable[object]] = asyncio.Queue()
        answering = asyncio.create_task(_answer(answers, writer))
        with suppress(ConnectionError, asyncio.CancelledError):
            while line := await reader.readline():
                answers.put_nowait(self._begun(*line.decode().split()))
        answering.cancel()
        writer.close()
        self._connections.discard(task)

    def _begun(self, what: str, topic: str, *words: str) -> Awaitable[object]:
        """The request is under way when this returns: the next may be handed over."""
        if what == "SPLIT":
            return asyncio.ensure_future(self._split(topic, [int(word) for word in words]))
        log = self._node.logs.get(topic, int(words[0]))
        assert log is not None
        handlers: dict[str, Callable[..., Awaitable[object]]] = {"DATA": self._data, "END": self._end}
        handlers |= {"EVENT": self._event, "TRIM": self._trim, "SPAN": self._span, "PLACE": self._place}
        return handlers[what](log, *words[1:])

    def _data(self, log: PartitionLog, producer: str, value: str) -> asyncio.Future[Appended]:
        names, part = {}, None
        if producer != "-":
            names = {"attributes": TRANSACTIONAL, "producer_id": int(producer), "producer_epoch": 0}
            part = InTransaction(int(producer), 0)
        payload = encode([Record(None, value.encode(), timestamp=_NOW_MS)], **names)
        batch = Batch(payload, 1, int(FormatId.KAFKA), _NOW_MS, transaction=part)
        return awaited(lambda done: log.append(batch, done))

    def _end(self, log: PartitionLog, producer: str, how: str) -> asyncio.Future[Appended]:
        return awaited(lambda done: log.append_marker(int(producer), 0, how == "commit", done))

    def _event(self, log: PartitionLog, number: str, position: str, size: str) -> asyncio.Future[str]:
        stamp = EventStamp(_WRITER, int(number))
        event = (0).to_bytes(4, "big") + (int(size) - 8).to_bytes(4, "big") + bytes(int(size) - 8)
        payload = pravega.encode(
            [event], len(event), pravega.Shape.EVENTS, 1, writer_id=_WRITER, last_number=stamp.number, events=1
        )
        batch = Batch(payload, 1, int(FormatId.PRAVEGA), -1, stamp, Guard(end_position=int(position)))
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def done(appended: Appended, error: LogError | None) -> None:
            if error is None:
                told.set_result(f"{appended.base} {'again' if appended.duplicate else log.byte_length}")
            else:
                told.set_exception(error)

        log.append(batch, done)
        return told

    async def _trim(self, log: PartitionLog, position: str) -> int:
        return await log.trim_bytes(int(position))

    async def _span(self, log: PartitionLog) -> str:
        return f"{await log.byte_start()} {(await log.byte_end()).position}"

    async def _place(self, log: PartitionLog, offset: str) -> int:
        return await log.byte_position(int(offset))

    async def _split(self, topic: str, numbers: list[int]) -> None:
        """Two neighbours become three."""
        keys = [self._node.catalog.topic(topic).partitions[number].keys for number in numbers]
        low, high = min(one.low for one in keys), max(one.high for one in keys)
        bounds = [low, low + (high - low) // 3, low + 2 * (high - low) // 3, high]
        make = [KeyRange(*pair) for pair in pairwise(bounds)]
        await self._node.catalog.change_partitions(topic, numbers, make)


async def _answer(answers: asyncio.Queue[Awaitable[object]], writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while True:
            try:
                result = await (await answers.get())
                text = f"OK {result.base if isinstance(result, Appended) else result}"
            except LogError as error:
                text = f"ERR {error}"
            writer.write(text.encode() + b"\n")
            await writer.drain()
