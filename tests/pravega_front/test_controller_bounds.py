"""Calls, and commands, that ask for more than there may be."""

from __future__ import annotations

from itertools import pairwise
from uuid import uuid4

import pytest

from pravega_front.wire import commands as wire
from pravega_front.wire.controller import (
    CreateScopeStatus,
    CreateStreamStatus,
    DeleteScopeStatus,
    GroupStatus,
    ScaleStatus,
    UpdateStreamStatus,
)
from pravega_front.wire.fields import AttributeUpdate
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.conftest import LISTENERS
from tests.pravega_front.controller_client import ControllerClient, stream
from tests.pravega_front.raw_client import RawClient


def test_a_stream_of_a_billion_segments_is_refused(controller: ControllerClient) -> None:
    controller.createScope(scope="bounds")
    made = controller.createStream(streamInfo=stream("bounds", "wide"), scalingPolicy={"minNumSegments": 2**30})
    assert made.status == CreateStreamStatus.FAILURE
    assert not controller.checkStreamExists(scope="bounds", stream="wide").exists


def test_a_scale_to_more_segments_than_a_stream_may_have_is_refused(controller: ControllerClient) -> None:
    controller.createScope(scope="bounds")
    info = stream("bounds", "narrow")
    controller.createStream(streamInfo=info, scalingPolicy={"minNumSegments": 1})
    ranges = [{"start": place / 10_001, "end": (place + 1) / 10_001} for place in range(10_001)]
    refused = controller.scale(streamInfo=info, sealedSegments=[0], newKeyRanges=ranges)
    assert refused.status == ScaleStatus.PRECONDITION_FAILED
    refused = controller.scale(streamInfo=info, sealedSegments=[0] * 1000, newKeyRanges=ranges[:1])
    assert refused.status == ScaleStatus.PRECONDITION_FAILED
    assert len(controller.getCurrentSegments(scope="bounds", stream="narrow").segmentRanges) == 1


def test_what_is_said_of_a_reader_group_or_a_table_is_bounded(controller: ControllerClient) -> None:
    controller.createScope(scope="bounds")
    cut = {number: number for number in range(10_000)}
    group = {"scope": "bounds", "readerGroupName": "said", "readerGroupId": str(uuid4())}
    large = [{"streamInfo": stream("bounds", "narrow"), "cut": cut}]
    assert controller.createReaderGroup(startingStreamCuts=large, **group).status == GroupStatus.FAILURE
    assert not controller.checkStreamExists(scope="bounds", stream="_RGsaid").exists
    assert controller.createReaderGroup(**group).status == GroupStatus.SUCCESS
    assert controller.updateReaderGroup(startingStreamCuts=large, **group).status == GroupStatus.FAILURE
    updated = controller.updateReaderGroup(**group)
    assert (updated.status, updated.generation) == (GroupStatus.SUCCESS, 1)


def test_a_stream_that_is_split_and_merged_again_and_again_goes_on_once_what_it_was_is_truncated(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"limits.max_partitions_per_topic": "5", "log.retention_check_interval_ms": "20ms"}
    directory = tmp_path_factory.mktemp("breathing") / "data"
    with NodeProcess(directory, settings=settings, listen=dict.fromkeys(LISTENERS, ANY)) as node:
        calls = ControllerClient(node.addresses["pravega"])
        calls.createScope(scope="bounds")
        info = stream("bounds", "breathing")
        calls.createStream(streamInfo=info, scalingPolicy={"minNumSegments": 1})

        def segments() -> dict[int, str]:
            found = calls.getCurrentSegments(scope="bounds", stream="breathing").segmentRanges
            ids = [one.segmentId.segmentId for one in found]
            return {one: f"bounds/breathing/{one & 0xFFFFFFFF}.#epoch.{one >> 32}" for one in ids}

        def breathe() -> ScaleStatus:
            now = list(segments())
            bounds = [0, 1] if len(now) > 1 else [0, 0.5, 1]
            ranges = [{"start": low, "end": high} for low, high in pairwise(bounds)]
            return ScaleStatus(calls.scale(streamInfo=info, sealedSegments=now, newKeyRanges=ranges).status)

        with RawClient(node.addresses["pravega-segmentstore"]) as client:
            for _ in range(8):
                cut = {}
                for number, name in segments().items():
                    writer = uuid4().bytes
                    client.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup)
                    done = client.ask(wire.AppendBlockEnd(writer, 5, b"event", 1, 1, 1), wire.DataAppended)
                    cut[number] = done.current_segment_write_offset
                if breathe() is ScaleStatus.STARTED:
                    continue
                truncated = calls.truncateStream(streamInfo=info, cut=cut)
                assert truncated.status == UpdateStreamStatus.SUCCESS
                while breathe() is not ScaleStatus.STARTED:
                    pass  # what was truncated is given back by the next look at it
        calls.close()


