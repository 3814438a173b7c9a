"""Pravega's clients in a cluster: every node's controller leads them to the owners of segments."""

from __future__ import annotations

import asyncio
import signal
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import grpc
import pytest
from pravega_client import StreamManager, StreamReader

from pravega_front.names import TRANSACTION, SegmentName
from pravega_front.wire import commands as wire
from pravega_front.wire.controller import PingStatus, TxnState, TxnStatus
from tests import drivers
from tests.cluster.test_failover import PATIENCE, commanded, members
from tests.conftest import NodeFactory
from tests.kit.waiting import wait_until
from tests.kit.wheel import read_events
from tests.node_process import ANY, NodeProcess
from tests.postgres import Postgres
from tests.pravega_front.controller_client import ControllerClient, scale, stream
from tests.pravega_front.java_client import POM
from tests.pravega_front.raw_client import Closed, RawClient, event
from tests.torture.torture_pravega import WHEEL

SCOPE = "cluster"
SEGMENTS = 6


LISTENERS = ("pravega", "pravega-segmentstore", "console", "sbp-pd", "sbp-range-server", "cluster")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    """Three, that tests may end and start again."""
    directory = tmp_path_factory.mktemp("nodes")
    factory = NodeFactory(directory)
    bucket = directory / "bucket"
    bucket.mkdir()
    stored = {
        "sbp.durability": "object",
        "sbp.objects": f"file://{bucket}",
        "sbp.object_linger_ms": "10",
        "pravega.transaction_min_lease_ms": "1000",
    }
    url = postgres.made()
    listen = dict.fromkeys(LISTENERS, ANY)
    try:
        made = []
        for number in (1, 2, 3):
            own = {"cluster.database": url, "node.id": f"{number}", "sbp.object_log": f"{number}"}
            made.append(factory(f"node{number}", settings=stored | own, listen=listen, start=False))
        for node in made:
            node.launch()
        for node in made:
            node.await_ready()
        wait_until(lambda: is_shared(made))
        yield made
    finally:
        factory.dispose()


@pytest.fixture
def controllers(nodes: list[NodeProcess]) -> Iterator[list[ControllerClient]]:
    clients = [ControllerClient(node.addresses["pravega"]) for node in nodes]
    yield clients
    for client in clients:
        client.close()


def owners(controller: ControllerClient, name: str) -> dict[int, str]:
    """Where the controller says that the active segments of a stream are, by their ids."""
    found = controller.getCurrentSegments(scope=SCOPE, stream=name).segmentRanges
    return {one.segmentId.segmentId: place(controller, name, one.segmentId.segmentId) for one in found}


def place(controller: ControllerClient, name: str, segment: int) -> str:
    """As clients find it, who ask again while its owner does not answer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            told = controller.getURI(streamInfo=stream(SCOPE, name), segmentId=segment)
        except grpc.RpcError as refused:
            if refused.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise
        else:
            return f"{told.endpoint}:{told.port}"


def make(controller: ControllerClient, name: str, segments: int = SEGMENTS) -> None:
    controller.createScope(scope=SCOPE)
    policy = {"scaleType": 0, "minNumSegments": segments}
    assert controller.createStream(streamInfo=stream(SCOPE, name), scalingPolicy=policy).status == 0


def make_everywhere(controller: ControllerClient, name: str, at: set[str]) -> tuple[str, dict[int, str]]:
    """A new stream with segments at all these stores, and where each is: after many moves a stream's may miss one."""
    for attempt in range(50):
        make(controller, f"{name}-{attempt}")
        led = owners(controller, f"{name}-{attempt}")
        if set(led.values()) == at:
            return f"{name}-{attempt}", led
    raise AssertionError("no stream is at all stores")


def segment_at(controller: ControllerClient, name: str, address: str) -> tuple[str, int]:
    """A new stream, and the id of a segment of it that is at this store: of a stream's few perhaps none is."""
    for attempt in range(50):
        make(controller, f"{name}-{attempt}")
        for number, at in owners(controller, f"{name}-{attempt}").items():
            if at == address:
                return f"{name}-{attempt}", number
    raise AssertionError(f"no segment of 50 streams is at {address}")


