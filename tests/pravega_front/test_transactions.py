"""Transactions, call by call and command by command, also when the process is killed under them."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen
from uuid import uuid4

import grpc
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from bridges.catalog.database.schema import APPLICATION_ID, HAS_CHECKSUMS, MIGRATIONS
from bridges.catalog.database.sql import Connection
from pravega_front.names import TRANSACTION
from pravega_front.wire import commands as wire
from pravega_front.wire.controller import PingStatus, TxnState, TxnStatus
from tests.databases import database
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.conftest import LISTENERS
from tests.pravega_front.controller_client import ControllerClient, stream
from tests.pravega_front.raw_client import Closed, RawClient, event

SCOPE = "transactions"
LEASE_MS = 600_000
"""The longest that a transaction may ask for: none expires while a test waits for a processor."""


class Stream:
    """A stream of two segments, and what is done with transactions on it."""

    def __init__(self, node: NodeProcess, name: str) -> None:
        self.node = node
        self.name = name
        self.calls = ControllerClient(node.addresses["pravega"])
        self.calls.createScope(scope=SCOPE)
        self.info = stream(SCOPE, name)
        policy = {"minNumSegments": 2}
        assert self.calls.createStream(streamInfo=self.info, scalingPolicy=policy).status == 0

    def begin(self, lease: int = LEASE_MS) -> Any:
        return self.calls.createTransaction(streamInfo=self.info, lease=lease).txnId

    def segment(self, number: int, txn: Any = None) -> str:
        name = f"{SCOPE}/{self.name}/{number}.#epoch.0"
        return name if txn is None else f"{name}{TRANSACTION}{txn.highBits:016x}{txn.lowBits:016x}"

    def write(self, txn: Any, data: bytes, events: int = 1, answer: type[wire.Command] = wire.DataAppended) -> None:
        """The same events to both segments, with this answer."""
        with RawClient(self.node.addresses["pravega-segmentstore"]) as client:
            for number in (0, 1):
                writer = uuid4().bytes
                client.ask(wire.SetupAppend(1, writer, self.segment(number, txn), ""), wire.AppendSetup)
                client.ask(wire.AppendBlockEnd(writer, len(data), data, events, events, 1), answer)

    def read(self, number: int) -> bytes:
        """All bytes of a segment."""
        found = b""
        with RawClient(self.node.addresses["pravega-segmentstore"]) as client:
            name = self.segment(number)
            end = client.ask(wire.GetStreamSegmentInfo(1, name, ""), wire.StreamSegmentInfo).write_offset
            while len(found) < end:
                found += client.ask(wire.ReadSegment(name, len(found), 1 << 20, "", 1), wire.SegmentRead).data
        return found

    def state(self, txn: Any) -> TxnState:
        return TxnState(self.calls.checkTransactionState(streamInfo=self.info, txnId=txn).status)

    def ended(self, txn: Any) -> TxnState:
        """How a transaction ends, once it has."""
        while (state := self.state(txn)) in (TxnState.COMMITTING, TxnState.ABORTING):
            pass
        return state


def test_operators_see_what_is_open_and_abort_it(node: NodeProcess) -> None:
    found = Stream(node, "seen")
    kept, dropped = found.begin(), found.begin()
    found.write(dropped, event(b"never seen"))
    names = [f"{SCOPE}/seen/{one.highBits:016x}{one.lowBits:016x}" for one in (kept, dropped)]
    with urlopen(f"{node.console}/api/transactions?limit=50&open=true&search=/seen/") as answer:
        told = json.load(answer)["transactions"]
    assert sorted(one["transactional_id"] for one in told) == sorted(names)
    assert {(one["front"], one["state"], one["timeout_ms"]) for one in told} == {("pravega", "Open", LEASE_MS)}
    path = f"{node.console}/api/transactions/{quote(names[1], safe='')}"
    with urlopen(path) as answer:
        places = json.load(answer)["partitions"]
    assert [one["partition"] for one in places] == [0, 1]
    with urlopen(Request(f"{path}/abort", method="POST")) as answer:
        assert json.load(answer)["open_ms"] is None
    assert found.ended(dropped) is TxnState.ABORTED
    assert found.state(kept) is TxnState.OPEN
    assert found.read(0) == b""


def test_the_life_of_a_transaction(node: NodeProcess) -> None:
    found = Stream(node, "life")
    committed, aborted = found.begin(), found.begin()
    assert committed.lowBits >= 0
    assert committed.highBits >= 0
    found.write(committed, event(b"a") + event(b"b"), 2)
    found.write(aborted, event(b"never"))
    assert found.read(0) == b""
    ping = found.calls.pingTransaction
    assert ping(streamInfo=found.info, txnId=committed, lease=LEASE_MS).status == PingStatus.OK
    assert ping(streamInfo=found.info, txnId=committed, lease=10**9).status == PingStatus.LEASE_TOO_LARGE
    assert found.state(committed) is TxnState.OPEN
    assert found.calls.commitTransaction(streamInfo=found.info, txnId=committed).status == TxnStatus.SUCCESS
    assert found.calls.abortTransaction(streamInfo=found.info, txnId=aborted).status == TxnStatus.SUCCESS
    assert found.calls.commitTransaction(streamInfo=found.info, txnId=aborted).status == TxnStatus.FAILURE
    assert (found.ended(committed), found.ended(aborted)) == (TxnState.COMMITTED, TxnState.ABORTED)
    assert ping(streamInfo=found.info, txnId=committed, lease=LEASE_MS).status == PingStatus.COMMITTED
    assert [found.read(number) for number in (0, 1)] == [event(b"a") + event(b"b")] * 2
    unknown = {"highBits": 0, "lowBits": 10**12}
    assert found.state(unknown) is TxnState.UNKNOWN
    answer = found.calls.commitTransaction(streamInfo=found.info, txnId=unknown)
    assert answer.status == TxnStatus.TRANSACTION_NOT_FOUND
    with RawClient(node.addresses["pravega-segmentstore"]) as client:
        late = wire.SetupAppend(1, uuid4().bytes, found.segment(0, aborted), "")
        client.ask(late, wire.NoSuchSegment)
    assert len(found.calls.listCompletedTransactions(streamInfo=found.info).response) == 2
    assert "a callback failed" not in node.log.read_text(), "what they wrote lay in topics that are no streams"


def test_a_stream_is_not_sealed_under_its_transactions(node: NodeProcess) -> None:
    found = Stream(node, "unsealed")
    found.calls.scale(streamInfo=found.info, sealedSegments=[0, 1], newKeyRanges=[{"start": 0, "end": 1}])
    txn = found.begin()
    last = f"{SCOPE}/unsealed/2.#epoch.1"
    with RawClient(node.addresses["pravega-segmentstore"]) as client:
        client.ask(wire.SealSegment(1, last, ""), wire.OperationUnsupported)
        found.calls.abortTransaction(streamInfo=found.info, txnId=txn)
        assert found.ended(txn) is TxnState.ABORTED
        client.ask(wire.SealSegment(1, last, ""), wire.SegmentSealed)
    assert not found.calls.getCurrentSegments(scope=SCOPE, stream="unsealed").segmentRanges


def test_a_lease_outside_the_bounds_is_refused(node: NodeProcess) -> None:
    found = Stream(node, "leases")
    for lease in (10, 10**9):
        with pytest.raises(grpc.RpcError) as refused:
            found.begin(lease)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.008, 0.03])
def test_a_commit_under_which_the_process_is_killed(mortal: NodeProcess, delay: float) -> None:
    found = Stream(mortal, f"killed-{int(delay * 1000)}")
    open_still, large, small = found.begin(), found.begin(), found.begin()
    piece = event(b"l" * 1_000_000)
    for _ in range(5):
        found.write(large, piece * 2, 2)  # more than fits into one batch: a transaction of the log
    found.write(small, event(b"small"))
    found.write(open_still, event(b"open"))
    accepted: list[Any] = []

    def commit() -> None:
        for txn in (large, small):
            try:
                found.calls.commitTransaction(streamInfo=found.info, txnId=txn)
                accepted.append(txn)
            except grpc.RpcError:
                return

    thread = threading.Thread(target=commit)
    thread.start()
    time.sleep(delay)  # how far the commit has come is different each time, and every outcome is right
    mortal.restart(kill=True)
    thread.join(60)
    found = _again(found)
    for txn in accepted:
        assert found.ended(txn) is TxnState.COMMITTED, "it was accepted"
    states = {name: found.ended(txn) for name, txn in (("large", large), ("small", small))}
    assert found.state(open_still) is TxnState.OPEN, "it goes on with a whole lease"
    for number in (0, 1):
        data = found.read(number)
        expected = b""
        if states["large"] is TxnState.COMMITTED:
            expected += piece * 10
        if states["small"] is TxnState.COMMITTED:
            expected += event(b"small")
        assert data == expected
    for txn in (large, small, open_still):
        if found.state(txn) is TxnState.OPEN:
            found.calls.abortTransaction(streamInfo=found.info, txnId=txn)
            assert found.ended(txn) is TxnState.ABORTED


def test_commits_are_carried_out_as_they_were_decided_also_by_the_next_start(mortal: NodeProcess) -> None:
    found = Stream(mortal, "order")
    late, early = found.begin(), found.begin()
    for _ in range(5):
        found.write(early, event(b"e" * 1_000_000) * 2, 2)
    found.write(late, event(b"late"))
    for txn in (early, late):
        assert found.calls.commitTransaction(streamInfo=found.info, txnId=txn).status == TxnStatus.SUCCESS
    mortal.restart(kill=True)  # most likely before anything was carried out
    found = _again(found)
    assert [found.ended(txn) for txn in (early, late)] == [TxnState.COMMITTED] * 2
    for number in (0, 1):
        assert found.read(number) == event(b"e" * 1_000_000) * 10 + event(b"late")


async def changed(directory: Path, change: Callable[[Connection], None]) -> None:
    """Change the database of a node that is not running."""
    db = database(directory / "node.db", MIGRATIONS, application_id=APPLICATION_ID, unwatched=HAS_CHECKSUMS)
    await db.open()
    await db.run(change)
    await db.close()


def test_how_transactions_ended_is_told_later_also_of_those_that_earlier_versions_kept(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with NodeProcess(directory, listen=dict.fromkeys(LISTENERS, ANY)) as node:
        found = Stream(node, "told")
        committed, aborted, begun = found.begin(), found.begin(), found.begin()
        found.write(committed, event(b"committed"))
        assert found.calls.commitTransaction(streamInfo=found.info, txnId=committed).status == TxnStatus.SUCCESS
        assert found.calls.abortTransaction(streamInfo=found.info, txnId=aborted).status == TxnStatus.SUCCESS
        ends = {committed.lowBits: TxnState.COMMITTED, aborted.lowBits: TxnState.ABORTED}

        def as_before(db: Connection) -> None:
            """As an earlier version left them."""
            (low,) = db.execute("SELECT low FROM front_pravega_transactions").fetchone()
            assert low == begun.lowBits, "of those that have ended only the outcome is kept"
            db.execute("DELETE FROM front_pravega_outcomes")
            row = (
                "INSERT INTO front_pravega_transactions "
                "(topic, high, low, state, lease_ms, created_ms, hidden, parents, decided) "
                "VALUES (?, ?, ?, ?, 1, 1, ?, '[0, 1]', 1)"
            )
            for low, state in ends.items():
                db.execute(row, (f"{SCOPE}.told", 0, low, int(state), f"_pravega.transaction-{low}"))

        for earlier in (False, True):
            assert [found.ended(txn) for txn in (committed, aborted)] == list(ends.values())
            told = found.calls.listCompletedTransactions(streamInfo=found.info).response
            assert {one.txnId.lowBits: one.status for one in told} == {committed.lowBits: 0, aborted.lowBits: 1}
            # Again what was done is no news, and what was not can be done no more.
            assert found.calls.commitTransaction(streamInfo=found.info, txnId=committed).status == TxnStatus.SUCCESS
            assert found.calls.commitTransaction(streamInfo=found.info, txnId=aborted).status == TxnStatus.FAILURE
            node.stop()
            if not earlier:
                asyncio.run(changed(directory, as_before))
            node.start()
            found = _again(found)
        assert found.state(begun) is TxnState.OPEN
        assert found.read(0) == event(b"committed")


def test_what_a_stream_demands_is_looked_at_when_a_transaction_is_written(node: NodeProcess) -> None:
    """What was acknowledged in it is committed, also when more is demanded by then."""
    one = Stream(node, "demanding")
    admin = AdminClient({"bootstrap.servers": node.kafka})

    def demand(name: str, value: str) -> None:
        change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ConfigResource.Type.TOPIC, f"{SCOPE}.demanding", incremental_configs=[change])
        admin.incremental_alter_configs([topic])[topic].result(30)

    demand("max.message.bytes", "2000")
    txn = one.begin()
    one.write(txn, event(bytes(1500)))
    for transaction in (txn, None):
        one.write(transaction, event(bytes(3000)), answer=wire.SegmentIsSealed)
    demand("cleanup.policy", "compact")
    one.write(None, event(b"has no key"), answer=wire.SegmentIsSealed)
    assert one.calls.commitTransaction(streamInfo=one.info, txnId=txn).status == TxnStatus.SUCCESS
    assert one.ended(txn) is TxnState.COMMITTED
    assert one.read(0) == one.read(1) == event(bytes(1500))


def test_commits_leave_nothing_among_kafkas_producers(node: NodeProcess) -> None:
    found = Stream(node, "producers")
    txn = found.begin()
    for _ in range(5):
        found.write(txn, event(b"l" * 1_000_000) * 2, 2)
    found.calls.commitTransaction(streamInfo=found.info, txnId=txn)
    assert found.ended(txn) is TxnState.COMMITTED
    assert [_kafkas_producers(node, f"{SCOPE}.producers", partition) for partition in (0, 1)] == [0, 0]


def _kafkas_producers(node: NodeProcess, topic: str, partition: int) -> int:
    """How many producers Kafka's DescribeProducers tells of, which is request 61."""
    name = bytes([len(topic) + 1]) + topic.encode()
    request = struct.pack(">hhihb", 61, 0, 1, -1, 0) + b"\2" + name + struct.pack(">bib", 2, partition, 0) + b"\0"
    host, _, port = node.kafka.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as kafka, kafka.makefile("rb") as answers:
        kafka.sendall(struct.pack(">i", len(request)) + request)
        answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    at = answer.index(name) + len(name)
    count, index, error, message, producers = struct.unpack_from(">bihbb", answer, at)
    assert (count, index, error, message) == (2, partition, 0, 0), answer
    return int(producers) - 1


