"""Requests between the nodes of a cluster: one connection from each node to each other, and a secret in their database.

A handler registers under a name (:meth:`Peers.serve`); messages are msgspec structs. Both ends of a connection first
prove that they know the secret, and the answering side names its start: an address that belongs to another start by now
answers nothing. The outcome of a request without an answer is *unknown*: it may be repeated, and the answering node
checks in the database whether it still applies.

A frame is its length in four bytes and a message in MessagePack. All requests to a node share a lane
(:mod:`bridges.cluster.peers.lane`). Ordered or large data goes through a lane of its own kind (:meth:`Peers.lane`), or
through a stream (:meth:`Peers.stream`). Each of them has its own connection.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import ssl
import struct
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec import Raw, Struct

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.net.address import Address
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.database.sql import Connection
from bridges.cluster.members import Member
from bridges.cluster.peers.lane import Answers, Lane, Numbered
from bridges.cluster.peers.stream import PeerStream
from bridges.cluster.peers.wire_errors import EncodedError, decode_error, encode_error
from bridges.errors import LogError, LogUnavailable, NotOwner
from bridges.errors import PeerUnreachable as PeerUnreachable

_log = structlog.get_logger("anabranch.cluster")

LISTENER = "cluster"
"""Name of the listener. Nodes find its address in the database, so any port will do."""

_SECRET = "cluster_secret"
_LENGTH = struct.Struct(">I")
_MOST = 4 * 1024**2
"""Largest message, in bytes."""
_MOST_BEFORE = 256
"""Largest message, in bytes, from a peer that has not proved anything yet."""
HELLO_S = 5.0
_STRANGERS = 64
"""Most connections that have not proved anything yet."""
_ASKED_AT_ONCE = 256
_BYTES_AT_ONCE = 2 * _MOST
_PATIENCE_S = 10.0
_STREAM = 0
"""Number of a connection's first request if it opens a stream."""

_REQUESTS = ""
"""Kind of the lane for requests, whose connection begins with the first request."""

Q = TypeVar("Q", bound=Struct)
A = TypeVar("A", bound=Struct)
N = TypeVar("N", bound=Numbered)


class _Hello(Struct, array_like=True):
    start: int
    nonce: bytes


class _Proof(Struct, array_like=True):
    start: int
    proof: bytes
    nonce: bytes = b""


class _Request(Struct, array_like=True):
    number: int
    kind: str
    body: Raw


class _Failure(Struct, array_like=True):
    """An error as an answer.

    ``owner``: for NotOwner, the node that owns what was asked for. ``error``: the error itself; an older node does
    not send.
    """

    text: str
    retriable: bool
    owner: int | None = None
    error: EncodedError | None = None


class _Reply(Struct, array_like=True):
    number: int
    body: Raw
    failure: _Failure | None = None


_decode_reply = msgspec.msgpack.Decoder(_Reply).decode


class LaneOpening(Struct, array_like=True):
    """The empty opening message of a lane's stream."""


class _AnotherStart(PeerUnreachable):
    """Another start of a node has the address now."""


_NOTHING = Raw(msgspec.msgpack.encode(None))


def secret(connection: Connection) -> str:
    """Return the cluster's secret; the first caller creates it."""
    store = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
    connection.execute(store, (_SECRET, secrets.token_hex(32)))
    (found,) = connection.execute("SELECT value FROM meta WHERE key = ?", (_SECRET,)).fetchone()
    return str(found)


