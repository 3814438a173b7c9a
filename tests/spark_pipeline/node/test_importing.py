"""What a migration asks of a node: batches at their offsets, verbatim or refused, positions, the hand-over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridges.catalog.progress import Committed
from bridges.errors import TopicImporting
from bridges.formats import IMPORTED, FormatId
from bridges.formats.kafka import TRANSACTIONAL, encode, marker
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record, StoredBatch
from bridges.log.partition.partition_log import PartitionLog
from spark_pipeline.core.errors import Conflict, Fenced, PipelineError, UnknownTopic
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import Positions
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.node import intake
from tests.spark_pipeline.node.pipeline_lab import Lab, client_of, node_of, open_lab

T = TopicPartition("t", 0)


def importer(lab: Lab, migration: str = "m") -> Importer:
    return Importer(f"anabranch://{lab.node.addresses['pipeline']}", {"patienceMs": "1000"}, migration)


def data(base: int, count: int = 1, *, producer: int = -1, codec: int = 0, value: bytes = b"x", span: int = 0) -> bytes:
    """A batch as a Kafka cluster stores it, with a leader's epoch of its own."""
    return bytes(
        encode(
            [Record(b"k", value + b"%d" % number, timestamp=1_000 + number) for number in range(count)],
            base,
            codec=codec,
            attributes=TRANSACTIONAL if producer >= 0 else 0,
            leader_epoch=9,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=17 if producer >= 0 else -1,
            count=span or count,
        )
    )


def ended(base: int, producer: int, *, commit: bool) -> bytes:
    made = marker(InTransaction(producer, 0, commit), 1_000)
    made[:8] = base.to_bytes(8)
    return bytes(made)


async def stored(log: PartitionLog) -> list[StoredBatch]:
    """Everything in a log, as it lies there."""
    found: list[StoredBatch] = []
    at = log.log_start_offset
    while at < log.high_watermark:
        found += await log.read_batches(at, 1 << 20)
        at = found[-1].end_offset
    return found


def verbatim(batch: StoredBatch) -> bytes:
    """A stored batch but for its leader's epoch."""
    payload = bytes(batch.payload)
    return payload[:12] + payload[16:]


async def test_batches_lie_where_they_did_byte_by_byte(lab: Lab) -> None:
    target = importer(lab)
    begun = await lab.ask(target.begin, "t", 1, {"cleanup.policy": "compact"})
    assert (begun.epoch, begun.handed_over_ms, begun.partitions) == (0, None, (Positions(0, 0, 0),))
    assert lab.node.catalog.topic("t").config == {"cleanup.policy": "compact"}
    # Gaps in front, between, and within a batch; all codecs; a transaction and its end.
    brought = [data(5, 3), data(8, 2, codec=1), data(20, 4, span=9), data(29, codec=4), data(30, 2, producer=7)]
    brought.append(ended(32, 7, commit=True))
    assert await lab.ask(target.append, T, begun.epoch, brought) == 33
    log = lab.log("t")
    batches = await stored(log)
    of_source = [batch for batch in batches if batch.base_offset in (5, 8, 20, 29, 30, 32)]
    assert [verbatim(batch) for batch in of_source] == [one[:12] + one[16:] for one in brought]
    assert {batch.flags for batch in batches} == {int(FormatId.KAFKA) | IMPORTED}
    spans = [(batch.base_offset, batch.end_offset) for batch in batches]
    assert spans == [(0, 5), (5, 8), (8, 10), (10, 20), (20, 29), (29, 30), (30, 32), (32, 33)]
    assert log.last_stable_offset == 33
    # As if the answer had been lost: nothing is written twice.
    assert await lab.ask(target.append, T, begun.epoch, brought) == 33
    assert await lab.ask(target.append, T, begun.epoch, [*brought[2:], data(33)]) == 34
    assert len(await stored(log)) == len(batches) + 1
    traffic = lab.node.metrics.front("pipeline").topic("t")
    assert traffic.records_in == 3 + 2 + 9 + 1 + 2 + 1 + 1, "what was brought, each once, without the gaps around it"
    target.close()


@pytest.mark.parametrize(
    ("brought", "offset"),
    [
        (data(0, 3, value=b"y"), 0),
        (data(3, 1) + data(4, 2, value=b"y"), 4),
        (data(1, 2), 1),
        (data(4, 3), 4),
        (data(8, 3), 8),
    ],
    ids=["other bytes", "other bytes behind the same", "another cut", "longer", "over the end"],
)
async def test_what_is_there_is_compared_not_believed(lab: Lab, brought: bytes, offset: int) -> None:
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {})).epoch
    await lab.ask(target.append, T, epoch, [data(0, 3), data(3), data(4, 2), data(6, 3)])
    with pytest.raises(Conflict) as raised:
        await lab.ask(target.append, T, epoch, [brought])
    assert raised.value.offset == offset
    assert lab.log("t").high_watermark == 9


