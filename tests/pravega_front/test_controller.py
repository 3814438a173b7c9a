"""Calls to the controller that no client makes, or whose answers clients do not show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import uuid4

import grpc
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pravega_front.wire import commands as wire
from pravega_front.wire.controller import METHODS, SERVICE, DeleteScopeStatus, GroupStatus
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale, stream
from tests.pravega_front.raw_client import RawClient


@pytest.fixture(scope="module")
def scope(controller: ControllerClient) -> str:
    controller.createScope(scope="calls")
    return "calls"


def create(controller: ControllerClient, scope: str, name: str, segments: int = 1, tags: Sequence[str] = ()) -> None:
    made = controller.createStream(
        streamInfo=stream(scope, name), scalingPolicy={"minNumSegments": segments}, tags={"tag": tags}
    )
    assert not made.status


def append(segment_store: str, segment: str, data: bytes) -> int:
    """Append bytes to a segment; gives its length."""
    with RawClient(segment_store) as client:
        writer = uuid4().bytes
        client.ask(wire.SetupAppend(1, writer, segment, ""), wire.AppendSetup)
        end = wire.AppendBlockEnd(writer, len(data), data, 1, 1, 1)
        return client.ask(end, wire.DataAppended).current_segment_write_offset


def event(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


def begin(controller: ControllerClient, scope: str, name: str, timestamp: int = 0) -> dict[int, int]:
    """Where reading a stream begins: segment's id -> position."""
    found = controller.getSegments(streamInfo=stream(scope, name), timestamp=timestamp)
    return {one.segmentId.segmentId: one.offset for one in found.segments}


def now_ms_later() -> int:
    """The wall clock, in ms, once it shows a later millisecond than before: what is written now is not older."""
    before = time.time_ns() // 1_000_000
    while (now := time.time_ns() // 1_000_000) == before:
        pass
    return now


def test_where_reading_begins_at_a_time(controller: ControllerClient, segment_store: str, scope: str) -> None:
    create(controller, scope, "times")
    first = append(segment_store, f"{scope}/times/0.#epoch.0", event(b"first"))
    middle = now_ms_later()
    second = append(segment_store, f"{scope}/times/0.#epoch.0", event(b"second"))
    scale(controller, scope, "times", [0], [[0, 0.5], [0.5, 1]])
    later = now_ms_later()
    one, two = 1 << 32 | 1, 1 << 32 | 2
    end = append(segment_store, f"{scope}/times/1.#epoch.1", event(b"third"))
    assert begin(controller, scope, "times") == {0: 0}
    assert begin(controller, scope, "times", 1) == {0: 0}
    assert begin(controller, scope, "times", middle) == {0: first}
    assert begin(controller, scope, "times", later) == {one: 0, two: 0}
    assert begin(controller, scope, "times", later + 86_400_000) == {one: end, two: 0}
    with RawClient(segment_store) as client:
        cut = wire.TruncateSegment(1, f"{scope}/times/0.#epoch.0", second, "")
        client.ask(cut, wire.SegmentTruncated)
    assert begin(controller, scope, "times") == {one: 0, two: 0}


def test_reading_begins_with_all_keys_where_segments_were_merged(
    controller: ControllerClient, segment_store: str, scope: str
) -> None:
    create(controller, scope, "merged", 2)
    length = append(segment_store, f"{scope}/merged/1.#epoch.0", event(b"only"))
    scale(controller, scope, "merged", [0, 1], [[0, 0.25], [0.25, 1]])
    # Nothing is left of segment 0, but one that follows it is not to be read before the end of segment 1.
    assert begin(controller, scope, "merged") == {0: 0, 1: 0}
    cut = {"streamInfo": stream(scope, "merged"), "cut": {0: 0, 1: length}}
    assert not controller.truncateStream(**cut).status
    assert begin(controller, scope, "merged") == {1 << 32 | 2: 0, 1 << 32 | 3: 0}


def test_the_default_scope_is_there_from_the_start(controller: ControllerClient) -> None:
    assert controller.checkScopeExists(scope="default").exists
    assert "default" in controller.listScopes().scopes
    create(controller, "default", "first")  # nobody has made the scope
    assert controller.checkStreamExists(scope="default", stream="first").exists


def test_listing_follows_topics_of_all_protocols(node: NodeProcess, controller: ControllerClient) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})

    def listed(scope: str, **page: object) -> list[str]:
        found = controller.listStreamsInScope(scope={"scope": scope}, **page)
        return [one.stream for one in found.streams]

    topics = [NewTopic(name, 1) for name in ("listed.b", "listed.a", "listed.c.d", "listed_no")]
    for made in admin.create_topics(topics).values():
        made.result(30)
    create(controller, "listed", "tagged", tags=["blue"])
    assert listed("listed") == ["a", "b", "c.d", "tagged"]
    assert listed("listed", continuationToken={"token": "b"}) == ["c.d", "tagged"]
    assert listed("listed", continuationToken={"token": "tagged"}) == []
    tagged = controller.listStreamsInScopeForTag(scope={"scope": "listed"}, tag="blue")
    assert [one.stream for one in tagged.streams] == ["tagged"]
    assert "listed" in controller.listScopes().scopes
    assert controller.deleteScope(scope="listed").status == DeleteScopeStatus.SCOPE_NOT_EMPTY
    for gone in admin.delete_topics(["listed.a", "listed.b"]).values():
        gone.result(30)
    assert listed("listed") == ["c.d", "tagged"]
    assert not controller.deleteScopeRecursive(scope="listed").status
    assert not controller.checkScopeExists(scope="listed").exists
    assert "listed" not in controller.listScopes().scopes
    assert "listed.c.d" not in admin.list_topics(timeout=30).topics
    assert controller.deleteScopeRecursive(scope="_system").status == DeleteScopeStatus.FAILURE
    # The scope exists again with the first topic in it, and until the last one is gone.
    producer = Producer({"bootstrap.servers": node.kafka})
    producer.produce("listed.again", b"x")
    assert producer.flush(30) == 0
    assert controller.checkScopeExists(scope="listed").exists