class Peers:
    """The client and server for requests between nodes, of the member ``start``. Belongs to the event loop.

    Callers handle requests to their own node themselves; these need no connection.
    """

    def __init__(self, start: int, shared: str, barrier: Barrier, budget: MemoryBudget) -> None:
        self.start = start
        self._secret = shared.encode()
        self._barrier = barrier
        self._budget = budget
        self._served: dict[str, tuple[type[Struct], Callable[[Any], Awaitable[Struct]]]] = {}
        self._streaming: dict[str, tuple[type[Struct], Callable[[Any, PeerStream], Awaitable[None]]]] = {}
        # By the member at the other end, and the kind: _REQUESTS, or that of the lane's stream.
        self._lanes: dict[tuple[int, str], Lane[Any]] = {}
        # Streams that this node has opened, by the member at the other end, and streams that others have opened.
        self.opened: dict[int, set[PeerStream]] = {}
        self._streams: set[PeerStream] = set()
        self._ended = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._answering = TaskSet()
        self._strangers = 0
        self._tls: ssl.SSLContext | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def listen(self, at: Address, tls: ssl.SSLContext | None, towards: ssl.SSLContext | None) -> Address:
        """Listen at an address. With TLS, other nodes are reached with TLS too, with the context ``towards``. Raises
        OSError.
        """
        self._tls = None if tls is None else towards or ssl.create_default_context()
        self._server = await asyncio.start_server(self._admit, at.host, at.port, ssl=tls)
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def drain(self) -> None:
        """Tell other nodes' streams that this node is stopping, and return when they have ended."""
        for stream in list(self._streams):
            self._barrier.call("drain", stream.drain)
        while self._streams:
            self._ended.clear()
            await self._ended.wait()

    async def close(self) -> None:
        """Stop sending requests and answering."""
        if self._server is not None:
            self._server.close()
        for lane in self._lanes.values():
            lane.end("this node is stopping")
        for streams in list(self.opened.values()):
            for stream in list(streams):
                stream.lose("is not asked any more")
        tasks = [lane.task for lane in self._lanes.values()]
        await asyncio.gather(self._answering.close(), *tasks, return_exceptions=True)

    def keep_only(self, members: Collection[int]) -> None:
        """Fail the requests and streams to nodes that are not among ``members`` any more."""
        for key in [key for key in self._lanes if key[0] not in members]:
            self._lanes.pop(key).end("it is a member no more")
        for start in self.opened.keys() - set(members):
            for stream in list(self.opened[start]):
                stream.lose("is a member no more")

    # --- asking -----------------------------------------------------------------------------------------------------

    async def ask(
        self, member: Member, kind: str, message: Struct, answer: type[A], patience_s: float = _PATIENCE_S
    ) -> A:
        """Send a request to a node, and return its answer.

        Raises PeerUnreachable without an answer, NotOwner if another node has to answer, and any other error as the
        other node met it.
        """
        body = msgspec.msgpack.encode(message)
        if len(body) > _MOST - 1024:
            raise LogError(f"{kind}: {len(body)} bytes are more than a node is asked at once ({_MOST - 1024})")
        lane = self.lane(member, _REQUESTS, _decode_reply)
        reply = await lane.ask(lambda number: msgspec.msgpack.encode(_Request(number, kind, Raw(body))), patience_s)
        failure = reply.failure
        if failure is None:
            return msgspec.msgpack.decode(reply.body, type=answer)
        if failure.owner is not None:
            raise NotOwner(kind, failure.owner)
        if failure.error is not None:
            raise decode_error(failure.error)
        raise (LogUnavailable if failure.retriable else LogError)(failure.text)

    async def stream(self, member: Member, kind: str, opening: Struct | None) -> PeerStream:
        """Open a stream to a node's handler; to be returned with :meth:`close_stream`. Raises PeerUnreachable.

        The stream is lost as soon as the cluster goes on without that node.
        """
        try:
            reader, writer = await self._connect(member)
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as error:
            reason = str(error) or type(error).__name__
            raise PeerUnreachable(f"node {member.node_id} cannot be asked: {reason}") from None
        if opening is not None:
            _write(writer, _Request(_STREAM, kind, Raw(msgspec.msgpack.encode(opening))))
        stream = PeerStream(reader, writer, self._budget, f"node {member.node_id}")
        self.opened.setdefault(member.start, set()).add(stream)
        return stream

    def lane(self, member: Member, kind: str, decode: Callable[[bytes], N]) -> Lane[N]:
        """Return the lane of a kind to a node. ``decode`` reads an answer; it raises DecodeError or struct.error."""
        lane = self._lanes.get((member.start, kind))
        if lane is None or lane.is_over:
            connect = partial(self.stream, member, kind, None if kind == _REQUESTS else LaneOpening())
            close = partial(self.close_stream, member)
            lane = self._lanes[member.start, kind] = Lane(member.node_id, connect, close, decode)
        return lane

    def close_stream(self, member: Member, stream: PeerStream) -> None:
        streams = self.opened.get(member.start)
        if streams is not None:
            streams.discard(stream)
            if not streams:
                del self.opened[member.start]
        stream.close()

    async def is_past(self, member: Member) -> bool:
        """Return whether the process of a member has ended: its port is closed, or another start listens there.

        A member that cannot be reached, or is silent, may be alive.
        """
        try:
            _, writer = await self._connect(member)
        except (ConnectionRefusedError, _AnotherStart):
            return True
        except (OSError, EOFError, TimeoutError, PeerUnreachable, msgspec.MsgspecError):
            return False
        writer.close()
        return False

    # --- answering --------------------------------------------------------------------------------------------------

    def serve_stream(self, kind: str, opening: type[Q], serve: Callable[[Q, PeerStream], Awaitable[None]]) -> None:
        """Register the handler for a kind of streams.

        The stream ends when ``serve`` returns or raises; errors for the other side must be among its messages.
        """
        assert kind not in self._streaming, kind
        self._streaming[kind] = opening, serve

    def serve(self, kind: str, message: type[Q], answer: Callable[[Q], Awaitable[Struct]]) -> None:
        """Register the handler for a kind of requests; its exceptions are sent to the asking node."""
        assert kind not in self._served, kind
        self._served[kind] = message, answer

    def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._answering.spawn(self._admitted(reader, writer))

    async def _admitted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._strangers < _STRANGERS and await self._is_one_of_us(reader, writer):
                first = await _read(reader, _MOST)
                asked = msgspec.msgpack.decode(first, type=_Request)
                if asked.number == _STREAM:
                    await self._serve_stream(asked, reader, writer)
                else:
                    await self._serve_requests(first, reader, writer)
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError, PeerUnreachable):
            pass  # the asking node retries
        except Exception as error:  # noqa: BLE001 - logged and counted; others' connections go on
            self._barrier.caught("answering another node", error)
        finally:
            writer.close()

    async def _serve_requests(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = PeerStream(reader, writer, self._budget, "the other node", _MOST)
        stream.account.take(Kind.REQUESTS, len(first))
        try:
            await Answers(stream, self._answer, _ASKED_AT_ONCE, _BYTES_AT_ONCE).run(first)
        finally:
            stream.close()

    async def _serve_stream(self, asked: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = self._streaming.get(asked.kind)
        if served is None:
            return
        kind, serve = served
        stream = PeerStream(reader, writer, self._budget, "the other node")
        self._streams.add(stream)
        try:
            await serve(msgspec.msgpack.decode(asked.body, type=kind), stream)
        finally:
            self._streams.discard(stream)
            self._ended.set()
            stream.close()

    async def _is_one_of_us(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._strangers += 1
        try:
            async with asyncio.timeout(HELLO_S):
                mine = _Hello(self.start, secrets.token_bytes(32))
                _write(writer, mine)
                theirs = msgspec.msgpack.decode(await _read(reader, _MOST_BEFORE), type=_Proof)
                if not hmac.compare_digest(theirs.proof, self._proof(b"asks", theirs.start, mine, theirs.nonce)):
                    _log.warning("somebody who is no node of this cluster wants to be answered")
                    return False
                _write(writer, _Proof(self.start, self._proof(b"answers", theirs.start, mine, theirs.nonce)))
                return True
        finally:
            self._strangers -= 1

    def _proof(self, role: bytes, asks: int, hello: _Hello, nonce: bytes) -> bytes:
        """Return the proof of the secret, for a role and a connection, to which both ends have contributed a nonce."""
        proved = role + struct.pack(">qq", asks, hello.start) + hello.nonce + nonce
        return hmac.digest(self._secret, proved, sha256)

    async def _answer(self, raw: bytes) -> bytes:
        request = msgspec.msgpack.decode(raw, type=_Request)
        failure = None
        body = _NOTHING
        try:
            served = self._served.get(request.kind)
            if served is None:
                raise LogUnavailable(f"this node answers no {request.kind}")
            kind, answer = served
            answered = await answer(msgspec.msgpack.decode(request.body, type=kind))
            body = Raw(msgspec.msgpack.encode(answered))
        except NotOwner as error:
            failure = _Failure(str(error), retriable=True, owner=error.node_id)
        except LogError as error:
            failure = _Failure(str(error), error.retriable, error=encode_error(error))
        except Exception as error:  # noqa: BLE001 - counted, and sent to the asking node; it fails only that request
            self._barrier.caught("answering another node", error, asked=request.kind)
            failure = _Failure(f"{request.kind} failed there", retriable=True)
        return msgspec.msgpack.encode(_Reply(request.number, body, failure))

    async def _connect(self, member: Member) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to exactly this start of a node. Raises PeerUnreachable, OSError, EOFError, TimeoutError."""
        listener = member.addresses.get(LISTENER)
        if listener is None:
            raise PeerUnreachable(f"node {member.node_id} tells no address for other nodes")
        address = Address.parse(listener)
        async with asyncio.timeout(HELLO_S):
            name = address.host if self._tls is not None else None
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=self._tls, server_hostname=name
            )
            try:
                hello = msgspec.msgpack.decode(await _read(reader, _MOST_BEFORE), type=_Hello)
                if hello.start != member.start:
                    raise _AnotherStart(f"node {member.node_id} is another start by now")
                nonce = secrets.token_bytes(32)
                _write(writer, _Proof(self.start, self._proof(b"asks", self.start, hello, nonce), nonce))
                theirs = msgspec.msgpack.decode(await _read(reader, _MOST_BEFORE), type=_Proof)
                if not hmac.compare_digest(theirs.proof, self._proof(b"answers", self.start, hello, nonce)):
                    raise PeerUnreachable(f"the program at {listener} is not a node of this cluster")
            except BaseException:
                writer.close()
                raise
        return reader, writer


def _write(writer: asyncio.StreamWriter, message: Struct) -> None:
    body = msgspec.msgpack.encode(message)
    writer.write(_LENGTH.pack(len(body)) + body)


async def _read(reader: asyncio.StreamReader, most: int) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > most:
        raise OSError(f"a message of {length} bytes")
    return await reader.readexactly(length)
