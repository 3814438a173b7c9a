"""Segments larger than a batch that are merged: all of them together or nothing, also when the process is killed."""

from __future__ import annotations

import struct
import threading
import time
from contextlib import suppress
from uuid import uuid4

import pytest

from pravega_front.wire import commands as wire
from pravega_front.wire.fields import AttributeUpdate
from tests.node_process import NodeProcess
from tests.pravega_front.raw_client import Closed, RawClient

PART = 8 * 1024**2
PARTS = 4
SMALL = struct.pack(">ii", 0, 1) + b"x"
LARGE = struct.pack(">ii", 0, PARTS * PART - 8) + bytes(range(256)) * ((PARTS * PART - 256) // 256) + bytes(248)
"""An event of 32 MiB, which goes over all parts."""


def connect(node: NodeProcess) -> RawClient:
    return RawClient(node.addresses["pravega-segmentstore"])


def make(client: RawClient, name: str) -> str:
    segment = f"merging/{name}/0.#epoch.0"
    client.ask(wire.CreateSegment(1, segment, 0, 0, ""), wire.SegmentCreated)
    return segment


def set_up(client: RawClient, segment: str) -> bytes:
    writer = uuid4().bytes
    client.ask(wire.SetupAppend(1, writer, segment, ""), wire.AppendSetup)
    return writer


def write_large(client: RawClient, segment: str) -> None:
    """As writers of large events do, part by part."""
    writer = set_up(client, segment)
    for number in range(PARTS):
        at = number * PART
        client.ask(wire.ConditionalBlockEnd(writer, number, at, LARGE[at : at + PART], 1), wire.DataAppended)


def length(client: RawClient, segment: str) -> int:
    return client.ask(wire.GetStreamSegmentInfo(1, segment, ""), wire.StreamSegmentInfo).write_offset


def read(client: RawClient, segment: str, end: int) -> bytes:
    parts: list[bytes] = []
    at = 0
    while at < end:
        found = client.ask(wire.ReadSegment(segment, at, 2 * 1024**2, "", 1), wire.SegmentRead)
        parts.append(bytes(found.data))
        at += len(found.data)
    return b"".join(parts)


def test_nothing_of_others_comes_between_and_readers_see_all_or_nothing(mortal: NodeProcess) -> None:
    with connect(mortal) as client, connect(mortal) as other, connect(mortal) as merging:
        target, source = make(client, "target"), make(client, "source")
        write_large(client, source)
        writer = set_up(other, target)
        merging.send(wire.MergeSegments(7, target, source, ""))
        lengths, number = [0], 0
        while lengths[-1] < len(LARGE):
            number += 1
            appended = other.ask(wire.AppendBlockEnd(writer, 9, SMALL, 1, number, 1), wire.DataAppended)
            lengths += [appended.current_segment_write_offset, length(client, target)]
        merged = merging.receive(wire.SegmentsMerged)
        end = length(client, target)
        assert end == number * len(SMALL) + len(LARGE)
        before, within = divmod(merged.new_target_write_offset - len(LARGE), len(SMALL))
        assert not within, "the length that is told is that behind what was merged"
        assert read(client, target, end) == before * SMALL + LARGE + (number - before) * SMALL
        assert all(one % len(SMALL) == (one > len(LARGE)) * len(LARGE) % len(SMALL) for one in lengths)
        again = client.ask(wire.MergeSegments(8, target, source, ""), wire.SegmentsMerged)
        assert again.new_target_write_offset == end, "it was merged before"


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.04, 0.1, 0.2, 0.4])
def test_a_merge_under_which_the_process_is_killed(mortal: NodeProcess, delay: float) -> None:
    name = f"killed-{int(delay * 1000)}"
    with connect(mortal) as client, connect(mortal) as merging:
        target, source = make(client, name), make(client, f"{name}-source")
        write_large(client, source)
        client.ask(wire.AppendBlockEnd(set_up(client, target), 9, SMALL, 1, 1, 1), wire.DataAppended)
        answers: list[wire.Command] = []

        def merge() -> None:
            with suppress(Closed):
                answers.append(merging.ask(wire.MergeSegments(1, target, source, ""), wire.SegmentsMerged))

        thread = threading.Thread(target=merge)
        thread.start()
        time.sleep(delay)  # how far it has come is different each time, and every outcome is right
        mortal.restart(kill=True)
        thread.join(60)
    with connect(mortal) as client:
        assert read(client, target, length(client, target)) in (SMALL, SMALL + LARGE), "all of it or nothing"
        # What was decided goes on, and to ask again does it once.
        client.ask(wire.MergeSegments(1, target, source, ""), wire.SegmentsMerged)
        assert read(client, target, length(client, target)) == SMALL + LARGE
        client.ask(wire.GetStreamSegmentInfo(1, source, ""), wire.NoSuchSegment)


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.2])
def test_a_merge_with_conditions_and_its_attributes_are_one_step_also_when_killed(
    mortal: NodeProcess, delay: float
) -> None:
    name, attribute = f"conditional-{int(delay * 1000)}", uuid4().bytes

    def value(client: RawClient) -> int:
        return client.ask(wire.GetSegmentAttribute(1, target, attribute, ""), wire.SegmentAttribute).value

    with connect(mortal) as client, connect(mortal) as merging:
        target, source = make(client, name), make(client, f"{name}-source")
        write_large(client, source)
        update = AttributeUpdate(attribute, 4, 5, wire.NO_NUMBER)
        merge = wire.MergeSegments(1, target, source, "", [update])
        merging.send(merge)
        time.sleep(delay)  # how far it has come is different each time, and every outcome is right
        mortal.restart(kill=True)
    with connect(mortal) as client:
        if value(client) == wire.NO_NUMBER:
            assert length(client, target) == 0
            client.ask(wire.GetStreamSegmentInfo(1, source, ""), wire.StreamSegmentInfo)
            client.ask(merge, wire.SegmentsMerged)
        else:
            client.ask(wire.MergeSegments(1, target, source, ""), wire.SegmentsMerged)
        assert value(client) == 5
        assert read(client, target, length(client, target)) == LARGE
        assert client.ask(merge, wire.SegmentAttributeUpdated) == wire.SegmentAttributeUpdated(1, False)
        assert length(client, target) == len(LARGE)


