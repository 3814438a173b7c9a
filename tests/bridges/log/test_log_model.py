"""A partition through appends, snapshots, trims, crashes and losses of power, against what its log really holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.errors import LogError
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.producer import LedgerKind, ProducerStamp
from bridges.formats.records import Record
from bridges.log.ledger.rules import BATCHES_KEPT, Repeated, Skip
from bridges.log.partition.partition_log import Batch, PartitionLog
from tests.bridges.log.log_lab import NoSnapshots, World, settle
from tests.depth import examples

PRODUCERS = (1, 2, 3)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(PRODUCERS), st.integers(1, 3)),
        st.tuples(st.just("write"), st.sampled_from(PRODUCERS), st.integers(1, 3)),
        st.tuples(st.just("in flight"), st.sampled_from(PRODUCERS), st.integers(1, 3)),
        st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.just(0)),
        st.tuples(st.just("power loss"), st.integers(0, 6), st.integers(0, 2)),
    ),
    max_size=40,
)


@dataclass
class Model:
    """What was stored, by (producer, first sequence number, records): its base offset."""

    stored: dict[ProducerStamp, int] = field(default_factory=dict)
    lost: set[ProducerStamp] = field(default_factory=set)
    """What a loss of power took and nobody has written again."""
    told: set[ProducerStamp] = field(default_factory=set)
    """What its producer knows to be stored, for it has sent five others since: it will not repeat that."""
    uncertain: int = 0
    """Below this offset a loss of power may have taken what was known of trimmed batches."""

    def next_sequence(self, producer: int) -> int:
        return max((s.base_sequence + s.record_count for s in self.stored if s.producer_id == producer), default=0)

    def latest(self, producer: int) -> list[ProducerStamp]:
        mine = sorted((s for s in self.stored if s.producer_id == producer), key=lambda s: s.base_sequence)
        return mine[-BATCHES_KEPT:]


def batch_of(stamp: ProducerStamp) -> Batch:
    payload = encode(
        [Record(None, b"x", timestamp=1000) for _ in range(stamp.record_count)],
        producer_id=stamp.producer_id,
        producer_epoch=0,
        base_sequence=stamp.base_sequence,
    )
    return Batch(payload, stamp.record_count, int(FormatId.KAFKA), 1000, stamp)


def answer_of(known: Repeated | Skip | None) -> int | None:
    return known.base_offset if isinstance(known, Repeated) else None


def compare(log: PartitionLog, model: Model) -> None:
    ledger = log.state.ledger.table(LedgerKind.KAFKA)
    for producer in PRODUCERS:
        for stamp in model.latest(producer):
            base = model.stored[stamp]
            try:
                answer = answer_of(ledger.check(stamp.key, stamp))
            except LogError:
                answer = -1
            if base >= model.uncertain and stamp not in model.told:
                assert answer == base, f"{stamp} is stored at {base}"
            else:
                assert answer in (base, None, -1), f"{stamp} was stored at {base}"
    for stamp in model.lost:
        try:
            answer = answer_of(ledger.check(stamp.key, stamp))
        except LogError:
            answer = None
        assert answer is None, f"{stamp} is not stored: it would be acknowledged and lost"


class Remembering(NoSnapshots):
    """Loses the latest snapshots with the power; what was forgotten stays forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.older: list[tuple[int, bytes]] = []

    async def save(self, stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        if stream_id in self.saved:
            self.older.append(self.saved[stream_id])
        await super().save(stream_id, offset, pieces)

    async def forget(self, stream_id: int) -> None:
        self.older.clear()
        await super().forget(stream_id)

    def lose(self, latest: int) -> None:
        for _ in range(latest):
            self.saved.pop(1, None)
            if self.older:
                self.saved[1] = self.older.pop()


@settings(max_examples=examples(150), deadline=None)
@given(operations, st.sampled_from([1, 5_000, 1 << 30]))
def test_repetitions_and_only_these_are_recognised_whatever_happens_to_the_node(
    steps: list[tuple[str, int, int]], snapshot_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        ticks = count(1_000_000)
        patch.setattr("bridges.log.partition.append_path.now_ms", lambda: next(ticks))
        asyncio.run(_run(steps, snapshot_bytes))


async def _run(steps: list[tuple[str, int, int]], snapshot_bytes: int) -> None:
    world = World(snapshot_bytes=snapshot_bytes)
    snapshots = world.snapshots = Remembering()
    backend = world.backend
    model = Model()
    log = await world.boot()

    async def restart() -> PartitionLog:
        await settle()
        again = await world.boot()
        compare(again, model)
        return again

    for what, number, more in steps:
        if what in ("write", "in flight"):
            if world.writer.flying:
                log = await restart()  # what was in flight never arrived
            stamp = ProducerStamp(number, 0, model.next_sequence(number), more)
            base = log.next_offset
            model.told.update(model.latest(number)[: 1 - BATCHES_KEPT])
            log.append(batch_of(stamp), world.done)
            if what == "write":
                world.writer.acknowledge(1)
                model.stored[stamp] = base
                model.lost = {one for one in model.lost if one.producer_id != number}
        elif what == "snapshot":
            assert await world.logs.snapshotter.take(log) is None
        elif what == "trim":
            await log.trim(min(number, log.high_watermark))
        elif what == "crash":
            log = await restart()
        else:
            await settle()
            # What was trimmed was there: the placement driver loses nothing.
            ends = [entry.base_offset for entry in backend.entries if entry.base_offset >= backend.start]
            ends.append(backend.end)
            end = ends[max(len(ends) - 1 - number, 0)]
            backend.entries = [entry for entry in backend.entries if entry.base_offset < end]
            backend.end = end
            gone = {stamp for stamp, base in model.stored.items() if base >= end}
            for stamp in gone:
                del model.stored[stamp]
            model.lost |= gone
            snapshots.lose(more)
            model.uncertain = max(model.uncertain, backend.start)
            log = await restart()
    await restart()
