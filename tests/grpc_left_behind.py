"""Calls of gRPC within the process of the server, which leave nothing to the collector themselves, and what of what is
found then is the server's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import grpc

from bridges.net.grpc_server import Code
from tests.kit.waiting import until

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
GRPCS_OWN = ("_find_method_handler", "cython_function_or_method", "_HandlerCallDetails", "_Metadatum")
"""gRPC looks for the handler of a call with a function that knows itself: it leaves that, and the call's headers."""
OF_ALL = ("builtins.tuple", "builtins.dict")
"""What belongs to those, or to what else is found."""


def not_grpcs(found: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """What is left besides what gRPC leaves of any call, and Protobuf once."""
    servers: dict[str, dict[str, int]] = {}
    for end, left in found.items():
        own = {
            kind: count
            for kind, count in left.items()
            if not (kind.endswith(GRPCS_OWN) or kind in OF_ALL or kind.startswith("google._upb."))
        }
        if own:
            servers[end] = own
    return servers


async def calls_over(another: Callable[[], Awaitable[None]]) -> None:
    """Return when gRPC is done with all calls. It knows the last one until there is ``another``."""
    await _over()
    await another()
    await _over()


async def _over() -> None:
    await until(lambda: not any("_schedule_rpc_coro" in repr(task.get_coro()) for task in asyncio.all_tasks()))


class Client:
    """A connection; leave the context to close it. Its calls are kept until then: gRPC's client has cycles as well."""

    def __init__(self, address: str, *headers: tuple[str, str]) -> None:
        self._address = address
        self._headers = headers
        self._channel = self.another()
        self._kept: list[object] = []

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
        self._kept.clear()

    def another(self) -> grpc.aio.Channel:
        """Another connection."""
        return grpc.aio.insecure_channel(self._address, OPTIONS)

    def stream(self, path: str, channel: grpc.aio.Channel | None = None) -> Any:
        """A stream of the method at ``path``."""
        stream = (channel or self._channel).stream_stream(path)(metadata=self._headers)
        self._kept += [stream, channel]
        return stream

    def call(self, path: str, raw: bytes) -> Any:
        """A call of the method at ``path``."""
        call = self._channel.unary_unary(path)(raw, metadata=self._headers)
        self._kept.append(call)
        return call

    async def ask(self, path: str, raw: bytes, code: grpc.StatusCode | None = Code.OK) -> None:
        """A call that ends with this status, or with any."""
        call = self.call(path, raw)
        with suppress(grpc.aio.AioRpcError):
            await call
        assert code in (None, await call.code())


async def rest(stream: Any) -> None:
    """Take what comes until a stream ends."""
    with suppress(grpc.aio.AioRpcError):
        while await stream.read() is not grpc.aio.EOF:
            pass


async def cancel(call: Any) -> None:
    """Go away at once."""
    call.cancel()
    with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
        await call.code()
