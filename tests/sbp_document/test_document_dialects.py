"""One stream in two dialects: what each sees of the other, who may write, and what survives."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
from pathlib import Path

import pytest

from sbp_back.client.client import Client
from sbp_back.errors import ErrorCode, FencedError, SbpError
from sbp_back.transport.carrier import Carrier
from sbp_back.transport.tcp_carrier import TcpCarrier, tcp_connector
from sbp_back.wire.model import CreateRangeRequest, Entry, RangeInfo, RangeResponse, Status, StreamInfo
from sbp_document.server import pd_rules as rules
from sbp_document.wire import messages as m
from sbp_document.wire.record_batch import FORMAT_FLAG, parse_batch, parse_batches, set_base_offset
from sbp_document.wire.v01 import V01
from tests.kit.waiting import until
from tests.sbp_document.document_lab import (
    Served,
    appended,
    batch,
    carrier,
    created,
    exchange,
    fetched,
    running,
    write,
)

SEALED = (ErrorCode.RANGE_ALREADY_SEALED, ErrorCode.PRECONDITION_FAILED)


def outside(embedded: Served) -> Client:
    """A client of sbp-0.2 in another program."""
    return Client(TcpCarrier(*embedded.addresses["sbp-pd"]), tcp_connector())


async def entries(client: Client, stream_id: int, offset: int = 0) -> list[Entry]:
    found: list[Entry] = []
    while some := await client.fetch_entries(stream_id, offset, 1 << 20):
        found += some
        offset = some[-1].end_offset
    return found


async def sealed(to: Carrier, stream_id: int, index: int) -> m.RangeItemResult:
    (answer,) = await exchange(to, m.SealRangesRequest(ranges=[m.RangeId(stream_id, index)]))
    assert isinstance(answer, m.SealRangesResponse)
    return answer.results[0]


# --- reading --------------------------------------------------------------------------------------------------------


async def test_document_records_are_entries_for_sbp_02(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        to = carrier(embedded, "tcp")
        stream_id = await created(to)
        for bodies in ((b"a", b"b"), (b"c",)):
            await appended(to, stream_id, *bodies)
        client = outside(embedded)
        first, second = await entries(client, stream_id)
        assert [(one.base_offset, one.count, one.flags) for one in (first, second)] == [
            (0, 2, FORMAT_FLAG),
            (2, 1, FORMAT_FLAG),
        ]
        expected = batch(b"a", b"b")
        assert bytes(first.payload) == bytes(expected)
        assert [(one.offset, bytes(one.body)) for one in parse_batch(second.payload).records] == [(2, b"c")]
        await client.close()
        await to.close()


async def test_document_fetch_of_what_sbp_02_wrote(tmp_path: Path) -> None:
    """An opaque entry is one record with the same offsets around it, at the last of them."""
    async with running(tmp_path) as embedded:
        client = outside(embedded)
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        for payload, count, flags in ((b"opaque", 3, 0), (b"kafka's", 1, 1), (b"more", 5, 0x11)):
            await write(writer, payload, count, flags)
        to = carrier(embedded, "tcp")
        result = await fetched(to, stream_id, 1)
        batches = parse_batches(b"".join(bytes(part) for part in result.parts))
        assert [(one.base_offset, one.end_offset, one.wrapped, one.meta.flags) for one in batches] == [
            (0, 3, 0, 0),
            (3, 4, 1, 1),
            (4, 9, 1, 0x11),
        ]
        records = [record for one in batches for record in one.records]
        assert [(one.offset, bytes(one.body)) for one in records] == [(2, b"opaque"), (3, b"kafka's"), (8, b"more")]
        assert all(one.timestamp == 1_700_000_000_000 for one in records)
        await to.close()
        await client.close()


async def test_document_fetch_of_a_mixed_stream_in_april(tmp_path: Path) -> None:
    """There the number of batches is all that a reader is told."""
    async with running(tmp_path) as embedded:
        client = outside(embedded)
        to = carrier(embedded, "april")
        stream_id = (await client.create_stream()).stream_id
        await write(await client.open(stream_id, 1), b"opaque", 3)
        await sealed(to, stream_id, 0)
        await appended(to, stream_id, b"a", b"b")
        result = await fetched(to, stream_id, 0)
        assert result.batch_count == 2
        offsets = [r.offset for one in parse_batches(bytes(result.parts[0])) for r in one.records]
        assert offsets == [2, 3, 4]
        await to.close()
        await client.close()


# --- writing --------------------------------------------------------------------------------------------------------


async def test_a_writer_of_sbp_02_is_not_disturbed_by_an_append(tmp_path: Path) -> None:
    """The append is refused with a reason; taking the stream away is SEAL_RANGES' business."""
    async with running(tmp_path) as embedded:
        client = outside(embedded)
        to = carrier(embedded, "tcp")
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 7)
        await write(writer, b"one")
        refused = await appended(to, stream_id, b"not mine")
        assert refused.status.code == ErrorCode.PRECONDITION_FAILED
        assert "epoch 7" in refused.status.message
        assert await write(writer, b"two") == 1
        taken = await sealed(to, stream_id, 0)
        assert taken.range is not None
        assert (taken.range.index, taken.range.start) == (1, 2)
        assert (await appended(to, stream_id, b"three")).base_offset == 2
        with pytest.raises(FencedError):
            await write(writer, b"too late")
        assert [bytes(one.payload) for one in await entries(client, stream_id)][:2] == [b"one", b"two"]
        await to.close()
        await client.close()


