"""kill -9 of the backend the moment a seal was answered: the range stays sealed, and whoever wrote it is shut out."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbp_back import Client, FencedError, TcpCarrier, tcp_connector
from sbp_document import DocumentClient
from tests.sbp_back.tries import Tries

CHILD = """
    import asyncio, json, sys
    from pathlib import Path
    from sbp_back.embedded import EmbeddedOptions
    from tests.sbp_document.document_lab import start
    from sbp_back.range_server.store import StoreOptions

    async def main():
        store = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
        listen = {name: tuple(address) for name, address in json.loads(sys.argv[2]).items()}
        embedded = await start(Path(sys.argv[1]), EmbeddedOptions(store=store, listen=listen))
        print(json.dumps(embedded.addresses), flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
"""
Addresses = dict[str, tuple[str, int]]
ANYWHERE: Addresses = dict.fromkeys(("sbp-pd", "sbp-range-server", "sbp-v0.1"), ("127.0.0.1", 0))


@asynccontextmanager
async def backend(path: Path, listen: Addresses) -> AsyncIterator[Addresses]:
    """A process of its own, killed at the end; yields where it listens."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(CHILD),
        str(path),
        json.dumps(listen),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert child.stdout is not None
        yield json.loads(await child.stdout.readline())
    finally:
        child.send_signal(signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL


def client_of(addresses: Addresses) -> Client:
    return Client(TcpCarrier(*addresses["sbp-pd"]), tcp_connector())


@pytest.mark.parametrize("by", ["open", "seal"])
async def test_an_answered_seal_outlives_kill_9(tmp_path: Path, by: str) -> None:
    async with backend(tmp_path, ANYWHERE) as addresses:
        old_client, new_client = client_of(addresses), client_of(addresses)
        stream_id = (await old_client.create_stream()).stream_id
        old = Tries(await old_client.open(stream_id, 3))
        old.append(b"first")
        await old.settled()
        for n in range(200):
            old.append(b"old %d" % n)
        if by == "open":
            end = (await new_client.open(stream_id, 4)).next_offset
        else:
            end = await new_client.seal(stream_id, 4)
    async with backend(tmp_path, addresses):
        for n in range(3):
            old.append(b"too late %d" % n)
        await old.settled()
        assert isinstance(old.writer.failed, FencedError)
        assert max(old.acked) < end
        late_client = client_of(addresses)
        with pytest.raises(FencedError):
            await late_client.open(stream_id, 3)
        new = Tries(await late_client.open(stream_id, 4))
        assert new.writer.next_offset == end
        new.append(b"new")
        await new.settled()
        found: dict[int, bytes] = {}
        while entries := await new_client.fetch_entries(stream_id, len(found), 1 << 20):
            found |= {entry.base_offset: bytes(entry.payload) for entry in entries}
        assert list(found) == list(range(end + 1))
        assert old.acked.items() <= found.items()
        assert found[end] == b"new"
        for client in (old_client, new_client, late_client):
            await client.close()


async def test_document_seal_outlives_kill_9(tmp_path: Path) -> None:
    async with backend(tmp_path, ANYWHERE) as addresses:
        client = DocumentClient.connect(*addresses["sbp-v0.1"])
        stream_id = (await client.create_stream()).stream.stream_id
        await client.append(stream_id, [b"a", b"b"])
        opened = await client.seal_range(stream_id, 0)
        assert (opened.index, opened.start) == (1, 2)
        await client.close()
    async with backend(tmp_path, addresses):
        client = DocumentClient.connect(*addresses["sbp-v0.1"])
        assert [(one.start, one.end) for one in await client.list_ranges(stream_id)] == [(0, 2), (2, -1)]
        assert await client.seal_range(stream_id, 0) == opened, "asking again changes nothing"
        assert (await client.append(stream_id, [b"c"])).base_offset == 2
        assert [bytes(record.body) for record in (await client.fetch(stream_id, 0)).records] == [b"a", b"b", b"c"]
        await client.close()
