"""Calls to the controller that have ended, however they did, go at once and not when the collector finds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bridges.errors import LogUnavailable
from bridges.net.grpc_server import Code
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from pravega_front.access import Access
from pravega_front.controller.scopes import Scopes
from pravega_front.front import PravegaFront
from pravega_front.server import SegmentStore
from pravega_front.wire.controller import METHODS, SERVICE, message
from tests.grpc_left_behind import Client, calls_over, cancel, not_grpcs
from tests.left_behind import left_behind
from tests.node_process import FRONTS, SELDOM
from tests.pravega_front.controller_client import stream

NONSENSE = b"\xff" * 1000
LONG = bytes(2 << 20)
LOOKS = ("get", "check", "list", "is")
"""Methods that change nothing begin with these."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    flags = {
        "data_dir": str(tmp_path / "data"),
        "listen.pravega": "127.0.0.1:0",
        **{f"listen.{name}": "off" for name in (*FRONTS, *SELDOM) if name not in ("kafka", "pravega")},
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
    }
    settings = load(flags, environ={}, directory=tmp_path, fronts=[PravegaFront]).settings
    node = Node(settings, fronts=[PravegaFront])
    await node.start()
    yield node
    await node.stop()


def path(name: str) -> str:
    return f"/{SERVICE}/{name}"


def about(name: str) -> bytes:
    """A request about the stream that there is, as far as it can be about one."""
    request = message(METHODS[name][0])
    known: dict[str, Any] = {"scope": "s", "stream": "t", "streamInfo": stream("s", "t")}
    names = request.DESCRIPTOR.fields_by_name
    fields = {field: known[field] for field in known if field in names}
    if "scope" in fields and names["scope"].message_type is not None:
        fields["scope"] = {"scope": "s"}
    raw: bytes = request(**fields).SerializeToString()
    return raw


async def test_nothing_is_left_of_calls(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (front,) = node.fronts
    assert isinstance(front, PravegaFront)
    assert front.server is not None
    _, store = front.server.doors
    assert isinstance(store, SegmentStore)
    access = store.access
    async with Client(str(node.addresses["pravega"])) as client:

        async def ask(name: str, code: Code = Code.OK, **fields: Any) -> None:
            await client.ask(path(name), message(METHODS[name][0])(**fields).SerializeToString(), code)

        async def every(raw: Callable[[str], bytes], begin: str | tuple[str, ...]) -> None:
            await asyncio.gather(
                *(client.ask(path(name), raw(name), None) for name in METHODS if name.startswith(begin))
            )

        async def fails(error: Exception, code: Code) -> None:
            def refuse(scopes: Scopes, scope: str) -> bool:
                raise type(error)(*error.args)

            with monkeypatch.context() as patch:
                patch.setattr(Scopes, "exists", refuse)
                await ask("checkScopeExists", code, scope="s")

        async def unknown() -> None:
            with monkeypatch.context() as patch:
                patch.setattr(access, "_required_at", lambda listener: True)
                await ask("listScopes", Code.UNAUTHENTICATED)

        async def cancelled() -> None:
            begun = asyncio.Event()

            async def never(access: Access, call: object) -> None:
                begun.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patch:
                patch.setattr(Access, "caller", never)
                call = client.call(path("listScopes"), b"")
                await begun.wait()
                await cancel(call)

        await ask("createScope", scope="s")
        await ask("createStream", streamInfo=stream("s", "t"), scalingPolicy={"minNumSegments": 1})
        ends: dict[str, Callable[[], Awaitable[None]]] = {
            "calls about a stream": lambda: every(about, LOOKS),
            "calls about nothing": lambda: every(lambda name: b"", LOOKS),
            "calls of nonsense": lambda: every(lambda name: NONSENSE, ""),
            "a long call": lambda: client.ask(path("createStream"), LONG, Code.INVALID_ARGUMENT),
            "a call that finds the log unavailable": lambda: fails(LogUnavailable("for now"), Code.UNAVAILABLE),
            "a call that finds a bug": lambda: fails(ZeroDivisionError(), Code.INTERNAL),
            "a call of who is nobody": unknown,
            "a call that is cancelled": cancelled,
            "a call to nobody": lambda: client.ask(path("nobody"), b"", Code.UNIMPLEMENTED),
        }
        found = await left_behind(ends, lambda: calls_over(lambda: ask("listScopes")))
        assert not_grpcs(found) == {}