def _again(found: Stream) -> Stream:
    """The same stream after a restart."""
    again = object.__new__(Stream)
    again.node, again.name, again.info = found.node, found.name, found.info
    again.calls = ControllerClient(found.node.addresses["pravega"])
    return again


def test_events_of_a_transaction_stay_events_however_many_they_are(node: NodeProcess) -> None:
    found = Stream(node, "many")
    txn = found.begin()
    each = 150_000  # two appends of so many are more than one may have
    for _ in range(2):
        found.write(txn, event(b"") * each, each)
    found.calls.commitTransaction(streamInfo=found.info, txnId=txn)
    assert found.ended(txn) is TxnState.COMMITTED
    assert found.read(0) == event(b"") * (2 * each)
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "many", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(f"{SCOPE}.many", 0, 2 * each - 1)])
        last = consumer.poll(30)
        assert last is not None
        assert (last.error(), last.offset(), last.value(), last.headers()) == (None, 2 * each - 1, b"", None)
    finally:
        consumer.close()


def test_writers_are_told_when_their_transaction_is_gone(node: NodeProcess) -> None:
    found = Stream(node, "gone")
    txn = found.begin()
    writer = uuid4().bytes
    with RawClient(node.addresses["pravega-segmentstore"]) as client:
        client.ask(wire.SetupAppend(1, writer, found.segment(0, txn), ""), wire.AppendSetup)
        found.calls.abortTransaction(streamInfo=found.info, txnId=txn)
        found.ended(txn)
        # Until the topic behind it is deleted, its segments take no more; afterwards there are none.
        number = 0
        answer: wire.Command = wire.KeepAlive()
        while not isinstance(answer, wire.NoSuchSegment | wire.SegmentIsSealed):
            number += 1
            try:
                answer = client.ask(wire.AppendBlockEnd(writer, 4, b"late", 1, number, 1), wire.Command)
            except Closed:
                pytest.fail("the connection stays")


