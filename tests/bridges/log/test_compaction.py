"""Compaction of logs in a real node: what stays, where, and for whom; against a model of any history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, field

from anabranch_kit.run.awaited import awaited
from anabranch_kit.sql.connection import Connection
from bridges.errors import LogError, PositionLost, PositionTrimmed, StorageFull
from bridges.formats import FORMAT_MASK, FormatId, decode
from bridges.formats.kafka import TRANSACTIONAL, encode, parse_header
from bridges.formats.kafka_compaction import horizon_of, is_gap
from bridges.formats.producer import InTransaction, LedgerKind, ProducerStamp, SeqNoStamp
from bridges.formats.records import Record, StoredBatch
from bridges.formats.ydb import YdbBuilder
from bridges.log import rebuilding
from bridges.log.byte_positions.search import ByteSearch
from bridges.log.compaction import cleaning as compaction
from bridges.log.compaction.cleaner import CleanerOptions
from bridges.log.compaction.cleaning import CompactionPass
from bridges.log.ledger.ledger import Ledger
from bridges.log.ledger.rules import Repeated
from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
from bridges.log.state.offset_index import OffsetIndex
from bridges.log.transactions.partition_transactions import Transactions
from bridges.node.assembly import Node
from sbp_back.wire.model import Entry
from tests.bridges.log.blocks_lab import small_blocks
from tests.bridges.node.test_node import settings_of
from tests.depth import examples
from tests.kit.waiting import until

DAY = 86_400_000
Pair = tuple[bytes | None, bytes | None]
NEVER = "1000000000"


class Lab:
    """A node without fronts whose cleaner runs when it is told to, by a clock of the test's."""

    def __init__(self, path: Path, **more: str) -> None:
        self.path = path
        self.more = {"log__cleaner_interval_ms": NEVER, "log__cleaner_bytes_per_second": "0", **more}
        self.now = 0
        self.ahead_ms = 0

    async def __aenter__(self) -> Lab:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.node.stop()

    async def start(self) -> None:
        self.node = Node(settings_of(self.path, **self.more), fronts=[])
        await self.node.start()
        clock = self.node.floors.log.cleaner.clock
        self.node.floors.log.cleaner.clock = lambda: clock() + self.ahead_ms

    async def restart(self, *, forget: bool = False, killed: bool = False) -> None:
        """``forget``: what is known of the logs has to be told from them; ``killed``: from those and from what was
        saved before the end, which saves nothing."""
        if forget or killed:
            saved: list[Any] = []
            if killed:
                query = "SELECT * FROM partition_snapshots"
                saved = await self.node.db.run(lambda connection: connection.execute(query).fetchall())

            def put_back(connection: Connection) -> None:
                connection.execute("DELETE FROM partition_snapshots")
                for row in saved:
                    connection.execute(f"INSERT INTO partition_snapshots VALUES ({', '.join('?' * len(row))})", row)

            await self.node.stop()
            await self.start()
            await self.node.db.run(put_back)
            for log in self.node.logs:
                assert not log.has_moved
        await self.node.stop()
        await self.start()

    async def topic(self, name: str = "t", **config: str) -> PartitionLog:
        given = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        given.update({key.replace("_", "."): value for key, value in config.items()})
        await self.node.catalog.create_topic(name, 1, given)
        return await self.log(name)

    async def log(self, name: str = "t") -> PartitionLog:
        log = self.node.logs.get(name, 0)
        assert log is not None
        await log.ready()
        return log

    async def compact(self, name: str = "t", ahead_ms: int = 0) -> None:
        """Have the cleaner look once, ``ahead_ms`` later than the last time."""
        self.ahead_ms += ahead_ms
        cleaner = self.node.floors.log.cleaner
        await cleaner.clean([(name, 0)], cleaner.clock())
        while (view := cleaner.views.get((name, 0))) is not None and view.state == "cleaning":
            await asyncio.sleep(0.002)


async def put(log: PartitionLog, batch: Batch) -> Appended:
    def call(settle: Any) -> None:
        log.append(batch, lambda appended, error: settle(appended, error))

    found: Appended = await awaited(call)
    return found


def records(*pairs: Pair) -> list[Record]:
    return [Record(key, value, [("h", b"x")], 1000 + n) for n, (key, value) in enumerate(pairs)]