def stores(nodes: list[NodeProcess]) -> set[str]:
    return {node.addresses["pravega-segmentstore"] for node in nodes}


def read(reader: StreamReader, count: int) -> list[int]:
    """The numbers that the next events are."""
    return [int(event) for event in asyncio.run(asyncio.wait_for(read_events(reader, count), PATIENCE))]


def is_shared(nodes: list[NodeProcess]) -> bool:
    """Whether all of them own as much as the others, as each knows it."""
    for node in nodes:
        slots = [one["slots"] for one in members(node)]
        if len(slots) < len(nodes) or sum(slots) < 1024 or max(slots) - min(slots) > 1:
            return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_controller_leads_to_the_owners(nodes: list[NodeProcess], controllers: list[ControllerClient]) -> None:
    one, two, three = controllers
    make(one, "led")
    led = owners(two, "led")
    assert set(led.values()) == stores(nodes), "neighbouring segments are of different nodes"
    assert owners(one, "led") == owners(three, "led") == led
    told = three.getControllerServerList().nodeURI
    assert {f"{one.endpoint}:{one.port}" for one in told} == {node.addresses["pravega"] for node in nodes}
    for number, address in led.items():
        name = str(SegmentName(SCOPE, "led", number, 0))
        (other,) = sorted(stores(nodes) - {address})[:1]
        with RawClient(other) as client:
            # The store of another node says whose it is, and goes on with the connection.
            for command in (
                wire.SetupAppend(7, bytes(16), name, ""),
                wire.ReadSegment(name, 0, 1000, "", 7),
                wire.GetStreamSegmentInfo(7, name, ""),
                wire.TruncateSegment(7, name, 0, ""),
                wire.CreateTransientSegment(7, bytes(16), name, ""),
            ):
                assert client.ask(command, wire.WrongHost) == wire.WrongHost(7, name, address)
        with RawClient(address) as client:
            assert client.ask(wire.SetupAppend(7, bytes(16), name, ""), wire.AppendSetup).segment == name
    # What is made at one node is known to whoever asks another one next, and so is that there is no such thing.
    for number in range(10):
        make(controllers[number % 3], f"next{number}", 1)
        assert len(owners(controllers[(number + 1) % 3], f"next{number}")) == 1
    with RawClient(next(iter(stores(nodes)))) as client:
        client.ask(wire.SetupAppend(7, bytes(16), f"{SCOPE}/none/0.#epoch.0", ""), wire.NoSuchSegment)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_wheel_works_through_a_node_that_owns_nothing(
    nodes: list[NodeProcess], controllers: list[ControllerClient]
) -> None:
    commanded(nodes[1], "drain", "2")
    streams = StreamManager(f"tcp://{nodes[1].addresses['pravega']}")
    streams.create_scope(SCOPE)
    streams.create_stream(SCOPE, "events", SEGMENTS)
    led = owners(controllers[1], "events")
    assert set(led.values()) <= stores([nodes[0], nodes[2]])
    writer = streams.create_writer(SCOPE, "events")
    for number in range(300):
        writer.write_event(f"{number}", routing_key=f"key-{number % 17}")
    writer.flush()
    # Segments of two nodes become one of a third number, at whichever node it lies.
    scale(controllers[0], SCOPE, "events", [0, 1], [[0.0, 0.1], [0.1, 2 / SEGMENTS]])
    for number in range(300, 600):
        writer.write_event(f"{number}", routing_key=f"key-{number % 17}")
    writer.flush()
    reader = streams.create_reader_group("group", SCOPE, "events").create_reader("reader")
    found = read(reader, 600)
    assert sorted(found) == list(range(600))
    for key in range(17):
        assert [one for one in found if one % 17 == key] == list(range(key, 600, 17)), "in the order of their key"
    reader.reader_offline()
    nodes[1].stop()
    nodes[1].start()
    commanded(nodes[1], "undrain", "2")  # it would stay so
    wait_until(lambda: is_shared(nodes))


