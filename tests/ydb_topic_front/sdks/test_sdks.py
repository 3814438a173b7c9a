"""YDB's SDKs for Go, Java, JavaScript and Rust, unmodified, against a node."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import ydb

from tests.certificates import Authority
from tests.conftest import NodeFactory
from tests.drivers import DriverError
from tests.kit.waiting import wait_until
from tests.node_process import ANY, NodeProcess
from tests.ydb_topic_front.sdks.conftest import Connect
from tests.ydb_topic_front.sdks.programs import SDKS, Place, Sdk, Sent
from tests.ydb_topic_front.test_sdk_transactions import position

LISTEN = {"ydb": ANY}
"""What the nodes here open; everything else is closed."""


def sdks(can: Callable[[Sdk], bool] = lambda _: True) -> pytest.MarkDecorator:
    """A test of every SDK that can do it."""
    found = [pytest.param(sdk, id=sdk.name, marks=marks(sdk)) for sdk in SDKS if can(sdk)]
    return pytest.mark.parametrize("sdk", found)


def marks(sdk: Sdk) -> list[pytest.MarkDecorator]:
    """What a test of it needs; a build of Rust takes minutes."""
    toolchain = sdk.program.marker
    return [getattr(pytest.mark, toolchain), *([pytest.mark.long] if toolchain == "rust" else [])]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests here that do not kill theirs."""
    factory = NodeFactory(tmp_path_factory.mktemp("sdks"))
    yield factory(listen=LISTEN)
    factory.dispose()


def place(node: NodeProcess) -> Place:
    return Place(node.ydb)


@sdks()
def test_topics_are_created_described_altered_and_dropped(connect: Connect, node: NodeProcess, sdk: Sdk) -> None:
    client = connect(sdk, place(node))
    path = f"/local/{sdk.name}/made"
    client.create(path, partitions=3, consumers=["first"], codecs=sdk.codecs)
    client.add_consumer(path, "second")
    described = client.describe(path)
    assert sorted(described["partitions"]) == [0, 1, 2]
    assert sorted(described["consumers"]) == ["first", "second"]
    assert sorted(described["codecs"]) == sorted(sdk.codecs)
    client.drop(path)
    with pytest.raises(DriverError):
        client.describe(path)


@sdks()
def test_messages_of_every_codec_are_read_as_they_were_written(connect: Connect, node: NodeProcess, sdk: Sdk) -> None:
    client = connect(sdk, place(node))
    path = f"/local/{sdk.name}-codecs"
    client.create(path, consumers=["reader"])
    metadata = {"colour": b"blue", "raw": bytes(range(256))} if sdk.metadata else {}
    sent = []
    for codec in sdk.codecs:
        messages = [Sent(seq, b"%d of %d, " % (seq, codec) * 100, metadata) for seq in range(1, 4)]
        acks = client.write(path, f"producer-{codec}", messages, codec=codec)
        if sdk.acks:
            assert acks == [(message.seq, "written", len(sent) + i) for i, message in enumerate(messages)]
        sent += [(f"producer-{codec}", message) for message in messages]
    got = client.read(path, "reader", len(sent))
    assert [(message.producer, message.seq, message.data, message.metadata) for message in got] == [
        (producer, message.seq, message.data, message.metadata) for producer, message in sent
    ]
    assert [message.offset for message in got] == list(range(len(sent)))


@sdks()
def test_a_reader_goes_on_where_its_consumer_committed(connect: Connect, node: NodeProcess, sdk: Sdk) -> None:
    client = connect(sdk, place(node))
    path = f"/local/{sdk.name}-commits"
    client.create(path, consumers=["reader"])
    client.write(path, "p", [Sent(seq, b"%d" % seq) for seq in range(1, 11)])
    first = client.read(path, "reader", 4)
    second = client.read(path, "reader", 6)
    assert [message.seq for message in first + second] == list(range(1, 11))


@sdks(lambda sdk: sdk.own_numbers)
def test_what_is_written_twice_is_stored_once(connect: Connect, node: NodeProcess, sdk: Sdk) -> None:
    client = connect(sdk, place(node))
    path = f"/local/{sdk.name}-twice"
    client.create(path, partitions=4, consumers=["reader"])
    client.write(path, "p", [Sent(seq, b"first") for seq in (1, 2, 5)])
    acks = client.write(path, "p", [Sent(seq, b"second") for seq in (1, 2, 5, 6, 9)])
    if sdk.acks:
        assert acks is not None
        assert [status for _, status, _ in acks] == ["skipped"] * 3 + ["written"] * 2
    got = client.read(path, "reader", 5)
    assert [(message.seq, message.data) for message in got] == [
        *((seq, b"first") for seq in (1, 2, 5)),
        *((seq, b"second") for seq in (6, 9)),
    ]