def test_scopes_streams_and_tables_are_known_after_the_end_of_the_process(
    node: NodeProcess, controller: ControllerClient
) -> None:
    table = {"scope": "kept", "kvtName": "table"}
    controller.createScope(scope="kept")
    create(controller, "kept", "stream")
    assert not controller.createKeyValueTable(partitionCount=2, primaryKeyLength=4, **table).status
    node.restart(kill=True)
    again = ControllerClient(node.addresses["pravega"])
    try:
        assert {"kept", "_system"} <= set(again.listScopes().scopes)
        assert [one.stream for one in again.listStreamsInScope(scope={"scope": "kept"}).streams] == ["stream"]
        tables = again.listKeyValueTablesInScope(scope={"scope": "kept"}).kvtables
        assert [one.kvtName for one in tables] == ["table"]
        segments = again.getCurrentSegmentsKeyValueTable(**table).segmentRanges
        assert [(one.minKey, one.maxKey) for one in segments] == [(0.0, 0.5), (0.5, 1.0)]
    finally:
        again.close()


def test_which_segments_follow_which(controller: ControllerClient, scope: str) -> None:
    create(controller, scope, "lineage", 2)
    scale(controller, scope, "lineage", [0, 1], [[0, 1]])
    scale(controller, scope, "lineage", [1 << 32 | 2], [[0, 0.25], [0.25, 1]])
    info = stream(scope, "lineage")
    merged, low, high = 1 << 32 | 2, 2 << 32 | 3, 2 << 32 | 4

    def following(segment: int, call: str = "getSegmentsImmediatelyFollowing") -> dict[int, list[int]]:
        found = getattr(controller, call)(streamInfo=info, segmentId=segment)
        return {one.segment.segmentId.segmentId: sorted(one.value) for one in found.segments}

    def between(first: dict[int, int], last: dict[int, int]) -> list[int]:
        found = controller.getSegmentsBetween(streamInfo=info, **{"from": first, "to": last})
        return sorted(one.segmentId for one in found.segments)

    assert following(0) == following(1, "getSegmentsImmediatlyFollowing") == {merged: [0, 1]}
    assert following(merged) == {low: [merged], high: [merged]}
    assert following(low) == {}
    for epoch, wanted in enumerate(([0, 1], [merged], [low, high])):
        ranges = controller.getEpochSegments(streamInfo=info, epoch=epoch).segmentRanges
        assert [one.segmentId.segmentId for one in ranges] == wanted
        assert (ranges[0].minKey, ranges[-1].maxKey) == (0.0, 1.0)
        cut = dict.fromkeys(wanted, 0)
        assert controller.isStreamCutValid(streamInfo=info, cut=cut).response
        assert [controller.isSegmentValid(streamInfo=info, segmentId=one).response for one in wanted] == [
            epoch == 2 for _ in wanted
        ]
    assert not controller.isStreamCutValid(streamInfo=info, cut={low: 0}).response
    assert between({0: 0, 1: 0}, {}) == [0, 1, merged, low, high]
    assert between({0: 0, 1: 0}, {merged: 0}) == [0, 1, merged]
    assert between({merged: 0}, {low: 0, high: 0}) == [merged, low, high]


