"""YDB's SDK for Python writes, with threads and with asyncio, also through deaths of the node."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import ydb
import ydb.aio
from ydb import TopicWriterMessage as Message

from tests.conftest import NodeFactory
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.records import records_of, values_of
from tests.ydb_topic_front.service.test_write import Session

PATIENCE = 60.0
DATABASE = "/local"


@pytest.fixture(scope="module")
def driver(ydb_node: NodeProcess) -> Iterator[ydb.Driver]:
    with ydb.Driver(endpoint=f"grpc://{ydb_node.ydb}", database=DATABASE) as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        yield driver


@pytest.fixture
async def aio_driver(ydb_node: NodeProcess) -> AsyncIterator[ydb.aio.Driver]:
    async with ydb.aio.Driver(endpoint=f"grpc://{ydb_node.ydb}", database=DATABASE) as driver:
        await driver.wait(timeout=PATIENCE, fail_fast=True)
        yield driver


def test_a_sync_writer(driver: ydb.Driver, ydb_node: NodeProcess, topic: str) -> None:
    driver.topic_client.create_topic(topic)
    with driver.topic_client.writer(topic, producer_id="p") as writer:
        assert writer.wait_init().last_seqno == 0
        result: Any = writer.write_with_ack("text", timeout=PATIENCE)
        assert isinstance(result, ydb.TopicWriteResult.Written)
        assert result.offset == 0
        writer.write([b"one", Message(b"two", metadata_items={"__key": b"k", "h": b"v"})], timeout=PATIENCE)
        writer.flush(timeout=PATIENCE)
    text, one, two = records_of(ydb_node.kafka, topic, 0, 3)
    assert [text.value(), one.value(), two.value()] == [b"text", b"one", b"two"]
    assert two.key() == b"k"
    assert two.headers() == [("h", b"v")]


def test_a_writer_goes_on_behind_its_last_number(driver: ydb.Driver, ydb_node: NodeProcess, topic: str) -> None:
    driver.topic_client.create_topic(topic)
    for last, number in ((0, 4), (4, 9)):
        with driver.topic_client.writer(topic, producer_id="p", auto_seqno=False) as writer:
            assert writer.wait_init().last_seqno == last
            writer.write_with_ack(Message(f"{number}", seqno=number), timeout=PATIENCE)
    assert values_of(ydb_node.kafka, topic, 0, 2) == [b"4", b"9"]


@pytest.mark.parametrize("codec", [ydb.TopicCodec.RAW, ydb.TopicCodec.GZIP, 10_007], ids=str)
def test_codecs(driver: ydb.Driver, ydb_node: NodeProcess, topic: str, codec: Any) -> None:
    driver.topic_client.create_topic(topic, supported_codecs=[codec])
    texts = [f"text {number} ".encode() * 20 for number in range(50)]
    with driver.topic_client.writer(topic, codec=codec, encoders={10_007: zlib.compress}) as writer:
        writer.write(texts, timeout=PATIENCE)
        writer.flush(timeout=PATIENCE)
    found = records_of(ydb_node.kafka, topic, 0, len(texts))
    if codec == 10_007:
        assert found[0].headers() == [("anabranch.codec", b"custom-10007")]
        assert [zlib.decompress(record.value() or b"") for record in found] == texts
    else:
        assert [record.value() for record in found] == texts


def test_a_codec_that_the_topic_does_not_take_is_told(driver: ydb.Driver, topic: str) -> None:
    driver.topic_client.create_topic(topic, supported_codecs=[ydb.TopicCodec.GZIP])
    with (
        pytest.raises(ydb.issues.BadRequest, match="codec"),
        driver.topic_client.writer(topic, codec=ydb.TopicCodec.RAW) as writer,
    ):
        writer.write_with_ack("text", timeout=PATIENCE)


async def test_aio_writers_side_by_side(aio_driver: ydb.aio.Driver, ydb_node: NodeProcess, topic: str) -> None:
    client = aio_driver.topic_client
    await client.create_topic(topic, min_active_partitions=3)
    async with client.writer(topic, partition_id=0) as zero, client.writer(topic, partition_id=2) as two:
        for number in range(100):
            await zero.write([f"zero {number} {part}" for part in range(10)])
            await two.write(f"two {number}")
        await zero.flush()
        await two.flush()
    assert values_of(ydb_node.kafka, topic, 0, 1000)[-1] == b"zero 99 9"
    assert values_of(ydb_node.kafka, topic, 2, 100) == [f"two {number}".encode() for number in range(100)]


async def test_the_default_codec_of_the_sdk(aio_driver: ydb.aio.Driver, ydb_node: NodeProcess, topic: str) -> None:
    """It measures and takes what is smallest: batches of several codecs lie in one partition."""
    await aio_driver.topic_client.create_topic(topic)
    texts = [bytes(f"text {number} ", "ascii") * 100 for number in range(40)]
    async with aio_driver.topic_client.writer(topic) as writer:
        for text in texts:
            await writer.write_with_ack(text)
    assert values_of(ydb_node.kafka, topic, 0, len(texts)) == texts


async def test_an_unknown_topic_is_an_error_at_once(aio_driver: ydb.aio.Driver, topic: str) -> None:
    with pytest.raises(ydb.issues.SchemeError, match="no path"):
        async with aio_driver.topic_client.writer(topic) as writer:
            await writer.wait_init()


def test_nothing_is_lost_or_doubled_when_the_node_dies(node_factory: NodeFactory) -> None:
    """The writer repeats what it does not know to be written, and does not notice otherwise."""
    node = node_factory(listen=LISTEN)
    texts = [f"text {number}".encode() for number in range(2000)]
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database=DATABASE) as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        driver.topic_client.create_topic("t")
        with driver.topic_client.writer("t", producer_id="p", codec=ydb.TopicCodec.GZIP) as writer:
            for life in range(2):
                begin = life * 1000
                writer.write(texts[begin : begin + 300], timeout=PATIENCE)
                writer.write_with_ack(texts[begin + 300], timeout=PATIENCE)
                for text in texts[begin + 301 : begin + 1000]:
                    writer.write(text, timeout=PATIENCE)
                node.restart(kill=True)
            writer.flush(timeout=PATIENCE)
    assert values_of(node.kafka, "t", 0, len(texts)) == texts
    with RawClient(node.ydb) as raw:
        session = Session(raw, "/local/t", producer_id="p")
        assert session.init.last_seq_no == len(texts)
        # What was acknowledged in an earlier life is known in this one, also in part of a request.
        assert session.write(1, 1999, 2000, 2001)[-2:] == [(2000, None), (2001, 2000)]
        session.end()


async def test_a_node_that_stops_tells_its_writers_to_come_again(node_factory: NodeFactory) -> None:
    node = node_factory(listen=LISTEN)
    with RawClient(node.ydb) as raw:
        raw.result("CreateTopic", path="t")
        session = Session(raw, "t", producer_id="p")
        session.write(1)
        node.terminate()
        (last,) = session.stream.rest()
        assert last.status == 400050
    node.start()
    async with ydb.aio.Driver(endpoint=f"grpc://{node.ydb}", database=DATABASE) as driver:
        await driver.wait(timeout=PATIENCE, fail_fast=True)
        async with driver.topic_client.writer("t", producer_id="p") as writer:
            assert (await writer.wait_init()).last_seqno == 1
            await writer.write_with_ack("a")
            node.restart()
            await writer.write_with_ack("b")
    assert values_of(node.kafka, "t", 0, 3)[1:] == [b"a", b"b"]
