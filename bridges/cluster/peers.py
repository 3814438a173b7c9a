"""Requests between the nodes of a cluster: one connection from each node to each other, and a secret in their database.

A handler registers under a name (:meth:`Peers.serve`); messages are msgspec structs. Both ends of a connection first
prove that they know the secret, and the answering side names its start: an address that belongs to another start by now
answers nothing. The outcome of a request without an answer is *unknown*: it may be repeated, and the answering node
checks in the database whether it still applies.

A frame is its length in four bytes and a message in MessagePack. The requests in progress of a connection are bounded
in number and in bytes; at the bound, reading pauses. Ordered or large data goes through a stream
(:meth:`Peers.stream`), which has its own connection.
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

from anabranch_kit.memory.budget import Account, Kind, MemoryBudget
from anabranch_kit.net.address import Address
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.sql import Connection
from bridges.cluster.members import Member
from bridges.cluster.peer_stream import PeerStream
from bridges.cluster.told_errors import Told, heard, tell
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
_HELLO_S = 5.0
_STRANGERS = 64
"""Most connections that have not proved anything yet."""
_ASKED_AT_ONCE = 256
_BYTES_AT_ONCE = 2 * _MOST
_PATIENCE_S = 10.0
_STREAM = 0
"""Number of a connection's first request if it opens a stream."""

