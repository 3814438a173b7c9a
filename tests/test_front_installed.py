"""A further front, installed beside ours as a distribution of its own (tests/line_front), needs no change in ours."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.users import User, change
from tests.certificates import Authority
from tests.cluster.together import together
from tests.conftest import NodeFactory
from tests.node_process import ANY, FRONTS, NodeFailed, NodeProcess
from tests.postgres import Postgres

SOURCES = Path(__file__).parent / "line_front"
LISTEN = dict.fromkeys((*FRONTS, "line"), ANY)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the distribution is installed into."""
    directory = tmp_path_factory.mktemp("line-front")
    sources, target = directory / "sources", directory / "installed"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))  # a build leaves files behind
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, sources], check=True)
    return target


@pytest.fixture(autouse=True)
def installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts find the distribution; the test's own process does not."""
    monkeypatch.setenv("PYTHONPATH", str(place))


class Lines:
    """A client of the line protocol."""

    def __init__(self, node: NodeProcess, authority: Path | None = None, listener: str = "line") -> None:
        host, _, port = node.addresses[listener].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        if authority is not None:
            self._socket = ssl.create_default_context(cafile=authority).wrap_socket(self._socket, server_hostname=host)
        self._file = self._socket.makefile("rwb")

    def ask(self, line: str) -> str:
        """The answer to a request; empty when the connection ended instead."""
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            return self._file.readline().decode().rstrip("\n")
        except ConnectionError:
            return ""

    def close(self) -> None:
        self._socket.close()


def topic_of(node: NodeProcess, name: str = "t") -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)


