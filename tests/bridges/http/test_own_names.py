"""A page of another site, whose name leads to the node's address (DNS rebinding), reads and changes nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from anabranch_kit.net.address import Address
from bridges.http.own_names import OwnNames
from bridges.life import Life
from bridges.metrics import Metrics
from bridges.node.assembly import Node
from bridges.node.process.health import HealthServer
from bridges.node.settings.config import load
from spark_pipeline.node.front import PipelineFront

OWN = [
    "127.0.0.1",
    "127.0.0.1:80",
    "[::1]:8080",
    "LocalHost:1",
    "localhost.",
    "10.1.2.3",
    "told.example:443",
    "proxy.example",
]
FOREIGN = [
    "evil.example",
    "evil.example:8080",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "[evil",
    "",
    "a@localhost",
]


async def status(address: Address, method: str, path: str, *headers: str, version: str = "1.1") -> tuple[int, bytes]:
    """The status of the answer to a request that is sent as it stands, and its body."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    lines = [f"{method} {path} HTTP/{version}", *headers, "Content-Length: 0", "Connection: close"]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    flags = {
        "data_dir": str(tmp_path),
        "listen.console": "127.0.0.1:0",
        "listen.pipeline": "127.0.0.1:0",
        "advertise.console": "told.example:443",
        "advertise.pipeline": "told.example:443",
        "node.http_names": "proxy.example, other.example",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
    }
    fronts = (PipelineFront,)
    made = Node(load(flags, environ={}, directory=tmp_path, fronts=fronts).settings, fronts=fronts)
    await made.start()
    await made.catalog.create_topic("kept", 1)
    yield made
    await made.stop()


async def test_a_name_that_leads_here_and_is_not_ours_gets_nothing(node: Node) -> None:
    for host in FOREIGN:
        for path in ("/", "/api/topics", "/metrics", "/healthz", "/api/topics/kept/records", "/nothing"):
            answer, body = await status(node.addresses["console"], "GET", path, f"Host: {host}")
            assert (answer, b"kept" in body) in ((403, False), (400, False)), (host, path)
        header = f"Host: {host}", f"Origin: http://{host}"
        assert (await status(node.addresses["console"], "DELETE", "/api/topics/kept", *header))[0] in (400, 403), host
        answer, body = await status(node.addresses["pipeline"], "GET", "/v1/topics", f"Host: {host}")
        assert (answer, b"kept" in body) in ((403, False), (400, False)), host
    assert "kept" in node.catalog.topics


async def test_addresses_and_the_listeners_own_names_are_answered(node: Node) -> None:
    for host in [*OWN, socket.gethostname(), f"{socket.gethostname()}:99"]:
        for listener, path in (("console", "/metrics"), ("console", "/api/topics"), ("pipeline", "/v1/topics")):
            assert (await status(node.addresses[listener], "GET", path, f"Host: {host}"))[0] == 200, (host, path)
    assert (await status(node.addresses["console"], "GET", "/healthz", version="1.0"))[0] == 200


async def test_two_hosts_are_none(node: Node) -> None:
    two = await status(node.addresses["console"], "GET", "/api/topics", "Host: localhost", "Host: evil.example")
    assert two[0] in (400, 403)


async def test_a_page_of_another_site_changes_nothing_whatever_it_calls_itself(node: Node) -> None:
    console = node.addresses["console"]
    for origin in ("http://evil.example", "null", "http://[", "http://localhost:3000", "http://proxy.example.evil"):
        answer = await status(console, "DELETE", "/api/topics/kept", "Host: localhost", f"Origin: {origin}")
        assert answer[0] == 403, origin
    # A proxy may ask in its own words for a page that it is told of.
    for host, origin in (("localhost:5", "http://localhost:5"), ("127.0.0.1", "https://proxy.example:8443")):
        await node.catalog.create_topic("brief", 1)
        answer = await status(console, "DELETE", "/api/topics/brief", f"Host: {host}", f"Origin: {origin}")
        assert answer[0] == 200, origin


async def test_the_pages_of_a_process_that_is_no_node_neither() -> None:
    well = Life()
    well.begin_serving()
    server = HealthServer(well, Metrics(), OwnNames(["range.example"]))
    address = await server.start(Address("127.0.0.1", 0))
    try:
        for host, expected in (("evil.example", 403), ("range.example:9", 200), (str(address), 200)):
            for path in ("/healthz", "/readyz", "/metrics"):
                assert (await status(address, "GET", path, f"Host: {host}"))[0] == expected, host
    finally:
        await server.stop()


@pytest.mark.parametrize("tells", [True, False])
async def test_why_a_process_cannot_go_on_is_told_to_everybody_or_nobody(tells: bool) -> None:
    ill = Life()
    ill.fail("/secret/place was removed")
    server = HealthServer(ill, Metrics(), OwnNames([]), tells=tells)
    address = await server.start(Address("127.0.0.1", 0))
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}/healthz") as answer:
            assert answer.status == 503
            told = await answer.json()
    finally:
        await server.stop()
    assert told["healthy"] is False
    assert ("/secret/place" in told["failure"]) == tells
