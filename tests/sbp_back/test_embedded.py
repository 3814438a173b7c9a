"""The embedded backend: start, stop, restart, a second process, kill -9, and other programs over TCP."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch_kit.errors import StoreError, StoreLocked
from sbp_back.client.client import Client, ClientOptions
from sbp_back.client.stream_writer import StreamWriter, WriterOptions
from sbp_back.embedded import PD_LISTENER, RANGE_SERVER_LISTENER, Embedded, EmbeddedOptions, start_embedded
from sbp_back.errors import ErrorCode, FencedError, Lost, SbpError
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.listener import ListenerOptions
from sbp_back.transport.tcp_carrier import TcpCarrier, tcp_connector
from sbp_back.wire.model import DeleteStreamRequest, DescribePdRequest, Entry, Response, TrimStreamRequest
from tests.kit.waiting import until


def options(**arguments: Any) -> EmbeddedOptions:
    store = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
    return EmbeddedOptions(store=store, **arguments)


@asynccontextmanager
async def running(path: Path, **arguments: Any) -> AsyncIterator[Embedded]:
    embedded = await start_embedded(path, options(**arguments))
    try:
        yield embedded
    finally:
        await embedded.close()


async def append(writer: StreamWriter, payload: bytes, count: int = 1) -> int:
    """Base offset of an appended batch, once it is durable. Raises ``SbpError``."""
    future: asyncio.Future[SbpError | None] = asyncio.get_running_loop().create_future()
    base = writer.append(payload, count, 0, 5, future.set_result)
    error = await future
    if error is not None:
        raise error
    return base


async def read_all(client: Client, stream_id: int, offset: int = 0) -> list[Entry]:
    entries: list[Entry] = []
    while fetched := await client.fetch_entries(stream_id, offset, 1 << 20):
        entries += fetched
        offset = entries[-1].end_offset
    return entries


async def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "new" / "directory") as embedded:
        stream = await embedded.client.create_stream()
        writer = await embedded.client.open(stream.stream_id, 0)
        assert [await append(writer, b"%d" % n, 2) for n in range(10)] == list(range(0, 20, 2))
        server_id = embedded.range_server.info.server_id
    async with running(tmp_path / "new" / "directory") as embedded:
        assert embedded.range_server.info.server_id == server_id
        entries = await read_all(embedded.client, stream.stream_id)
        assert [bytes(e.payload) for e in entries] == [b"%d" % n for n in range(10)]
        writer = await embedded.client.open(stream.stream_id, 1)
        assert writer.next_offset == 20
        assert await append(writer, b"more") == 20
        assert (await embedded.client.create_stream()).stream_id == stream.stream_id + 1


async def test_a_new_writer_shuts_the_old_one_out(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        stream = await embedded.client.create_stream()
        old = await embedded.client.open(stream.stream_id, 1)
        await append(old, b"old")
        new = await embedded.client.open(stream.stream_id, 2)
        with pytest.raises(SbpError):
            await append(old, b"too late")
        with pytest.raises(FencedError):
            await embedded.client.open(stream.stream_id, 1)
        await append(new, b"new")
        entries = await read_all(embedded.client, stream.stream_id)
        assert [bytes(e.payload) for e in entries] == [b"old", b"new"]


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path):
        with pytest.raises(StoreLocked):
            await start_embedded(tmp_path, options())
    async with running(tmp_path):
        pass


async def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with sqlite3.connect(tmp_path / "a" / "pd.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="99"):
        await start_embedded(tmp_path / "a", options())
    (tmp_path / "a" / "pd.sqlite").unlink()
    async with running(tmp_path / "a", listen={PD_LISTENER: ("127.0.0.1", 0)}) as embedded:
        with pytest.raises(OSError, match="in use"):
            await start_embedded(tmp_path / "b", options(listen=embedded.addresses))
    async with running(tmp_path / "b"):
        pass


async def test_other_programs_reach_it_over_tcp(tmp_path: Path) -> None:
    listen = {PD_LISTENER: ("127.0.0.1", 0), RANGE_SERVER_LISTENER: ("127.0.0.1", 0)}
    async with running(tmp_path, listen=listen) as embedded:
        outside = Client(TcpCarrier(*embedded.addresses[PD_LISTENER]), tcp_connector())
        described: Any = await outside.pd.call(DescribePdRequest())
        assert described.nodes[0].advertise_addr == f"127.0.0.1:{embedded.addresses[PD_LISTENER][1]}"
        stream = await outside.create_stream()
        writer = await outside.open(stream.stream_id, 4)
        await append(writer, b"from outside")
        (known,) = await outside.list_ranges(stream.stream_id)
        assert known.servers[0].advertise_addr == f"127.0.0.1:{embedded.addresses[RANGE_SERVER_LISTENER][1]}"
        entries = await read_all(embedded.client, stream.stream_id)
        assert [bytes(e.payload) for e in entries] == [b"from outside"]
        inside = await embedded.client.open(stream.stream_id, 5)
        with pytest.raises(SbpError):
            await append(writer, b"too late")
        await append(inside, b"from inside")
        entries = await read_all(outside, stream.stream_id)
        assert [bytes(e.payload) for e in entries] == [b"from outside", b"from inside"]
        await outside.close()


async def test_batches_longer_than_a_frame_are_for_those_inside(tmp_path: Path) -> None:
    long, short = bytes(20 << 20), b"short"
    given = ClientOptions(writer=WriterOptions(max_payload=40 << 20))
    listen = {PD_LISTENER: ("127.0.0.1", 0), RANGE_SERVER_LISTENER: ("127.0.0.1", 0)}
    store = StoreOptions(segment_bytes=48 << 20, zero_ahead_bytes=0, low_water_bytes=0)
    embedded = await start_embedded(tmp_path, EmbeddedOptions(store=store, client=given, listen=listen))
    outside = Client(TcpCarrier(*embedded.addresses[PD_LISTENER]), tcp_connector(), given)
    try:
        stream = (await embedded.client.create_stream()).stream_id
        inside = await embedded.client.open(stream, 1)
        for payload in (short, long, long, short):
            await append(inside, payload)
        assert [len(entry.payload) for entry in await read_all(embedded.client, stream)] == [5, 20 << 20, 20 << 20, 5]
        with pytest.raises(SbpError) as refused:
            await outside.fetch_entries(stream, 1, 1)
        assert refused.value.code == ErrorCode.PAYLOAD_TOO_LARGE
        assert [bytes(entry.payload) for entry in await outside.fetch_entries(stream, 3, 1)] == [short]
        with pytest.raises(SbpError, match="exceeds 41943040"):
            inside.append(bytes((40 << 20) + 1), 1, 0, 5, lambda error: None)
        # From outside that is known as soon as there is a server, and what was taken before is to be repeated.
        writer = await outside.open(stream, 2)
        with pytest.raises(SbpError, match="has to be split"):
            await append(writer, long)
        with pytest.raises(SbpError, match="what a frame of SBP holds"):
            writer.append(long, 1, 0, 5, lambda error: None)
        assert await append(writer, short) == 4
    finally:
        await outside.close()
        await embedded.close()


async def test_advertised_addresses_can_be_told(tmp_path: Path) -> None:
    listen = {PD_LISTENER: ("127.0.0.1", 0), RANGE_SERVER_LISTENER: ("127.0.0.1", 0)}
    advertise = {PD_LISTENER: "pd.example:1", RANGE_SERVER_LISTENER: "rs.example:2"}
    async with running(tmp_path, listen=listen, advertise=advertise) as embedded:
        assert embedded.placement_driver.advertise_addr == "pd.example:1"
        assert embedded.range_server.info.advertise_addr == "rs.example:2"
        stream = await embedded.client.create_stream()
        writer = await embedded.client.open(stream.stream_id, 0)
        await append(writer, b"reached in-process, whatever is advertised")


async def test_clients_outside_are_told_to_go_away_when_it_stops(tmp_path: Path) -> None:
    listen = {RANGE_SERVER_LISTENER: ("127.0.0.1", 0)}
    embedded = await start_embedded(tmp_path, options(listen=listen))
    reader, writer = await asyncio.open_connection(*embedded.addresses[RANGE_SERVER_LISTENER])
    closing = asyncio.ensure_future(embedded.close())
    goaway = await reader.readexactly(20)
    assert goaway[5:8] == b"\x00\x02\x01"
    writer.close()
    await closing
    await embedded.close()


async def test_a_reader_that_waits_for_data_does_not_delay_the_end(tmp_path: Path) -> None:
    listen = {PD_LISTENER: ("127.0.0.1", 0), RANGE_SERVER_LISTENER: ("127.0.0.1", 0)}
    patient = ListenerOptions(drain_seconds=100_000)
    embedded = await start_embedded(tmp_path, options(listen=listen, range_server_listener=patient))
    outside = Client(TcpCarrier(*embedded.addresses[PD_LISTENER]), tcp_connector())
    stream_id = (await outside.create_stream()).stream_id
    await append(await outside.open(stream_id, 0), b"data")
    waiting = asyncio.ensure_future(outside.fetch_entries(stream_id, 1, 1000, max_wait_ms=300_000))
    await until(lambda: embedded.range_server.waiting_fetches)
    await embedded.close()
    await asyncio.wait([waiting])
    await outside.close()


async def test_a_deletion_the_range_server_was_not_told_of_reaches_it(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        stream_id = (await embedded.client.create_stream()).stream_id
        await append(await embedded.client.open(stream_id, 0), b"data")
        assert any(key[0] == stream_id for key in embedded.store.ranges)
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        embedded.placement_driver.handle(DeleteStreamRequest(stream_id), answered.set_result)
        assert (await answered).status.ok
        await until(lambda: not any(key[0] == stream_id for key in embedded.store.ranges))


async def test_a_trim_within_the_open_range_reaches_the_range_server_through_the_placement_driver(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as embedded:
        stream_id = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream_id, 0)
        for _ in range(10):
            await append(writer, b"data")
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        embedded.placement_driver.handle(TrimStreamRequest(stream_id, 4), answered.set_result)
        assert (await answered).status.ok
        assert embedded.store.ranges[stream_id, 0].min_offset == 4
    async with running(tmp_path) as embedded:
        assert embedded.store.ranges[stream_id, 0].min_offset == 4
        assert [e.base_offset for e in await read_all(embedded.client, stream_id, 4)] == list(range(4, 10))


async def test_a_lost_placement_driver_state_destroys_no_data(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        stream_id = (await embedded.client.create_stream()).stream_id
        await append(await embedded.client.open(stream_id, 0), b"data")
    for file in tmp_path.glob("pd.sqlite*"):
        file.unlink()
    async with running(tmp_path) as embedded:
        assert (stream_id, 0) in embedded.store.ranges
        assert embedded.store.ranges[stream_id, 0].next_offset == 1


CHILD = """
    import asyncio, sys
    from pathlib import Path
    from sbp_back.embedded import EmbeddedOptions, start_embedded
    from sbp_back.range_server.store import StoreOptions

    async def main():
        store = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
        embedded = await start_embedded(Path(sys.argv[1]), EmbeddedOptions(store=store))
        epoch = int(sys.argv[2])
        streams = [int(text) for text in sys.argv[3:]]
        while len(streams) < 3:
            streams.append((await embedded.client.create_stream()).stream_id)
        writers = [await embedded.client.open(stream_id, epoch) for stream_id in streams]

        def write(writer):
            def done(error):
                assert error is None, error
                print("acked", writer.stream_id, base, flush=True)
                write(writer)

            base = writer.next_offset
            assert writer.append(b"%d/%d" % (writer.stream_id, base) * 50, 1, 0, 5, done) == base

        for writer in writers:
            for _ in range(4):
                write(writer)
        await asyncio.Event().wait()

    asyncio.run(main())
