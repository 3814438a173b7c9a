"""A node whose log is in object storage, as clients of three protocols see it: what was acknowledged survives the death
of the process and the loss of its disk. The databases stay, as in a cluster they are another's."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
import ydb
from confluent_kafka import Message, Producer

from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, NodeProcess
from tests.s3_server import ACCESS, s3_server
from tests.test_three_protocols import LISTENERS, PATIENCE, consumed
from tests.three_readers import read_all

RECORDS = 3_000


def lose_disk(data: Path) -> None:
    """All that the node has on its disk but what databases keep."""
    for path in (data / "sbp").iterdir():
        if path.name.startswith("pd.sqlite"):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@pytest.fixture(params=["file", pytest.param("s3", marks=(pytest.mark.go, pytest.mark.slow))])
def objects(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the node keeps its objects."""
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    if request.param == "file":
        yield f"file://{tmp_path}/store/bucket"
        return
    with s3_server(tmp_path / "store") as endpoint:
        for name, value in {**ACCESS, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        yield "s3://bucket/prefix"


def test_kill_9_and_the_loss_of_the_disk_lose_nothing_that_was_acknowledged(tmp_path: Path, objects: str) -> None:
    listen = {**dict.fromkeys(LISTENERS, ANY), "sbp-pd": "off", "sbp-range-server": "off"}
    settings = {
        **TEST_SETTINGS,
        "sbp.durability": "object",
        "sbp.objects": objects,
        "sbp.object_linger_ms": "10",
    }
    node = NodeProcess(tmp_path / "data", settings=settings, listen=listen)
    try:
        node.start()
        with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            driver.topic_client.create_topic("flights", consumers=["readers"])
        some, told = threading.Event(), set[bytes]()

        def acknowledged(error: object, message: Message) -> None:
            assert error is None, error
            value = message.value()
            assert isinstance(value, bytes)
            told.add(value)
            if len(told) == RECORDS // 10:
                some.set()

        # What is not answered when the node dies is sent again, and must not be doubled.
        producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True, "linger.ms": 1})

        def produce() -> None:
            for number in range(RECORDS):
                producer.produce("flights", b"%d" % number, partition=0, on_delivery=acknowledged)
                producer.poll(0.001)
            assert producer.flush(PATIENCE) == 0

        producing = threading.Thread(target=produce)
        producing.start()
        for _ in range(2):
            assert some.wait(PATIENCE)
            node.kill()
            lose_disk(tmp_path / "data")
            node.start()
        producing.join()
        assert len(told) == RECORDS
        node.kill()
        lose_disk(tmp_path / "data")
        node.start()

        expected = [b"%d" % number for number in range(RECORDS)]
        assert consumed(node, "flights", RECORDS) == list(enumerate(expected))
        read_all(node, "flights", expected, "readers")
        reading = kafka.KafkaConsumer(
            "flights", bootstrap_servers=node.kafka, auto_offset_reset="earliest", consumer_timeout_ms=3_000
        )
        try:
            assert [message.value for message in reading] == expected
        finally:
            reading.close()
    finally:
        node.dispose()
