"""What writers note of time, and the watermarks that become of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from pravega_front.controller.watermarks import Noted
from pravega_front.wire import commands as wire
from pravega_front.wire.watermark import Ranged, Watermark, decode, places
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.conftest import LISTENERS
from tests.pravega_front.controller_client import ControllerClient, stream
from tests.pravega_front.raw_client import RawClient

SCOPE = "times"
SETTINGS = {"pravega.watermark_interval_ms": "100"}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("mortal") / "data"
    process = NodeProcess(directory, settings=SETTINGS, listen=dict.fromkeys(LISTENERS, ANY))
    try:
        yield process.start()
    finally:
        process.dispose()


class Times:
    """A stream of two segments, what its writers note, and its watermarks."""

    def __init__(self, node: NodeProcess, name: str, timeout_ms: int = 3_600_000) -> None:
        self.node = node
        self.name = name
        self.info = stream(SCOPE, name)
        calls = ControllerClient(node.addresses["pravega"])
        calls.createScope(scope=SCOPE)
        policy = {"minNumSegments": 2}
        made = calls.createStream(streamInfo=self.info, scalingPolicy=policy, timestampAggregationTimeout=timeout_ms)
        assert made.status == 0
        (mark,) = calls.getCurrentSegments(scope=SCOPE, stream=f"_MARK{name}").segmentRanges
        self.mark = f"{SCOPE}/_MARK{name}/{mark.segmentId.segmentId}.#epoch.0"
        calls.close()

    def call(self, name: str, **fields: Any) -> Any:
        calls = ControllerClient(self.node.addresses["pravega"])
        try:
            return getattr(calls, name)(**fields)
        finally:
            calls.close()

    def note(self, writer: str, time: int, **offsets: int) -> Noted:
        position = {"streamInfo": self.info, "cut": {int(number[1:]): at for number, at in offsets.items()}}
        return Noted(self.call("noteTimestampFromWriter", writer=writer, position=position, timestamp=time).status)

    def remove(self, writer: str) -> None:
        self.call("removeWriter", writer=writer, stream=self.info)

    def watermarks(self, client: RawClient, lower: int) -> list[Watermark]:
        """All watermarks, once there is one whose lower bound is that."""
        data = b""
        while True:
            data += client.ask(wire.ReadSegment(self.mark, len(data), 1 << 20, "", 1), wire.SegmentRead).data
            found = [decode(data[at:]) for at in places(data)]
            if found[-1].lower == lower:
                return found


def cut(first: int, second: int) -> dict[Ranged, int]:
    return {Ranged(0, 0.0, 0.5): first, Ranged(1, 0.5, 1.0): second}


def test_a_watermark_waits_for_all_writers_also_over_a_restart(mortal: NodeProcess) -> None:
    times = Times(mortal, "all")
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        client.send(wire.ReadSegment(times.mark, 0, 4096, "", 7))  # it waits for the first one
        assert times.note("fast", 10, s0=100, s1=-1) is Noted.SUCCESS
        first = client.receive(wire.SegmentRead)
        assert (first.request_id, decode(bytes(first.data))) == (7, Watermark(10, 10, cut(100, 0)))
        assert times.note("slow", 11, s0=50, s1=70) is Noted.SUCCESS
        assert times.note("fast", 30, s0=200, s1=10) is Noted.SUCCESS
        assert times.watermarks(client, 11)[-1] == Watermark(11, 30, cut(200, 70))
        assert times.note("fast", 40, s0=300, s1=10) is Noted.SUCCESS
        for time, position, refused in (
            (39, {"s0": 300}, Noted.INVALID_TIME),
            (40, {"s0": 299}, Noted.INVALID_POSITION),
            (40, {"s7": 1}, Noted.INVALID_POSITION),
        ):
            assert times.note("fast", time, **position) is refused
    mortal.restart(kill=True)
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        # The slow one counts still: nothing of 40 was told before it has come further.
        assert times.note("slow", 35, s0=50, s1=80) is Noted.SUCCESS
        assert times.watermarks(client, 35)[1:] == [
            Watermark(11, 30, cut(200, 70)),
            Watermark(35, 40, cut(300, 80)),
        ]
        times.remove("slow")
        assert times.note("fast", 50, s0=310, s1=10) is Noted.SUCCESS
        assert times.watermarks(client, 50)[-1] == Watermark(50, 50, cut(310, 80))


def test_writers_that_note_nothing_for_long_are_waited_for_no_more(mortal: NodeProcess) -> None:
    times = Times(mortal, "silent", timeout_ms=0)
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        times.note("silent", 1, s0=1)
        times.watermarks(client, 1)
        times.note("other", 5, s0=2)
        assert times.watermarks(client, 5)[-1] == Watermark(5, 5, cut(2, 0))


def test_another_stream_of_the_name_has_watermarks_of_its_own(mortal: NodeProcess) -> None:
    times = Times(mortal, "again")
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        times.note("w", 1000, s0=1)
        times.watermarks(client, 1000)
        times.call("sealStream", scope=SCOPE, stream="again")
        times.call("deleteStream", scope=SCOPE, stream="again")
        client.ask(wire.ReadSegment(times.mark, 0, 4096, "", 1), wire.NoSuchSegment)
        times = Times(mortal, "again")
        info = client.ask(wire.GetStreamSegmentInfo(1, times.mark, ""), wire.StreamSegmentInfo)
        assert info.write_offset == 0
        assert times.note("w", 1, s0=1) is not Noted.SUCCESS, "a segment of the former stream"
        times.note("w", 1, s2=1)
        assert times.watermarks(client, 1) == [Watermark(1, 1, {Ranged(2, 0.0, 0.5): 1, Ranged(3, 0.5, 1.0): 0})]


def test_a_read_that_waits_for_the_first_watermark_ends_with_its_stream(mortal: NodeProcess) -> None:
    times = Times(mortal, "never-marked")
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        client.send(wire.ReadSegment(times.mark, 0, 4096, "", 7))
        client.ask(wire.KeepAlive(), wire.KeepAlive)
        times.call("sealStream", scope=SCOPE, stream="never-marked")
        times.call("deleteStream", scope=SCOPE, stream="never-marked")
        assert client.receive(wire.NoSuchSegment).request_id == 7


def test_watermarks_are_truncated(mortal: NodeProcess) -> None:
    name = "many"
    times = Times(mortal, name)
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        times.note("w", 1, s0=1)
        times.watermarks(client, 1)
        writer = uuid4().bytes
        client.ask(wire.SetupAppend(1, writer, times.mark, ""), wire.AppendSetup)
        # As many as take half a day, of somebody who is further than this node.
        filler = struct.pack(">ii", 0, 1_100_000 - 8) + bytes(1_100_000 - 8)
        client.ask(wire.AppendBlockEnd(writer, len(filler), filler, 1, 1, 1), wire.DataAppended)
        times.note("w", 2, s0=2)
        info = wire.GetStreamSegmentInfo(1, times.mark, "")
        while not (found := client.ask(info, wire.StreamSegmentInfo)).start_offset:
            pass  # it is truncated behind the second watermark's being written
        last = client.ask(wire.ReadSegment(times.mark, found.start_offset, 4096, "", 1), wire.SegmentRead)
        assert decode(bytes(last.data)) == Watermark(2, 2, cut(2, 0))


def test_segments_of_watermarks_go_with_their_streams_only(mortal: NodeProcess) -> None:
    times = Times(mortal, "kept")
    other = f"{SCOPE}/other/0.#epoch.0"
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        times.note("w", 1, s0=1)
        times.watermarks(client, 1)
        client.ask(wire.CreateSegment(1, other, 0, 0, ""), wire.SegmentCreated)
        client.ask(wire.SealSegment(1, times.mark, ""), wire.OperationUnsupported)
        client.ask(wire.DeleteSegment(1, times.mark, ""), wire.OperationUnsupported)
        client.ask(wire.MergeSegments(1, other, times.mark, ""), wire.OperationUnsupported)
        times.note("w", 2, s0=2)
        assert times.watermarks(client, 2)[-1] == Watermark(2, 2, cut(2, 0))


def test_what_others_append_to_watermarks_costs_that_stream_only(mortal: NodeProcess) -> None:
    spoilt, whole = Times(mortal, "spoilt"), Times(mortal, "whole")
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        for times in (spoilt, whole):
            times.note("w", 1, s0=1)
            times.watermarks(client, 1)
        writer = uuid4().bytes
        client.ask(wire.SetupAppend(1, writer, spoilt.mark, ""), wire.AppendSetup)
        client.ask(wire.AppendBlockEnd(writer, 12, b"\0\0\0\0\0\0\0\4none", 1, 1, 1), wire.DataAppended)
        end = client.ask(wire.GetStreamSegmentInfo(1, spoilt.mark, ""), wire.StreamSegmentInfo).write_offset
    mortal.restart(kill=True)
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        for times in (spoilt, whole):
            times.note("w", 5, s0=5)
        assert whole.watermarks(client, 5)[-1] == Watermark(5, 5, cut(5, 0))
        found = client.ask(wire.ReadSegment(spoilt.mark, end, 4096, "", 1), wire.SegmentRead)
        assert decode(bytes(found.data)) == Watermark(5, 5, cut(5, 0))


def test_readers_that_set_themselves_up_for_watermarks_find_a_segment(mortal: NodeProcess) -> None:
    times = Times(mortal, "set-up")
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        client.send(wire.ReadSegment(times.mark, 0, 4096, "", 7))  # it waits for the first one
        for number in range(2):
            found = client.ask(wire.SetupAppend(number, uuid4().bytes, times.mark, ""), wire.AppendSetup)
            assert found.last_event_number == wire.NO_NUMBER
        times.note("w", 3, s0=1)
        first = client.receive(wire.SegmentRead)
        assert (first.request_id, decode(bytes(first.data))) == (7, Watermark(3, 3, cut(1, 0)))
        times.call("sealStream", scope=SCOPE, stream="set-up")
        times.call("deleteStream", scope=SCOPE, stream="set-up")
        client.ask(wire.SetupAppend(9, uuid4().bytes, times.mark, ""), wire.NoSuchSegment)
