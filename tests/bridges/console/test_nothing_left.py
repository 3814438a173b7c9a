"""Connections to the console, and requests, that have ended, however they did, go at once and not when the collector
finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridges.console.door import ConsoleDoor
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from tests.kit.waiting import until
from tests.left_behind import End, Link, left_behind, on_link


def request(path: str, method: str = "GET", body: bytes = b"", length: int = 0) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


HEALTH = request("/healthz")


def sends(data: bytes) -> End:
    """Has a request answered, sends ``data`` and goes without the answers."""

    async def end(link: Link) -> None:
        await link.send(HEALTH)
        assert (await link.some()).startswith(b"HTTP/1.1 200 ")
        await link.send(data)
        link.reset()

    return end


def is_told(data: bytes, status: int) -> End:
    """The same, and has ``data`` answered."""

    async def end(link: Link) -> None:
        await link.send(HEALTH)
        await link.some()
        await link.send(data)
        assert (await link.some()).startswith(b"HTTP/1.1 %d " % status)
        link.reset()

    return end


def is_cut(data: bytes) -> End:
    """Sends what is no HTTP."""

    async def end(link: Link) -> None:
        await link.send(data)
        await link.closed()

    return end


ENDS: dict[str, End] = {
    "an answer has come": sends(b""),
    "within a header": sends(HEALTH[:20]),
    "within a body": sends(request("/api/topics", "POST", b"{", 1 << 20)),
    "before its answers": sends(request("/api/topics") * 5),
    "a path that there is not": is_told(request("/nowhere"), 404),
    "a method that there is not": is_told(request("/healthz", "DELETE"), 405),
    "a topic that there is not": is_told(request("/api/topics/nowhere"), 404),
    "a body that is none": is_told(request("/api/topics", "POST", b"{x}"), 400),
    "another protocol": is_cut(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)),
    "a header that is too long": is_cut(b"GET / HTTP/1.1\r\nA: " + bytes(20_000) + b"\r\n\r\n"),
    "too many headers": is_cut(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n"),
}
TO_NOWHERE = {"a path that there is not", "a method that there is not"}


async def test_nothing_is_left_of_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doors: list[ConsoleDoor] = []

    class Door(ConsoleDoor):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            doors.append(self)

    monkeypatch.setattr("bridges.node.floors.upper.ConsoleDoor", Door)
    given = {
        "data_dir": str(tmp_path / "data"),
        "listen.console": "127.0.0.1:0",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
    }
    node = Node(load(given, environ={}, directory=tmp_path).settings, fronts=[])
    await node.start()
    try:
        site = doors[0].site
        await site.open()
        address = node.addresses["console"]
        place = (address.host, address.port)

        async def over() -> None:
            await until(lambda: not site.connections)

        left = await left_behind({name: on_link(place, end) for name, end in ENDS.items()}, over)
    finally:
        await node.stop()
    # aiohttp's route to nowhere knows itself, and the refusal that it makes, but nothing of the request.
    assert set(left) <= TO_NOWHERE
    kinds = set().union(*left.values())
    assert {kind for kind in kinds if kind.startswith(("frame", "bridges", "asyncio")) or "equest" in kind} == set()
