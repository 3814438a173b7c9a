"""Streams that are scaled by their rate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pravega_client import StreamManager

from bridges.catalog.lineage import KeyRange, PartitionInfo
from pravega_front.controller.auto_scale import split
from pravega_front.wire.controller import ScaleType
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.conftest import LISTENERS
from tests.pravega_front.controller_client import ControllerClient, stream


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


def test_parts_are_bounded_by_doubles() -> None:
    whole = PartitionInfo(0, 1)
    for parts in (2, 3, 7):
        found = split(whole, parts)
        assert (found[0].low, found[-1].high) == (whole.keys.low, whole.keys.high)
        assert len(found) == parts
        for one in found:
            assert KeyRange.of_doubles(*one.doubles) == one
