"""Forwarding of streams and calls to the node that must serve them: a writer's to the owner of its partition, a
reader's to the coordinator of its consumer. Clients without discovery, and those that pick any endpoint, connect to the
wrong node.

A request is forwarded at most once. The node it was forwarded to serves it, or refuses it so that the client retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from bridges.cluster.at_owner import at_owner
from bridges.cluster.peers.forwarded_grpc import ForwardedStream, Opening, forward, opening_of, read_answer
from bridges.errors import LogError, LogUnavailable, NotOwner, PeerUnreachable
from bridges.net.grpc_server import GrpcRefusal, Unary
from ydb_topic_front.wire.statuses import Status, YdbError

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Others, Ownership
    from bridges.cluster.peers.stream import PeerStream
    from bridges.net.grpc_server import GrpcCall, GrpcStream
    from bridges.node.front import NodeServices

KIND = "ydb"

FindSlot = Callable[[bytes, "GrpcStream"], Awaitable["Callable[[], int] | Member | None"]]
"""Takes a stream's first message and returns a function that finds the slot, the one node that can serve it, or None
when any node may serve it.
May raise the errors of the stream's handler; forwarding then runs the handler here, which reports the error."""
StreamHandler = Callable[["GrpcStream"], Awaitable[None]]


class Forwarding:
    """Finds the owner of a request's slot and forwards the request to it; serves the requests that other nodes forward
    here."""

    def __init__(
        self,
        node: NodeServices,
        init_timeout_s: float,
        identify: Callable[[GrpcStream], object],
        peers: Others,
        owners: Ownership,
    ) -> None:
        """``identify`` raises GrpcRefusal for a client without the required authentication."""
        self._node = node
        self.init_timeout_s = init_timeout_s
        self._identify = identify
        self._peers = peers
        self._owners = owners
        self._handlers: dict[str, StreamHandler] = {}
        peers.serve_stream(KIND, Opening, self._serve)

    def led(
        self, method: str, handler: StreamHandler, find: FindSlot, lost: Callable[[YdbError], bytes]
    ) -> StreamHandler:
        """Return a stream handler that runs ``handler`` on the owner of the slot that ``find`` gives. ``lost`` encodes
        a stream's last message, with an error.

        The client must send the first message within ``init_timeout_ms``. ``handler`` finds it in the stream.
        """
        self._handlers[method] = handler

        async def serve(stream: GrpcStream) -> None:
            try:
                async with asyncio.timeout(self.init_timeout_s) as patience:
                    stream.when_draining(lambda: patience.reschedule(0))
                    raw = await stream.read()
                    stream.when_draining(lambda: None)
            except TimeoutError:
                stopping = Status.UNAVAILABLE, "the node is stopping"
                silent = Status.TIMEOUT, "there was no init_request"
                await stream.write(lost(YdbError(*(stopping if stream.draining else silent))))
                return
            if raw is None or not await self._led(stream, method, raw, find, lost):
                if raw is not None:
                    stream.unread(raw)
                await handler(stream)

        return serve

    def led_call(self, method: str, find: Callable[[bytes], Callable[[], int] | None]) -> Callable[[Unary], Unary]:
        """Return a decorator that has calls answered by the owner of a slot. ``find`` takes a call's bytes and returns
        a function that finds the slot. Calls must be idempotent: a call whose answer is lost is sent again."""

        def led(answer: Unary) -> Unary:
            async def at_home(stream: GrpcStream) -> None:
                raw = await stream.read() or b""
                stream.account.give(Kind.REQUESTS, len(raw))  # the call counts its bytes itself
                await stream.write(await answer(raw, stream))

            self._handlers[method] = at_home

            async def lead(raw: bytes, call: GrpcCall) -> bytes:
                slot = find(raw)
                asked = None if slot is None else await self.ask(slot, opening_of(call, method), raw)
                return await answer(raw, call) if asked is None else asked

            return lead

        return led

    async def ask(self, slot: Callable[[], int], opening: Opening, raw: bytes) -> bytes | None:
        """Return the answer of a slot's owner; None if that is this node, or the slot has no owner. Raises
        GrpcRefusal."""

        async def here() -> None:
            return None

        async def there(owner: Member) -> bytes | None:
            peer = await self._peers.stream(owner, KIND, opening)
            try:
                await peer.write(raw)
                return await read_answer(peer)
            finally:
                self._peers.close_stream(owner, peer)

        try:
            return await at_owner(self._owners, slot, here, there)
        except (NotOwner, PeerUnreachable):
            return None

    async def _open(
        self, stream: GrpcStream, slot: Callable[[], int] | Member, opening: Opening
    ) -> tuple[Member, PeerStream] | None:
        """Open a stream to a slot's owner, or to one node. Returns None if that is this node, none was reached, or this
        node stops."""

        def find() -> int:
            if stream.draining:
                raise LogUnavailable("the node is stopping")
            assert callable(slot)
            return slot()

        async def here() -> None:
            return None

        async def there(owner: Member) -> tuple[Member, PeerStream]:
            return owner, await self._peers.stream(owner, KIND, opening)

        try:
            return await (at_owner(self._owners, find, here, there) if callable(slot) else there(slot))
        except LogUnavailable:
            return None

    async def _led(
        self, stream: GrpcStream, method: str, raw: bytes, find: FindSlot, lost: Callable[[YdbError], bytes]
    ) -> bool:
        """Forward a stream whose first message is ``raw``; return False if this node has to serve it."""
        try:
            slot = await find(raw, stream)
        except (YdbError, LogError, GrpcRefusal):
            return False
        if slot is None:
            return False
        found = await self._open(stream, slot, opening_of(stream, method))
        if found is None:
            return False
        owner, peer = found
        try:
            self._node.metrics.kind(f"{method} at its owner").done(0.0)
            await self._pass(stream, peer, raw, lost)
        finally:
            self._peers.close_stream(owner, peer)
        return True

    async def _pass(self, stream: GrpcStream, peer: PeerStream, raw: bytes, lost: Callable[[YdbError], bytes]) -> None:
        try:
            await peer.write(raw)
        except PeerUnreachable as error:
            await stream.write(lost(YdbError(Status.UNAVAILABLE, str(error))))
            return
        finally:
            stream.account.give(Kind.REQUESTS, len(raw))
        await forward(stream, peer, lambda reason: lost(YdbError(Status.UNAVAILABLE, reason)))

    async def _serve(self, opening: Opening, peer: PeerStream) -> None:
        """Serve a stream that another node has forwarded."""
        stream = ForwardedStream(opening, peer)
        handler = self._handlers.get(opening.method)
        if handler is None:
            return
        try:
            self._identify(stream)
            await self._node.db.changes.latest()  # the other node may have created the topic a moment ago
            await handler(stream)
        except GrpcRefusal as refusal:
            await stream.refuse(refusal)
        await peer.done_writing()
