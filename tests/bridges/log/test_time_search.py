"""Lookups and retention by time, when headers say of their records what is not true."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_kit.run.sliced import at_once
from bridges.formats import FORMATS, FormatId
from bridges.formats.columns.rows import STEP_RECORDS
from bridges.formats.kafka import encode, set_max_timestamp
from bridges.formats.records import Record
from bridges.log.partition import time_search
from bridges.log.partition.partition_log import Batch, PartitionLog
from bridges.log.partition.time_search import CLOCK_SKEW_MS
from sbp_back.errors import ErrorCode, SbpError
from tests.bridges.log.log_lab import World
from tests.kit.waiting import until

LIE = 1 << 62
LARGE = 70_000
"""Bytes of a value that makes its batch a row of the index."""


def batch(*times: int, claim: int | None = None, size: int = 10, codec: int = 0) -> Batch:
    payload = memoryview(encode([Record(None, bytes(size), timestamp=one) for one in times], codec=codec))
    if claim is not None:
        at_once(set_max_timestamp(payload, claim))
    return claiming(payload, len(times), max(times) if claim is None else claim)


def claiming(payload: memoryview, count: int, claim: int) -> Batch:
    """As it may lie in the log since before claims were compared with records."""
    return Batch(payload, count, int(FormatId.KAFKA), claim, admitted=True)


def garbage(claim: int) -> Batch:
    """A batch whose records nobody can read."""
    one = batch(5, claim=claim, codec=4)
    assert isinstance(one.payload, memoryview)
    one.payload[61:] = bytes(len(one.payload) - 61)
    return one


async def written(world: World, *batches: Batch) -> PartitionLog:
    log = await world.boot()
    for one in batches:
        log.append(one, world.done)
        world.writer.acknowledge(1)
    return log


class Walks:
    """Counts the batches whose records are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = time_search.walk

        def walking(*args: Any) -> Any:
            self.count += 1
            return real(*args)

        monkeypatch.setattr(time_search, "walk", walking)


# --- lookups --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, LARGE])
async def test_a_claim_that_is_not_true_misleads_no_lookup(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [batch(1000, 1500, size=size), batch(1100, claim=LIE, size=size), batch(2000, 1800, size=size)]
    log = await written(World(), *batches, *(batch(1000 + n, claim=LIE + n, size=size) for n in range(20)))
    assert await log.find_timestamp(1501) == (3, 2000)
    assert await log.find_timestamp(1050) == (1, 1500)
    assert await log.find_max_timestamp() == (3, 2000)
    assert await log.find_timestamp(2001) is None
    walks = Walks(monkeypatch)
    assert await log.find_max_timestamp() == (3, 2000)
    assert await log.find_timestamp(2001) is None
    assert walks.count <= 2, "what was found out is known"


async def test_a_batch_that_nobody_can_read_hides_no_other() -> None:
    log = await written(World(), batch(1000), garbage(5000), batch(2000), garbage(LIE))
    assert await log.find_timestamp(1001) == (2, 2000)
    assert await log.find_max_timestamp() == (2, 2000)
    assert await log.find_timestamp(2001) is None


async def test_batches_appended_while_a_row_is_looked_at_are_not_forgotten() -> None:
    world = World()
    log = await written(world, *(batch(1000, claim=LIE) for _ in range(100)))
    looking = asyncio.create_task(log.find_timestamp(5000))
    for _ in range(3):
        await asyncio.sleep(0)
    log.append(batch(6000), world.done)
    world.writer.acknowledge(1)
    await looking
    assert await log.find_timestamp(5000) == (100, 6000)
    assert await log.find_max_timestamp() == (100, 6000)


TIMES = st.lists(st.integers(0, 50), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(TIMES, st.none() | st.integers(0, 40) | st.just(LIE), st.sampled_from([10, LARGE])), max_size=12
    ),
    st.lists(st.integers(0, 55), max_size=5),
)
async def test_lookups_find_what_looking_at_every_record_finds(
    rows: list[tuple[list[int], int | None, int]], asked: list[int]
) -> None:
    batches = [
        batch(*times, claim=None if more is None else max(times) + more, size=size) for times, more, size in rows
    ]
    log = await written(World(), *batches)
    records = list(enumerate(one for times, _, _ in rows for one in times))
    for timestamp in asked:
        assert await log.find_timestamp(timestamp) == next((r for r in records if r[1] >= timestamp), None)
    assert await log.find_max_timestamp() == max(records, key=lambda r: (r[1], -r[0]), default=None)