@pytest.mark.parametrize(
    "brought",
    [
        data(0)[:-1] + b"?",
        data(0)[:-1],
        data(0)[:16] + b"\1" + data(0)[17:],
        b"x" * 70,
        data(0, 1, span=1)[:57] + (5).to_bytes(4) + data(0)[61:],
    ],
    ids=["damaged", "cut short", "older format", "no batch", "more records than offsets"],
)
async def test_what_is_no_whole_batch_is_refused(lab: Lab, brought: bytes) -> None:
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {})).epoch
    with pytest.raises(PipelineError):
        await lab.ask(target.append, T, epoch, [brought])
    assert lab.log("t").high_watermark == 0
    assert await lab.ask(target.append, T, epoch, [data(0)]) == 1


async def test_a_log_that_begins_late_and_ends_with_nothing(lab: Lab) -> None:
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 2, {})).epoch
    # More offsets than one batch can span, and a batch that begins before the log does.
    first = 5_000_000_000
    assert await lab.ask(target.append, T, epoch, [data(first - 2, 4)]) == first + 2
    assert (await lab.ask(target.bounds, T, epoch, start=first, end=first + 10)).start == first
    log = lab.log("t")
    assert (log.log_start_offset, log.high_watermark) == (first, first + 10)
    assert (await stored(log))[0].base_offset == first - 2
    # Empty, but not new: nothing was kept.
    other = TopicPartition("t", 1)
    assert await lab.ask(target.bounds, other, epoch, start=77) == Positions(77, 77, 77)
    assert await lab.ask(target.bounds, other, epoch, start=70, end=70) == Positions(77, 77, 77)
    assert await lab.ask(target.append, other, epoch, [data(77)]) == 78


async def test_large_batches_and_small_pieces(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "IN_FLIGHT_BYTES", 100_000)
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {})).epoch
    large = data(0, value=bytes(3_000_000))
    small = [data(1 + number, value=bytes(number)) for number in range(400)]
    assert await lab.ask(target.append, T, epoch, [large, *small]) == 401
    assert await lab.ask(target.append, T, epoch, [large, *small]) == 401
    assert [verbatim(batch) for batch in await stored(lab.log("t"))] == [o[:12] + o[16:] for o in [large, *small]]


async def test_a_later_run_keeps_the_earlier_out(lab: Lab) -> None:
    first, second, stranger = importer(lab), importer(lab), importer(lab, "other")
    old = (await lab.ask(first.begin, "t", 1, {})).epoch
    await lab.ask(first.append, T, old, [data(0)])
    new = await lab.ask(second.begin, "t", 3, {})
    assert (new.epoch, len(new.partitions), new.partitions[0]) == (old + 1, 3, Positions(0, 1, 1))
    for call in (
        lambda: first.append(T, old, [data(1)]),
        lambda: first.bounds(T, old, end=9),
        lambda: stranger.begin("t", 1, {}),
        lambda: stranger.append(T, new.epoch, [data(1)]),
        lambda: stranger.cutover({"t": [1, 0, 0]}),
    ):
        with pytest.raises(Fenced):
            await lab.ask(call)
    assert await lab.ask(second.append, T, new.epoch, [data(1)]) == 2
    with pytest.raises(UnknownTopic):
        await lab.ask(second.append, TopicPartition("t", 9), new.epoch, [data(1)])
    await lab.node.catalog.create_topic("mine", 1)
    with pytest.raises(Conflict, match="exists"):
        await lab.ask(first.begin, "mine", 1, {})


async def test_nobody_else_writes_before_the_hand_over_and_everybody_after(lab: Lab) -> None:
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {})).epoch
    await lab.ask(target.append, T, epoch, [data(0, 2), data(2, 2, producer=7)])
    with pytest.raises(TopicImporting):
        await lab.append("t", [b"mine"])
    with pytest.raises(Conflict, match="ends at 4"):
        await lab.ask(target.cutover, {"t": [5]})
    with pytest.raises(Conflict, match="transactions are open"):
        await lab.ask(target.cutover, {"t": [4]})
    with pytest.raises(Fenced):  # whoever looked at the ends has taken the topic
        await lab.ask(target.append, T, epoch, [data(4)])
    state = await lab.ask(target.begin, "t", 1, {})
    await lab.ask(target.append, T, state.epoch, [ended(4, 7, commit=True)])
    answer = await lab.ask(target.cutover, {"t": [5]})
    assert answer == await lab.ask(target.cutover, {"t": [5]})
    assert (await lab.ask(target.state, "t")).handed_over_ms == answer["handed_over"]["t"]
    with pytest.raises(Fenced):
        await lab.ask(target.append, T, state.epoch + 1, [data(5)])
    assert (await lab.append("t", [b"mine"])).base == 5
    # A producer of this node's with the number of one of the source's has written nothing yet.
    assert (await lab.append_in_transaction("t", 7, 0, [b"a"])).base == 6