def test_small_and_empty_segments_are_merged_under_conditions(mortal: NodeProcess) -> None:
    attribute = uuid4().bytes
    with connect(mortal) as client:
        target = make(client, "small")
        for number, data in enumerate((SMALL, b"", SMALL)):
            source = make(client, f"small-{number}")
            if data:
                block = wire.AppendBlockEnd(set_up(client, source), len(data), data, 1, 1, 1)
                client.ask(block, wire.DataAppended)
            before = number or wire.NO_NUMBER
            wrong = wire.MergeSegments(1, target, source, "", [AttributeUpdate(attribute, 4, 9, 100)])
            assert client.ask(wrong, wire.SegmentAttributeUpdated) == wire.SegmentAttributeUpdated(1, False)
            right = wire.MergeSegments(1, target, source, "", [AttributeUpdate(attribute, 4, number + 1, before)])
            client.ask(right, wire.SegmentsMerged)
            client.ask(wire.GetStreamSegmentInfo(1, source, ""), wire.NoSuchSegment)
            found = client.ask(wire.GetSegmentAttribute(1, target, attribute, ""), wire.SegmentAttribute)
            assert found.value == number + 1
        assert read(client, target, length(client, target)) == SMALL + SMALL


def test_what_writers_of_large_events_leave_behind_goes_with_the_next_start(mortal: NodeProcess) -> None:
    with connect(mortal) as client:
        target = make(client, "left-behind")
        created = client.ask(wire.CreateTransientSegment(1, uuid4().bytes, target, ""), wire.SegmentCreated)
        mortal.restart(kill=True)
    with connect(mortal) as client:
        info = wire.GetStreamSegmentInfo(1, created.segment, "")
        while not isinstance(client.ask(info, wire.Command), wire.NoSuchSegment):
            pass  # they are deleted one after the other
