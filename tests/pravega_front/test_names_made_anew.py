"""What is made anew under a name has numbers above all that were there before: readers who remember positions of a
former stream or table are told that it is gone, whichever protocol made and deleted it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import grpc
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pravega_front.wire import commands as wire
from pravega_front.wire.controller import DeleteScopeStatus
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale, stream
from tests.pravega_front.raw_client import RawClient, event
from tests.ydb_topic_front.raw import RawClient as RawYdb

SCOPE = "anew"
PATIENCE = 60

Do = Callable[[NodeProcess, ControllerClient, str], None]


def segments(controller: ControllerClient, name: str) -> list[int]:
    found = controller.getCurrentSegments(scope=SCOPE, stream=name).segmentRanges
    return [one.segmentId.segmentId for one in found]


def append(client: RawClient, segment: str, *values: bytes) -> int:
    """Give the segment's length behind the events."""
    writer, data = uuid4().bytes, b"".join(map(event, values))
    client.ask(wire.SetupAppend(1, writer, segment, ""), wire.AppendSetup)
    block = wire.AppendBlockEnd(writer, len(data), data, len(values), len(values), 1)
    return client.ask(block, wire.DataAppended).current_segment_write_offset


def made_by_pravega(node: NodeProcess, controller: ControllerClient, name: str) -> None:
    controller.createScope(scope=SCOPE)
    created = controller.createStream(streamInfo=stream(SCOPE, name), scalingPolicy={"minNumSegments": 2})
    assert created.status == 0


def made_by_kafka(node: NodeProcess, controller: ControllerClient, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(f"{SCOPE}.{name}", 2, 1)])[f"{SCOPE}.{name}"].result(PATIENCE)


def made_by_ydb(node: NodeProcess, controller: ControllerClient, name: str) -> None:
    with RawYdb(node.ydb) as client:
        client.result("CreateTopic", path=f"{SCOPE}/{name}", partitioning_settings={"min_active_partitions": 2})


def deleted_by_pravega(node: NodeProcess, controller: ControllerClient, name: str) -> None:
    assert controller.sealStream(scope=SCOPE, stream=name).status == 0
    assert controller.deleteStream(scope=SCOPE, stream=name).status == 0


