"""Calls that ask for more than there may be."""

from __future__ import annotations

from pravega_front.wire.controller import CreateStreamStatus, ScaleStatus
from tests.pravega_front.controller_client import ControllerClient, stream


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
