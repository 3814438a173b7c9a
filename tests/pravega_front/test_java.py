"""Pravega's Java client against a node."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pravega_front.wire.controller import DeleteScopeStatus, TableStatus
from tests import drivers
from tests.node_process import NodeProcess
from tests.pravega_front.conftest import needs_node
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.java_client import Java, b64, events, numbers, plain

SCOPE = "java"

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def java(controller_address: str) -> Iterator[Java]:
    client = Java(controller_address, SCOPE)
    try:
        yield client
    finally:
        client.close()


def test_a_writer_and_a_reader_group_over_a_scale(java: Java) -> None:
    assert java("create", stream="events", segments=1)
    assert not java("create", stream="events", segments=1)
    java("writer", name="w", stream="events")
    assert java("write", name="w", events=events(0, 2000, 5)) == 2000
    assert java("group", name="group", stream="events")
    java("reader", name="group", reader="r")
    found = plain(java("read", reader="r", count=1000))
    assert java("scale", stream="events", sealed=[0], ranges=[[0.0, 0.4], [0.4, 1.0]])
    assert java("write", name="w", events=events(2000, 4000, 5)) == 2000
    found += plain(java("read", reader="r", count=3000))
    numbers = [int(one) for one in found]
    assert sorted(numbers) == list(range(4000))
    for key in range(5):
        assert [one for one in numbers if one % 5 == key] == list(range(key, 4000, 5)), "in the order of their key"
    java("close_writer", name="w")
    java("close_reader", reader="r")
    java("delete_group", name="group")
    assert "events" in java("list")


def test_checkpoints_truncation_and_the_batch_client(java: Java) -> None:
    java("create", stream="points", segments=2)
    java("writer", name="p", stream="points")
    java("write", name="p", events=events(0, 100, 7))
    java("group", name="points", stream="points")
    java("reader", name="points", reader="p")
    java("read", reader="p", count=100)
    assert java("checkpoint", name="points", reader="p", point="middle") == 0
    java("write", name="p", events=events(100, 200, 7))
    assert sorted(map(int, plain(java("read", reader="p", count=100)))) == list(range(100, 200))
    java("close_reader", reader="p")
    java("reset", name="points", point="middle")
    java("reader", name="points", reader="again")
    assert sorted(map(int, plain(java("read", reader="again", count=100)))) == list(range(100, 200))
    assert sorted(map(int, plain(java("batch", stream="points")))) == list(range(200))
    assert java("truncate", stream="points", point="middle")
    assert sorted(map(int, plain(java("batch", stream="points")))) == list(range(100, 200))
    java("close_reader", reader="again")


def test_stream_cuts(java: Java) -> None:
    java("create", stream="cuts", segments=2)
    java("writer", name="cuts", stream="cuts")
    java("write", name="cuts", events=events(0, 50, 7))
    java("tail", stream="cuts", name="first")
    java("write", name="cuts", events=events(50, 100, 7))
    assert java("scale", stream="cuts", sealed=[0], ranges=[[0.0, 0.25], [0.25, 0.5]])
    java("write", name="cuts", events=events(100, 150, 7))
    java("tail", stream="cuts", name="second")
    java("write", name="cuts", events=events(150, 200, 7))
    # A group that reads what lies between two cuts, over the scale, and the batch client likewise.
    assert java("group_between", name="between", stream="cuts", **{"from": "first", "to": "second"})
    java("reader", name="between", reader="between")
    assert sorted(numbers(java("read", reader="between", count=100))) == list(range(50, 150))
    assert java("read", reader="between", count=1, seconds=3) == [], "the cut is the end"
    java("close_reader", reader="between")
    for first, last, wanted in (
        ("first", "second", range(50, 150)),
        ("", "first", range(50)),
        ("second", "", range(150, 200)),
    ):
        found = java("batch_between", stream="cuts", **{"from": first, "to": last})
        assert sorted(numbers(found)) == list(wanted)
    # Where a group's reader is, as a cut: from there another one goes on.
    assert java("group_between", name="begins", stream="cuts")
    java("reader", name="begins", reader="begins")
    assert len(java("read", reader="begins", count=200)) == 200
    java("write", name="cuts", events=events(200, 210, 7))
    assert sorted(numbers(java("read", reader="begins", count=10))) == list(range(200, 210))
    java("generate_cut", name="begins", reader="begins", stream="cuts", cut="read")
    java("write", name="cuts", events=events(210, 220, 7))
    assert sorted(numbers(java("batch_between", stream="cuts", **{"from": "read"}))) == list(range(210, 220))
    java("close_reader", reader="begins")
    # What lies before a cut is truncated, segments that were sealed before it among that.
    assert java("truncate_at", stream="cuts", name="second")
    assert java("head", stream="cuts", name="head") == java("tail_of", name="second")
    assert sorted(numbers(java("batch", stream="cuts"))) == list(range(150, 220))
    java("close_writer", name="cuts")


def test_a_list_of_events_as_long_as_a_frame_of_pravegas(java: Java) -> None:
    java("create", stream="lists", segments=1)
    java("writer", name="lists", stream="lists")
    # A frame has 16 MiB less a byte, with 24 bytes in front of the data, and each event has a head of eight.
    room = 16 * 1024**2 - 1 - 24
    sizes = [room // 2 - 8, room - room // 2 - 8]
    assert java("write_list", name="lists", events=sizes) == 2
    java("group", name="lists", stream="lists")
    java("reader", name="lists", reader="lists")
    assert java("read", reader="lists", count=2, digests=True) == [*map(digest, sizes)]
    java("close_reader", reader="lists")
    java("close_writer", name="lists")


def test_transactions(java: Java) -> None:
    java("create", stream="transactions", segments=2)
    large = [["large", b64(bytes([number]) * 1_000_000)] for number in range(12)]
    rounds = [[True, events(0, 50, 5)], [False, events(50, 100, 5)], [True, large]]
    assert java("transact", stream="transactions", rounds=rounds) == ["COMMITTED", "ABORTED", "COMMITTED"]
    java("group", name="transactions", stream="transactions")
    java("reader", name="transactions", reader="t")
    found = plain(java("read", reader="t", count=62))
    assert sorted(int(one) for one in found if len(one) < 10) == list(range(50))
    assert [one for one in found if len(one) > 10] == [base64.b64decode(one) for _, one in large]
    java("close_reader", reader="t")


def test_a_transaction_goes_on_over_a_scale(java: Java) -> None:
    java("create", stream="goes-on", segments=2)
    split = {"sealed": [0], "ranges": [[0.0, 0.25], [0.25, 0.5]], "events": events(50, 100, 5)}
    rounds: list[list[Any]] = [[True, events(0, 50, 5), split], [True, events(100, 150, 5)]]
    assert java("transact", stream="goes-on", rounds=rounds) == ["COMMITTED"] * 2
    java("group", name="goes-on", stream="goes-on")
    java("reader", name="goes-on", reader="goes-on")
    found = numbers(java("read", reader="goes-on", count=150))
    for key in range(5):
        assert [one for one in found if one % 5 == key] == list(range(key, 150, 5)), "in the order of their key"
    java("close_reader", reader="goes-on")


def test_large_events(java: Java) -> None:
    java("create", stream="large", segments=1)
    java("writer", name="large", stream="large", large=True)
    large = bytes(range(256)) * (10 * 1024 * 4)  # 10 MiB
    java("write", name="large", events=[["k", b64(b"before")], ["k", b64(large)], ["k", b64(b"after")]])
    java("group", name="large", stream="large")
    java("reader", name="large", reader="large")
    assert plain(java("read", reader="large", count=3)) == [b"before", large, b"after"]
    java("close_reader", reader="large")


def digest(size: int) -> str:
    """Of an event whose data is told by its size."""
    return sha256((bytes(range(251)) * (size // 251 + 1))[:size]).hexdigest()


def test_an_event_of_64_mib_and_a_transaction_of_100_mib(java: Java) -> None:
    size = 64 * 1024**2
    java("create", stream="huge", segments=1)
    java("writer", name="huge", stream="huge", large=True)
    java("write", name="huge", events=[["k", 1], ["k", size], ["k", 2]])
    java("close_writer", name="huge")
    parts = [1024**2 + number for number in range(100)]
    assert java("transact", stream="huge", rounds=[[True, [["k", one] for one in parts]]]) == ["COMMITTED"]
    java("group", name="huge", stream="huge")
    java("reader", name="huge", reader="huge")
    assert java("read", reader="huge", count=103, digests=True) == [*map(digest, (1, size, 2, *parts))]
    java("close_reader", reader="huge")


def test_time_windows(java: Java) -> None:
    java("create", stream="times", segments=2)
    java("writer", name="times", stream="times")
    for time in (1000, 2000):
        java("write", name="times", events=events(time, time + 10, 7))
        java("note_time", name="times", time=time)
    java("group", name="times", stream="times")
    java("reader", name="times", reader="times")
    java("read", reader="times", count=20)
    assert java("window", reader="times", stream="times", lower=2000)[0] == 2000
    java("close_reader", reader="times")
    java("close_writer", name="times")


def test_byte_streams(java: Java) -> None:
    java("create", stream="bytes", segments=1)
    data = bytes(range(256)) * 1000
    found, head, behind = java("bytes", stream="bytes", data=b64(data), truncate=100)
    assert (base64.b64decode(found), head, behind) == (data, 100, -1)


def test_revisions(java: Java) -> None:
    java("create", stream="revisions", segments=1)
    values = [f"{number}".encode() for number in range(10)]
    found, conditional, marked, left = java("revisions", stream="revisions", values=[b64(one) for one in values])
    assert plain(found) == [*values, b"conditional"]
    assert conditional
    assert marked
    assert plain(left) == [b"conditional"]


@needs_node
def test_what_kafka_wrote_is_read_as_events(java: Java, node: NodeProcess) -> None:
    java("create", stream="other")  # which makes the scope
    producer = Producer({"bootstrap.servers": node.kafka})
    for value in (b"one", b"", None, b"four"):
        producer.produce(f"{SCOPE}.from-kafka", value, b"key")
    assert producer.flush(30) == 0
    java("group", name="from-kafka", stream="from-kafka")
    java("reader", name="from-kafka", reader="k")
    assert plain(java("read", reader="k", count=4)) == [b"one", b"", b"", b"four"]


def test_a_sealed_stream(java: Java) -> None:
    java("create", stream="sealed", segments=1)
    java("writer", name="sealed", stream="sealed")
    java("write", name="sealed", events=events(0, 10))
    assert java("seal", stream="sealed")
    with pytest.raises(drivers.DriverError, match="sealed"):
        java("write", name="sealed", events=events(10, 11))
    java("group", name="sealed", stream="sealed")
    java("reader", name="sealed", reader="s")
    assert len(java("read", reader="s", count=10)) == 10
    assert java("delete", stream="sealed")


def test_key_value_tables(java: Java) -> None:
    java("create", stream="beside-tables")  # which makes the scope
    for partitions in (1, 3):
        found = java("tables", name=f"table-{partitions}", partitions=partitions, count=10)
        every = sorted(f"{number:04}{second}" for number in range(10) for second in ("aa", "bb"))
        every.remove("0001aa")
        assert sorted(found.pop("all")) == every
        assert found == {
            "made": True,
            "again": False,
            "names": [f"table-{partitions}"],
            "inserted again": "BadKeyVersionException",
            "old version": "BadKeyVersionException",
            "value": "new",
            "removed": True,
            "removed again": "BadKeyVersionException",
            "never there": "BadKeyVersionException",
            "of one": ["0001bb"],
            "range": [f"{number:04}{second}" for number in (3, 4, 5) for second in ("aa", "bb")],
            "many": ["", "", "value 2"],
            "deleted": True,
            "deleted again": False,
        }


def test_a_scope_is_deleted_with_everything_in_it(java: Java, controller: ControllerClient) -> None:
    inside = {"scope": "goes"}
    java("create", stream="events", segments=2, **inside)
    java("writer", name="goes", stream="events", **inside)
    java("write", name="goes", events=events(0, 10))
    java("close_writer", name="goes")
    java("group", name="readers", stream="events", **inside)
    table = {"scope": "goes", "kvtName": "table"}
    assert not controller.createKeyValueTable(partitionCount=2, primaryKeyLength=4, **table).status
    assert java("delete_scope", **inside)
    assert not controller.checkScopeExists(scope="goes").exists
    assert controller.getKeyValueTableConfiguration(**table).status == TableStatus.TABLE_NOT_FOUND
    assert controller.deleteScopeRecursive(scope="goes").status == DeleteScopeStatus.SUCCESS
    assert java("create", stream="events", **inside), "nothing of it is left"
    assert java("group", name="readers", stream="events", **inside)


@needs_node
@pytest.mark.parametrize(("config", "value"), [("cleanup.policy", "compact"), ("max.message.bytes", "2000")])
def test_a_write_that_the_rules_of_a_topic_refuse_ends_with_an_error(
    node: NodeProcess, java: Java, config: str, value: str
) -> None:
    stream = f"refuses-{config.replace('.', '-')}"
    admin = AdminClient({"bootstrap.servers": node.kafka})
    topic = f"{SCOPE}.{stream}"
    admin.create_topics([NewTopic(topic, 1, 1, config={config: value})])[topic].result(30)
    java("writer", writer=stream, stream=stream)
    with pytest.raises(drivers.DriverError, match="sealed"):
        java("write", writer=stream, events=[["key", b64(bytes(3000))]])