def append(address: str, name: str, data: bytes, events: int = 1) -> None:
    writer = uuid4().bytes
    with RawClient(address) as client:
        client.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup)
        client.ask(wire.AppendBlockEnd(writer, len(data), data, events, events, 1), wire.DataAppended)


def whole(address: str, name: str) -> bytes:
    """All bytes of a segment."""
    found = b""
    with RawClient(address) as client:
        end = client.ask(wire.GetStreamSegmentInfo(1, name, ""), wire.StreamSegmentInfo).write_offset
        while len(found) < end:
            found += client.ask(wire.ReadSegment(name, len(found), 1 << 20, "", 1), wire.SegmentRead).data
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_transactions_go_over_all_nodes(nodes: list[NodeProcess], controllers: list[ControllerClient]) -> None:
    one, two, three = controllers
    wait_until(lambda: is_shared(nodes))
    named, led = make_everywhere(one, "txn", stores(nodes))
    info = stream(SCOPE, named)

    def segment(number: int, txn: Any = None) -> str:
        name = str(SegmentName(SCOPE, named, number, 0))
        return name if txn is None else f"{name}{TRANSACTION}{txn.highBits:016x}{txn.lowBits:016x}"

    def ended(txn: Any) -> TxnState:
        found = TxnState.OPEN
        began = time.monotonic()
        while (found := TxnState(two.checkTransactionState(streamInfo=info, txnId=txn).status)) in (
            TxnState.COMMITTING,
            TxnState.ABORTING,
        ):
            assert time.monotonic() - began < PATIENCE
        return found

    # Begun at one node, written at the owners of its segments' parents, ended at the other nodes, in that order.
    first, second, dropped = (one.createTransaction(streamInfo=info, lease=60_000).txnId for _ in range(3))
    for txn, data in ((second, b"second"), (first, b"first"), (dropped, b"dropped")):
        for number, address in led.items():
            append(address, segment(number, txn), event(data))
    assert two.pingTransaction(streamInfo=info, txnId=first, lease=60_000).status == PingStatus.OK
    assert three.commitTransaction(streamInfo=info, txnId=first).status == TxnStatus.SUCCESS
    assert two.commitTransaction(streamInfo=info, txnId=second).status == TxnStatus.SUCCESS
    assert three.abortTransaction(streamInfo=info, txnId=dropped).status == TxnStatus.SUCCESS
    assert one.commitTransaction(streamInfo=info, txnId=dropped).status == TxnStatus.FAILURE, "it was decided"
    assert [ended(txn) for txn in (first, second, dropped)] == [
        TxnState.COMMITTED, TxnState.COMMITTED, TxnState.ABORTED,
    ]  # fmt: skip
    for number, address in led.items():
        assert whole(address, segment(number)) == event(b"first") + event(b"second")
    # A lease is kept by pings at whichever node, and ends without them.
    longest = 4.0
    while longest > 2.0:  # a machine with other work may send a ping too late
        pinged = one.createTransaction(streamInfo=info, lease=4_000).txnId
        told, last, longest = set(), time.monotonic(), 0.0
        for controller in [one] * 6 + [two] * 6 + [three] * 6:
            time.sleep(0.5)
            told.add(controller.pingTransaction(streamInfo=info, txnId=pinged, lease=4_000).status)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert told == {PingStatus.OK}
    wait_until(lambda: ended(pinged) is TxnState.ABORTED)
    # A scale at another node leaves open what is, for any node to end; a large event goes to its owner.
    left = two.createTransaction(streamInfo=info, lease=60_000).txnId
    scale(three, SCOPE, named, [0], [[0.0, 0.1], [0.1, 1 / SEGMENTS]])
    assert ended(left) is TxnState.OPEN
    assert one.abortTransaction(streamInfo=info, txnId=left).status == TxnStatus.SUCCESS
    assert ended(left) is TxnState.ABORTED
    later = one.createTransaction(streamInfo=info, lease=60_000).txnId
    assert later.highBits >> 32 == 1
    new = SEGMENTS | 1 << 32
    name = str(SegmentName(SCOPE, named, SEGMENTS, 1))
    address = place(two, named, new)
    append(address, f"{name}{TRANSACTION}{later.highBits:016x}{later.lowBits:016x}", event(b"later"))
    assert two.commitTransaction(streamInfo=info, txnId=later).status == TxnStatus.SUCCESS
    assert ended(later) is TxnState.COMMITTED
    with RawClient(address) as client:
        writer, data = uuid4().bytes, event(b"large" * 100_000)
        made = client.ask(wire.CreateTransientSegment(1, writer, name, ""), wire.SegmentCreated).segment
        client.ask(wire.SetupAppend(1, writer, made, ""), wire.AppendSetup)
        client.ask(wire.ConditionalBlockEnd(writer, 0, 0, data, 1), wire.DataAppended)
        client.ask(wire.MergeSegments(1, name, made, ""), wire.SegmentsMerged)
    assert whole(address, name) == event(b"later") + data
    # The sealed segment has its end at every node, and truncation of all is told to their owners.
    following = three.getSegmentsImmediatelyFollowing(streamInfo=info, segmentId=0).segments
    assert {one.segment.segmentId.segmentId for one in following} == {new, SEGMENTS + 1 | 1 << 32}
    size = len(event(b"first"))
    cut = dict.fromkeys(range(1, SEGMENTS), size) | {new: size, SEGMENTS + 1 | 1 << 32: 0}
    assert two.truncateStream(streamInfo=info, cut=cut).status == 0
    begin = {at.segmentId.segmentId: at.offset for at in one.getSegments(streamInfo=info).segments}
    assert begin == cut


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_who_waits_for_a_segment_that_moves_is_led_on(
    nodes: list[NodeProcess], controllers: list[ControllerClient]
) -> None:
    one = controllers[0]
    gone = nodes[2].addresses["pravega-segmentstore"]
    stream_name, number = segment_at(one, "moves", gone)
    name = str(SegmentName(SCOPE, stream_name, number, 0))
    with RawClient(gone) as client:
        writer = uuid4().bytes
        client.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup)
        client.ask(wire.AppendBlockEnd(writer, 9, event(b"1"), 1, 1, 1), wire.DataAppended)
        client.send(wire.ReadSegment(name, 9, 1000, "", 7))
        began = time.monotonic()
        commanded(nodes[0], "drain", "3")
        moved = client.receive(wire.WrongHost)
        print(f"led on after {time.monotonic() - began:.2f} s")
        assert moved == wire.WrongHost(7, name, place(one, stream_name, number))
        # The writer finds out with its next append, and goes on at the other node with the numbers that it had.
        refused = client.ask(wire.AppendBlockEnd(writer, 9, event(b"2"), 1, 2, 1), wire.WrongHost)
        assert refused.correct_host == moved.correct_host
    with RawClient(moved.correct_host) as client, RawClient(moved.correct_host) as reader:
        reader.send(wire.ReadSegment(name, 9, 1000, "", 8))
        assert client.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup).last_event_number == 1
        client.ask(wire.AppendBlockEnd(writer, 9, event(b"2"), 1, 2, 1), wire.DataAppended)
        assert reader.receive(wire.SegmentRead).data == event(b"2")
    nodes[2].stop()
    nodes[2].start()
    commanded(nodes[2], "undrain", "3")
    wait_until(lambda: is_shared(nodes))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_owner_that_sleeps_and_wakes_up_acknowledges_nothing(
    nodes: list[NodeProcess], controllers: list[ControllerClient]
) -> None:
    one = controllers[0]
    wait_until(lambda: is_shared(nodes))
    gone = nodes[2].addresses["pravega-segmentstore"]
    stream_name, number = segment_at(one, "asleep", gone)
    name = str(SegmentName(SCOPE, stream_name, number, 0))
    process, writer = nodes[2].process, uuid4().bytes
    assert process is not None
    with RawClient(gone, PATIENCE) as client:
        client.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup)
        client.ask(wire.AppendBlockEnd(writer, 9, event(b"1"), 1, 1, 1), wire.DataAppended)
        process.send_signal(signal.SIGSTOP)
        client.send(wire.AppendBlockEnd(writer, 9, event(b"2"), 1, 2, 1))
        wait_until(lambda: place(one, stream_name, number) != gone)
        address = place(one, stream_name, number)
        with RawClient(address) as other:
            assert other.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup).last_event_number == 1
            other.ask(wire.AppendBlockEnd(writer, 9, event(b"3"), 1, 2, 1), wire.DataAppended)
        process.send_signal(signal.SIGCONT)
        with suppress(Closed):
            client.receive(wire.WrongHost)  # or nothing: it was taken for dead, and ends
        assert process.wait(PATIENCE) != 0
        nodes[2].process = None
        assert client.ends()
    assert whole(address, name) == event(b"1") + event(b"3")
    nodes[2].start()
    wait_until(lambda: is_shared(nodes))