def plain(*pairs: Pair, codec: int = 0) -> Batch:
    return Batch(encode(records(*pairs), codec=codec), len(pairs), int(FormatId.KAFKA), 1000 + len(pairs) - 1)


def stamped(producer: int, sequence: int, *pairs: Pair, transactional: bool = False) -> Batch:
    attributes = TRANSACTIONAL if transactional else 0
    stamp = ProducerStamp(producer, 0, sequence, len(pairs))
    payload = encode(
        records(*pairs), attributes=attributes, producer_id=producer, producer_epoch=0, base_sequence=sequence
    )
    part = InTransaction(producer, 0) if transactional else None
    return Batch(payload, len(pairs), int(FormatId.KAFKA), 1000, stamp, transaction=part)


async def end(log: PartitionLog, producer: int, commit: bool) -> int:
    found: Appended = await awaited(
        lambda settle: log.append_marker(producer, 0, commit, lambda appended, error: settle(appended, error))
    )
    return found.base


async def stored(log: PartitionLog) -> list[StoredBatch]:
    """All batches, one behind the other without a gap."""
    found: list[StoredBatch] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        for batch in await log.read_batches(offset, 1 << 20):
            assert found == [] or batch.base_offset == found[-1].end_offset
            found.append(batch)
        offset = found[-1].end_offset
    return found