def _write_large(client: RawClient, parent: str, size: int) -> tuple[str, bytes]:
    """Write a large event for a segment, part by part as clients do; gives the transient segment, and its bytes."""
    data = event((bytes(range(251)) * (size // 251 + 1))[: size - 8])
    writer = uuid4().bytes
    made = client.ask(wire.CreateTransientSegment(1, writer, parent, ""), wire.SegmentCreated).segment
    client.ask(wire.SetupAppend(1, writer, made, ""), wire.AppendSetup)
    for number, at in enumerate(range(0, size, 1 << 23)):
        part = wire.ConditionalBlockEnd(writer, number, at, data[at : at + (1 << 23)], 1)
        client.ask(part, wire.DataAppended)
    return made, data


@pytest.mark.parametrize("size", [1 << 20, 20 << 20])
def test_large_events_are_merged_into_a_transaction(node: NodeProcess, size: int) -> None:
    found = Stream(node, f"large-{size}")
    txn, aborted = found.begin(), found.begin()
    with RawClient(node.addresses["pravega-segmentstore"]) as client:
        found.write(txn, event(b"before"))
        source, data = _write_large(client, found.segment(0, txn), size)
        client.ask(wire.MergeSegments(1, found.segment(0, txn), source, ""), wire.SegmentsMerged)
        found.write(txn, event(b"after"))
        dropped, _ = _write_large(client, found.segment(1, aborted), size)
        client.ask(wire.MergeSegments(1, found.segment(1, aborted), dropped, ""), wire.SegmentsMerged)
        assert found.calls.abortTransaction(streamInfo=found.info, txnId=aborted).status == TxnStatus.SUCCESS
        assert found.calls.commitTransaction(streamInfo=found.info, txnId=txn).status == TxnStatus.SUCCESS
        assert (found.ended(txn), found.ended(aborted)) == (TxnState.COMMITTED, TxnState.ABORTED)
        client.ask(wire.GetStreamSegmentInfo(1, source, ""), wire.NoSuchSegment)
    assert found.read(0) == event(b"before") + data + event(b"after")
    assert found.read(1) == event(b"before") + event(b"after")


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_a_merge_into_a_transaction_under_which_the_process_is_killed(mortal: NodeProcess, delay: float) -> None:
    found = Stream(mortal, f"large-killed-{int(delay * 1000)}")
    txn = found.begin()
    target = found.segment(0, txn)
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        source = f"{SCOPE}/source-{int(delay * 1000)}/0.#epoch.0"
        client.ask(wire.CreateSegment(1, source, 0, 0, ""), wire.SegmentCreated)
        writer = uuid4().bytes
        client.ask(wire.SetupAppend(1, writer, source, ""), wire.AppendSetup)
        data = event(bytes(range(250)) * 80_000)
        for number, at in enumerate(range(0, len(data), 1 << 23)):
            client.ask(wire.ConditionalBlockEnd(writer, number, at, data[at : at + (1 << 23)], 1), wire.DataAppended)
        client.send(wire.MergeSegments(1, target, source, ""))
        time.sleep(delay)  # how far it has come is different each time, and every outcome is right
        mortal.restart(kill=True)
    found = _again(found)
    with RawClient(mortal.addresses["pravega-segmentstore"]) as client:
        # What was decided goes on, and to ask again does it once.
        client.ask(wire.MergeSegments(1, target, source, ""), wire.SegmentsMerged)
    assert found.calls.commitTransaction(streamInfo=found.info, txnId=txn).status == TxnStatus.SUCCESS
    assert found.ended(txn) is TxnState.COMMITTED
    assert found.read(0) == data