# --- retention ------------------------------------------------------------------------------------------------------

DAY = 24 * CLOCK_SKEW_MS
NOW = int(time.time() * 1000)


async def retained(world: World, log: PartitionLog, now_ms: int = NOW) -> int:
    """The log start after ``retention.ms`` of a day was applied."""
    await world.retain([("t", 0)], lambda _: (DAY, -1), now_ms)
    return log.log_start_offset


async def test_a_claim_that_is_not_true_keeps_nothing_from_being_trimmed() -> None:
    world = World()
    old = [batch(NOW - 2 * DAY, claim=claim, size=LARGE) for claim in (None, LIE, NOW + 2 * CLOCK_SKEW_MS, None)]
    log = await written(world, *old, batch(NOW, size=LARGE))
    assert await retained(world, log) == 4
    assert await log.find_max_timestamp() == (4, NOW)


@pytest.mark.parametrize("with_snapshot", [True, False])
async def test_a_partition_that_kept_such_a_claim_heals(with_snapshot: bool) -> None:
    world = World()
    log = await written(world, *(batch(NOW - 2 * DAY, claim=LIE, size=LARGE) for _ in range(3)), batch(NOW, size=LARGE))
    assert log.state.index.highest() == (0, LIE), "the claim is what the snapshot holds"
    if with_snapshot:
        await world.logs.snapshotter.take(log)
    log = await world.boot()
    assert log.state.index.highest() == (0, LIE)
    assert await retained(world, log) == 3
    await world.logs.close()
    log = await world.boot()
    assert log.state.index.highest() == (3, NOW)


async def test_more_claims_than_one_check_looks_into_are_a_matter_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_search, "ROWS_PER_CHECK", 2)
    world = World()
    log = await written(world, *(batch(NOW - 2 * DAY, claim=LIE, size=LARGE) for _ in range(5)), batch(NOW, size=LARGE))
    starts = [await retained(world, log) for _ in range(3)]
    assert starts == [2, 4, 5]


async def test_one_partition_s_claims_keep_no_other_from_being_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_search, "PATIENCE_S", 0)
    world = World()
    log = await written(world, batch(NOW - 2 * DAY, claim=LIE, size=LARGE), batch(NOW, size=LARGE))
    assert await retained(world, log) == 0, "nobody waited"
    await until(lambda: not world.logs.search.settling)
    assert await retained(world, log) == 1, "it went on by itself"


async def test_a_defect_of_looking_into_claims_is_seen_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    log = await written(world, batch(NOW - 2 * DAY, claim=LIE, size=LARGE), batch(NOW, size=LARGE))
    with monkeypatch.context() as patch:
        patch.setattr(time_search, "walk", lambda *_: 1 / 0)
        assert await retained(world, log) == 0
    assert world.logs.barrier.failures == {"looking into timestamps": 1}
    assert await retained(world, log) == 1


async def test_claims_that_cannot_be_looked_into_now_are_looked_into_later() -> None:
    world = World()
    log = await written(world, batch(NOW - 2 * DAY, claim=LIE, size=LARGE), batch(NOW, size=LARGE))
    log.tail.clear()
    world.backend.fetch, fetch = refused, world.backend.fetch  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as lines:
        assert await retained(world, log) == 0
    assert [line["event"] for line in lines] == ["timestamps not looked into"]
    assert world.logs.barrier.failures == {}
    world.backend.fetch = fetch  # type: ignore[method-assign]
    assert await retained(world, log) == 1


def refused(stream_id: int, offset: int, max_bytes: int, done: Any, *, limit: int) -> None:
    done(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "not now"))


async def test_records_that_really_lie_ahead_are_kept_and_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    log = await written(world, batch(NOW + 30 * DAY, size=LARGE), batch(NOW - 2 * DAY, size=LARGE))
    walks = Walks(monkeypatch)
    assert await retained(world, log) == 0
    assert walks.count == 1
    assert await retained(world, log) == 0
    assert walks.count == 1
    assert await retained(world, log, NOW + 40 * DAY) == 2