Q = TypeVar("Q", bound=Struct)
A = TypeVar("A", bound=Struct)


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

    ``owner``: for NotOwner, the node that owns what was asked for. ``told``: the error itself, which an older node does
    not send.
    """

    text: str
    retriable: bool
    owner: int | None = None
    told: Told | None = None


class _Reply(Struct, array_like=True):
    number: int
    body: Raw
    failure: _Failure | None = None


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
        self._links: dict[int, _Link] = {}
        # Streams that this node has opened, by the member at the other end, and streams that others have opened.
        self._opened: dict[int, set[PeerStream]] = {}
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
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.end()
        for streams in list(self._opened.values()):
            for stream in list(streams):
                stream.lose("is not asked any more")
        tasks = [link.task for link in links]
        for task in tasks:
            task.cancel()
        await asyncio.gather(self._answering.close(), *tasks, return_exceptions=True)

    def left(self, members: Collection[int]) -> None:
        """Fail the requests and streams to nodes that are not among ``members`` any more."""
        for start in self._links.keys() - set(members):
            self._links.pop(start).end()
        for start in self._opened.keys() - set(members):
            for stream in list(self._opened[start]):
                stream.lose("is a member no more")

    # --- asking -----------------------------------------------------------------------------------------------------

    async def ask(
        self, member: Member, kind: str, message: Struct, answer: type[A], patience_s: float = _PATIENCE_S
    ) -> A:
        """Send a request to a node, and return its answer.

        Raises PeerUnreachable without an answer, NotOwner if another node has to answer, and any other error as the
        other node met it.
        """
        link = self._links.get(member.start)
        if link is None or link.ended:
            link = self._links[member.start] = _Link(self, member)
        try:
            async with asyncio.timeout(patience_s):
                reply = await link.ask(kind, msgspec.msgpack.encode(message))
        except TimeoutError:
            raise PeerUnreachable(f"node {member.node_id} has not answered for {patience_s:g} s") from None
        failure = reply.failure
        if failure is None:
            return msgspec.msgpack.decode(reply.body, type=answer)
        if failure.owner is not None:
            raise NotOwner(kind, failure.owner)
        if failure.told is not None:
            raise heard(failure.told)
        raise (LogUnavailable if failure.retriable else LogError)(failure.text)

    async def stream(self, member: Member, kind: str, opening: Struct) -> PeerStream:
        """Open a stream to a node's handler; to be returned with :meth:`left_stream`. Raises PeerUnreachable.

        The stream is lost as soon as the cluster goes on without that node.
        """
        try:
            reader, writer = await self.connect(member)
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as error:
            reason = str(error) or type(error).__name__
            raise PeerUnreachable(f"node {member.node_id} cannot be asked: {reason}") from None
        _write(writer, _Request(_STREAM, kind, Raw(msgspec.msgpack.encode(opening))))
        stream = PeerStream(reader, writer, self._budget, f"node {member.node_id}")
        self._opened.setdefault(member.start, set()).add(stream)
        return stream

    def left_stream(self, member: Member, stream: PeerStream) -> None:
        """Close a stream that this node has opened."""
        streams = self._opened.get(member.start)
        if streams is not None:
            streams.discard(stream)
            if not streams:
                del self._opened[member.start]
        stream.close()

    async def is_past(self, member: Member) -> bool:
        """Return whether the process of a member has ended: its port is closed, or another start listens there.

        A member that cannot be reached, or is silent, may be alive.
        """
        try:
            _, writer = await self.connect(member)
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
                    await _Answers(self, reader, writer).run(first)
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError, PeerUnreachable):
            pass  # the asking node retries
        except Exception as error:  # noqa: BLE001 - logged and counted; others' connections go on
            self._barrier.caught("answering another node", error)
        finally:
            writer.close()

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
            async with asyncio.timeout(_HELLO_S):
                mine = _Hello(self.start, secrets.token_bytes(32))
                _write(writer, mine)
                theirs = msgspec.msgpack.decode(await _read(reader, _MOST_BEFORE), type=_Proof)
                if not hmac.compare_digest(theirs.proof, self.proof(b"asks", theirs.start, mine, theirs.nonce)):
                    _log.warning("somebody who is no node of this cluster wants to be answered")
                    return False
                _write(writer, _Proof(self.start, self.proof(b"answers", theirs.start, mine, theirs.nonce)))
                return True
        finally:
            self._strangers -= 1

    def proof(self, role: bytes, asks: int, hello: _Hello, nonce: bytes) -> bytes:
        """Return the proof of the secret, for a role and a connection, to which both ends have contributed a nonce."""
        told = role + struct.pack(">qq", asks, hello.start) + hello.nonce + nonce
        return hmac.digest(self._secret, told, sha256)

    async def answer(self, request: _Request) -> _Reply:
        """Return the reply to a request."""
        served = self._served.get(request.kind)
        if served is None:
            return _Reply(request.number, _NOTHING, _Failure(f"this node answers no {request.kind}", retriable=True))
        kind, answer = served
        try:
            answered = await answer(msgspec.msgpack.decode(request.body, type=kind))
            return _Reply(request.number, Raw(msgspec.msgpack.encode(answered)))
        except NotOwner as error:
            failure = _Failure(str(error), retriable=True, owner=error.node_id)
        except LogError as error:
            failure = _Failure(str(error), error.retriable, told=tell(error))
        except Exception as error:  # noqa: BLE001 - counted, and sent to the asking node; it fails only that request
            self._barrier.caught("answering another node", error, asked=request.kind)
            failure = _Failure(f"{request.kind} failed there", retriable=True)
        return _Reply(request.number, _NOTHING, failure)

    async def connect(self, member: Member) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to exactly this start of a node. Raises PeerUnreachable, OSError, EOFError, TimeoutError."""
        told = member.addresses.get(LISTENER)
        if told is None:
            raise PeerUnreachable(f"node {member.node_id} tells no address for other nodes")
        address = Address.parse(told)
        async with asyncio.timeout(_HELLO_S):
            name = address.host if self._tls is not None else None
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=self._tls, server_hostname=name
            )
            try:
                hello = msgspec.msgpack.decode(await _read(reader, _MOST_BEFORE), type=_Hello)
                if hello.start != member.start:
                    raise _AnotherStart(f"node {member.node_id} is another start by now")
                nonce = secrets.token_bytes(32)
                _write(writer, _Proof(self.start, self.proof(b"asks", self.start, hello, nonce), nonce))
                theirs = msgspec.msgpack.decode(await _read(reader, _MOST_BEFORE), type=_Proof)
                if not hmac.compare_digest(theirs.proof, self.proof(b"answers", self.start, hello, nonce)):
                    raise PeerUnreachable(f"what listens at {told} is no node of this cluster")
            except BaseException:
                writer.close()
                raise
        return reader, writer

    def account(self) -> Account:
        """Return an account for the memory of a connection."""
        return self._budget.account(lambda: None)


