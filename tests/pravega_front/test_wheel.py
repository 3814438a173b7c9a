"""The PyPI wheel ``pravega`` (Pravega's Rust client) against a node."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pravega_client import (
    StreamManager,
    StreamReader,
    StreamRetentionPolicy,
    StreamScalingPolicy,
    TxnFailedException,
)

from pravega_front.wire.controller import ScaleProgress, ScaleStatus
from tests.kit.wheel import read_events
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.conftest import LISTENERS, needs_node
from tests.pravega_front.controller_client import ControllerClient, stream


def manager(controller: str) -> StreamManager:
    return StreamManager(f"tcp://{controller}")


def read(reader: StreamReader, count: int) -> list[bytes]:
    """The next ``count`` events."""
    return asyncio.run(read_events(reader, count))


def test_events_are_read_by_a_reader_group(controller_address: str) -> None:
    streams = manager(controller_address)
    assert streams.create_scope("first")
    assert not streams.create_scope("first")
    assert streams.create_stream("first", "events", 2)
    writer = streams.create_writer("first", "events")
    for number in range(100):
        writer.write_event(f"{number}", routing_key=f"key-{number % 7}")
    writer.flush()
    group = streams.create_reader_group("group", "first", "events")
    reader = group.create_reader("reader")
    found = [int(one) for one in read(reader, 100)]
    assert sorted(found) == list(range(100))
    for key in range(7):
        assert [one for one in found if one % 7 == key] == list(range(key, 100, 7)), "in the order of their key"
    reader.reader_offline()


@needs_node
def test_writers_and_a_reader_live_through_the_end_of_the_process(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", listen=dict.fromkeys(LISTENERS, ANY))
    try:
        node.start()
        streams = manager(node.addresses["pravega"])
        streams.create_scope("killed")
        streams.create_stream("killed", "events", 1)
        streams.create_stream("killed", "pipelined", 1)
        writer = streams.create_writer("killed", "events")
        pipelined = streams.create_writer("killed", "pipelined", max_inflight_events=100)
        reader = streams.create_reader_group("group", "killed", "events").create_reader("reader")
        for life in range(3):
            for number in range(50):
                writer.write_event(f"{life * 50 + number}", routing_key="key")
                pipelined.write_event(f"{life * 50 + number}", routing_key="key")
            if life < 2:
                node.restart(kill=True)
        pipelined.flush()
        assert [int(one) for one in read(reader, 150)] == list(range(150))
        fresh = manager(node.addresses["pravega"])  # which its readers need as long as they live
        again = fresh.create_reader_group("another", "killed", "pipelined").create_reader("reader")
        assert [int(one) for one in read(again, 150)] == list(range(150)), "nothing is there twice"
    finally:
        node.dispose()


@pytest.fixture(scope="module")
def streams(controller_address: str) -> StreamManager:
    found = manager(controller_address)
    found.create_scope("wheel")
    return found


def readers(streams: StreamManager, stream: str) -> StreamReader:
    """A reader of a new group of a stream, from its beginning."""
    return streams.create_reader_group(f"group-of-{stream}", "wheel", stream).create_reader("reader")


@pytest.mark.parametrize("size", [1, 1000, 100_000, 8 * 1024 * 1024 - 8])
def test_events_of_any_size(streams: StreamManager, size: int) -> None:
    stream = f"sized-{size}"
    streams.create_stream("wheel", stream, 1)
    writer = streams.create_writer("wheel", stream)
    events = [bytes([number]) * size for number in range(3)]
    for event in events:
        writer.write_event_bytes(event)
    writer.flush()
    assert read(readers(streams, stream), 3) == events


def test_a_pipelined_writer_and_one_of_coroutines(streams: StreamManager) -> None:
    streams.create_stream("wheel", "pipelined", 1)
    writer = streams.create_writer("wheel", "pipelined", max_inflight_events=100)
    for number in range(2000):
        writer.write_event(f"{number}", routing_key="key")
    writer.flush()

    async def write() -> None:
        for number in range(2000, 2010):
            await writer.write_event_async(f"{number}", routing_key="key")

    asyncio.run(write())
    assert [int(one) for one in read(readers(streams, "pipelined"), 2010)] == list(range(2010))


def test_a_reader_waits_at_the_tail(streams: StreamManager) -> None:
    streams.create_stream("wheel", "tail", 1)
    reader = readers(streams, "tail")
    writer = streams.create_writer("wheel", "tail")
    for number in range(3):
        writer.write_event(f"{number}")
        assert read(reader, 1) == [f"{number}".encode()]


def test_transactions(streams: StreamManager) -> None:
    streams.create_stream("wheel", "transactions", 2)
    writer = streams.create_transaction_writer("wheel", "transactions", 7)
    aborted = writer.begin_txn()
    for number in range(20):
        aborted.write_event(f"aborted {number}", routing_key=f"{number}")
    assert aborted.is_open()
    aborted.abort()
    committed = writer.begin_txn()
    for number in range(20):
        committed.write_event(f"{number}", routing_key=f"{number}")
    committed.commit()
    # What is written later is read later, though the commit is carried out in the background.
    reader = readers(streams, "transactions")
    assert sorted(int(one) for one in read(reader, 20)) == list(range(20))
    assert not committed.is_open()
    with pytest.raises(TxnFailedException):
        aborted.write_event("too late")


def test_a_writer_and_a_reader_follow_a_scale(streams: StreamManager, controller: ControllerClient) -> None:
    streams.create_stream("wheel", "scaled", 1)
    writer = streams.create_writer("wheel", "scaled")
    for number in range(100):
        writer.write_event(f"{number}", routing_key=f"key-{number % 5}")
    reader = readers(streams, "scaled")
    first = read(reader, 30)
    info = stream("wheel", "scaled")
    started = controller.scale(
        streamInfo=info, sealedSegments=[0], newKeyRanges=[{"start": 0, "end": 0.5}, {"start": 0.5, "end": 1}]
    )
    assert (started.status, started.epoch, len(started.segments)) == (ScaleStatus.STARTED, 0, 2)
    while (progress := controller.checkScale(streamInfo=info, epoch=0).status) == ScaleProgress.IN_PROGRESS:
        time.sleep(0.01)  # a node has finished when it answers, Pravega has only begun
    assert progress == ScaleProgress.SUCCESS
    for number in range(100, 200):
        writer.write_event(f"{number}", routing_key=f"key-{number % 5}")
    writer.flush()
    found = [int(one) for one in first + read(reader, 200 - len(first))]
    assert sorted(found) == list(range(200))
    for key in range(5):
        assert [one for one in found if one % 5 == key] == list(range(key, 200, 5)), "in the order of their key"


def test_a_sealed_stream_is_read_and_takes_no_more(streams: StreamManager) -> None:
    streams.create_stream("wheel", "sealed", 1)
    writer = streams.create_writer("wheel", "sealed")
    writer.write_event("last")
    writer.flush()
    assert streams.seal_stream("wheel", "sealed")
    assert read(readers(streams, "sealed"), 1) == [b"last"]
    with pytest.raises(ValueError, match="writing an event"):
        writer.write_event("too late")
    assert streams.delete_stream("wheel", "sealed")


def test_a_byte_stream(streams: StreamManager) -> None:
    streams.create_stream("wheel", "bytes", 1)
    found = streams.create_byte_stream("wheel", "bytes")
    assert found.write(b"hello ") == 6
    assert found.write(b"world") == 5
    found.flush()
    assert (found.current_head_offset(), found.current_tail_offset()) == (0, 11)
    found.seek(3, 0)
    buffer = bytearray(100)
    assert found.readinto(buffer) == 8
    assert bytes(buffer[:8]) == b"lo world"
    found.truncate(7)
    assert found.current_head_offset() == 7
    found.seek(7, 0)
    assert found.readinto(buffer) == 4
    assert bytes(buffer[:4]) == b"orld"


def test_listing_and_configuration(streams: StreamManager) -> None:
    assert not streams.create_stream("wheel", "tail", 1)
    policy = StreamScalingPolicy.fixed_scaling_policy(2)
    assert streams.create_stream_with_policy("wheel", "tagged", policy, StreamRetentionPolicy.none(), ["a", "b"])
    assert streams.get_stream_tags("wheel", "tagged") == ["a", "b"]
    assert streams.get_stream_tags("wheel", "tail") == []
    assert streams.update_stream_with_policy("wheel", "tagged", policy, StreamRetentionPolicy.none(), ["c"])
    assert streams.get_stream_tags("wheel", "tagged") == ["c"]
    assert {"tail", "tagged"} <= set(streams.list_stream("wheel"))
    assert {"wheel", "_system"} <= set(streams.list_scope())
    assert streams.create_scope("empty")
    assert streams.delete_scope("empty")
    with pytest.raises(ValueError, match="Scope not empty"):
        streams.delete_scope("wheel")


@needs_node
@pytest.mark.parametrize(("config", "value"), [("cleanup.policy", "compact"), ("max.message.bytes", "2000")])
def test_a_write_that_the_rules_of_a_topic_refuse_ends_with_an_error(
    node: NodeProcess, controller_address: str, config: str, value: str
) -> None:
    name = f"wheel.refuses-{config.replace('.', '-')}"
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(name, 1, 1, config={config: value})])[name].result(30)
    writer = manager(controller_address).create_writer(*name.split("."))

    def write() -> None:  # either call may be the one that is told
        writer.write_event("x" * 3000)
        writer.flush()

    with pytest.raises(ValueError, match="writing an event"):
        write()
