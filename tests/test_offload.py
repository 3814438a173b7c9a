"""A node with a disk whose old data is in object storage, as clients of three protocols see it: each reads from the
beginning what all have written, after kill -9 too, and a store that is away stops nobody who writes."""

from __future__ import annotations

import threading
from pathlib import Path

import ydb
from pravega_client import StreamManager

from tests.moving_node import MIB, metric, settings, texts, until, write_kafka
from tests.node_process import ANY, NodeProcess
from tests.test_objects import objects
from tests.test_three_protocols import LISTENERS, PATIENCE, consumed
from tests.three_readers import read_all

__all__ = ["objects"]


def write_ydb(node: NodeProcess, topic: str, values: list[bytes]) -> None:
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        with driver.topic_client.writer(topic, producer_id="one", codec=ydb.TopicCodec.RAW) as writer:
            for first in range(0, len(values), 40):  # together they have to fit a segment
                writer.write(values[first : first + 40])
                writer.flush()


def write_pravega(node: NodeProcess, topic: str, values: list[bytes]) -> None:
    streams = StreamManager(f"tcp://{node.addresses['pravega']}")
    writer = streams.create_writer("default", topic, max_inflight_events=40)
    for value in values:
        writer.write_event_bytes(value, "key")
    writer.flush()


def test_old_data_is_read_by_all_protocols_from_objects_and_a_store_that_is_away_stops_no_writer(
    tmp_path: Path, objects: str
) -> None:
    listen = {**dict.fromkeys(LISTENERS, ANY), "sbp-pd": "off", "sbp-range-server": "off"}
    node = NodeProcess(tmp_path / "data", settings=settings(objects), listen=listen)
    try:
        node.start()
        with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            driver.topic_client.create_topic("flights", consumers=["readers"])
        expected = texts("kafka", 600) + texts("ydb", 600) + texts("pravega", 600)
        write_kafka(node, "flights", expected[:600])
        write_ydb(node, "flights", expected[600:1200])
        write_pravega(node, "flights", expected[1200:])
        until(node, "anabranch_store_moved_bytes", 12 * MIB)
        until(node, "anabranch_store_log_bytes", 0, 5 * MIB)
        assert sum(path.stat().st_size for path in (tmp_path / "data" / "sbp" / "wal").glob("*.seg")) < 8 * MIB
        read_all(node, "flights", expected, "before")
        node.kill()
        node.start()

        # Whoever opens a partition reads what is newer than its last snapshot, which may be moved already.
        expected += texts("open", 10)
        write_kafka(node, "flights", expected[-10:])

        # The store is away: who wants what lies there waits, and nobody else does.
        bucket = next((tmp_path / "store").glob("**/disks"))
        moved = metric(node, "anabranch_store_moved_bytes")
        bucket.rename(bucket.with_name("away"))
        bucket.write_bytes(b"")
        found: list[tuple[int, bytes]] = []
        reading = threading.Thread(target=lambda: found.extend(consumed(node, "flights", len(expected))))
        reading.start()
        further = texts("outage", 600)
        write_kafka(node, "flights", further)
        until(node, "anabranch_store_moving_fails", 1)
        assert metric(node, "anabranch_store_moving_failures_total") >= 1
        write_kafka(node, "recent", texts("recent", 50))
        assert [value for _, value in consumed(node, "recent", 50)] == texts("recent", 50)
        assert metric(node, "anabranch_store_local_limit_bytes") == 2 * MIB
        assert metric(node, "anabranch_store_log_bytes") > 6 * MIB
        assert metric(node, "anabranch_store_moved_bytes") >= moved
        # It starts without it, too.
        node.kill()
        node.start()
        write_kafka(node, "recent", texts("again", 10))
        bucket.unlink()
        bucket.with_name("away").rename(bucket)
        reading.join()
        assert [value for _, value in found] == expected
        until(node, "anabranch_store_moving_fails", 0, 0)
        until(node, "anabranch_store_log_bytes", 0, 5 * MIB)
        node.kill()
        node.start()
        read_all(node, "flights", [*expected, *further], "after")
        log = node.log.read_text()
        assert log.count("stays on the disk until it can") <= 2, "one line for each time that the store was away"
    finally:
        node.dispose()