async def test_a_writer_of_sbp_02_takes_a_stream_and_gives_it_back(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        client = outside(embedded)
        to = carrier(embedded, "tcp")
        stream_id = await created(to)
        await appended(to, stream_id, b"zero")
        writer = await client.open(stream_id, 3)
        assert writer.next_offset == 1
        assert await write(writer, b"one") == 1
        refused = await appended(to, stream_id, b"not mine")
        assert refused.status.code == ErrorCode.PRECONDITION_FAILED
        # Once more by the document, once more by a later writer.
        assert (await sealed(to, stream_id, 1)).status == Status()
        assert (await appended(to, stream_id, b"two")).base_offset == 2
        again = await client.open(stream_id, 3)
        assert await write(again, b"three") == 3
        found = await entries(client, stream_id)
        assert [one.base_offset for one in found] == [0, 1, 2, 3]
        await to.close()
        await client.close()


async def test_a_writer_of_sbp_02_without_a_range_is_overtaken(tmp_path: Path) -> None:
    """It has opened the stream and written nothing: its first append fails, whatever its epoch, and nothing is lost."""
    for epoch in (0, 1, 5):
        async with running(tmp_path / str(epoch)) as embedded:
            client = outside(embedded)
            to = carrier(embedded, "tcp")
            stream_id = (await client.create_stream()).stream_id
            writer = await client.open(stream_id, epoch)
            assert (await appended(to, stream_id, b"first")).base_offset == 0
            with pytest.raises(FencedError):
                await write(writer, b"never stored")
            assert (await appended(to, stream_id, b"second")).base_offset == 1
            assert [one.flags for one in await entries(client, stream_id)] == [FORMAT_FLAG] * 2
            await to.close()
            await client.close()


async def test_an_open_range_of_the_document_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    """A writer that repeats a CREATE_RANGE whose answer got lost takes the open range it finds for the one it made, if
    epoch and index agree. Ours may agree."""
    async with running(tmp_path) as embedded:
        to = carrier(embedded, "in-process")
        stream_id = await created(to)
        client = outside(embedded)
        answer = await client.pd.call(CreateRangeRequest(RangeInfo(stream_id, 0, 0, 0)))
        assert isinstance(answer, RangeResponse)
        assert answer.status.code == ErrorCode.EXPIRED_RANGE_EPOCH
        await client.close()


async def test_an_owner_in_the_process_appends_for_the_document(tmp_path: Path) -> None:
    """No range is taken from anybody: the writer of the stream writes what arrives."""
    async with running(tmp_path) as embedded:
        stream_id = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream_id, 4)

        class Owner:
            def append(self, given: bytearray, count: int, flags: int, done: object) -> None:
                assert callable(done)
                base = writer.next_offset
                set_base_offset(given, base)
                writer.append(given, count, flags, 5, lambda error: done(base, error))

        embedded.document.lanes.owner_of = lambda asked: Owner() if asked == stream_id else None
        to = carrier(embedded, "tcp")
        other = await created(to)
        await write(writer, b"kafka's", 2)
        assert (await appended(to, stream_id, b"a", b"b")).base_offset == 2
        assert (await appended(to, other, b"x")).base_offset == 0
        assert await write(writer, b"kafka's", 1) == 4
        assert [one.base_offset for one in await entries(embedded.client, stream_id)] == [0, 2, 4]
        await to.close()


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_acknowledged_is_lost_between_the_dialects(tmp_path: Path, seed: int) -> None:
    """Writers of both dialects take one stream from each other all the time; whatever was acknowledged to either is
    there once, at the offset it was told."""
    rng = random.Random(seed)
    async with running(tmp_path) as embedded:
        client = outside(embedded)
        stream_id = (await client.create_stream()).stream_id
        acknowledged: dict[int, bytes] = {}
        attempts = 0

        def has_written(who: bytes) -> bool:
            return any(payload.startswith(who) for payload in acknowledged.values())

        async def of_02() -> None:
            nonlocal attempts
            for epoch in itertools.count(1):
                if epoch > 7 and has_written(b"02"):
                    return
                try:
                    writer = await client.open(stream_id, epoch)
                except SbpError:
                    continue
                pending = []
                for _ in range(rng.randrange(1, 30)):
                    attempts += 1
                    payload = b"02-%d" % attempts
                    pending.append((payload, write(writer, payload)))
                    if rng.random() < 0.5:
                        await asyncio.sleep(0)
                for payload, append in pending:
                    try:
                        offset = await append
                    except SbpError:
                        continue
                    assert acknowledged.setdefault(offset, payload) == payload, "an offset was given twice"
                if writer.failed is None:
                    await writer.close()

        async def of_document(number: int) -> None:
            nonlocal attempts
            to = carrier(embedded, "tcp")
            for tries in itertools.count():
                if tries >= 40 and has_written(b"doc"):
                    break
                attempts += 1
                payload = b"doc-%d-%d" % (number, attempts)
                result = await appended(to, stream_id, payload)
                if result.status == Status():
                    assert acknowledged.setdefault(result.base_offset, payload) == payload, "given twice"
                    continue
                assert result.status.code in SEALED, result.status
                ranges = await client.list_ranges(stream_id)
                if ranges and rng.random() < 0.3:
                    await sealed(to, stream_id, ranges[-1].index)
            await to.close()

        await asyncio.gather(of_02(), of_document(0), of_document(1))
        stored: dict[int, bytes] = {}
        following = 0
        for one in await entries(client, stream_id):
            assert one.base_offset == following, "no gap, no overlap"
            following = one.end_offset
            payload = bytes(one.payload)
            stored[one.base_offset] = bytes(parse_batch(payload).records[0].body) if one.flags else payload
        assert acknowledged.items() <= stored.items()
        assert {payload[:2] for payload in acknowledged.values()} == {b"02", b"do"}, "both have written"
        to = carrier(embedded, "tcp")
        seen: dict[int, bytes] = {}
        while len(seen) < following:
            result = await fetched(to, stream_id, len(seen))
            for found in parse_batches(b"".join(bytes(part) for part in result.parts)):
                seen |= {record.offset: bytes(record.body) for record in found.records}
        assert seen == stored
        await to.close()
        await client.close()