def consumed(node: NodeProcess, count: int, topic: str = "t", offset: int = 0) -> list[tuple[int, object, object]]:
    """What a Kafka consumer reads of partition 0."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[tuple[int, object, object]] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None, f"{len(found)} of {count} records, then nothing"
        if message.error():
            raise KafkaException(message.error())
        assert message.timestamp()[1] > 0
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def produce(node: NodeProcess, *records: tuple[bytes | None, bytes | None], topic: str = "t") -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 50})
    errors: list[object] = []
    for key, value in records:
        producer.produce(topic, value, key, 0, on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None] * len(records)


@pytest.fixture
def line_node(node_factory: NodeFactory) -> NodeProcess:
    return node_factory(listen=LISTEN)


@pytest.fixture
def lines(line_node: NodeProcess) -> Iterator[Lines]:
    client = Lines(line_node)
    yield client
    client.close()


def test_it_is_as_small_as_docs_say() -> None:
    (source,) = SOURCES.glob("*.py")
    assert len(source.read_text().splitlines()) < 320


def test_clients_of_both_protocols_share_topics(line_node: NodeProcess, lines: Lines) -> None:
    topic_of(line_node)
    assert lines.ask("PUT t 0 a=one *=two b=*") == "OK 0"
    produce(line_node, (b"k 1", b"three"), (None, b"four=\n"))
    assert lines.ask("PUT t 0 c=five") == "OK 5"
    everything = [
        (0, b"a", b"one"),
        (1, None, b"two"),
        (2, b"b", None),
        (3, b"k 1", b"three"),
        (4, None, b"four=\n"),
        (5, b"c", b"five"),
    ]
    assert consumed(line_node, 6) == everything
    assert consumed(line_node, 4, offset=2) == everything[2:]
    told = "OK 6 0 a=one 1 *=two 2 b=* 3 k%201=three 4 *=four%3D%0A 5 c=five"
    assert lines.ask("GET t 0 0") == told
    assert lines.ask("GET t 0 4") == "OK 6 4 *=four%3D%0A 5 c=five"
    assert lines.ask("GET t 0 6") == "OK 6"


def test_what_it_cannot_do_is_said_and_costs_one_request(line_node: NodeProcess, lines: Lines) -> None:
    topic_of(line_node)
    for wrong in ("", "NONSENSE", "PUT", "PUT t 0", "PUT t 0 nonsense", "PUT t 2 a=b", "PUT t -1 a=b", "PUT t x a=b"):
        assert lines.ask(wrong).startswith("ERR "), wrong
    for wrong in ("GET t 0 99", "GET nope 0 0", "FIND m t 0", f"MARK m t 0 {2**70}"):
        assert lines.ask(wrong).startswith("ERR "), wrong
    assert lines.ask("PUT t 0 a=b") == "OK 0"


def test_what_a_topic_demands_is_told_in_its_words(line_node: NodeProcess, lines: Lines) -> None:
    """That nothing of it gets into the log, whatever the front has forgotten: tests/bridges/test_front_kit.py."""
    admin = AdminClient({"bootstrap.servers": line_node.kafka})
    config = {"cleanup.policy": "compact", "max.message.bytes": "2000"}
    admin.create_topics([NewTopic("strict", 1, 1, config=config)])["strict"].result(30)
    assert lines.ask("PUT strict 0 a=b *=without") == "ERR a compacted topic takes no record without a key"
    assert lines.ask(f"PUT strict 0 a={'b' * 3000}").startswith("ERR a record of 3001 bytes exceeds max.message.bytes")
    assert lines.ask(f"PUT strict 0 a={'b' * 1500} c={'d' * 1500}") == "OK 0", "the front chooses what lies together"
    assert lines.ask("GET strict 0 2") == "OK 2"


@pytest.fixture(params=["workers", "nodes"])
def two(
    request: pytest.FixtureRequest, node_factory: NodeFactory, tmp_path: Path, postgres: Postgres
) -> Iterator[tuple[Lines, Lines]]:
    """Clients of two workers of a node, and of two nodes."""
    with ExitStack() as stack:
        if request.param == "workers":
            node = node_factory(listen=LISTEN, settings={"node.workers": "2", "node.worker_port_step": "0"})
            clients = Lines(node), Lines(node, listener="line/1")
        else:
            nodes = stack.enter_context(together(tmp_path, 2, postgres.made(), LISTEN, lambda _: {}))
            clients = Lines(nodes[0]), Lines(nodes[1])
        for client in clients:
            stack.callback(client.close)
        yield clients


def ask_owner(client: Lines, line: str) -> str:
    """Return the answer, asked for again while the partition goes to another node: both have just started."""
    while " owned by node " in (answer := client.ask(line)) or " no owner yet" in answer:
        pass
    return answer


def test_every_partition_is_read_and_written_at_every_node(two: tuple[Lines, Lines]) -> None:
    assert two[0].ask("MAKE t 16") == "OK t"
    for number, client in enumerate(two):
        for partition in range(16):
            assert ask_owner(client, f"ONCE me {number} t {partition} node={number}") == f"OK {number}"
    for client in two:
        for partition in range(16):
            assert client.ask(f"GET t {partition} 0") == "OK 2 0 node=0 1 node=1"
            assert client.ask(f"ONCE me 1 t {partition} node=1") == "OK 1", "the owner knows what was sent before"


def test_names_of_its_own(line_node: NodeProcess, lines: Lines) -> None:
    topic_of(line_node, "sales.orders")
    assert lines.ask("PUT sales:orders 0 a=b") == "OK 0"
    assert lines.ask("PUT sales.orders 0 a=b") == "ERR there is no such partition"
    assert lines.ask("MAKE shop:items 1 cleanup.policy=compact") == "OK shop:items"
    produce(line_node, (b"k", b"v"), topic="shop.items")
    assert lines.ask("GET shop:items 0 0") == "OK 1 0 k=v"
    # Which names are free is asked where all protocols' names are.
    assert lines.ask("MAKE sales:orders 1").startswith("ERR Topic 'sales.orders' already exists.")
    assert lines.ask("MAKE sales_orders 1").startswith(
        "ERR topic 'sales_orders' and the existing 'sales.orders' differ"
    )
    assert lines.ask("MAKE .. 1").startswith("ERR a name has colons")
    assert lines.ask("MAKE one 0").startswith("ERR a topic has 1 to")


def test_what_was_sent_before_is_known_over_a_kill(line_node: NodeProcess, lines: Lines) -> None:
    topic_of(line_node)
    assert lines.ask("ONCE me 1 t 0 a=b c=d") == "OK 0"
    assert lines.ask("ONCE me 2 t 0 e=f") == "OK 2"
    assert lines.ask("ONCE me 2 t 0 e=f") == "OK 2"
    assert lines.ask("ONCE other 2 t 0 g=h") == "OK 3"
    line_node.restart(kill=True)
    again = Lines(line_node)
    assert again.ask("ONCE me 2 t 0 e=f") == "OK 2"
    assert again.ask("ONCE me 3 t 0 i=j") == "OK 4"
    again.close()


def test_what_a_client_claims_of_times_decides_no_deletion(node_factory: NodeFactory) -> None:
    node = node_factory(listen=LISTEN, settings={"log.retention_check_interval_ms": "100ms"})
    lines = Lines(node)
    assert lines.ask("MAKE short 1 retention.ms=500") == "OK short"
    assert lines.ask("MAKE long 1 retention.ms=3600000") == "OK long"
    assert lines.ask("PUT long 0 @1000 created=1970") == "OK 0"
    assert lines.ask(f"PUT short 0 @{10**15} created=33658") == "OK 0"
    deadline = time.monotonic() + 60
    while not (answer := lines.ask("GET short 0 0")).startswith("ERR"):
        assert time.monotonic() < deadline, answer
    assert "0" in answer
    assert lines.ask("GET long 0 0") == "OK 1 0 created=1970"
    lines.close()


def test_tls_and_logins(node_factory: NodeFactory, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    cert, key = authority.issue("node")
    users = tmp_path / "users.json"

    def put(*names: str) -> None:
        def edit(found: dict[str, User]) -> None:
            found.clear()
            found.update({name: User(name, PasswordHash.from_password("secret", Cost(16, 1, 1)), {}) for name in names})

        change(users, edit)

    put("alice")
    settings = {
        "tls.line.cert": str(cert),
        "tls.line.key": str(key),
        "auth_required.line": "true",
        "auth.users_file": str(users),
    }
    node = node_factory(listen=LISTEN, settings=settings)
    client = Lines(node, authority.cert)
    assert client.ask("MAKE t 1") == "ERR say HELLO name password first"
    assert client.ask("HELLO alice wrong") == "ERR name and password do not belong together"
    assert client.ask("HELLO alice secret") == "OK"
    assert client.ask("MAKE t 1") == "OK t"
    assert client.ask("PUT t 0 a=b") == "OK 0"
    put("bob")  # whoever is gone is served no longer
    deadline = time.monotonic() + 60
    while client.ask("GET t 0 0"):
        assert time.monotonic() < deadline
    client.close()


def test_what_was_acknowledged_survives_kill(line_node: NodeProcess) -> None:
    topic_of(line_node)
    lines = Lines(line_node)
    for number in range(50):
        assert lines.ask(f"PUT t 0 k={number} k=x") == f"OK {2 * number}"
    assert lines.ask("MARK here t 0 7") == "OK 7"
    line_node.kill()
    line_node.start()
    lines.close()
    lines = Lines(line_node)
    assert lines.ask("FIND here t 0") == "OK 7"
    assert lines.ask("PUT t 0 k=last") == "OK 100"
    values = [value for _, _, value in consumed(line_node, 101)]
    assert values == [part for number in range(50) for part in (str(number).encode(), b"x")] + [b"last"]
    lines.close()
    assert line_node.terminate() == 0


def test_its_settings_are_settings_of_the_node(node_factory: NodeFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_factory(listen=LISTEN, settings={"line.max_line_bytes": "100", "line.max_connections": "1"})
    lines = Lines(node)
    assert lines.ask("FIND m t 0").startswith("ERR ")
    other = Lines(node)
    assert other.ask("FIND m t 0").startswith("ERR "), "one connection at a time: it takes the place of an idle one"
    assert lines.ask("FIND m t 0") == ""
    assert other.ask("PUT t 0 a=" + 200 * "b") == "", "a line that is too long ends the connection"
    lines.close()
    other.close()
    monkeypatch.setenv("ANABRANCH_LINE__GET_BYTES", "5KiB")
    command = [sys.executable, "-m", "bridges", "config", "--set", "line.max_connections=7"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = {words[0]: words[1:] for words in map(str.split, shown.splitlines())}
    assert rows["line.max_connections"] == ["7", "100", "command", "line"]
    assert rows["line.get_bytes"] == ["5KiB", "64KiB", "environment", "ANABRANCH_LINE__GET_BYTES"]
    assert rows["kafka.num_partitions"][0] == "1"
    with pytest.raises(NodeFailed, match=r"unknown setting 'line\.nonsense'"):
        node_factory("other", listen=LISTEN, settings={"line.nonsense": "1"})


def test_its_rows_go_with_the_topic(line_node: NodeProcess, lines: Lines) -> None:
    topic_of(line_node)
    assert lines.ask("MARK here t 0 3") == "OK 3"
    admin = AdminClient({"bootstrap.servers": line_node.kafka})
    admin.delete_topics(["t"])["t"].result(30)
    topic_of(line_node)
    assert lines.ask("FIND here t 0").startswith("ERR there is no such mark")


def test_a_node_serves_others_while_it_is_not_installed(
    line_node: NodeProcess, lines: Lines, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_of(line_node)
    assert lines.ask("PUT t 0 a=one") == "OK 0"
    assert lines.ask("ONCE me 7 t 1 a=one") == "OK 0"
    assert lines.ask("MARK here t 0 3") == "OK 3"
    line_node.terminate()
    del line_node.listen["line"]
    monkeypatch.delenv("PYTHONPATH")
    line_node.start()
    produce(line_node, (b"k", b"two"))
    assert consumed(line_node, 1, offset=1) == [(1, b"k", b"two")]
    topic_of(line_node, "made.meanwhile")
    line_node.restart(kill=True)
    line_node.terminate()
    line_node.listen["line"] = ANY
    monkeypatch.setenv("PYTHONPATH", str(place))
    line_node.start()
    again = Lines(line_node)
    assert again.ask("GET t 0 0") == "OK 2 0 a=one 1 k=two"
    assert again.ask("FIND here t 0") == "OK 3"
    assert again.ask("ONCE me 7 t 1 a=one") == "OK 0", "what is known of its writers is there again"
    assert again.ask("PUT made:meanwhile 0 a=b") == "OK 0", "what was made meanwhile has a name, too"
    again.close()
