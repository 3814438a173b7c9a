"""A topic that a migration fills is read by everybody and written by nobody, whatever he speaks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from uuid import uuid4

import pytest

from bridges.formats.kafka import encode
from bridges.formats.records import Record
from pravega_front.wire import commands as pravega
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.importer import Importer
from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, FRONTS, SELDOM, NodeProcess
from tests.pravega_front.raw_client import RawClient as PravegaClient
from tests.ydb_topic_front.raw import RawClient as YdbClient
from ydb_topic_front.wire.statuses import Status

TOPIC = "raw.imported"
PATH = "/local/raw/imported"
SEGMENT = "raw/imported/0.#epoch.0"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    listen = dict.fromkeys((*FRONTS, *SELDOM), ANY)
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", settings=TEST_SETTINGS, listen=listen) as node:
        yield node


def write_by_ydb(raw: YdbClient) -> int:
    """The status that a write is answered with."""
    stream = raw.stream("StreamWrite")
    stream.send(init_request={"path": PATH, "producer_id": "p", "partition_id": 0})
    opened = stream.receive()
    if opened.status != Status.SUCCESS:
        return int(opened.status)
    stream.send(write_request={"messages": [{"seq_no": 1, "data": b"by ydb"}], "codec": 1})
    return int(stream.receive().status)


def append_by_pravega(client: PravegaClient) -> None:
    """Send an append of one event."""
    writer = uuid4().bytes
    client.ask(pravega.SetupAppend(1, writer, SEGMENT, ""), pravega.AppendSetup)
    event = struct.pack(">ii", 0, 1) + b"x"
    client.send(pravega.AppendBlockEnd(writer, len(event), event, 1, 1, 1))


def test_ydb_and_pravega_write_when_it_is_handed_over_and_not_before(node: NodeProcess) -> None:
    importer = Importer(f"anabranch://{node.addresses['pipeline']}", {}, "m")
    epoch = importer.begin(TOPIC, 1, {}).epoch
    part = TopicPartition(TOPIC, 0)
    assert importer.append(part, epoch, [bytes(encode([Record(b"k", b"v", timestamp=1)], 0))]) == 1
    with YdbClient(node.ydb) as ydb, PravegaClient(node.addresses["pravega-segmentstore"]) as store:
        assert write_by_ydb(ydb) == Status.PRECONDITION_FAILED
        assert ydb.call("DropTopic", path=PATH).status == Status.PRECONDITION_FAILED
        append_by_pravega(store)
        store.receive(pravega.SegmentIsSealed)  # which ends the write with an error, as the other protocols do
        assert importer.state(TOPIC).partitions[0].high_watermark == 1
        importer.cutover({TOPIC: [1]})
        assert write_by_ydb(ydb) == Status.SUCCESS
    with PravegaClient(node.addresses["pravega-segmentstore"]) as store:
        append_by_pravega(store)
        store.receive(pravega.DataAppended)
    assert importer.state(TOPIC).partitions[0].high_watermark == 3
    importer.close()