def test_scopes_and_what_is_said_of_a_stream_are_bounded(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"pravega.scopes": "4", "pravega.attributes_per_segment": "2"}
    directory = tmp_path_factory.mktemp("bounds") / "data"
    with NodeProcess(directory, settings=settings, listen=dict.fromkeys(LISTENERS, ANY)) as node:
        calls = ControllerClient(node.addresses["pravega"])
        assert "default" in calls.listScopes().scopes, "it is there from the start, and one of the four"
        made = [calls.createScope(scope=f"scope-{number}").status for number in range(4)]
        assert made == [CreateScopeStatus.SUCCESS] * 3 + [CreateScopeStatus.FAILURE]
        assert calls.createScope(scope="scope-0").status == CreateScopeStatus.SCOPE_EXISTS
        assert calls.deleteScope(scope="scope-1").status == DeleteScopeStatus.SUCCESS
        assert calls.createScope(scope="scope-4").status == CreateScopeStatus.SUCCESS
        info = stream("scope-0", "said")
        tags = {"tag": ["t" * 256] * 128}  # as many as Pravega's clients give
        assert calls.createStream(streamInfo=info, tags=tags).status == CreateStreamStatus.SUCCESS
        more = {"tag": ["t" * 256] * 300}
        assert calls.updateStream(streamInfo=info, tags=more).status == UpdateStreamStatus.FAILURE
        other = stream("scope-0", "more")
        assert calls.createStream(streamInfo=other, tags=more).status == CreateStreamStatus.FAILURE
        assert len(calls.getStreamConfiguration(scope="scope-0", stream="said").tags.tag) == 128
        calls.close()
        _attributes_are_bounded(node.addresses["pravega-segmentstore"])


def _attributes_are_bounded(segment_store: str) -> None:
    segment, other = "scope-0/said/0.#epoch.0", "scope-0/loose/0.#epoch.0"
    ids = [uuid4().bytes for _ in range(3)]
    with RawClient(segment_store) as client:

        def update(attribute: bytes, new: int, expected: int = wire.NO_NUMBER) -> wire.Command:
            return client.ask(wire.UpdateSegmentAttribute(1, segment, attribute, new, expected, ""), wire.Command)

        for attribute in ids[:2]:
            assert update(attribute, 1) == wire.SegmentAttributeUpdated(1, True)
        assert isinstance(update(ids[2], 1), wire.ErrorMessage)
        client.ask(wire.CreateSegment(1, other, 0, 0, ""), wire.SegmentCreated)
        both = [AttributeUpdate(ids[0], 4, 5, 1), AttributeUpdate(ids[2], 1, 5, 0)]
        client.ask(wire.MergeSegments(1, segment, other, "", both), wire.ErrorMessage)
        assert update(ids[0], 2, 1) == wire.SegmentAttributeUpdated(1, True), (
            "it is set already, and nothing was merged"
        )
        assert update(ids[1], wire.NO_NUMBER, 1) == wire.SegmentAttributeUpdated(1, True)
        both[0] = AttributeUpdate(ids[0], 4, 5, 2)
        client.ask(wire.MergeSegments(1, segment, other, "", both), wire.SegmentsMerged)
        values = [client.ask(wire.GetSegmentAttribute(1, segment, one, ""), wire.SegmentAttribute).value for one in ids]
        assert values == [5, wire.NO_NUMBER, 5]