# --- lasting --------------------------------------------------------------------------------------------------------


async def test_document_ranges_outlive_a_restart(tmp_path: Path) -> None:
    """The range goes on where it was; a sealed one stays sealed; a range of a writer of sbp-0.2 stays that writer's."""
    async with running(tmp_path) as embedded:
        to = carrier(embedded, "tcp")
        going_on, closed = await created(to), await created(to)
        await appended(to, going_on, b"a", b"b")
        await appended(to, closed, b"a")
        await sealed(to, closed, 0)
        client = outside(embedded)
        foreign = (await client.create_stream()).stream_id
        await write(await client.open(foreign, 1), b"theirs")
        await client.close()
        await to.close()
    async with running(tmp_path) as embedded:
        to = carrier(embedded, "tcp")
        assert (await appended(to, going_on, b"c")).base_offset == 2
        assert (await appended(to, closed, b"b")).base_offset == 1
        assert (await appended(to, foreign, b"mine?")).status.code == ErrorCode.PRECONDITION_FAILED
        client = outside(embedded)
        assert [(one.index, one.start, one.end) for one in await client.list_ranges(going_on)] == [(0, 0, -1)]
        assert [(one.index, one.start, one.end) for one in await client.list_ranges(closed)] == [(0, 0, 1), (1, 1, -1)]
        assert embedded.store.ranges[closed, 0].end == 1
        result = await fetched(to, going_on, 0)
        found = parse_batches(b"".join(bytes(part) for part in result.parts))
        assert [bytes(record.body) for one in found for record in one.records] == [b"a", b"b", b"c"]
        await client.close()
        await to.close()