class _Answers:
    """A connection on which another node sends requests."""

    def __init__(self, peers: Peers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peers = peers
        self._reader = reader
        self._writer = writer
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._less = asyncio.Event()
        self._account = peers.account()

    async def run(self, first: bytes) -> None:
        """Answer ``first``, and the requests after it until the connection ends."""
        frame = first
        try:
            while True:
                task = asyncio.get_running_loop().create_task(self._answer(frame))
                self._count(len(frame))
                self._tasks.add(task)
                task.add_done_callback(partial(self._done, len(frame)))
                while len(self._tasks) >= _ASKED_AT_ONCE or self._bytes >= _BYTES_AT_ONCE:
                    self._less.clear()
                    await self._less.wait()
                frame = await _read(self._reader, _MOST)
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            self._account.close()

    def _count(self, size: int) -> None:
        self._bytes += size
        self._account.count(Kind.REQUESTS, size)

    def _done(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._count(-size)
        self._less.set()

    async def _answer(self, frame: bytes) -> None:
        try:
            reply = await self._peers.answer(msgspec.msgpack.decode(frame, type=_Request))
            _write(self._writer, reply)
            await self._writer.drain()
        except (OSError, msgspec.MsgspecError):
            self._writer.close()


class _Link:
    """The connection on which this node sends requests to a start of another node."""

    def __init__(self, peers: Peers, member: Member) -> None:
        self._peers = peers
        self._member = member
        self._number = 0
        self._waiting: dict[int, asyncio.Future[_Reply]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._unsent: list[_Request] = []
        self.ended = False
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"answers of node {member.node_id}")

    async def ask(self, kind: str, body: bytes) -> _Reply:
        if len(body) > _MOST - 1024:
            raise LogError(f"{len(body)} bytes are more than a node is asked at once")
        self._number += 1
        request = _Request(self._number, kind, Raw(body))
        future: asyncio.Future[_Reply] = asyncio.get_running_loop().create_future()
        self._waiting[request.number] = future
        if self._writer is None:
            self._unsent.append(request)
        else:
            _write(self._writer, request)
        try:
            return await future
        finally:
            self._waiting.pop(request.number, None)

    def end(self) -> None:
        """Close the connection, and fail all waiting requests."""
        self.task.cancel()
        self._lose("is a member no more")

    def _lose(self, reason: str) -> None:
        self.ended = True
        if self._writer is not None:
            self._writer.close()
        lost = PeerUnreachable(f"node {self._member.node_id} cannot be asked: {reason}")
        for waiting in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(lost)

    async def _run(self) -> None:
        reason = "has closed the connection"
        try:
            reader, self._writer = await self._peers.connect(self._member)
            unsent, self._unsent = self._unsent, []
            for request in unsent:
                if request.number in self._waiting:
                    _write(self._writer, request)
            while True:
                reply = msgspec.msgpack.decode(await _read(reader, _MOST), type=_Reply)
                waiting = self._waiting.pop(reply.number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        except (OSError, EOFError, TimeoutError, PeerUnreachable, msgspec.MsgspecError) as error:
            reason = str(error) or type(error).__name__
        finally:
            self._lose(reason)


def _write(writer: asyncio.StreamWriter, message: Struct) -> None:
    body = msgspec.msgpack.encode(message)
    writer.write(_LENGTH.pack(len(body)) + body)


async def _read(reader: asyncio.StreamReader, most: int) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > most:
        raise OSError(f"a message of {length} bytes")
    return await reader.readexactly(length)
