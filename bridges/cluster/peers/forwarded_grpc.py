"""gRPC calls that one node accepts and another node answers, forwarded over a stream between them.

At the node with the client, :func:`forward` passes messages on in both directions, as fast as each side reads. At the
other node the handler gets a :class:`ForwardedStream` with the client's own headers.

Messages to the other node are sent unchanged. An answer begins with a byte: 0 before a message, 1 before the gRPC
status with which the call ends, in MessagePack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from anabranch_kit.memory.budget import Kind
from bridges.errors import PeerUnreachable
from bridges.net.grpc_server import Code, GrpcRefusal, GrpcStream

if TYPE_CHECKING:
    from bridges.cluster.peers.stream import PeerStream
    from bridges.net.grpc_server import GrpcCall

_MESSAGE, _STATUS = b"\0", b"\1"


class Opening(msgspec.Struct, array_like=True, frozen=True):
    """The first message of a forwarded call: its method, its headers, and its client."""

    method: str
    headers: dict[str, str]
    listener: str
    host: str
    certificate_name: str


def opening_of(call: GrpcCall, method: str) -> Opening:
    """Return the opening for a client's call."""
    return Opening(method, dict(call.headers), call.listener, call.host, call.certificate_name)


class ForwardedStream(GrpcStream):
    """A stream whose client is connected to another node."""

    __slots__ = ("_peer",)

    def __init__(self, opening: Opening, peer: PeerStream) -> None:
        self._peer = peer
        self._metadata = dict(opening.headers)
        self._certificate_name = opening.certificate_name
        self._host = opening.host
        self._task = asyncio.current_task()
        self._unread = None
        self._on_drain = None
        self.listener = opening.listener
        self.method = opening.method
        self.account = peer.account
        self.draining = False
        self.received = self.sent = 0

    @property
    def peer(self) -> str:
        return self.host

    @property
    def address(self) -> tuple[str, int]:
        return self.host, 0

    async def read(self) -> bytes | None:
        if self._unread is not None:
            unread, self._unread = self._unread, None
            return unread
        raw = await self._peer.read()
        self.received += len(raw or b"")
        return raw

    async def await_gone(self) -> None:
        with suppress(PeerUnreachable):
            while True:
                raw = await self._peer.read()
                self.account.give(Kind.REQUESTS, len(raw or b""))

    async def write(self, raw: bytes) -> None:
        self.sent += len(raw)
        try:
            await self._peer.write(_MESSAGE + raw)
        except PeerUnreachable:
            raise asyncio.CancelledError from None  # as when the client has gone

    async def refuse(self, refusal: GrpcRefusal) -> None:
        """End the call with a gRPC status."""
        told = (refusal.code.value[0], str(refusal))
        await self._peer.write(_STATUS + msgspec.msgpack.encode(told))

    def when_draining(self, callback: Callable[[], None]) -> None:
        self._peer.when_draining(callback)


async def forward(stream: GrpcStream, peer: PeerStream, lost: Callable[[str], bytes]) -> None:
    """Pass messages between a stream's client and the other node until either ends the stream.

    ``lost`` makes the message that asks the client to reconnect, given the reason. Raises GrpcRefusal.
    """
    stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stream.when_draining(lambda: None if stopping.done() else stopping.set_result(None))
    asks = asyncio.create_task(_pass_on(stream, peer))
    answers = asyncio.create_task(_pass_back(peer, stream))
    try:
        await asyncio.wait({answers, stopping}, return_when=asyncio.FIRST_COMPLETED)
        reason = "the node is stopping"
        if answers.done():
            try:
                answers.result()
                return
            except PeerUnreachable as error:
                reason = str(error)
        answers.cancel()
        await asyncio.wait({answers})
        await stream.write(lost(reason))
    finally:
        stopping.cancel()
        asks.cancel()
        answers.cancel()
        await asyncio.gather(asks, answers, return_exceptions=True)


async def _pass_on(stream: GrpcStream, peer: PeerStream) -> None:
    while (raw := await stream.read()) is not None:
        try:
            await peer.write(raw)
        finally:
            stream.account.give(Kind.REQUESTS, len(raw))
    await peer.done_writing()


async def _pass_back(peer: PeerStream, stream: GrpcStream) -> None:
    while (message := await read_answer(peer)) is not None:
        await stream.write(message)


async def read_answer(peer: PeerStream) -> bytes | None:
    """Return the other node's next message for the client, None at the end. Gives its bytes back to the budget.

    Raises GrpcRefusal, PeerUnreachable.
    """
    raw = await peer.read()
    if raw is None:
        return None
    peer.account.give(Kind.REQUESTS, len(raw))
    if raw[:1] == _MESSAGE:
        return raw[1:]
    number, message = msgspec.msgpack.decode(raw[1:], type=tuple[int, str])
    raise GrpcRefusal(_CODES.get(number, Code.UNAVAILABLE), message)


_CODES = {code.value[0]: code for code in Code}