async def test_document_seal_survives_a_server_that_stopped_in_between(tmp_path: Path) -> None:
    """The range server has sealed and the placement driver was not told: the range takes nothing, and sealing again
    finishes it."""
    async with running(tmp_path) as embedded:
        to = carrier(embedded, "in-process")
        stream_id = await created(to)
        await appended(to, stream_id, b"a")
        await embedded.document.lanes.seal_on_server(stream_id, 0)
    async with running(tmp_path) as embedded:
        to = carrier(embedded, "in-process")
        assert (await appended(to, stream_id, b"b")).status.code == ErrorCode.RANGE_ALREADY_SEALED
        taken = await sealed(to, stream_id, 0)
        assert taken.range is not None
        assert (taken.range.index, taken.range.start) == (1, 1)
        assert (await appended(to, stream_id, b"b")).base_offset == 1


async def test_document_first_range_is_made_up_for(tmp_path: Path) -> None:
    """The placement driver has the stream's range and the server stopped before the range server heard of it."""
    async with running(tmp_path) as embedded:
        to = carrier(embedded, "in-process")
        driver = embedded.placement_driver
        _, row = await driver.run(lambda tx: rules.create_stream(tx, StreamInfo(-1, 1, 1, 0), 0))
        assert row is not None
        assert (row.stream_id, 0) not in embedded.store.ranges
        assert (await appended(to, row.stream_id, b"a")).base_offset == 0


async def test_a_placement_driver_of_an_older_format_is_upgraded(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        client = embedded.client
        stream_id = (await client.create_stream()).stream_id
        await write(await client.open(stream_id, 1), b"old")
    with sqlite3.connect(tmp_path / "pd.sqlite") as db:
        db.execute("ALTER TABLE ranges DROP COLUMN document")
        db.execute("ALTER TABLE ranges DROP COLUMN floor")
        db.execute("ALTER TABLE streams DROP COLUMN inside")
        db.execute("DROP TABLE news")
        db.execute("DROP TABLE adopted")
        db.execute("DROP TABLE objects")
        db.execute("DROP TABLE row_sums")
        db.execute("PRAGMA user_version = 1")
    async with running(tmp_path) as embedded:
        to = carrier(embedded, "in-process")
        assert (await appended(to, stream_id, b"mine?")).status.code == ErrorCode.PRECONDITION_FAILED
        await sealed(to, stream_id, 0)
        assert (await appended(to, stream_id, b"new")).base_offset == 1


# --- what readers were shown ----------------------------------------------------------------------------------------


async def test_what_a_reader_of_the_document_was_shown_outlives_seals_and_other_writers(tmp_path: Path) -> None:
    """Nobody waits for the answer to an append; the server is the writer, so what is durable is never given up."""
    async with running(tmp_path) as embedded:
        to = carrier(embedded, "in-process")
        stream_id = await created(to)
        unheard = m.AppendBatchRequest(0, [m.AppendItem(stream_id, 0, batch(b"X"))])
        gone = TcpCarrier(*embedded.addresses["sbp-v0.1"], V01)
        gone.submit(unheard, lambda answer: None)
        state = embedded.range_server.state_of(stream_id, 0)
        assert state is not None
        await until(lambda: state.window.committed == 1)
        await gone.close()
        shown = await fetched(to, stream_id, 0)
        (seen,) = parse_batches(b"".join(bytes(part) for part in shown.parts))
        assert bytes(seen.records[0].body) == b"X"
        writer = await embedded.client.open(stream_id, 5)
        assert await write(writer, b"Y") == 1, "a writer of sbp-0.2 takes the stream where the document's ends"
        await sealed(to, stream_id, 1)
        assert (await appended(to, stream_id, b"Z")).base_offset == 2
        again = await fetched(to, stream_id, 0)
        bodies = [
            bytes(record.body)
            for one in parse_batches(b"".join(bytes(part) for part in again.parts))
            for record in one.records
        ]
        assert bodies == [b"X", b"Y", b"Z"]