RATE = 60
JAVA_ASKS_AGAIN_S = 20.0
"""So long Java's client goes where it was told that a segment is, and to nobody else, whatever it finds there; but for
an owner that lives, and says that it has the segment no more."""


class Load(threading.Thread):
    """A client of tests/torture at work: what it was told, and the longest time without anything new."""

    def __init__(self, command: Sequence[str], kind: str, controller: str, name: str) -> None:
        super().__init__(name=name)
        self.kind = kind
        self.sent = 0
        self.fates: dict[int, tuple[str, int]] = {}
        """By their first event, what is known of a transaction, or of events, and where they end."""
        self.read: list[tuple[str, int]] = []
        self.failed: list[str] = []
        self.longest = 0.0
        self.last = 0.0
        arguments = [kind, "--controller", controller, "--seed", "7", "--name", name, "--rate", str(RATE)]
        self.process = subprocess.Popen(
            [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.errors: list[str] = []
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()
        self.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)

    def run(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if not words:
                continue
            if words[0] == "read":
                self.read.append((words[1], int(words[2])))
            elif words[0] == "sent":
                continue
            else:
                self.fates[int(words[1])] = words[0], int(words[2])
                if words[0] == "failed":
                    before = max((one for one in self.fates if one < int(words[1])), default=0)
                    self.failed.append(f"behind one that was {self.fates[before][0]}: {line}")
            if words[0] in ("read", "acked", "committed", "aborted"):
                now = time.monotonic()
                self.longest = max(self.longest, now - self.last if self.last else 0.0)
                self.last = now

    def finish(self) -> None:
        """Let it end what it has begun."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def ended(self) -> int:
        code = self.process.wait(PATIENCE)
        self.join()
        self._listening.join()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.join()
        self._listening.join()

    def numbers(self, *fates: str) -> set[int]:
        return {one for first, (fate, end) in self.fates.items() if fate in fates for one in range(first, end)}


def stored(controller: ControllerClient) -> Counter[tuple[str, int]]:
    """How often each event is there."""
    found: Counter[tuple[str, int]] = Counter()
    for one in controller.getCurrentSegments(scope="torture", stream="events").segmentRanges:
        number = one.segmentId.segmentId & 0xFFFFFFFF  # of a stream that was made anew others than before
        told = controller.getURI(streamInfo=stream("torture", "events"), segmentId=number)
        data = whole(f"{told.endpoint}:{told.port}", str(SegmentName("torture", "events", number, 0)))
        at = 0
        while at < len(data):
            kind, size = struct.unpack_from(">ii", data, at)
            assert kind == 0
            name, place, _ = data[at + 8 : at + 8 + size].split(b":", 2)
            found[name.decode(), int(place)] += 1
            at += 8 + size
    return found


def check(loads: Sequence[Load], readers: Sequence[Load], found: Counter[tuple[str, int]]) -> None:
    """Nothing that was acknowledged is lost, nothing is there twice, and of a transaction all or nothing."""
    assert max(found.values()) == 1
    for load in loads:
        there = {number for name, number in found if name == load.name}
        promised = load.numbers("acked", "committed")
        assert promised, load.name
        assert promised <= there, sorted(promised - there)[:10]
        assert not there & load.numbers("aborted", "open")
        for first, (fate, end) in load.fates.items():
            if fate in ("asked", "failed"):
                assert len(there & set(range(first, end))) in (0, end - first)
    for reader in readers:
        assert len(reader.read) == len(set(reader.read)), "nothing is read twice"
        assert set(reader.read) <= set(found)
        wanted = {(load.name, number) for load in loads for number in load.numbers("acked", "committed")}
        assert wanted <= set(reader.read)


def moving(loads: Sequence[Load], seconds: float = 2.0) -> None:
    """Return when all have been told something new for so long."""
    before = {load: load.last for load in loads}
    began = time.monotonic()
    while late := [load for load, at in before.items() if load.last <= at + seconds]:
        assert time.monotonic() - began < PATIENCE, "".join(
            f"{one.name}: {''.join(one.errors)[-3000:]}" for one in late
        )
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("client", ["wheel", pytest.param("java", marks=[pytest.mark.java, pytest.mark.long])])
def test_clients_go_on_when_owners_end(
    nodes: list[NodeProcess], controllers: list[ControllerClient], client: str
) -> None:
    command = (
        WHEEL if client == "wheel" else drivers.java("pravega-java", POM, "anabranch.tests.PravegaTorture").command()
    )
    # The wheel knows one controller; Java's client all of them.
    places = [node.addresses["pravega"] for node in nodes]
    told = places[0] if client == "wheel" else ",".join(places)
    calls = controllers[0]
    calls.createScope(scope="torture")
    policy = {"minNumSegments": SEGMENTS}
    calls.createStream(streamInfo=stream("torture", "events"), scalingPolicy=policy)
    loads = [Load(command, kind, told, f"{client}-{kind}") for kind in ("write", "transact")]
    reader = Load(command, "read", told, f"{client}-read")
    every = [*loads, reader]
    try:
        moving(every)
        if client == "java":
            moving(every, JAVA_ASKS_AGAIN_S)
        for end in ("kill -9", "stopped"):
            for load in every:
                load.longest = 0.0
            nodes[1].kill() if end == "kill -9" else nodes[1].stop()
            moving(every)
            for load in every:
                print(f"{load.name}: {end}: the longest time without anything new {load.longest:.1f} s")
                print(*load.failed)
            nodes[1].start()
            wait_until(lambda: is_shared(nodes))
            moving(every)
        for load in every:
            load.longest = 0.0
        nodes[2].stop()
        nodes[2].start()
        wait_until(lambda: is_shared(nodes))
        moving(every)
        for load in loads:
            load.finish()
            assert load.ended() == 0, "".join(load.errors)[-2000:]
        wanted = {(load.name, number) for load in loads for number in load.numbers("acked", "committed")}
        wait_until(lambda: wanted <= set(reader.read))
    finally:
        for load in every:
            load.kill()
        for node in nodes:  # or what failed here would fail the next test, too
            if node.process is None:
                node.start()
    check(loads, [reader], stored(calls))
    # The wheel gives up some transactions that are open as an owner ends: what became of them was looked at above.
    print("failed transactions:", *(line for load in loads for line in load.failed))
    assert not loads[0].failed, "writers without transactions are told of nothing"
    calls.sealStream(scope="torture", stream="events")
    calls.deleteStream(scope="torture", stream="events")
