"""What connections with TLS take is bounded, and counted for as long as they live."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from anabranch_kit.memory.budget import Kind
from anabranch_kit.net.tls import ListenerTls, TlsFiles
from anabranch_kit.net.tls_memory import BOUNDED_BYTES, RECEIVED_AT_ONCE, UNBOUNDED_BYTES, bound_tls_memory
from bridges.net.server import Limits
from tests.bridges.net.echo import NOW, EchoServer, frame, receive
from tests.certificates import Authority
from tests.kit.waiting import until


async def test_each_connection_counts_while_it_lives_and_receives_in_small_pieces(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    server = EchoServer(Limits())
    tls = ListenerTls(TlsFiles(*authority.issue("node")))
    host, port = await server.listen("echo", "127.0.0.1", 0, tls=tls)
    context = ssl.create_default_context(cafile=str(authority.cert))
    rest = server.budget.capacity
    try:
        ways = [await asyncio.open_connection(host, port, ssl=context) for _ in range(3)]
        await until(lambda: server.budget.by_kind[Kind.TLS] == 3 * BOUNDED_BYTES)
        assert server.budget.capacity == rest - 3 * BOUNDED_BYTES
        for connection in server.connections:
            protocol = connection.transport._ssl_protocol
            assert len(protocol._ssl_buffer) == RECEIVED_AT_ONCE
            assert protocol.get_buffer(-1).nbytes == RECEIVED_AT_ONCE
        sent = frame(NOW, bytes(range(256)) * 20_000)
        for reader, writer in ways:
            writer.write(sent)
            assert await receive(reader) == sent
        for connection in server.connections:
            assert len(connection.transport._ssl_protocol._ssl_buffer) == RECEIVED_AT_ONCE
        ways[0][1].transport.abort()
        await until(lambda: server.budget.by_kind[Kind.TLS] == 2 * BOUNDED_BYTES)
        plain = await server.listen("plain", "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*plain)
        await until(lambda: len(server.connections) == 3)
        assert server.budget.by_kind[Kind.TLS] == 2 * BOUNDED_BYTES
        writer.transport.abort()
    finally:
        await server.close(0.5)
    assert (server.budget.by_kind[Kind.TLS], server.budget.capacity) == (0, rest)


def test_where_nothing_can_be_bounded_the_whole_is_told() -> None:
    assert bound_tls_memory(asyncio.Transport()) == UNBOUNDED_BYTES
