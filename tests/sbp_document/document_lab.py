"""A backend with the document's listeners, and raw frames to talk to them; used by the tests of sbp-v0.1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.memory.buffers import Buffer
from sbp_back.client.stream_writer import StreamWriter
from sbp_back.embedded import Embedded, EmbeddedOptions, start_embedded
from sbp_back.errors import ConnectionLost, SbpError
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import Carrier, InProcessCarrier
from sbp_back.transport.listener import Listener, ListenerOptions
from sbp_back.transport.serving import ListenAt
from sbp_back.transport.tcp_carrier import TcpCarrier
from sbp_back.wire.base import Dialect
from sbp_back.wire.frame import Frame, encode_frame
from sbp_back.wire.model import Request, Response, Status
from sbp_back.wire.v02 import DialectV02
from sbp_document.client.document_writer import DocumentWriter
from sbp_document.server.document_service import DIALECT_OF, DocumentService, start_document
from sbp_document.wire import messages as m
from sbp_document.wire import v01
from sbp_document.wire.record_batch import DocumentRecord, encode_batch
from tests.kit.sbp_frames import Frames

LOCAL = ("127.0.0.1", 0)
DIALECTS: dict[str, Dialect] = {"sbp-0.2": DialectV02(), **v01.DIALECTS}
LISTENERS = ("sbp-v0.1", "sbp-v0.1-range-server", "sbp-v0.1-april", "sbp-pd", "sbp-range-server")
T = TypeVar("T", bound=Response)


class Served:
    """An embedded backend with listeners of the document, for what both have."""

    def __init__(self, embedded: Embedded, document: DocumentService) -> None:
        self.embedded = embedded
        self.document = document

    def __getattr__(self, name: str) -> Any:
        return getattr(self.embedded, name)

    @property
    def listeners(self) -> dict[str, Listener]:
        return {**self.embedded.listeners, **self.document.listeners}

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        return {**self.embedded.addresses, **self.document.addresses}

    async def close(self) -> None:
        await self.document.close()
        await self.embedded.close()


async def start(path: Path, options: EmbeddedOptions) -> Served:
    """A backend with the listeners that ``options`` name, the document's among them, as a node has it."""
    memory = options.range_server_listener.memory_bytes
    options.budget = options.budget or MemoryBudget(memory, asyncio.get_running_loop().call_soon)
    at = replace(ListenerOptions.placement_driver(), max_connections=options.max_connections)
    document = {
        name: ListenAt(address, options.advertise.get(name), options=at, budget=options.budget)
        for name, address in options.listen.items()
        if name in DIALECT_OF
    }
    options.listen = {name: address for name, address in options.listen.items() if name not in DIALECT_OF}
    embedded = await start_embedded(path, options)
    try:
        served = await start_document(embedded.client, embedded.placement_driver, embedded.range_server, document)
    except BaseException:
        await embedded.close()
        raise
    return Served(embedded, served)


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[Served]:
    """An embedded backend with every listener open."""
    store = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
    given: dict[str, Any] = {"store": store, "listen": dict.fromkeys(LISTENERS, LOCAL), **options}
    embedded = await start(path, EmbeddedOptions(**given))
    try:
        yield embedded
    finally:
        await embedded.close()


def carrier(embedded: Served, kind: str) -> Carrier:
    """A way to the document's server: in this process, over TCP, or over TCP in the variant of April."""
    if kind == "in-process":
        return InProcessCarrier(embedded.document.server)
    name = "sbp-v0.1" if kind == "tcp" else "sbp-v0.1-april"
    return TcpCarrier(*embedded.addresses[name], DIALECTS[name])


async def exchange(to: Carrier, request: Request) -> list[Response]:
    """All parts of the answer."""
    parts: list[Response] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(answer: Response | ConnectionLost) -> None:
        if isinstance(answer, ConnectionLost):
            done.set_exception(answer)
            return
        parts.append(answer)
        if getattr(answer, "last", True):
            done.set_result(None)

    to.submit(request, reply)
    await done
    return parts


async def ask(to: Carrier, request: Request, kind: type[T]) -> T:
    """The answer, which must be one part of the given kind and good as a whole."""
    (part,) = await exchange(to, request)
    assert isinstance(part, kind), part
    assert part.status == Status(), part.status
    return part


def batch(*bodies: bytes, **options: Any) -> bytearray:
    return encode_batch([DocumentRecord(body, timestamp=1_700_000_000_000) for body in bodies], **options)


async def created(to: Carrier) -> int:
    """A new stream's id."""
    response = await ask(to, m.CreateStreamsRequest(streams=[m.DocumentStream(-1, 1, 0)]), m.CreateStreamsResponse)
    (result,) = response.results
    assert result.status == Status(), result.status
    assert result.stream is not None
    return result.stream.stream_id


async def appended(to: Carrier, stream_id: int, *bodies: bytes) -> m.AppendItemResult:
    items = [m.AppendItem(stream_id, 0, batch(*bodies))]
    parts = await exchange(to, m.AppendBatchRequest(0, items))
    results = [result for part in parts if isinstance(part, m.AppendBatchResponse) for result in part.results]
    (result,) = results
    return result


async def fetched(to: Carrier, stream_id: int, offset: int, **options: int) -> m.FetchItemResult:
    request = m.FetchBatchRequest(
        options.get("max_wait_ms", 0),
        options.get("min_bytes", 0),
        [m.FetchItem(stream_id, 7, offset, options.get("max_bytes", 1 << 20))],
    )
    response = await ask(to, request, m.FetchBatchResponse)
    (result,) = response.results
    assert result.request_index == 7
    return result


def write(writer: StreamWriter | DocumentWriter, payload: bytes, count: int = 1, flags: int = 0) -> asyncio.Future[int]:
    """An append of a writer of either dialect: the base offset it was given, once durable."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(error: SbpError | None) -> None:
        if error is None:
            future.set_result(base)
        else:
            future.set_exception(error)

    base = writer.append(payload, count, flags, 1_700_000_000_000, done)
    return future


class Wire:
    """A socket of its own, for what a well-behaved client does not send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = Frames()
        self._received: list[Frame] = []

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: tuple[str, int]) -> AsyncIterator[Wire]:
        wire = cls(*await asyncio.open_connection(*address))
        try:
            yield wire
        finally:
            wire.writer.close()
            await wire.writer.wait_closed()

    def send(self, opcode: int, stream_id: int, header: bytes = b"", *payload: Buffer, flags: int = 0) -> None:
        self.writer.write(b"".join(encode_frame(opcode, flags, stream_id, header, payload)))

    def request(self, dialect: Dialect, stream_id: int, request: Request) -> None:
        opcode, header, payload = dialect.encode_request(request)
        self.send(opcode, stream_id, header, *payload)

    async def frame(self) -> Frame:
        """The next frame. Raises ``EOFError`` when the server has closed the connection."""
        while not self._received:
            data = await self._reader.read(1 << 16)
            if not data:
                raise EOFError
            self._received += self._frames.feed(data)
        return self._received.pop(0)