@sdks(lambda sdk: sdk.own_numbers)
def test_a_writer_chooses_its_partition(connect: Connect, node: NodeProcess, sdk: Sdk) -> None:
    client = connect(sdk, place(node))
    path = f"/local/{sdk.name}-partitions"
    client.create(path, partitions=3, consumers=["reader"])
    for partition in (2, 0, 1):
        client.write(path, f"to-{partition}", [Sent(1, b"%d" % partition)], partition=partition)
    got = client.read(path, "reader", 3)
    assert sorted((message.partition, message.data) for message in got) == [(0, b"0"), (1, b"1"), (2, b"2")]


@sdks(lambda sdk: sdk.own_numbers)
def test_nothing_is_lost_or_doubled_when_the_node_is_killed(
    connect: Connect, node_factory: NodeFactory, sdk: Sdk
) -> None:
    node = node_factory(listen=LISTEN)
    client = connect(sdk, place(node))
    path, count = "/local/killed", 600
    client.create(path, consumers=["reader", "watch"])
    failures: list[BaseException] = []
    up, given_up = threading.Event(), threading.Event()
    up.set()

    def write() -> None:
        # An SDK without reconnection is told to write everything again, as its user would.
        while not given_up.is_set() and up.wait(60):
            try:
                client.write_many(path, "p", first=1, count=count, prefix="m")
            except DriverError as error:
                failures.append(error)
            else:
                return

    writing = threading.Thread(target=write)
    writing.start()
    try:
        with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
            driver.wait(timeout=60)
            with driver.topic_client.reader(path, consumer="watch") as reader:
                for written in (50, 250):
                    while reader.receive_message(timeout=40).offset < written:
                        pass
                    up.clear()
                    node.restart(kill=True)
                    up.set()
    except BaseException:
        given_up.set()
        raise
    writing.join()
    got = client.read(path, "reader", count)
    assert [message.data for message in got] == [b"m%d" % i for i in range(count)], failures
    assert [message.offset for message in got] == list(range(count))


@sdks(lambda sdk: sdk.copies)
def test_a_topic_is_copied_exactly_once_through_deaths_of_the_node(
    connect: Connect, node_factory: NodeFactory, sdk: Sdk
) -> None:
    node = node_factory(listen=LISTEN)
    client = connect(sdk, place(node))
    path, copied, count = "/local/from", "/local/to", 30
    client.create(path, consumers=["c"])
    client.create(copied, consumers=["reader"])
    client.write_many(path, "p", first=1, count=count, prefix="m")
    given_up = threading.Event()

    def copy() -> None:
        # A node that comes back late outlasts the driver's patience: the copy goes on where its consumer is.
        while not given_up.is_set():
            with suppress(DriverError):
                client.copy(path, "c", copied, count)
                return

    copying = threading.Thread(target=copy)
    copying.start()
    try:
        for committed in (3, 15):
            wait_until(lambda committed=committed: position(node, path) >= committed)  # type: ignore[misc]
            node.restart(kill=True)
    except BaseException:
        given_up.set()
        raise
    copying.join()
    client.write(copied, "q", [Sent(1, b"last")])
    got = client.read(copied, "reader", count + 1)
    assert [message.data for message in got] == [*(b"m%d" % number for number in range(count)), b"last"]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A node that speaks TLS alone and takes nobody without a password."""
    directory = tmp_path_factory.mktemp("strict")
    authority = Authority(directory, "authority")
    cert, key = authority.issue("node")
    add = [sys.executable, "-m", "bridges", "user", "add", "writer", "--data", str(directory / "node")]
    subprocess.run(add, input="a secret of 22 letters\n", text=True, check=True, capture_output=True)
    factory = NodeFactory(directory)
    settings = {"auth.required": "true", "tls.ydb.cert": str(cert), "tls.ydb.key": str(key)}
    node = factory(settings=settings, listen=LISTEN)
    yield Place(node.ydb, user="writer", password="a secret of 22 letters", ca=str(authority.cert))
    factory.dispose()


@sdks(lambda sdk: sdk.tls)
def test_passwords_and_tls(connect: Connect, strict: Place, sdk: Sdk) -> None:
    path = f"/local/{sdk.name}-secret"
    client = connect(sdk, strict)
    client.create(path, consumers=["reader"])
    client.write(path, "p", [Sent(1, b"told in secret")])
    assert [message.data for message in client.read(path, "reader", 1)] == [b"told in secret"]
    wrong = replace(strict, password="a guess")
    with pytest.raises(DriverError):
        connect(sdk, wrong).describe(path)
