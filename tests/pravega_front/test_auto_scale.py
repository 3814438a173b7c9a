"""Streams that are scaled by their rate."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from pravega_client import StreamManager

from bridges.catalog.topics.lineage import KeyRange, PartitionInfo
from pravega_front.controller.auto_scale import split
from pravega_front.wire import commands as wire
from pravega_front.wire.controller import ScaleType, TxnStatus
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.conftest import LISTENERS
from tests.pravega_front.controller_client import ControllerClient, scale, stream
from tests.pravega_front.raw_client import RawClient


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that looks at rates all the time."""
    settings = {
        "pravega.scale_interval_ms": "100ms",
        "pravega.scale_up_intervals": "2",
        "pravega.scale_down_intervals": "5",
    }
    process = NodeProcess(
        tmp_path_factory.mktemp("scaled") / "data", settings=settings, listen=dict.fromkeys(LISTENERS, ANY)
    )
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.mark.parametrize("kind", [ScaleType.BY_RATE_IN_EVENTS_PER_SEC, ScaleType.BY_RATE_IN_KBYTES_PER_SEC])
def test_a_hot_segment_is_split_and_cold_ones_are_merged(eager: NodeProcess, kind: ScaleType) -> None:
    calls = ControllerClient(eager.addresses["pravega"])
    calls.createScope(scope="rates")
    name = f"by-{int(kind)}"
    policy = {"scaleType": int(kind), "targetRate": 10, "scaleFactor": 2, "minNumSegments": 1}
    assert calls.createStream(streamInfo=stream("rates", name), scalingPolicy=policy).status == 0
    streams = StreamManager(f"tcp://{eager.addresses['pravega']}")
    writer = streams.create_writer("rates", name, max_inflight_events=100)

    def segments() -> int:
        found = calls.getCurrentSegments(scope="rates", stream=name).segmentRanges
        ranges = sorted((one.minKey, one.maxKey) for one in found)
        assert [ranges[0][0], *(high for _, high in ranges)] == [*(low for low, _ in ranges), 1.0]
        return len(ranges)

    number = 0
    while segments() < 2:
        for _ in range(100):
            writer.write_event("x" * 1000, routing_key=f"{number}")
            number += 1
        writer.flush()
    while segments() > 1:
        pass  # nobody writes any more


class Hot:
    """A stream that is scaled by its events, and a writer that does not look at keys: it writes where it is told."""

    def __init__(self, node: NodeProcess, name: str) -> None:
        self.name = name
        self._node = node
        self._client = RawClient(node.addresses["pravega-segmentstore"])
        self._writers: dict[str, tuple[bytes, int]] = {}
        self.calls = ControllerClient(node.addresses["pravega"])
        self.calls.createScope(scope="hot")
        kind = int(ScaleType.BY_RATE_IN_EVENTS_PER_SEC)
        policy = {"scaleType": kind, "targetRate": 10, "scaleFactor": 2, "minNumSegments": 1}
        assert self.calls.createStream(streamInfo=stream("hot", name), scalingPolicy=policy).status == 0

    def segments(self) -> list[str]:
        """By their keys."""
        found = self.calls.getCurrentSegments(scope="hot", stream=self.name).segmentRanges
        ids = [one.segmentId.segmentId for one in sorted(found, key=lambda one: one.minKey)]
        return [f"hot/{self.name}/{one & 0xFFFFFFFF}.#epoch.{one >> 32}" for one in ids]

    def write(self, segment: str) -> None:
        """Many events, unless the segment is sealed."""
        if segment not in self._writers:
            writer = uuid4().bytes
            self._client.ask(wire.SetupAppend(1, writer, segment, ""), wire.AppendSetup)
            self._writers[segment] = writer, 0
        writer, number = self._writers[segment]
        data = 100 * (struct.pack(">ii", 0, 1) + b"x")
        block = wire.AppendBlockEnd(writer, len(data), data, 100, number + 100, 1)
        self._client.ask(block, wire.Command)
        self._writers[segment] = writer, number + 100

    def close(self) -> None:
        self._client.close()
        self.calls.close()


@pytest.fixture
def hot(eager: NodeProcess) -> Iterator[Callable[[str], Hot]]:
    made: list[Hot] = []

    def make(name: str) -> Hot:
        made.append(Hot(eager, name))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_segment_that_cannot_be_split_holds_up_no_other_stream(hot: Callable[[str], Hot]) -> None:
    narrow, other = hot("narrow"), hot("beside-narrow")
    above = math.nextafter(0.5, 1)
    scale(narrow.calls, "hot", "narrow", [0], [[0, 0.5], [0.5, above], [above, 1]])
    before = narrow.segments()
    while len(other.segments()) < 4:
        narrow.write(before[1])
        for segment in other.segments():
            other.write(segment)
    assert narrow.segments() == before


def test_splits_that_help_nothing_come_to_an_end(hot: Callable[[str], Hot]) -> None:
    one_key, other = hot("one-key"), hot("beside-one-key")
    while len(one_key.segments()) < 3:
        one_key.write(one_key.segments()[0])
    hottest = one_key.segments()[0]
    while len(other.segments()) < 5:  # which takes many intervals
        one_key.write(hottest)
        for segment in other.segments():
            other.write(segment)
    assert one_key.segments()[0] == hottest
    # Once another key is hot, too, it is split again.
    while one_key.segments()[0] == hottest:
        for segment in one_key.segments():
            one_key.write(segment)


def test_a_stream_is_scaled_while_a_transaction_is_open(hot: Callable[[str], Hot]) -> None:
    one = hot("with-a-transaction")
    info = stream("hot", "with-a-transaction")
    txn = one.calls.createTransaction(streamInfo=info, lease=60_000).txnId
    first = one.segments()[0]
    while one.segments() == [first]:
        one.write(first)
    assert one.calls.commitTransaction(streamInfo=info, txnId=txn).status == TxnStatus.SUCCESS


def test_parts_are_bounded_by_doubles() -> None:
    whole = PartitionInfo(0, 1)
    for parts in (2, 3, 7):
        found = split(whole, parts)
        assert (found[0].low, found[-1].high) == (whole.keys.low, whole.keys.high)
        assert len(found) == parts
        for one in found:
            assert KeyRange.of_doubles(*one.doubles) == one


def test_what_has_no_room_is_split_into_fewer_parts_or_not_at_all() -> None:
    for doubles, parts in ((1, 1), (2, 2), (3, 3), (7, 7), (100, 16)):
        low = high = 0.3
        for _ in range(doubles):
            high = math.nextafter(high, 1)
        narrow = PartitionInfo(0, 1, KeyRange.of_doubles(low, high))
        found = split(narrow, 16)
        assert len(found) <= parts
        assert (len(found) > 1) == (doubles > 1)
        assert [one.low for one in found] == [narrow.keys.low, *(one.high for one in found[:-1])]
        assert found[-1].high == narrow.keys.high