def test_reader_groups_are_kept_with_a_generation(controller: ControllerClient, scope: str) -> None:
    create(controller, scope, "grouped")
    name = {"scope": scope, "readerGroup": "generations"}
    said = {"scope": scope, "readerGroupName": "generations", "readerGroupId": str(uuid4())}
    assert controller.getReaderGroupConfig(**name).status == GroupStatus.NOT_FOUND
    made = controller.createReaderGroup(**said, groupRefreshTimeMillis=1)
    assert (made.status, made.config.generation, made.config.groupRefreshTimeMillis) == (0, 0, 1)
    again = controller.createReaderGroup(**said, groupRefreshTimeMillis=2)
    assert again.config == made.config, "the stored one is told"
    changed = controller.updateReaderGroup(**said, generation=0, groupRefreshTimeMillis=3)
    assert (changed.status, changed.generation) == (0, 1)
    assert controller.updateReaderGroup(**said, generation=0).status == GroupStatus.INVALID
    found = controller.getReaderGroupConfig(**name).config
    assert (found.generation, found.groupRefreshTimeMillis) == (1, 3)
    assert not controller.listSubscribers(scope=scope, stream="grouped").subscribers
    cut = {"streamInfo": stream(scope, "grouped"), "cut": {0: 0}}
    assert controller.updateSubscriberStreamCut(subscriber="generations", streamCut=cut).status == 0
    assert controller.deleteReaderGroup(**name, readerGroupId=str(uuid4())).status == GroupStatus.NOT_FOUND
    assert controller.deleteReaderGroup(**name, readerGroupId=said["readerGroupId"]).status == GroupStatus.SUCCESS
    assert controller.getReaderGroupConfig(**name).status == GroupStatus.NOT_FOUND


def test_addresses_are_told_for_any_name(node: NodeProcess, controller: ControllerClient) -> None:
    found = controller.getURI(streamInfo=stream("no-such", "scope_kvtable"), segmentId=7)
    assert f"{found.endpoint}:{found.port}" == node.addresses["pravega-segmentstore"]
    (server,) = controller.getControllerServerList().nodeURI
    assert f"{server.endpoint}:{server.port}" == node.addresses["pravega"]
    buckets = controller.getControllerToBucketMapping().mapping
    assert [(one.key, list(one.value.id)) for one in buckets] == [(node.addresses["pravega"], [0])]


@pytest.mark.parametrize("request_bytes", [b"", b"\xff" * 100, b"\x0a\x03\x0a\x01x", b"\x0a\x06\x0a\x01x\x12\x01y"])
def test_nothing_is_answered_with_a_status_that_clients_repeat_for_minutes(
    node: NodeProcess, request_bytes: bytes
) -> None:
    codes: dict[str, grpc.StatusCode] = {}
    with grpc.insecure_channel(node.addresses["pravega"]) as channel:
        for method in [*METHODS, "noSuchMethod"]:
            try:
                channel.unary_unary(f"/{SERVICE}/{method}")(request_bytes, timeout=30)
            except grpc.RpcError as error:
                codes[method] = error.code()
    refused = grpc.StatusCode.UNIMPLEMENTED
    assert codes.pop("noSuchMethod") is refused
    repeated = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS, refused}
    assert not {method: code for method, code in codes.items() if code in repeated}