def deleted_by_kafka(node: NodeProcess, controller: ControllerClient, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.delete_topics([f"{SCOPE}.{name}"])[f"{SCOPE}.{name}"].result(PATIENCE)


def deleted_by_ydb(node: NodeProcess, controller: ControllerClient, name: str) -> None:
    with RawYdb(node.ydb) as client:
        client.result("DropTopic", path=f"{SCOPE}/{name}")


@pytest.mark.parametrize(
    ("make", "delete"),
    [
        (made_by_pravega, deleted_by_pravega),
        (made_by_pravega, deleted_by_kafka),
        (made_by_pravega, deleted_by_ydb),
        (made_by_kafka, deleted_by_kafka),
        (made_by_kafka, deleted_by_ydb),
        (made_by_ydb, deleted_by_kafka),
        (made_by_ydb, deleted_by_ydb),
    ],
)
def test_positions_in_a_former_stream_are_positions_in_nothing(
    node: NodeProcess, controller: ControllerClient, segment_store: str, make: Do, delete: Do
) -> None:
    name = f"{make.__name__}-{delete.__name__}".replace("_", "-")
    make(node, controller, name)
    assert segments(controller, name) == [0, 1]
    first = f"{SCOPE}/{name}/0.#epoch.0"
    with RawClient(segment_store) as client:
        position = append(client, first, b"one", b"two")
        delete(node, controller, name)
        make(node, controller, name)
        assert segments(controller, name) == [2, 3]
        append(client, f"{SCOPE}/{name}/2.#epoch.0", *[b"%d" % number for number in range(300)])
        for at in (0, position):
            gone = client.ask(wire.ReadSegment(first, at, 1000, "", 7), wire.NoSuchSegment)
            assert (gone.request_id, gone.offset) == (7, at)
        # Its watermarks are others, too.
        marks = f"{SCOPE}/_MARK{name}/"
        client.ask(wire.GetStreamSegmentInfo(1, marks + "0.#epoch.0", ""), wire.NoSuchSegment)
        client.ask(wire.GetStreamSegmentInfo(1, marks + "2.#epoch.0", ""), wire.StreamSegmentInfo)
    assert segments(controller, f"_MARK{name}") == [2]
    with pytest.raises(grpc.RpcError) as refused:
        controller.getSegmentsImmediatelyFollowing(streamInfo=stream(SCOPE, name), segmentId=0)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_numbers_go_on_above_those_of_scales_of_former_scopes_and_over_a_restart(
    node: NodeProcess, controller: ControllerClient
) -> None:
    name = "scaled"
    made_by_pravega(node, controller, name)
    scale(controller, SCOPE, name, [0, 1], [[0, 0.25], [0.25, 0.5], [0.5, 1]])
    assert segments(controller, name) == [1 << 32 | number for number in (2, 3, 4)]
    deleted_by_pravega(node, controller, name)
    made_by_pravega(node, controller, name)
    assert segments(controller, name) == [5, 6]
    scale(controller, SCOPE, name, [5], [[0, 0.25], [0.25, 0.5]])
    assert segments(controller, name) == [1 << 32 | 7, 1 << 32 | 8, 6]
    following = controller.getSegmentsImmediatelyFollowing(streamInfo=stream(SCOPE, name), segmentId=5).segments
    assert [(one.segment.segmentId.segmentId, list(one.value)) for one in following] == [
        (1 << 32 | 7, [5]),
        (1 << 32 | 8, [5]),
    ]
    with RawClient(node.addresses["pravega-segmentstore"]) as client:
        append(client, f"{SCOPE}/{name}/7.#epoch.1", b"one")
    node.restart(kill=True)
    again = ControllerClient(node.addresses["pravega"])
    try:
        assert segments(again, name) == [1 << 32 | 7, 1 << 32 | 8, 6]
        with RawClient(node.addresses["pravega-segmentstore"]) as client:
            info = client.ask(wire.GetStreamSegmentInfo(1, f"{SCOPE}/{name}/7.#epoch.1", ""), wire.StreamSegmentInfo)
            assert info.write_offset == len(event(b"one"))
        txn = again.createTransaction(streamInfo=stream(SCOPE, name), lease=30_000)
        assert [one.segmentId.segmentId for one in txn.activeSegments] == [1 << 32 | 7, 1 << 32 | 8, 6]
        assert again.deleteScopeRecursive(scope=SCOPE).status == 0
        made_by_pravega(node, again, name)
        assert segments(again, name) == [9, 10]
    finally:
        again.close()


@pytest.mark.parametrize("recursive", [False, True])
def test_a_key_value_table_made_anew_has_other_segments_and_a_scope_takes_tables_of_groups_with_it(
    node: NodeProcess, recursive: bool
) -> None:
    controller = ControllerClient(node.addresses["pravega"])
    scope = f"tables-{recursive}"
    table = {"scope": scope, "kvtName": "table"}

    def made() -> list[int]:
        created = controller.createKeyValueTable(partitionCount=2, primaryKeyLength=4, **table)
        assert created.status == 0
        found = controller.getCurrentSegmentsKeyValueTable(**table).segmentRanges
        return [one.segmentId.segmentId for one in found]

    group = f"{scope}/group_kvtable/0.#epoch.0"
    try:
        assert controller.createScope(scope=scope).status == 0
        assert made() == [0, 1]
        with RawClient(node.addresses["pravega-segmentstore"]) as client:
            client.ask(wire.CreateTableSegment(1, group, "", False, 0, 0), wire.SegmentCreated)
            if not recursive:
                assert controller.deleteKeyValueTable(**table).status == 0
                assert made() == [2, 3]
                client.ask(wire.GetTableSegmentInfo(1, f"{scope}/table_kvtable/0.#epoch.0", ""), wire.NoSuchSegment)
                client.ask(wire.GetTableSegmentInfo(1, f"{scope}/table_kvtable/2.#epoch.0", ""), wire.TableSegmentInfo)
                assert controller.deleteScope(scope=scope).status == DeleteScopeStatus.SCOPE_NOT_EMPTY
                client.ask(wire.GetTableSegmentInfo(1, group, ""), wire.TableSegmentInfo)
                assert controller.deleteKeyValueTable(**table).status == 0
                assert controller.deleteScope(scope=scope).status == 0
            else:
                assert controller.deleteScopeRecursive(scope=scope).status == 0
            client.ask(wire.GetTableSegmentInfo(1, group, ""), wire.NoSuchSegment)
        assert controller.createScope(scope=scope).status == 0
        assert made() == ([2, 3] if recursive else [4, 5])
    finally:
        controller.close()