"""


async def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    acked: dict[int, set[int]] = {}
    for epoch in range(3):
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(CHILD),
            str(tmp_path / "data"),
            str(epoch),
            *(str(stream_id) for stream_id in sorted(acked)),
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdout is not None
        lines = 0
        async for line in child.stdout:
            if not line.endswith(b"\n"):
                break  # cut off by the kill: nobody has read this acknowledgement
            _, stream_id, base = line.split()
            acked.setdefault(int(stream_id), set()).add(int(base))
            lines += 1
            if lines == 1500:
                child.send_signal(signal.SIGKILL)  # what it printed before it died still counts
        assert await child.wait() == -signal.SIGKILL
        assert lines >= 1500
        assert len(acked) == 3
    async with running(tmp_path / "data") as embedded:
        for stream_id, offsets in acked.items():
            entries = await read_all(embedded.client, stream_id)
            assert [e.base_offset for e in entries] == list(range(len(entries))), "no gap, no duplicate"
            for entry in entries:
                assert bytes(entry.payload) == b"%d/%d" % (stream_id, entry.base_offset) * 50
            assert offsets <= {e.base_offset for e in entries}
        assert (await embedded.client.create_stream()).stream_id == max(acked) + 1


async def test_what_the_log_has_lost_below_an_end_the_placement_driver_knows_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file of the placement driver is newer than the log: nobody is told to wait for what is gone."""
    data, older = tmp_path / "data", tmp_path / "older"
    async with running(data) as embedded:
        stream = (await embedded.client.create_stream()).stream_id
        await append(await embedded.client.open(stream, 1), b"kept", 20)
    shutil.copytree(data, older)
    async with running(data) as embedded:
        await append(await embedded.client.open(stream, 2), b"lost", 30)
    async with running(data) as embedded:
        assert await embedded.client.seal(stream, 3) == 50
    for name in ("wal", "ckpt"):
        shutil.rmtree(data / name)
        shutil.copytree(older / name, data / name)
    for _ in range(2):
        async with running(data) as embedded:
            client = embedded.client
            assert (await client.fetch_entries(stream, 0, 1000))[-1].end_offset == 20
            for offset in (20, 21, 49):
                with pytest.raises(Lost, match="offsets 20 to 49") as lost:
                    await client.fetch_entries(stream, offset, 1000, max_wait_ms=60_000)
                assert (lost.value.offset, lost.value.end, lost.value.code) == (20, 50, ErrorCode.RS_DATA_CORRUPTED)
            assert "offsets 20 to 49 of stream" in caplog.text
            caplog.clear()
    async with running(data) as embedded:
        base = await append(await embedded.client.open(stream, 4), b"new")
        assert base == 50
        assert [bytes(entry.payload) for entry in await embedded.client.fetch_entries(stream, 50, 1000)] == [b"new"]


async def test_the_placement_driver_knows_which_streams_its_own_node_has_made(tmp_path: Path) -> None:
    async with running(tmp_path, listen={PD_LISTENER: ("127.0.0.1", 0)}) as embedded:
        mine = (await embedded.client.create_stream()).stream_id
        outside = Client(TcpCarrier(*embedded.addresses[PD_LISTENER]), tcp_connector())
        theirs = (await outside.create_stream()).stream_id
        await outside.close()
    async with running(tmp_path) as embedded:
        assert (await embedded.client.describe_stream(mine)).inside
        assert not (await embedded.client.describe_stream(theirs)).inside
