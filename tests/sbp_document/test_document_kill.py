"""kill -9 under appends of sbp-v0.1: what was acknowledged is there, and the range goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from pathlib import Path

from sbp_document import DocumentClient
from tests.sbp_document.document_lab import running

CHILD = """
    import asyncio, sys
    from pathlib import Path
    from sbp_document import DocumentClient
    from sbp_back.embedded import EmbeddedOptions
    from tests.sbp_document.document_lab import start
    from sbp_back.range_server.store import StoreOptions

    async def main():
        store = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
        embedded = await start(
            Path(sys.argv[1]), EmbeddedOptions(store=store, listen={"sbp-v0.1": ("127.0.0.1", 0)})
        )
        clients = [DocumentClient.connect(*embedded.addresses["sbp-v0.1"]) for _ in range(3)]
        stream_id = int(sys.argv[2])
        if stream_id < 0:
            stream_id = (await clients[0].create_stream()).stream.stream_id

        async def write(number, client):
            for k in range(10**9):
                body = b"%s/%d/%d" % (sys.argv[3].encode(), number, k)
                base = (await client.append(stream_id, [body] * 2)).base_offset
                print("acked", stream_id, base, body.decode(), flush=True)

        await asyncio.gather(*(write(number, client) for number, client in enumerate(clients)))

    asyncio.run(main())
"""


async def test_document_appends_outlive_kill_9(tmp_path: Path) -> None:
    acked: dict[int, bytes] = {}
    stream_id = -1
    for life in range(3):
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(CHILD),
            str(tmp_path / "data"),
            str(stream_id),
            str(life),
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdout is not None
        lines = 0
        async for line in child.stdout:
            if not line.endswith(b"\n"):
                break  # it died while it wrote this
            _, stream, base, body = line.split()
            stream_id = int(stream)
            assert acked.setdefault(int(base), body) == body
            lines += 1
            if lines == 300:
                child.send_signal(signal.SIGKILL)  # what it printed before it died still counts
        assert await child.wait() == -signal.SIGKILL
        assert lines >= 300
    async with running(tmp_path / "data") as embedded:
        client = DocumentClient.connect(*embedded.addresses["sbp-v0.1"])
        found: dict[int, bytes] = {}
        while records := (await client.fetch(stream_id, len(found))).records:
            found |= {record.offset: bytes(record.body) for record in records}
        assert sorted(found) == list(range(len(found))), "no gap, no duplicate"
        for offset, expected in acked.items():
            assert (found[offset], found[offset + 1]) == (expected, expected)
        assert [(one.index, one.is_open) for one in await client.list_ranges(stream_id)] == [(0, True)]
        await client.close()
