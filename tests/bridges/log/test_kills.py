"""Nodes that die by kill -9 with clients attached: transactions in the log, and partitions that are split.

A node is killed at whatever instant it is in when a certain answer arrives, with requests on their way behind that.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.node_process import ANY, FRONTS, NodeProcess

pytestmark = pytest.mark.slow
LIVES = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("kills")
    install(directory / "installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{directory / 'installed'}:{Path(__file__).parents[3]}")
        with NodeProcess(
            directory / "data", listen={**dict.fromkeys(FRONTS, "off"), "kafka": ANY, "steps": ANY}
        ) as process:
            yield process


def install(target: Path) -> None:
    """A distribution that names the front of tests/bridges/log/log_front.py."""
    about = target / "anabranch_log_front-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: anabranch-log-front\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[anabranch.fronts]\nsteps = tests.bridges.log.log_front:LogFront\n")


class Requests:
    """A connection to the front for tests; requests may be sent ahead of answers."""

    def __init__(self, node: NodeProcess) -> None:
        host, _, port = node.addresses["steps"].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._file = self._socket.makefile("rwb")
        self.unanswered: deque[tuple[str, ...]] = deque()

    def send(self, *words: str) -> None:
        self.unanswered.append(words)
        with suppress(ConnectionError):
            self._file.write(" ".join(words).encode() + b"\n")
            self._file.flush()

    def answer(self) -> tuple[tuple[str, ...], str] | None:
        """The oldest request without an answer, and that; None when the connection has ended."""
        try:
            line = self._file.readline().decode()
        except ConnectionError:
            return None
        return (self.unanswered.popleft(), line.rstrip("\n")) if line.endswith("\n") else None

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        self._socket.close()


def make_topic(node: NodeProcess, name: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)


# --- transactions -----------------------------------------------------------------------------------------------------


@dataclass
class Transaction:
    """What a coordinator knows of one: values by the offset they were acknowledged at, those without an answer when the
    node died, and what was decided, if anything was."""

    stored: dict[int, str] = field(default_factory=dict)
    doubtful: list[str] = field(default_factory=list)
    decided: str = ""


class Coordinator:
    """Several producers' transactions on one partition, interleaved; of one producer the next begins when the end of
    the last is answered."""

    def __init__(self, topic: str, seed: int) -> None:
        self.topic = topic
        self.choices = random.Random(seed)
        self.all: list[Transaction] = []
        self.current: dict[str, Transaction] = {}
        self.ending: set[str] = set()

    def next(self) -> tuple[str, ...] | None:
        """The next request; None while all producers wait."""
        free = [name for name in ("1", "2", "3", "4") if name not in self.ending]
        if not free:
            return None
        producer = self.choices.choice(free)
        part = self.current.get(producer)
        if part is None:
            part = self.current[producer] = Transaction()
            self.all.append(part)
        elif self.choices.random() < 0.3:
            return self.end(producer)
        value = f"{len(self.all)}-{self.choices.randrange(1 << 40)}"
        return ("DATA", self.topic, "0", producer, value)

    def end(self, producer: str) -> tuple[str, ...]:
        part = self.current[producer]
        part.decided = part.decided or self.choices.choice(["commit", "abort"])
        self.ending.add(producer)
        return ("END", self.topic, "0", producer, part.decided)

    def answered(self, request: tuple[str, ...], answer: str) -> None:
        what, _, _, producer, word = request
        assert answer.startswith("OK "), (request, answer)
        if what == "END":
            self.ending.discard(producer)
            del self.current[producer]
        else:
            self.current[producer].stored[int(answer[3:])] = word

    def died(self, unanswered: deque[tuple[str, ...]]) -> None:
        """The node did, and said nothing of these."""
        for what, _, _, producer, word in unanswered:
            if what == "DATA":
                self.current[producer].doubtful.append(word)


class Reader:
    """A Kafka consumer of committed data that is attached all the time, whatever becomes of the node."""

    def __init__(self, node: NodeProcess, topic: str) -> None:
        self.seen: list[tuple[int, str]] = []
        self.failure: str | None = None
        self._more = threading.Condition()
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": node.kafka,
                "group.id": f"reader-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is None or (message.error() and message.error().retriable()):
                continue
            with self._more:
                if message.error():
                    if message.error().code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                        self.failure = str(message.error())
                else:
                    value, offset = message.value(), message.offset()
                    assert isinstance(value, bytes)
                    assert offset is not None
                    self.seen.append((offset, value.decode()))
                self._more.notify_all()

    def await_offset(self, offset: int) -> None:
        """Return when the record at ``offset`` was read."""
        with self._more:
            done = self._more.wait_for(lambda: self.failure or (self.seen and self.seen[-1][0] >= offset), 60)
            assert done, (self.seen[-1:], offset)
            assert self.failure is None

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


def consumed(node: NodeProcess, topic: str, partition: int = 0) -> list[tuple[int, str]]:
    """All that a consumer of committed data reads of a partition."""
    names = {"bootstrap.servers": node.kafka, "group.id": "all", "isolation.level": "read_committed"}
    consumer = Consumer({**names, "enable.partition.eof": True, "fetch.wait.max.ms": 20, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[tuple[int, str]] = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, f"only {found[-3:]} in a minute"
            if message.error():
                if message.error().code() == KafkaError._PARTITION_EOF:
                    return found
                raise KafkaException(message.error())
            value, offset = message.value(), message.offset()
            assert isinstance(value, bytes)
            assert offset is not None
            found.append((offset, value.decode()))
    finally:
        consumer.close()


def check(coordinator: Coordinator, found: list[tuple[int, str]]) -> None:
    """Whether ``found``, read up to where the first open transaction begins, is what was committed below that."""
    places = {value: offset for offset, value in found}
    assert len(places) == len(found), "nothing is read twice"
    # Those whose end has no answer yet may have ended or not; what is open holds back what is behind it.
    unsure = [part for part in coordinator.all if part in coordinator.current.values()]
    limit = min((offset for part in unsure for offset in part.stored), default=1 << 62)
    for part in coordinator.all:
        if part.decided != "commit":
            assert not places.keys() & {*part.stored.values(), *part.doubtful}, "aborted, or open"
        elif part not in unsure:
            for offset, value in part.stored.items():
                assert places.get(value) == offset or (offset > limit and value not in places)
        else:
            here = [value for value in part.stored.values() if value in places]
            assert here in ([], list(part.stored.values())), "all of it or nothing"
    known = {value for part in coordinator.all for value in (*part.stored.values(), *part.doubtful)}
    assert places.keys() <= known


def test_readers_of_committed_data_never_see_what_is_open_or_aborted_though_the_node_dies(node: NodeProcess) -> None:
    make_topic(node, "transactions", 1)
    coordinator = Coordinator("transactions", 7)
    reader = Reader(node, "transactions")
    try:
        for _ in range(LIVES):
            requests = Requests(node)
            for producer in sorted(coordinator.ending):
                # It is not known whether its end is in the log: decided is decided, and it is told again.
                requests.send(*coordinator.end(producer))
            left = coordinator.choices.randrange(40, 120)
            while left > 0 or coordinator.choices.random() < 0.9:
                while len(requests.unanswered) < 25 and (request := coordinator.next()) is not None:
                    requests.send(*request)
                pair = requests.answer()
                assert pair is not None, node.tail()
                coordinator.answered(*pair)
                left -= 1
            node.kill()
            while (pair := requests.answer()) is not None:
                coordinator.answered(*pair)
            coordinator.died(requests.unanswered)
            requests.close()
            node.start()
            check(coordinator, consumed(node, "transactions"))
        requests = Requests(node)
        for producer in sorted(coordinator.current):
            requests.send(*coordinator.end(producer))
        requests.send("DATA", "transactions", "0", "-", "the-last")
        while requests.unanswered:
            pair = requests.answer()
            assert pair is not None, node.tail()
            if pair[0][3] != "-":
                coordinator.answered(*pair)
        last = int(pair[1].split()[1])
        requests.close()
        reader.await_offset(last)
        found = consumed(node, "transactions")
        assert reader.seen == found, "who was attached all the time has read the same"
        assert found.pop() == (last, "the-last")
        check(coordinator, found)
        assert {part.decided for part in coordinator.all if part.stored} == {"commit", "abort"}
    finally:
        reader.close()


# --- positions in bytes -----------------------------------------------------------------------------------------------


def ask(requests: Requests, *words: str) -> list[str]:
    """The words of an answer, behind OK, to a request with none before it that is unanswered."""
    requests.send(*words)
    pair = requests.answer()
    assert pair is not None
    assert pair[1].startswith("OK "), pair
    return pair[1].split()[1:]


def test_positions_and_starts_in_bytes_stay_what_was_told_though_the_node_dies(node: NodeProcess) -> None:
    """One writer of numbered events appends where it knows the end, another anywhere, and a Kafka producer between."""
    make_topic(node, "bytes", 1)
    choices = random.Random(3)
    place = ("bytes", "0")
    producer = Producer({"bootstrap.servers": node.kafka, "reconnect.backoff.max.ms": 200, "log_level": 0})
    told: dict[int, int] = {}
    number = start = 0
    for _ in range(LIVES):
        requests = Requests(node)
        first, length = map(int, ask(requests, "SPAN", *place))
        assert first == start
        assert length >= max(told.values(), default=0), "nothing acknowledged is lost"
        for offset, position in told.items():
            if position >= start:
                assert ask(requests, "PLACE", *place, str(offset)) == [str(position)]
        if number:
            # It is not known whether the last one was stored: it is told again, and lies where it lay.
            ask(requests, "EVENT", *place, str(number), "-1", "100")
        producer.produce("bytes", bytes(choices.randrange(200)), partition=0)
        assert producer.flush(60) == 0
        for _ in range(choices.randrange(5, 15)):
            _, length = map(int, ask(requests, "SPAN", *place))
            number += 1
            size = choices.randrange(8, 300)
            requests.send("EVENT", *place, str(number), str(length + 1), str(size))
            pair = requests.answer()
            assert pair is not None
            assert pair[1].startswith("ERR "), "it ends elsewhere"
            offset, behind = map(int, ask(requests, "EVENT", *place, str(number), str(length), str(size)))
            assert behind == length + size
            told[offset] = length
            assert ask(requests, "EVENT", *place, str(number), str(length), str(size)) == [str(offset), "again"]
        start = choices.randrange(start, behind)
        assert ask(requests, "TRIM", *place, str(start)) == [str(start)]
        number += 1
        for _ in range(20):
            requests.send("EVENT", *place, str(number), "-1", "100")  # the same one again and again
        requests.answer()
        node.kill()
        requests.close()
        node.start()
    found = consumed(node, "bytes")
    assert {offset for offset, position in told.items() if position >= start} <= {offset for offset, _ in found}


# --- partitions that are split ----------------------------------------------------------------------------------------


def active_of(node: NodeProcess, producer: Producer, topic: str) -> tuple[list[int], list[int]]:
    """(sealed partitions, active ones) by what a producer is told when it writes to each."""
    fates: dict[int, KafkaError | None] = {}

    def told(number: int, error: KafkaError | None) -> None:
        fates[number] = error

    for number in sorted(producer.list_topics(topic, 60).topics[topic].partitions):
        producer.produce(topic, f"probe-{number}", partition=number, callback=lambda e, m, n=number: told(n, e))
    assert producer.flush(60) == 0
    sealed = sorted(number for number, error in fates.items() if error is not None)
    assert {fates[number].code() for number in sealed} <= {KafkaError.POLICY_VIOLATION}, node.tail()  # type: ignore[union-attr]
    return sealed, sorted(fates.keys() - sealed)


@pytest.mark.parametrize("answered", [False, True], ids=["killed at once", "killed when it is answered"])
def test_partitions_are_split_wholly_or_not_at_all_under_producing_clients(node: NodeProcess, answered: bool) -> None:
    topic = f"split-{answered}".lower()
    make_topic(node, topic, 2, **{"anabranch.partitions.split": "true"})
    names = {
        "bootstrap.servers": node.kafka,
        "reconnect.backoff.max.ms": 200,
        "topic.metadata.refresh.interval.ms": 200,
    }
    producer = Producer({**names, "enable.idempotence": True, "message.timeout.ms": 120_000, "linger.ms": 1})
    acknowledged: dict[int, dict[int, str]] = defaultdict(dict)
    refused: set[int | None] = set()

    def told(error: KafkaError | None, message: Message) -> None:
        partition, value = message.partition(), message.value()
        if error is not None:
            refused.add(error.code())
            return
        offset = message.offset()
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        acknowledged[partition][offset] = value.decode()

    for life in range(2):
        before = sorted(producer.list_topics(topic, 60).topics[topic].partitions)
        sealed, active = active_of(node, producer, topic)
        for number in range(300):
            producer.produce(topic, f"{life}-{number}", partition=active[number % len(active)], callback=told)
            producer.poll(0)
        requests = Requests(node)
        requests.send("SPLIT", topic, str(active[0]), str(active[1]))
        if answered:
            assert requests.answer() == (("SPLIT", topic, str(active[0]), str(active[1])), "OK None")
        node.kill()
        requests.close()
        node.start()
        assert producer.flush(120) == 0
        now_sealed, now_active = active_of(node, producer, topic)
        after = len(now_sealed) + len(now_active)
        if answered or after > len(before):
            assert now_sealed == sorted([*sealed, active[0], active[1]])
            assert after == len(before) + 3
        else:
            assert (now_sealed, now_active) == (sealed, active)
        for partition, values in acknowledged.items():
            found = dict(consumed(node, topic, partition))
            assert {offset: found.get(offset) for offset in values} == values
    assert refused <= {KafkaError.POLICY_VIOLATION}
    assert acknowledged
