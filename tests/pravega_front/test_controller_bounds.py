"""Calls that ask for more than there may be."""

from __future__ import annotations

from pravega_front.wire.controller import CreateStreamStatus
from tests.pravega_front.controller_client import ControllerClient, stream


def test_a_stream_of_a_billion_segments_is_refused(controller: ControllerClient) -> None:
    controller.createScope(scope="bounds")
    made = controller.createStream(streamInfo=stream("bounds", "wide"), scalingPolicy={"minNumSegments": 2**30})
    assert made.status == CreateStreamStatus.FAILURE
    assert not controller.checkStreamExists(scope="bounds", stream="wide").exists
