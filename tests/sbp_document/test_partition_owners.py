"""sbp-v0.1 on a node: a listener of its own, and appends to partitions through the one who owns them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridges.catalog.topics.catalog import Catalog
from bridges.formats import FormatId, decode
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch, PartitionLog
from bridges.node.assembly import Node
from bridges.node.settings.config import Settings, load
from sbp_document import DocumentClient, DocumentError, DocumentRecord
from sbp_document.partition_owners import PartitionOwners
from sbp_document.wire.record_batch import parse_batches


def settings_of(path: Path, **more: str) -> Settings:
    flags = {
        "data_dir": str(path / "data"),
        "listen.console": "off",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
        **more,
    }
    return load(flags, environ={}, directory=path).settings


def test_the_listener_is_named_with_its_dot(tmp_path: Path) -> None:
    flags = settings_of(tmp_path, **{"listen.sbp-v0.1": "127.0.0.1:1"})
    environ = {"ANABRANCH_LISTEN__SBP_V0_1": "127.0.0.1:1", "ANABRANCH_LISTEN__SBP_V0_1_APRIL": "127.0.0.1:2"}
    assert flags.listen["sbp-v0.1"] == "127.0.0.1:1"
    assert load({}, environ=environ, directory=tmp_path).settings.listen == {
        "sbp-v0.1": "127.0.0.1:1",
        "sbp-v0.1-april": "127.0.0.1:2",
    }


async def test_the_listener_is_closed_unless_given_an_address(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    assert node.addresses == {}
    await node.stop()
    node = Node(settings_of(tmp_path, **{"listen.sbp-v0.1": "off"}), fronts=[])
    await node.start()
    assert node.addresses == {}
    await node.stop()


async def append(log: PartitionLog, value: bytes) -> int:
    """A batch as the Kafka front appends it."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    batch = Batch(encode([Record(b"k", value, timestamp=5)]), 1, int(FormatId.KAFKA), 5)
    log.append(batch, lambda at, error: done.set_result(at.base) if error is None else done.set_exception(error))
    return await done


async def test_a_partition_is_written_through_both(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, **{"listen.sbp-v0.1": "127.0.0.1:0"})
    node = Node(settings, fronts=[])
    await node.start()
    topic = await node.catalog.create_topic("orders", 1)
    stream_id = topic.partitions[0].stream_id
    address = node.addresses["sbp-v0.1"]
    client = DocumentClient.connect(address.host, address.port)
    log = node.logs.get("orders", 0)
    assert log is not None
    assert await append(log, b"kafka 0") == 0
    record = DocumentRecord(b"document 1", [("h", "v")], timestamp=1_700_000_000_000)
    assert (
        await client.append(stream_id, [record, DocumentRecord(b"document 2", timestamp=1_700_000_000_001)])
    ).base_offset == 1
    assert await append(log, b"kafka 3") == 3
    # The owner sees it at once, and nobody's epoch has changed.
    assert log.high_watermark == 4
    batches = await log.read_batches(0, 1 << 20)
    records = [one for batch in batches for one in decode(batch)]
    assert [(one.offset, one.key, one.value) for one in records] == [
        (0, b"k", b"kafka 0"),
        (1, None, b"document 1"),
        (2, None, b"document 2"),
        (3, b"k", b"kafka 3"),
    ]
    assert (records[1].headers, records[1].timestamp) == ([("h", b"v")], 1_700_000_000_000)
    assert await log.find_timestamp(1_700_000_000_000) == (1, 1_700_000_000_000)
    found = await client.fetch(stream_id, 0)
    assert [(one.base_offset, one.end_offset, one.wrapped) for one in found.batches] == [
        (0, 1, 1),
        (1, 3, -1),
        (3, 4, 1),
    ]
    assert bytes(found.batches[1].records[0].body) == b"document 1"
    # A stream that is no partition's is written by the backend itself.
    other = (await client.create_stream()).stream.stream_id
    assert (await client.append(other, [b"x"])).base_offset == 0
    with pytest.raises(DocumentError, match="no head"):
        await client.append(stream_id, b"not a batch")
    await client.close()
    await node.stop()

    node = Node(settings, fronts=[])
    await node.start()
    address = node.addresses["sbp-v0.1"]
    client = DocumentClient.connect(address.host, address.port)
    assert (await client.append(stream_id, [b"after"])).base_offset == 4
    log = node.logs.get("orders", 0)
    assert log is not None
    assert [b.end_offset for b in await log.read_batches(0, 1 << 20)] == [1, 3, 4, 5]
    await node.catalog.delete_topic("orders")
    with pytest.raises(DocumentError):
        await client.append(stream_id, [b"gone"])
    await client.close()
    await node.stop()


async def test_a_range_taken_from_its_owner_loses_nothing(tmp_path: Path) -> None:
    """SEAL_RANGES fences the node's own writer like any other; the log takes the partition back when it is used."""
    node = Node(settings_of(tmp_path, **{"listen.sbp-v0.1": "127.0.0.1:0"}), fronts=[])
    await node.start()
    topic = await node.catalog.create_topic("orders", 1)
    stream_id = topic.partitions[0].stream_id
    address = node.addresses["sbp-v0.1"]
    client = DocumentClient.connect(address.host, address.port)
    log = node.logs.get("orders", 0)
    assert log is not None
    await append(log, b"0")
    opened = await client.seal_range(stream_id, 0)
    assert (opened.index, opened.start) == (1, 1)
    bases: list[int] = []
    while len(bases) < 3:
        try:
            bases.append((await client.append(stream_id, [b"more"])).base_offset)
        except DocumentError:
            await log.ready()  # it has found out, and opens the partition in a newer epoch
    assert bases == [1, 2, 3]
    data = (await client.fetch(stream_id, 0)).batches
    assert [batch.base_offset for batch in data] == [0, 1, 2, 3]
    assert [b.base_offset for b in await log.read_batches(0, 1 << 20)] == [0, 1, 2, 3]
    await client.close()
    await node.stop()


def test_bodies_are_not_copied_when_batches_are_parsed() -> None:
    from sbp_document import encode_batch

    data = bytes(encode_batch([DocumentRecord(b"body")]))
    (batch,) = parse_batches(data)
    body = batch.records[0].body
    assert isinstance(body, memoryview)
    assert body.obj is data


async def test_owners_follow_the_catalog_change_by_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    owners = PartitionOwners(node.catalog, node.logs)
    first = await node.catalog.create_topic("first", 2)
    assert owners.find(first.partitions[1].stream_id) is not None
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "topics", None)  # there may be very many, and clients make them
        second = await node.catalog.create_topic("second", 1)
        await node.catalog.add_partitions("first", 3)
        for partition in (*first.partitions, *second.partitions):
            assert owners.find(partition.stream_id) is not None
        await node.catalog.delete_topic("first")
        for partition in first.partitions:
            assert owners.find(partition.stream_id) is None
        assert owners.find(second.partitions[0].stream_id) is not None
    await node.stop()
