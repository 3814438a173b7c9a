"""A node as an endpoint: what it tells, and records read straight from its range servers, or through it."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from bridges.auth import Operation, Principal, Resource
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.users import User, change
from bridges.catalog.progress import Committed
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.damage.skipping import skip
from bridges.log.partition.partition_log import Batch
from spark_pipeline.core.errors import (
    EndpointUnavailable,
    OffsetsGone,
    OptionError,
    PipelineError,
    UnknownTopic,
    UnreadableBatch,
)
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.anabranch.endpoint import AnabranchEndpoint
from spark_pipeline.endpoints.base import Positions, endpoint
from spark_pipeline.node import reads
from tests.ports import free_port
from tests.sbp_document.elastic_stream.servers import ForeignCluster
from tests.spark_pipeline.node.pipeline_lab import Lab, appended, client_of, node_of, open_lab

T = TopicPartition("t", 0)
VALUES = Columns(("offset", "value"))


@pytest.fixture(params=["range servers", "range servers with tickets", "node"])
async def lab(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    """A node that leads to its range servers, which may demand tickets, or keeps them to itself: readers are given the
    same."""
    of = {"range servers with tickets": {"sbp__tickets": "true"}, "node": {"listen__sbp_pd": "off"}}
    made = await open_lab(tmp_path, **of.get(request.param, {}))
    await made.node.catalog.create_topic("t", 1)
    yield made
    await made.close()


@pytest.fixture
async def reader(lab: Lab) -> AsyncIterator[AnabranchEndpoint]:
    made = opened(lab)
    yield made
    await lab.ask(made.close)


def opened(lab: Lab, **options: str) -> AnabranchEndpoint:
    options = {"patienceMs": "2000", **{name.replace("_", "."): value for name, value in options.items()}}
    made = endpoint(f"anabranch://{lab.node.addresses['pipeline']}", options)
    assert isinstance(made, AnabranchEndpoint)
    return made


async def read(lab: Lab, reader: AnabranchEndpoint, start: int, end: int) -> dict[int, bytes]:
    """Values by offset."""

    def rows() -> dict[int, bytes]:
        batches: list[pa.RecordBatch] = list(reader.read(OffsetRange("t", 0, start, end), VALUES))
        return {row["offset"]: row["value"] for batch in batches for row in batch.to_pylist()}

    return await lab.ask(rows)


async def test_what_there_is(lab: Lab, reader: AnabranchEndpoint) -> None:
    await lab.node.catalog.create_topic("wide", 3, {"retention.ms": "-1"})
    topics = await lab.ask(reader.topics)
    assert sorted(topics) == ["t", "wide"]
    assert topics["wide"].partitions == (0, 1, 2)
    assert topics["wide"].config == {"retention.ms": "-1"}
    assert topics["wide"].states == {0: "active", 1: "active", 2: "active"}
    assert topics["t"].identity == str(lab.node.catalog.topic("t").topic_id)
    with pytest.raises(UnknownTopic):
        await lab.ask(reader.positions, [TopicPartition("nowhere", 0)])
    with pytest.raises(UnknownTopic):
        await lab.ask(reader.positions, [TopicPartition("t", 1)])


async def test_positions_and_times(lab: Lab, reader: AnabranchEndpoint) -> None:
    await lab.append("t", [b"a", b"b"], 1_000)
    await lab.append("t", [b"c"], 5_000)
    told = (await lab.ask(reader.positions, [T]))[T]
    assert told == Positions(0, 3, 3, told.size, str(lab.node.catalog.topic("t").topic_id))
    assert told.size > 100
    assert await lab.ask(reader.find_timestamp, {T: 1_001}) == {T: 2}
    assert await lab.ask(reader.find_timestamp, {T: 5_001}) == {T: None}


async def test_what_groups_have_committed(lab: Lab, reader: AnabranchEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "GROUPS", 2)
    monkeypatch.setattr(reads, "POSITIONS", 3)
    await lab.node.catalog.create_topic("wide", 4)
    assert await lab.ask(reader.groups) == {}
    committed = lab.node.progress.front("kafka")
    wanted = {
        "a": {TopicPartition("wide", number): 10 + number for number in range(4)},
        "b": {T: 7},
        "c": {TopicPartition("wide", number): number for number in range(3)},
        "d": {T: 0, TopicPartition("wide", 3): 1},
    }
    for group, positions in wanted.items():
        rows = [(part.topic, part.partition, Committed(offset)) for part, offset in positions.items()]
        await committed.commit(group, rows)
    assert await lab.ask(reader.groups) == wanted


async def test_ranges_are_read_to_the_offset(lab: Lab, reader: AnabranchEndpoint) -> None:
    for base in range(0, 12, 3):
        await lab.append("t", [b"%d" % number for number in range(base, base + 3)])
    whole = {number: b"%d" % number for number in range(12)}
    assert await read(lab, reader, 0, 12) == whole
    for start, end in ((4, 8), (2, 3), (3, 9), (11, 12), (5, 5)):
        assert await read(lab, reader, start, end) == {n: value for n, value in whole.items() if start <= n < end}


async def test_many_fetches_make_one_reading(lab: Lab) -> None:
    for base in range(40):
        await lab.append("t", [bytes([base]) * 1000] * 5)
    reader = opened(lab, fetch_bytes="6000")
    assert await read(lab, reader, 0, 200) == {n: bytes([n // 5]) * 1000 for n in range(200)}
    await lab.ask(reader.close)


async def test_a_reading_that_is_given_up_leaves_the_connection_good(lab: Lab) -> None:
    for base in range(10):
        await lab.append("t", [bytes([base]) * 1000])
    reader = opened(lab, fetch_bytes="1000")

    def first() -> int:
        found = reader.read(OffsetRange("t", 0, 0, 10), VALUES, batch_bytes=1)
        rows = int(next(iter(found)).num_rows)
        found.close()
        return rows

    assert await lab.ask(first) == 1
    assert len(await read(lab, reader, 0, 10)) == 10
    await lab.ask(reader.close)


async def test_aborted_transactions_and_markers_are_gaps_but_not_of_what_is_raw(
    lab: Lab, reader: AnabranchEndpoint
) -> None:
    await lab.append_in_transaction("t", 7, 0, [b"aborted", b"aborted"])
    await lab.append("t", [b"plain"])
    await lab.end_transaction("t", 7, commit=False)
    await lab.append_in_transaction("t", 7, 2, [b"committed"])
    await lab.end_transaction("t", 7, commit=True)
    await lab.append_in_transaction("t", 8, 0, [b"open"])
    told = (await lab.ask(reader.positions, [T]))[T]
    assert (told.stable, told.high_watermark) == (6, 7)
    assert await read(lab, reader, 0, told.stable) == {2: b"plain", 4: b"committed"}
    raw = await lab.ask(lambda: list(reader.read_raw(OffsetRange("t", 0, 1, 7))))
    assert [(one.base_offset, one.end_offset, one.flags) for one in raw] == [
        (0, 2, FormatId.KAFKA),
        *((base, base + 1, FormatId.KAFKA) for base in range(2, 7)),
    ]
    stored = await lab.ask(lambda: list(reader.read_raw(OffsetRange("t", 0, 4, 5))))
    assert b"committed" in bytes(stored[0].payload)


async def test_what_is_trimmed_is_told_with_where_the_partition_begins(lab: Lab, reader: AnabranchEndpoint) -> None:
    for base in range(0, 10, 2):
        await lab.append("t", [b"%d" % base, b"%d" % (base + 1)])
    assert len(await read(lab, reader, 0, 10)) == 10
    await lab.log("t").trim(4)
    # What this endpoint remembers of the partition is older than that: the range server refuses.
    with pytest.raises(OffsetsGone, match="offset 1 of t-0 is gone: the partition begins at 4"):
        await read(lab, reader, 1, 10)
    with pytest.raises(OffsetsGone, match="begins at 4"):
        await read(lab, reader, 3, 10)
    assert len(await read(lab, reader, 4, 10)) == 6


async def test_what_an_operator_has_declared_lost_is_a_gap(lab: Lab, reader: AnabranchEndpoint) -> None:
    for base in range(0, 6, 2):
        await lab.append("t", [b"%d" % base, b"%d" % (base + 1)])
    await skip(lab.node.logs, lab.log("t"), 2, force=True)
    assert sorted(await read(lab, reader, 0, 6)) == [0, 1, 4, 5]
    assert sorted(await read(lab, reader, 3, 6)) == [4, 5]
    assert sorted(await read(lab, reader, 1, 3)) == [1]


async def test_a_batch_that_lies_about_itself_is_named_until_it_is_declared_lost(
    lab: Lab, reader: AnabranchEndpoint
) -> None:
    await lab.append("t", [b"good"])
    payload = encode([Record(None, b"value", timestamp=5)])
    payload[-3] ^= 1
    await appended(lab.log("t"), Batch(payload, 1, int(FormatId.KAFKA), 5))
    await lab.append("t", [b"good"])
    with pytest.raises(UnreadableBatch, match=r"offset 1 of t-0 .*checksum"):
        await read(lab, reader, 0, 3)
    await skip(lab.node.logs, lab.log("t"), 1, force=False)
    assert await read(lab, reader, 0, 3) == {0: b"good", 2: b"good"}


async def test_a_topic_that_was_deleted(lab: Lab, reader: AnabranchEndpoint) -> None:
    await lab.append("t", [b"a"])
    assert await read(lab, reader, 0, 1) == {0: b"a"}
    await lab.node.catalog.delete_topic("t")
    with pytest.raises(UnknownTopic):
        await lab.ask(reader.positions, [T])
    another = opened(lab)
    with pytest.raises(UnknownTopic):
        await read(lab, another, 0, 1)
    await lab.ask(another.close)


async def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    reader = endpoint(f"anabranch://127.0.0.1:{free_port()}", {"patienceMs": "100"})
    with pytest.raises(EndpointUnavailable, match="cannot be reached"):
        reader.positions([T])


@pytest.mark.parametrize("closed", ["sbp-pd", "sbp-range-server"])
async def test_a_node_that_keeps_its_range_servers_to_itself_is_read_through_and_that_is_said(
    tmp_path: Path, closed: str, caplog: pytest.LogCaptureFixture
) -> None:
    lab = await open_lab(tmp_path, **{f"listen.{closed}": "off"})
    await lab.node.catalog.create_topic("t", 1)
    await lab.append("t", [b"a"])
    for _ in range(2):
        reader = opened(lab)
        assert await read(lab, reader, 0, 1) == {0: b"a"}
        await lab.ask(reader.close)
    said = [one for one in caplog.messages if "publishes no range servers: records are read through" in one]
    assert len(said) == 1
    assert lab.node.metrics.front("pipeline").topic("t").records_out == 2
    await lab.close()


async def test_with_users_a_source_reads_what_its_user_may(tmp_path: Path) -> None:
    def edit(users: dict[str, User]) -> None:
        users["alice"] = User("alice", PasswordHash.from_password("alice", Cost(16, 1, 1)), {})

    class Doorman:
        def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
            return (resource.name, operation) != ("secret", Operation.READ)

    (tmp_path / "data").mkdir()
    change(tmp_path / "data" / "users.json", edit)
    # As a node opens them that is told nothing of its backend's listeners.
    node = node_of(tmp_path, **{"auth.required": "true", "listen.sbp-pd": "off", "listen.sbp-range-server": "off"})
    node.authorizer = Doorman()
    await node.start()
    lab = Lab(node, client_of(node))
    for name in ("t", "secret"):
        await node.catalog.create_topic(name, 1)
        await lab.append(name, [b"a", b"b"])
    stranger, alice = opened(lab), opened(lab, user="alice", password="alice")
    with pytest.raises(PipelineError, match="say who you are"):
        await read(lab, stranger, 0, 2)
    assert await read(lab, alice, 0, 2) == {0: b"a", 1: b"b"}
    with pytest.raises(PipelineError, match="you may not read topic 'secret'"):
        await lab.ask(lambda: list(alice.read(OffsetRange("secret", 0, 0, 2), VALUES)))
    for one in (stranger, alice):
        await lab.ask(one.close)
    await lab.close()


@pytest.mark.parametrize("required", [False, True])
async def test_with_users_nobody_is_led_to_servers_elsewhere_that_are_open_to_whoever_reaches_them(
    tmp_path: Path, required: bool
) -> None:
    def edit(users: dict[str, User]) -> None:
        users["alice"] = User("alice", PasswordHash.from_password("alice", Cost(16, 1, 1)), {})

    (tmp_path / "data").mkdir()
    change(tmp_path / "data" / "users.json", edit)
    cluster = ForeignCluster(servers=1)
    await cluster.serve()
    flags = {
        "auth.required": str(required).lower(),
        "sbp.mode": "external",
        "sbp.pd": cluster.address,
        "sbp.flavor": "elastic-stream",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
    }
    node = node_of(tmp_path, **flags)
    await node.start()
    lab = Lab(node, client_of(node, user="alice", password="alice"))
    assert (await lab.ask(lab.topics.node)).sbp.pd == (() if required else (cluster.address,))
    await node.catalog.create_topic("t", 1)
    await lab.append("t", [b"a", b"b"])
    reader = opened(lab, user="alice", password="alice")
    assert await read(lab, reader, 0, 2) == {0: b"a", 1: b"b"}
    await lab.ask(reader.close)
    await lab.close()
    await cluster.close()


async def test_reading_goes_on_after_the_node_was_away(lab: Lab, tmp_path: Path) -> None:
    for base in range(20):
        await lab.append("t", [bytes([base]) * 1000])
    reader = opened(lab, fetch_bytes="2000")
    found = reader.read(OffsetRange("t", 0, 0, 20), VALUES, batch_bytes=1)
    rows = (await lab.ask(lambda: next(found))).to_pylist()
    addresses = {f"listen__{name}": str(address) for name, address in lab.node.addresses.items()}
    await lab.node.stop()
    again = await open_lab(tmp_path, **addresses)
    rows += await lab.ask(lambda: [row for batch in found for row in batch.to_pylist()])
    assert [row["offset"] for row in rows] == list(range(20))
    await lab.ask(reader.close)
    await again.close()


@pytest.mark.parametrize("options", [{"fetch.bytes": "0"}, {"fetch.bytes": "4m"}, {"user": "somebody"}])
def test_options_that_cannot_be(options: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        endpoint("anabranch://localhost:8090", options)


def test_errors_travel_between_processes() -> None:
    error = pickle.loads(pickle.dumps(OffsetsGone("t", 1, 2, 3)))
    assert (error.wanted, error.start) == (2, 3)