async def visible(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of what readers of committed data get."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        batches = await log.read_committed(offset, 1 << 20)
        for batch in batches:
            for record in decode(batch):
                if log.log_start_offset <= record.offset < log.last_stable_offset:
                    assert record.headers == [("h", b"x")] or batch.flags & FORMAT_MASK != FormatId.KAFKA
                    found.append((record.offset, record.key, record.value))
        offset = batches[-1].end_offset
    return found


# --- single rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
async def test_of_each_key_the_latest_record_stays_at_its_offset(tmp_path: Path, codec: int) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        await put(log, plain((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), codec=codec))
        await put(log, plain((b"a", b"3"), (b"c", b"1"), codec=codec))
        await put(log, plain((b"b", b"2"), codec=codec))
        await lab.compact()
        for _ in range(2):
            log = await lab.log()
            assert await visible(log) == [(3, b"a", b"3"), (4, b"c", b"1"), (5, b"b", b"2")]
            assert [(b.base_offset, b.end_offset) for b in await stored(log)] == [(0, 3), (3, 5), (5, 6)]
            assert log.state.index.size_bytes == sum(len(batch.payload) for batch in await stored(log))
            assert log.high_watermark == 6
            await lab.restart()
        assert lab.node.floors.log.cleaner.counts.failures == 0


async def test_of_each_key_the_latest_record_stays_at_its_offset_uncompressed(tmp_path: Path) -> None:
    await test_of_each_key_the_latest_record_stays_at_its_offset(tmp_path, 0)


async def test_a_read_at_what_is_gone_gets_what_comes_next(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        for value in range(50):
            await put(log, plain((b"k", b"%d" % value)))
        await lab.compact()
        batches = await log.read_batches(17, 1)
        assert (batches[0].base_offset, batches[0].end_offset) == (0, 49)
        assert is_gap(parse_header(batches[0].payload))
        assert await visible(log) == [(49, b"k", b"49")]


async def test_neither_records_above_the_last_stable_offset_nor_those_that_are_too_young_replace_others(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic(min_compaction_lag_ms="60000")
        await put(log, plain((b"a", b"1"), (b"a", b"2")))
        await lab.compact()
        assert len(await visible(log)) == 2
        await put(log, stamped(7, 0, (b"a", b"open"), transactional=True))
        await put(log, plain((b"a", b"3")))
        await lab.compact(ahead_ms=61_000)
        assert await visible(log) == [(1, b"a", b"2")]
        await end(log, 7, False)
        await lab.compact(ahead_ms=61_000)
        assert await visible(log) == [(3, b"a", b"3")]


async def test_a_partition_is_due_by_its_share_of_new_bytes_or_by_the_age_of_the_first_new_record(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic(min_cleanable_dirty_ratio="0.5", max_compaction_lag_ms="3600000")
        for n in range(10):
            await put(log, plain((b"%d" % n, b"1")))
        await lab.compact()
        assert lab.node.floors.log.cleaner.counts.passes == 1
        for _ in range(5):
            await put(log, plain((b"1", b"2")))
        await lab.compact()
        assert lab.node.floors.log.cleaner.counts.passes == 1
        assert lab.node.floors.log.cleaner.views["t", 0].dirty_bytes > 0
        await lab.compact(ahead_ms=3_700_000)
        assert lab.node.floors.log.cleaner.counts.passes == 2
        assert len(await visible(log)) == 10


async def test_what_a_pass_has_read_is_told_while_it_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        await put(log, plain((b"a", b"1"), (b"a", b"2")))
        told: list[int] = []
        compact = CompactionPass._compact

        async def watched(self: CompactionPass, entries: Sequence[Entry]) -> None:
            told.append(lab.node.floors.log.cleaner.counts.read_bytes)
            await compact(self, entries)

        monkeypatch.setattr(CompactionPass, "_compact", watched)
        await lab.compact()
        counts = lab.node.floors.log.cleaner.counts
        assert told == [counts.read_bytes]
        assert told[0] > 0
        await lab.compact()
        assert lab.node.floors.log.cleaner.counts == counts


async def test_tombstones_stay_for_their_time_counted_from_when_the_cleaner_came(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic(delete_retention_ms="3600000")
        await put(log, plain((b"a", b"1"), (b"a", None), (b"b", b"1")))
        await lab.compact()
        assert await visible(log) == [(1, b"a", None), (2, b"b", b"1")]
        assert horizon_of(parse_header((await stored(log))[0].payload)) > 0
        assert decode((await stored(log))[0])[0].timestamp == 1001, "the record's own time is what it was"
        await lab.restart()
        await lab.compact(ahead_ms=3_000_000)
        assert len(await visible(await lab.log())) == 2
        await lab.compact(ahead_ms=700_000)
        assert await visible(await lab.log()) == [(2, b"b", b"1")]


async def test_the_last_batch_of_a_producer_is_kept_for_the_ledger(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        await put(log, stamped(5, 0, (b"a", b"1"), (b"b", b"1")))
        last = await put(log, stamped(5, 2, (b"a", b"2"), (b"b", b"2"), (b"a", b"2")))
        await put(log, plain((b"a", b"3"), (b"b", b"3")))
        await lab.compact()
        assert await visible(log) == [(5, b"a", b"3"), (6, b"b", b"3")]
        await lab.restart(forget=True)
        log = await lab.log()
        again = await put(log, stamped(5, 2, (b"a", b"2"), (b"b", b"2"), (b"a", b"2")))
        assert (again.base, again.end, again.duplicate) == (last.base, last.end, True)
        await put(log, stamped(5, 5, (b"a", b"4")))
        await lab.compact()
        assert len([one for one in await stored(log) if not is_gap(parse_header(one.payload))]) == 2


async def test_a_killed_node_knows_the_last_five_batches_of_what_it_has_compacted(tmp_path: Path) -> None:
    """Of all but the last one not even a header is left."""
    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        written = [await put(log, stamped(5, number, (b"a", b"%d" % number))) for number in range(6)]
        await lab.compact()
        assert len(await visible(log)) == 1
        await lab.restart(killed=True)
        log = await lab.log()
        for number in range(1, 6):
            again = await put(log, stamped(5, number, (b"a", b"%d" % number)))
            assert again == written[number]._replace(duplicate=True)


CONTROL = 0x20


async def controls(log: PartitionLog) -> list[int]:
    return [one.base_offset for one in await stored(log) if parse_header(one.payload).attributes & CONTROL]


async def test_a_marker_stays_until_nobody_is_told_of_what_it_ended_for_good(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic(delete_retention_ms="1000")
        await put(log, stamped(7, 0, (b"a", b"aborted"), transactional=True))
        marker = await end(log, 7, False)
        await put(log, stamped(7, 1, (b"c", b"committed"), transactional=True))
        await end(log, 7, True)
        await lab.restart()  # and has a snapshot that tells of it
        await lab.compact()
        await lab.compact(ahead_ms=70_000)

        async def fails(log: PartitionLog) -> LogError:
            return LogError("no room")

        for _ in range(3):
            lab.node.logs.snapshotter.take = fails  # type: ignore[method-assign]
            await lab.compact(ahead_ms=70_000)
            log = await lab.log()
            assert marker in await controls(log)
            await lab.restart()
        for _ in range(3):
            await lab.compact(ahead_ms=70_000)
        log = await lab.log()
        assert marker not in await controls(log)
        assert not log.aborted(0, log.high_watermark)


@pytest.mark.parametrize("forget", [False, True])
async def test_aborted_ranges_go_from_the_database_too(tmp_path: Path, forget: bool) -> None:
    with small_blocks():
        async with Lab(tmp_path) as lab:
            log = await lab.topic(delete_retention_ms="1000")
            wanted = []
            for at in range(9):
                await put(log, stamped(7, 2 * at, (b"a%d" % at, b"aborted"), transactional=True))
                await end(log, 7, False)
                base = (await put(log, stamped(7, 2 * at + 1, (b"c%d" % at, b"x"), transactional=True))).base
                wanted.append((base, b"c%d" % at, b"x"))
                await end(log, 7, True)
            await lab.node.logs.aborted.drain()
            assert log.state.transactions.persisted > 0
            assert await visible(log) == wanted
            assert len(await log.all_aborted(0, log.high_watermark)) == 9
            for passed in range(6):
                await lab.compact(ahead_ms=70_000)
                if passed % 2:
                    await lab.restart(forget=forget and passed == 3)
                    log = await lab.log()
                assert await visible(log) == wanted
            assert len(await controls(log)) <= 10, "markers of aborted ones are gone, but a writer's last"
            assert not await log.all_aborted(0, log.high_watermark)


@pytest.mark.parametrize("forget", [False, True])
async def test_aborted_data_and_then_their_markers_go(tmp_path: Path, forget: bool) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic(delete_retention_ms="1000")
        await put(log, plain((b"a", b"1")))
        await put(log, stamped(7, 0, (b"a", b"aborted"), (b"z", b"aborted"), transactional=True))
        marker = await end(log, 7, False)
        await put(log, stamped(7, 2, (b"c", b"committed"), transactional=True))
        await end(log, 7, True)
        await put(log, plain((b"d", b"1")))
        wanted = [(0, b"a", b"1"), (4, b"c", b"committed"), (6, b"d", b"1")]
        assert await visible(log) == wanted
        await lab.compact()
        assert await visible(log) == wanted
        assert b"aborted" not in b"".join(bytes(one.payload) for one in await stored(log))
        assert [one.last_offset for one in log.aborted(0, log.high_watermark)] == [marker]
        for passed in range(6):
            await lab.compact(ahead_ms=70_000)
            if marker not in await controls(log):
                assert not log.aborted(0, log.high_watermark), "who is told of it would look for its marker"
            if passed % 2:
                await lab.restart(forget=forget and passed == 3)
                log = await lab.log()
            assert await visible(log) == wanted
        assert marker not in await controls(log)
        assert 5 in await controls(log), "of a committed transaction something is left"
        assert len(log.state.transactions) == 0


async def check_positions(log: PartitionLog, end: int, former: dict[int, int]) -> dict[int, int]:
    """What is left lies together in front of the ``end``, and nothing lies below where it was; gives where."""
    places: dict[int, int] = {}
    at = end
    assert (await log.byte_end()).position == end
    for offset, _, value in reversed(await visible(log)):
        at -= 8 + len(value or b"")
        places[offset] = at
    for offset, at in places.items():
        assert await log.byte_position(offset) == at >= former.get(offset, 0)
        assert await log.find_byte(at) == (offset, at)
    assert await log.byte_start() == min(places.values(), default=end)
    return places


@pytest.mark.parametrize("asked_meanwhile", [False, True])
async def test_positions_in_bytes_survive_compaction_in_front_of_what_is_left(
    tmp_path: Path, asked_meanwhile: bool
) -> None:
    async with Lab(tmp_path, log__positions_idle_ms="0") as lab:
        log = await lab.topic()
        rng = random.Random(7)
        for _ in range(40):
            keys = [b"k%d" % rng.randrange(12) for _ in range(5)]
            await put(log, plain(*((key, bytes(rng.randrange(30))) for key in keys)))
        end = (await log.byte_end()).position
        places = await check_positions(log, end, {})
        for _ in range(3):
            if asked_meanwhile:
                places = await check_positions(log, end, places)
            await lab.compact()
            assert len(await visible(log)) == 12
            places = await check_positions(log, end, places)
            await lab.restart()
            log = await lab.log()
            places = await check_positions(log, end, places)
            for number in range(12):
                await put(log, plain((b"k%d" % number, bytes(number)), (b"k0", b"")))
            fresh = (await log.byte_end()).position
            assert fresh == end + sum(8 + number + 8 for number in range(12))
            end = fresh


async def test_a_crash_within_a_pass_leaves_positions_as_they_were_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a snapshot from before knew of what was taken since would be wrong."""
    async with Lab(tmp_path, log__positions_idle_ms="0") as lab:
        log = await lab.topic()
        for number in range(10):
            await put(log, plain((b"a", bytes(number)), (b"b", bytes(number)), (b"%d" % number, b"stays")))
        end = (await log.byte_end()).position
        places = await check_positions(log, end, {})
        saved: list[tuple[Any, ...]] = []
        loosen = ByteSearch.loosen

        async def loosened(search: ByteSearch, log: PartitionLog, offset: int) -> None:
            await loosen(search, log, offset)
            query = "SELECT * FROM partition_snapshots"
            saved.extend(await lab.node.db.run(lambda connection: connection.execute(query).fetchall()))

        monkeypatch.setattr(ByteSearch, "loosen", loosened)
        await lab.compact()
        places = await check_positions(log, end, places)
        assert saved

        def put_back(connection: Connection) -> None:
            connection.execute("DELETE FROM partition_snapshots")
            for row in saved:
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO partition_snapshots VALUES ({marks})", row)

        await lab.restart()
        await lab.node.db.run(put_back)
        for one in lab.node.logs:
            assert not one.has_moved
        await lab.restart()
        log = await lab.log()
        await check_positions(log, end, places)


async def test_a_position_that_compaction_has_moved_is_told_to_be_lost(tmp_path: Path) -> None:
    async with Lab(tmp_path, log__positions_idle_ms="0") as lab:
        log = await lab.topic()
        await put(log, plain((b"a", bytes(10)), (b"b", bytes(3)), (b"a", bytes(5))))
        await log.byte_end()
        assert (await log.byte_position(1), await log.byte_position(2)) == (18, 29)
        await lab.compact()
        assert (await log.byte_start(), await log.byte_position(2)) == (18, 29), "where they were"
        await put(log, plain((b"b", bytes(3))))
        await lab.compact()
        assert await log.byte_start() == 29
        with pytest.raises(PositionTrimmed):
            await log.find_byte_batch(18)
        await put(log, plain((b"c", b""), (b"a", bytes(2))))
        await lab.compact()
        # What is left: b at 42 and c at 53, which keep their places, and the second a.
        assert [await log.byte_position(offset) for offset in (3, 4, 5)] == [42, 53, 61]
        for _ in range(2):
            with pytest.raises(PositionLost) as lost:
                await log.find_byte_batch(45)
            assert lost.value.position == await log.byte_start() == 42
            await lab.restart()
            log = await lab.log()


async def test_compaction_waits_a_while_for_readers_of_positions(tmp_path: Path) -> None:
    async with Lab(tmp_path, log__positions_idle_ms="60000") as lab:
        log = await lab.topic()
        for _ in range(4):
            await put(log, plain((b"a", b"1"), (b"a", b"2")))
        await log.byte_end()
        log.reads_bytes(4)
        await lab.compact()
        assert [offset for offset, _, _ in await visible(log)] == [3, 4, 5, 6, 7]
        log.reads_bytes(2)
        await lab.compact(ahead_ms=30_000)
        assert "reader is at offset 2" in lab.node.floors.log.cleaner.views["t", 0].why
        await lab.compact(ahead_ms=29_000)
        assert len(await visible(log)) == 5
        log.reads_bytes(2)
        await lab.compact(ahead_ms=31_000)
        assert [offset for offset, _, _ in await visible(log)] == [7], "who stays where he is holds up nothing"


async def test_what_is_promised_is_waited_for_and_what_is_about_to_change_is_not_promised(tmp_path: Path) -> None:
    class Answer:
        __slots__ = ("__weakref__", "left")

        def __init__(self) -> None:
            self.left = True

        def holds(self, start: int, end: int) -> bool:
            return self.left

    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        await put(log, plain((b"a", b"1"), (b"a", b"2")))
        await put(log, plain((b"a", b"3")))
        answer = Answer()
        log.promised.add(answer)
        before = log.locate(0, 1 << 20)
        assert before is not None
        task = asyncio.create_task(lab.compact())
        # Who waits for nobody may have done it by now.
        await until(lambda: log.replacing is not None or task.done())
        await asyncio.sleep(0.1)  # nothing is replaced within this time
        assert len(await visible(log)) == 3, "not while an answer holds where it lies"
        assert log.locate(0, 1 << 20) is None
        answer.left = False
        await task
        after = log.locate(0, 1 << 20)
        assert after is not None
        assert after.size < before.size
        assert sum(len(one.payload) for one in await log.read_batches(0, 1 << 20)) == after.size


async def test_batches_of_another_format_go_whole_and_their_producer_is_known_all_the_same(tmp_path: Path) -> None:
    def message(*pairs: tuple[int, bytes, bytes]) -> Batch:
        builder = YdbBuilder(0, len(pairs))
        for number, key, value in pairs:
            builder.add(Record(key, value, [], 1000, producer="who", sequence=number))
        stamp = SeqNoStamp(b"who", [number for number, _, _ in pairs])
        return Batch(builder.finish(), len(pairs), int(FormatId.YDB), 1000, stamp)

    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        await put(log, message((1, b"a", b"1"), (2, b"b", b"1")))
        await put(log, message((3, b"a", b"2"), (4, b"c", b"1")))
        await put(log, plain((b"b", b"3")))
        await lab.compact()
        assert await visible(log) == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"3")]
        await put(log, plain((b"a", b"4"), (b"c", b"4")))
        await lab.compact()
        assert await visible(log) == [(4, b"b", b"3"), (5, b"a", b"4"), (6, b"c", b"4")]
        await lab.restart(forget=True)
        log = await lab.log()
        last = log.last(LedgerKind.SEQ_NO, SeqNoStamp(b"who", [1]).key)
        assert last is not None
        assert last.number == 4


async def test_more_keys_than_there_is_memory_for_take_several_passes(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        cleaner = lab.node.floors.log.cleaner
        cleaner.options = CleanerOptions(table_bytes=24 * 100, bytes_per_second=0)
        log = await lab.topic()
        for turn in range(2):
            for n in range(30):
                await put(log, plain(*((b"%d" % (10 * n + m), b"%d" % turn) for m in range(10))))
        for _ in range(12):
            await lab.compact()
        assert cleaner.counts.passes >= 7
        found = await visible(log)
        assert {(key, value) for _, key, value in found} == {(b"%d" % n, b"1") for n in range(300)}
        assert len(found) == 300


async def test_policies_change_and_retention_goes_by_what_is_left(tmp_path: Path) -> None:
    async with Lab(tmp_path, log__retention_check_interval_ms="20") as lab:
        log = await lab.topic(cleanup_policy="delete", retention_bytes="100000", retention_ms="-1")
        for n in range(1000):
            await put(log, plain((b"%d" % (n % 5), bytes(1000))))
        await until(lambda: log.log_start_offset != 0)
        await lab.compact()
        assert lab.node.floors.log.cleaner.counts.passes == 0
        await lab.node.catalog.set_config("t", {"cleanup.policy": "compact"})
        await lab.compact()
        assert [offset for offset, _, _ in await visible(log)] == [995, 996, 997, 998, 999]
        assert log.size_bytes < 10_000
        start = log.log_start_offset
        await lab.node.catalog.set_config("t", {"cleanup.policy": "compact,delete"})
        await asyncio.sleep(0.2)  # ten rounds of retention
        assert log.log_start_offset == start, "what is left is less than is to be kept"
        await lab.restart()
        log = await lab.log()
        assert log.size_bytes < 10_000
        await lab.node.catalog.set_config("t", {"cleanup.policy": "delete"})
        await put(log, plain((b"1", b"x")))
        await lab.compact()
        assert len(await visible(log)) == 6


async def test_damage_ends_a_pass_and_is_told(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        for n in range(3):
            await put(log, plain((b"a", b"%d" % n)))
        await lab.node.stop()
        (segment,) = [p for p in (tmp_path / "data").rglob("*.seg") if b"anbr" not in p.name.encode()][:1]
        data = bytearray(segment.read_bytes())
        at = data.index(b"h\x02x", data.index(b"h\x02x") + 1)
        data[at + 2] ^= 1
        segment.write_bytes(data)
        await lab.start()
        log = await lab.log()
        await lab.compact()
        view = lab.node.floors.log.cleaner.views["t", 0]
        assert view.state == "refused"
        assert "damaged" in view.why


async def test_a_snapshot_is_believed_whose_last_batch_was_compacted(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        await put(log, stamped(5, 0, (b"a", b"1")))
        await put(log, plain((b"x", b"1")))
        await put(log, plain((b"x", b"2")))
        await lab.restart()  # and has a snapshot
        log = await lab.log()
        await log.trim(1, own=True)
        await put(log, plain((b"x", b"3")))
        # From here on there is no room for another one.
        lab.node.logs.snapshotter._take = full  # type: ignore[method-assign]
        # Two passes: the batch below the snapshot is part of a longer gap then, which reaches over its offset.
        await lab.compact()
        await put(log, plain((b"x", b"4")))
        await lab.compact()
        assert len(await stored(log)) == 3
        await lab.restart()
        again = await put(await lab.log(), stamped(5, 0, (b"a", b"1")))
        assert again.duplicate, "what was trimmed is known from the snapshot alone"
        assert (await lab.log()).state.index.starts == sorted((await lab.log()).state.index.starts)


async def full(log: PartitionLog) -> StorageFull:
    """In the place of a snapshot."""
    return StorageFull("there is no room for a snapshot")


async def nobody(*_: object) -> None:
    """In the place of who waits for something."""


LEFT_OUT: dict[str, tuple[object, str, object, Callable[[Path], Awaitable[None]]]] = {
    "last batches of writers": (
        Ledger,
        "rests_on",
        lambda *_: False,
        test_the_last_batch_of_a_producer_is_kept_for_the_ledger,
    ),
    "notes of writers": (
        Ledger,
        "rests_on",
        lambda *_: False,
        test_batches_of_another_format_go_whole_and_their_producer_is_known_all_the_same,
    ),
    "waiting for what is promised": (
        CompactionPass,
        "_unpromised",
        nobody,
        test_what_is_promised_is_waited_for_and_what_is_about_to_change_is_not_promised,
    ),
    "forgetting what was aborted": (
        Transactions,
        "forget",
        lambda *_: None,
        lambda path: test_aborted_data_and_then_their_markers_go(path, False),
    ),
    "markers for those who are told of them": (
        compaction,
        "is_marker",
        lambda *_: False,
        test_a_marker_stays_until_nobody_is_told_of_what_it_ended_for_good,
    ),
    "what compaction has put there": (
        rebuilding,
        "COMPACTED",
        0,
        test_a_snapshot_is_believed_whose_last_batch_was_compacted,
    ),
    "the tail": (
        PartitionLog,
        "replaced",
        lambda *_: None,
        test_of_each_key_the_latest_record_stays_at_its_offset_uncompressed,
    ),
    "sizes": (
        OffsetIndex,
        "resize",
        lambda *_: None,
        test_policies_change_and_retention_goes_by_what_is_left,
    ),
}
"""What is left out, and the test that has to fail then."""


@pytest.mark.parametrize("what", LEFT_OUT)
async def test_a_safeguard_that_is_left_out_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    owner, name, value, scenario = LEFT_OUT[what]
    monkeypatch.setattr(owner, name, value)
    with pytest.raises((AssertionError, LogError)):
        await scenario(tmp_path)


# --- any history ----------------------------------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
PAIRS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=3))), min_size=1, max_size=4)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from([0, 1, 2]), PAIRS),
        st.tuples(st.just("in transaction"), st.sampled_from([11, 12]), PAIRS),
        st.tuples(st.just("end"), st.sampled_from([11, 12]), st.booleans()),
        st.tuples(st.just("compact"), st.sampled_from([0, 5_000, 70_000, 2 * DAY]), st.none()),
        st.tuples(st.just("compact"), st.sampled_from([0, 5_000, 70_000, 2 * DAY]), st.none()),
        st.tuples(st.just("trim"), st.integers(0, 20), st.none()),
        st.tuples(st.just("restart"), st.booleans(), st.none()),
    ),
    min_size=4,
    max_size=30,
)


Operation = tuple[str, Any, Any]


async def test_a_log_that_is_the_end_of_one_batch_is_compacted(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        log = await lab.topic()
        await put(log, plain((b"a", b"1"), (b"a", b"2"), (b"a", b"3")))
        await log.trim(1, own=True)
        await lab.compact()
        assert await visible(log) == [(2, b"a", b"3")]
        passes = lab.node.floors.log.cleaner.counts.passes
        await lab.compact()
        assert lab.node.floors.log.cleaner.counts.passes == passes, "once is enough"


class History(Struct):
    """What was written. ``open``: of transactions, the offsets that are not decided."""

    committed: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    open: dict[int, list[tuple[int, bytes, bytes | None]]] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    last: dict[int, tuple[ProducerStamp, int]] = field(default_factory=dict)
    end: int = 0

    @property
    def stable(self) -> int:
        return min((written[0][0] for written in self.open.values()), default=self.end)

    def latest(self, start: int) -> dict[bytes, tuple[int, bytes | None]]:
        found: dict[bytes, tuple[int, bytes | None]] = {}
        for offset in sorted(self.committed):
            if start <= offset < self.stable:
                key, value = self.committed[offset]
                found[key] = (offset, value)
        return found


async def play(lab: Lab, name: str, operations: Sequence[Operation]) -> None:
    log = await lab.topic(name, delete_retention_ms="1000")
    history = History()
    for what, who, more in operations:
        if what in ("write", "in transaction"):
            transactional = what == "in transaction"
            sequence = history.sequences.get(who, 0)
            batch = plain(*more) if not who else stamped(who, sequence, *more, transactional=transactional)
            done = await put(log, batch)
            assert done.base == history.end
            history.end = done.end
            if who:
                history.sequences[who] = sequence + len(more)
                history.last[who] = ProducerStamp(who, 0, sequence, len(more)), done.base
            for offset, (key, value) in enumerate(more, done.base):
                if transactional:
                    history.open.setdefault(who, []).append((offset, key, value))
                else:
                    history.committed[offset] = key, value
        elif what == "end":
            if who in history.open:
                history.end = await end(log, who, more) + 1
                for offset, key, value in history.open.pop(who):
                    if more:
                        history.committed[offset] = key, value
        elif what == "trim":
            await log.trim(min(who, log.last_stable_offset), own=True)
        elif what == "restart":
            await lab.restart(forget=who)
            log = await lab.log(name)
            for stamp, base in history.last.values():
                if base >= log.log_start_offset:
                    table = log.state.ledger.table(LedgerKind.KAFKA)
                    found = table.check(stamp.key, stamp)
                    assert isinstance(found, Repeated)
                    assert found.base_offset == base
        else:
            await lab.compact(name, ahead_ms=who)
        await compare(log, history, compacted=what == "compact")


async def compare(log: PartitionLog, history: History, *, compacted: bool) -> None:
    assert log.high_watermark == history.end
    assert log.last_stable_offset == max(history.stable, log.log_start_offset)
    assert log.state.transactions.open.keys() == history.open.keys()
    await stored(log)
    found = await visible(log)
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
    for offset, key, value in found:
        assert history.committed[offset] == (key, value), "nothing is there that was not written and committed"
    told: dict[bytes, tuple[int, bytes | None]] = {}
    for offset, key, value in found:
        assert key is not None
        told[key] = (offset, value)
    for key, (offset, value) in history.latest(log.log_start_offset).items():
        if value is not None:
            assert told.get(key) == (offset, value)
        else:
            assert told.get(key, (offset, None)) == (offset, None), "what was deleted does not come back"
    if compacted:
        assert len(found) == len(told), "each key is there once"
        sizes = sum(len(batch.payload) for batch in await stored(log))
        if log.log_start_offset == 0:
            assert log.state.index.size_bytes == sizes


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@given(st.lists(OPERATIONS, min_size=2, max_size=2))
def test_any_history_compacted_at_any_points_reads_as_the_model_says(
    histories: list[list[tuple[str, Any, Any]]],
) -> None:
    async def run() -> None:
        with TemporaryDirectory() as directory:
            async with Lab(Path(directory)) as lab:
                for number, operations in enumerate(histories):
                    await play(lab, f"t{number}", operations)
                assert lab.node.floors.log.cleaner.counts.failures == 0
                assert not lab.node.metrics.barrier.failures

    asyncio.run(run())