async def test_what_cannot_be_read_is_as_old_as_the_look_at_it() -> None:
    world = World()
    log = await written(world, garbage(LIE), batch(NOW - 2 * DAY, size=LARGE))
    assert await retained(world, log) == 0
    assert await retained(world, log, NOW + 2 * DAY) == 2


async def test_times_that_went_with_their_records_are_forgotten() -> None:
    world = World()
    log = await written(world, batch(NOW + 30 * DAY, size=LARGE), batch(NOW, size=LARGE), batch(NOW, size=LARGE))
    await log.trim(1)
    assert await retained(world, log, NOW + DAY + 1) == 3


def foreign(kind: FormatId, claim: int) -> Batch:
    """A batch of another protocol's client, whose clock is for that client to set."""
    builder = FORMATS[kind].builder(0, 1)
    builder.add(Record(b"k", bytes(LARGE), timestamp=claim, offset=0))
    return Batch(builder.finish(), 1, int(kind), claim)


@pytest.mark.parametrize("after", ["no restart", "a restart", "a restart with a snapshot"])
@pytest.mark.parametrize("kind", [FormatId.YDB, FormatId.PRAVEGA])
async def test_how_old_a_client_says_its_messages_are_neither_deletes_nor_keeps_them(
    kind: FormatId, after: str
) -> None:
    world = World()
    claims = [NOW - 2000 * DAY, NOW + 20_000 * DAY, NOW - 2000 * DAY]
    log = await written(world, *(foreign(kind, claim) for claim in claims))
    if after != "no restart":
        if after == "a restart with a snapshot":
            await world.logs.snapshotter.take(log)
        log = await world.boot()
    soon = int(time.time() * 1000) + 60_000
    assert await retained(world, log, soon) == 0, "they were written a moment ago"
    assert (await log.find_timestamp(NOW + DAY)) == (1, claims[1]), "lookups go by what they say"
    assert await retained(world, log, soon + DAY) == 3, "they are a day old"


async def test_what_another_client_claims_keeps_none_of_kafka_s_records() -> None:
    """Both in one row of the index."""
    world = World()
    honest = batch(NOW - 2 * DAY, claim=NOW + 2 * DAY)
    log = await written(world, honest, foreign(FormatId.YDB, LIE), batch(NOW - 3 * DAY, size=LARGE))
    soon = int(time.time() * 1000) + 60_000
    assert await retained(world, log, soon) == 0
    assert await retained(world, log, soon + DAY) == 3
    assert log.state.index.highest() is None


async def test_what_was_written_while_the_node_s_clock_was_ahead_is_not_kept_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: (NOW + 30_000 * DAY) * 1_000_000)
        log = await written(world, foreign(FormatId.YDB, -1))
        await world.logs.snapshotter.take(log)
        log.append(foreign(FormatId.YDB, -1), world.done)
        world.writer.acknowledge(1)
    log = await world.boot()
    assert await retained(world, log) == 0
    assert await retained(world, log, NOW + 2 * DAY) == 2


# --- slices ---------------------------------------------------------------------------------------------------------


async def test_a_search_leaves_the_loop_to_others_between_batches() -> None:
    log = await written(World(), *(batch(1000, claim=LIE) for _ in range(300)))
    turns = 0
    ended = False

    async def others() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(others())
    assert await log.find_timestamp(2000) is None
    ended = True
    await watching
    assert turns >= 300, "no turn looks into more than one batch"


async def test_a_bomb_is_searched_off_the_loop_slice_by_slice() -> None:
    record = Record(None, None, timestamp=1000, offset=0)
    payload = memoryview(encode([record] * 100_000, codec=4))
    at_once(set_max_timestamp(payload, LIE))
    world = World()
    log = await written(world, claiming(payload, 100_000, LIE))
    assert await log.find_timestamp(2000) is None
    works = world.logs.search.works
    assert works.steps >= 2 * 100_000 // STEP_RECORDS, "two looks, each in slices of which the first is here"
    works.close()
