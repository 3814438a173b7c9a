"""A stream is scaled under open transactions. The scale waits for none of them and aborts none. A commit comes behind
everything that the stream's segments have got since, so the events of a routing key stay in order."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from pravega_client import StreamManager

from pravega_front.names import TRANSACTION, SegmentName, split_id
from pravega_front.wire import commands as wire
from pravega_front.wire.controller import ScaleProgress, ScaleStatus, TxnState, TxnStatus
from tests.conftest import TEST_SETTINGS
from tests.kit.wheel import read_events
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale, stream
from tests.pravega_front.raw_client import RawClient
from tests.split_clients import HALVES, LISTENERS, PATIENCE, Readers, add_consumers, plainly

SCOPE = "default"
WHOLE = [[0.0, 1.0]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    listen = {**dict.fromkeys(LISTENERS, ANY), "console": "off", "sbp-pd": "off", "sbp-range-server": "off"}
    process = NodeProcess(tmp_path_factory.mktemp("scales") / "data", settings=TEST_SETTINGS, listen=listen)
    try:
        yield process.start()
    finally:
        process.dispose()


class Stream:
    """A stream, its transactions, and its segments as readers find them."""

    def __init__(self, node: NodeProcess, name: str, segments: int = 1) -> None:
        self.node, self.name = node, name
        self.info = stream(SCOPE, name)
        self.calls = ControllerClient(node.addresses["pravega"])
        self.calls.createScope(scope=SCOPE)
        assert self.calls.createStream(streamInfo=self.info, scalingPolicy={"minNumSegments": segments}).status == 0

    def at(self, node: NodeProcess) -> Stream:
        """The stream as a node knows it, maybe after a restart."""
        self.calls.close()
        self.calls = ControllerClient(node.addresses["pravega"])
        return self

    def current(self) -> list[int]:
        """The ids of the active segments."""
        found = self.calls.getCurrentSegments(scope=SCOPE, stream=self.name).segmentRanges
        return [one.segmentId.segmentId for one in found]

    def numbers(self) -> list[int]:
        return [split_id(one)[0] for one in self.current()]

    def scale(self, ranges: list[list[float]]) -> None:
        """Replace all segments."""
        epoch = max(split_id(one)[1] for one in self.current())
        scale(self.calls, SCOPE, self.name, self.current(), ranges)
        assert self.calls.checkScale(streamInfo=self.info, epoch=epoch).status == ScaleProgress.SUCCESS

    def begin(self) -> Any:
        return self.calls.createTransaction(streamInfo=self.info, lease=60_000).txnId

    def segment(self, segment_id: int) -> str:
        return str(SegmentName(SCOPE, self.name, *split_id(segment_id)))

    def write(self, txn: Any, segment_id: int, *values: str) -> None:
        name = f"{self.segment(segment_id)}{TRANSACTION}{txn.highBits:016x}{txn.lowBits:016x}"
        data = b"".join(struct.pack(">ii", 0, len(one)) + one.encode() for one in values)
        at = self.calls.getURI(streamInfo=self.info, segmentId=segment_id)
        with RawClient(f"{at.endpoint}:{at.port}") as client:
            writer = uuid4().bytes
            client.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup)
            client.ask(wire.AppendBlockEnd(writer, len(data), data, len(values), len(values), 1), wire.DataAppended)

    def commit(self, txn: Any) -> TxnStatus:
        return TxnStatus(self.calls.commitTransaction(streamInfo=self.info, txnId=txn).status)

    def ended(self, txn: Any) -> TxnState:
        ask = self.calls.checkTransactionState
        deadline = time.monotonic() + PATIENCE
        while (state := TxnState(ask(streamInfo=self.info, txnId=txn).status)) in (
            TxnState.COMMITTING,
            TxnState.ABORTING,
        ):
            assert time.monotonic() < deadline, state
        return state


def in_order(values: list[str], *groups: str) -> bool:
    """Whether values that begin with these letters come in the order of the letters, and none twice."""
    places = [groups.index(one[0]) for one in values]
    return places == sorted(places) and len(set(values)) == len(values)


SCALES = {"split": (1, [HALVES]), "merge": (2, [WHOLE]), "split and merge": (1, [HALVES, WHOLE])}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scales", "how"),
    [
        ("split", "commit"),
        ("merge", "commit"),
        ("split and merge", "commit"),
        ("split", "abort"),
        ("split", "kill, commit"),
        ("merge", "commit, kill"),
    ],
)
def test_a_transaction_over_scales_is_behind_what_came_before_it_for_readers_of_all_protocols(
    node: NodeProcess, scales: str, how: str
) -> None:
    segments, changes = SCALES[scales]
    name = f"{scales}-{how}".replace(", ", "-").replace(" ", "-")
    found = Stream(node, name, segments)
    add_consumers(node, name)
    parents, txn = found.current(), found.begin()
    before = [f"a{number}" for number in found.numbers()]
    for number in found.numbers():
        plainly(node, name, number, f"a{number}")
        found.write(txn, parents[number], f"t{number}", f"t{number} more")
    with Readers(node, name, 3 if how == "abort" else 6) as readers:
        readers.until(lambda one: sorted(one.values) == before)
        for ranges in changes:
            begun = time.monotonic()
            found.scale(ranges)
            assert time.monotonic() - begun < 10, "a scale does not wait for the transaction"
            for number in found.numbers():
                plainly(node, name, number, f"b{number}")
                before.append(f"b{number}")
        for number, parent in enumerate(parents):
            found.write(txn, parent, f"t{number} late")
        readers.until(lambda one: sorted(one.values) == before)
        if how.startswith("kill"):
            node.restart(kill=True)
            found.at(node)
        if how == "abort":
            assert found.calls.abortTransaction(streamInfo=found.info, txnId=txn).status == TxnStatus.SUCCESS
        else:
            assert found.commit(txn) is TxnStatus.SUCCESS
        if how.endswith("kill"):
            node.restart(kill=True)
            found.at(node)
        assert found.ended(txn) is (TxnState.ABORTED if how == "abort" else TxnState.COMMITTED)
        parts = ["", " more", " late"] if how != "abort" else []
        every = sorted(before + [f"t{number}{part}" for number in range(segments) for part in parts])
        for number in found.numbers():
            plainly(node, name, number, f"z{number}")
            every.append(f"z{number}")
        readers.until(lambda one: len(one.values) >= len(every))
    for reading in readers.readings.values():
        assert sorted(reading.values) == every, reading.name
        assert reading.name == "kafka" or in_order(reading.values, "a", "b", "t", "z"), reading
        for number in range(segments):
            own = [one for one in reading.values if one.startswith(f"t{number}")]
            assert own == [f"t{number}{part}" for part in parts], reading


def test_a_commit_does_not_make_the_next_transactions_be_repeated(node: NodeProcess) -> None:
    """Otherwise a writer that begins its next transaction before it commits the last would go on for ever."""
    found = Stream(node, "one-after-another", 2)
    first, second = found.begin(), found.begin()
    (left, right) = found.current()
    scale(found.calls, SCOPE, found.name, [left], [[0.0, 0.25], [0.25, 0.5]])
    third = found.begin()
    children = found.current()
    for txn, value in ((first, "first"), (second, "second")):
        found.write(txn, left, value)
        assert found.commit(txn) is TxnStatus.SUCCESS
        assert found.ended(txn) is TxnState.COMMITTED
    assert right in found.current(), "nobody has touched it"
    active = found.current()
    for child in children:
        found.write(third, child, "third")
    assert found.commit(third) is TxnStatus.SUCCESS
    assert found.ended(third) is TxnState.COMMITTED
    assert found.current() == active
    with RawClient(node.addresses["pravega-segmentstore"]) as client:
        for segment_id in active:
            told = client.ask(wire.GetStreamSegmentInfo(1, found.segment(segment_id), ""), wire.StreamSegmentInfo)
            assert told.write_offset == 8 + len("third")


def _scale(found: Stream, ranges: list[list[float]]) -> None:
    """Once; again if the commit has replaced the segments meanwhile."""
    new = [{"start": low, "end": high} for low, high in ranges]
    while (
        found.calls.scale(streamInfo=found.info, sealedSegments=found.current(), newKeyRanges=new).status
        != ScaleStatus.STARTED
    ):
        pass


def test_commits_while_scales_run_are_whole(node: NodeProcess) -> None:
    times = 8
    found = Stream(node, "at-once")
    expected: list[str] = []
    for number in range(times):
        (segment_id, *_), txn = found.current(), found.begin()
        found.write(txn, segment_id, f"e{number:03}")
        ranges = HALVES if len(found.current()) == 1 else WHOLE
        scaling = threading.Thread(target=_scale, args=(found, ranges))
        scaling.start()
        assert found.commit(txn) is TxnStatus.SUCCESS
        scaling.join(PATIENCE)
        assert found.ended(txn) is TxnState.COMMITTED
        expected.append(f"e{number:03}")
    reader = StreamManager(f"tcp://{node.addresses['pravega']}")
    group = reader.create_reader_group("at-once", SCOPE, found.name)
    events = asyncio.run(read_events(group.create_reader("one"), times))
    assert sorted(one.decode() for one in events) == expected


def test_the_wheels_transaction_goes_on_over_a_scale(node: NodeProcess) -> None:
    found = Stream(node, "wheel")
    streams = StreamManager(f"tcp://{node.addresses['pravega']}")
    transactional = streams.create_transaction_writer(SCOPE, found.name, 1)  # pings while it is referred to
    txn = transactional.begin_txn()
    txn.write_event("before", routing_key="k")
    writer = streams.create_writer(SCOPE, found.name)
    found.scale(HALVES)
    writer.write_event("child", routing_key="k")
    writer.flush()
    txn.write_event("late", routing_key="k")
    txn.commit()
    writer.write_event("behind", routing_key="k")
    writer.flush()
    group = streams.create_reader_group("over", SCOPE, found.name)
    events = asyncio.run(read_events(group.create_reader("one"), 4))
    assert [one.decode() for one in events] == ["child", "before", "late", "behind"]


def test_a_sealed_stream_takes_no_commit(node: NodeProcess) -> None:
    found = Stream(node, "ended")
    txn = found.begin()
    found.write(txn, found.current()[0], "lost")
    found.calls.sealStream(scope=SCOPE, stream=found.name)
    assert found.commit(txn) is TxnStatus.FAILURE
    assert found.ended(txn) is TxnState.ABORTED