@pytest.mark.parametrize("grace", ["1d", "0"])
async def test_retention_waits_for_a_while_after_the_hand_over(tmp_path: Path, grace: str) -> None:
    lab = await open_lab(tmp_path, log__retention_check_interval_ms="10", migrate__grace_ms=grace)
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {"retention.ms": "1000"})).epoch
    await lab.ask(target.append, T, epoch, [data(0, 5)])
    await lab.ask(target.cutover, {"t": [5]})
    await lab.node.catalog.create_topic("z", 1, {"retention.ms": "1000"})
    await lab.append("z", [b"old"])
    for log in [lab.log("z")] if grace == "1d" else [lab.log("z"), lab.log("t")]:
        async with asyncio.timeout(30):
            await log.until(lambda log=log: log.log_start_offset > 0)
    assert lab.log("t").log_start_offset == (0 if grace == "1d" else 5)
    target.close()
    await lab.close()


async def test_transactions_that_nobody_ends_are_aborted_if_asked(lab: Lab) -> None:
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {})).epoch
    await lab.ask(target.append, T, epoch, [data(0, 2, producer=7), data(2, 1, producer=8), data(3)])
    answer = await lab.ask(target.cutover, {"t": [4]}, abort_open=True)
    assert answer["transactions_aborted"] == 2
    log = lab.log("t")
    assert (log.high_watermark, log.last_stable_offset) == (6, 6)
    assert [one.first_offset for one in log.aborted(0, 4)] == [0, 2]


async def test_positions_are_set_but_not_those_that_somebody_committed_here(lab: Lab) -> None:
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 2, {})).epoch
    await lab.ask(target.append, T, epoch, [data(0, 5)])
    other = TopicPartition("t", 1)
    done = await lab.ask(target.positions, "g", [(T, 3, "note"), (other, 4, "")])
    assert (done.set, done.kept, done.ahead) == (1, (), (("t", 1, 4),))
    kafka = lab.node.progress.front("kafka")
    assert kafka.committed("g", "t", 0) == Committed(3, -1, "note", kafka.committed("g", "t", 0).commit_ms)  # type: ignore[union-attr]
    assert (await lab.ask(target.positions, "g", [(T, 4, "")])).set == 1
    await kafka.commit("g", [("t", 0, Committed(1))])
    done = await lab.ask(target.positions, "g", [(T, 5, "")])
    assert (done.set, done.kept) == (0, (("t", 0, 1),))
    with pytest.raises(Fenced):
        await lab.ask(importer(lab, "other").positions, "g", [(T, 3, "")])


async def test_a_migration_goes_on_with_what_it_brought_before_and_nothing_else(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path)
    target = importer(lab)
    await lab.ask(target.begin, "t", 1, {}, "this")
    await lab.ask(target.begin, "unsaid", 1, {})
    target.close()
    await lab.close()
    lab = await open_lab(tmp_path)
    target = importer(lab)
    assert (await lab.ask(target.state, "t")).origin == "this"
    for _ in range(2):
        with pytest.raises(Conflict, match="'t' is filled by 'm' with something else: with this, not with that"):
            await lab.ask(target.begin, "t", 1, {}, "that")
    assert (await lab.ask(target.begin, "t", 1, {}, "this")).epoch == 1, "what was refused has taken nothing"
    assert (await lab.ask(target.begin, "unsaid", 1, {}, "this")).epoch == 1
    target.close()
    await lab.close()


async def test_a_migration_is_given_up(lab: Lab) -> None:
    target = importer(lab)
    for name in ("gone", "left", "done"):
        epoch = (await lab.ask(target.begin, name, 1, {})).epoch
        await lab.ask(target.append, TopicPartition(name, 0), epoch, [data(0, 2, producer=3)])
    await lab.ask(target.cutover, {"done": [2]}, abort_open=True)
    assert await lab.ask(target.abort, ["gone", "done", "nothing"], delete=True) == ["gone"]
    assert await lab.ask(target.abort, ["gone", "left"], delete=False) == ["left"]
    assert sorted(lab.node.catalog.topics) == ["done", "left"]
    assert lab.log("left").last_stable_offset == 3
    assert (await lab.append("left", [b"mine"])).base == 3


async def test_all_of_it_over_a_restart(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path)
    target = importer(lab)
    epoch = (await lab.ask(target.begin, "t", 1, {})).epoch
    await lab.ask(target.append, T, epoch, [data(5, 3), data(8, 1, producer=7)])
    await lab.ask(target.bounds, T, epoch, start=6)
    await lab.ask(target.positions, "g", [(T, 7, "")])
    await lab.close()
    node = node_of(tmp_path)
    await node.start()
    lab = Lab(node, client_of(node))
    target = importer(lab)
    assert (await lab.ask(target.state, "t")).partitions == (Positions(6, 8, 9),)
    with pytest.raises(TopicImporting):
        await lab.append("t", [b"mine"])
    assert await lab.ask(target.append, T, epoch, [data(8, 1, producer=7), ended(9, 7, commit=False)]) == 10
    await lab.ask(target.cutover, {"t": [10]})
    position = lab.node.progress.front("kafka").committed("g", "t", 0)
    assert position is not None
    assert position.offset == 7
    await lab.close()
