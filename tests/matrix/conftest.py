"""One node with every listener, the clients of all protocols, and what each writer has written, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.registry import Opener
from tests.conftest import TEST_SETTINGS
from tests.matrix import readers, writers
from tests.matrix.expected import expected
from tests.matrix.kinds import APPENDED, KINDS, UNTOLD, Headers, Kind, Told, Where
from tests.matrix.readers import Reader
from tests.matrix.writers import Writer
from tests.node_process import ANY, FRONTS, SELDOM, NodeProcess
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.java_client import Java, plain
from tests.spark_pipeline.conftest import spark as spark
from tests.ydb_topic_front.raw import RawClient as RawYdb
from tests.ydb_topic_front.sdks.programs import SDKS, Client, Place, Sdk

LISTEN = dict.fromkeys((*FRONTS, *SELDOM, "sbp-v0.1"), ANY)
PREFIX = "matrix-"
"""Of the names of topics that Spark reads."""
CONSUMERS = ("ydb-python", "ydb-go", "ydb-java", readers.THERE)
CONFIG = {
    Where.MAIN: {"max.message.bytes": str(8 << 20), "message.timestamp.after.max.ms": str(2**63 - 1)},
    Where.APART: {},
    Where.BYTES: {},
    Where.STAMPED: {"message.timestamp.type": "LogAppendTime"},
}


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("matrix") / "data", settings=TEST_SETTINGS, listen=LISTEN)
    with process.lent():
        yield process


def make_topics(node: NodeProcess, configs: Mapping[str, Mapping[str, str]], partitions: int = 1) -> None:
    """Topics that clients of every protocol read: with a scope for Pravega's, and consumers for YDB's."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    made = admin.create_topics([NewTopic(name, partitions, 1, config=dict(of)) for name, of in configs.items()])
    for one in made.values():
        one.result(writers.PATIENCE)
    with RawYdb(node.ydb) as raw:
        for name in configs:
            raw.result("AlterTopic", path=name, add_consumers=[{"name": one} for one in CONSUMERS])
    controller = ControllerClient(node.addresses["pravega"])
    controller.createScope(scope="default")  # or it is there already
    controller.close()


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer has written: the kinds, by topic, and between which times, in ms."""

    topics: Mapping[Where, str]
    kinds: Mapping[Where, Sequence[Kind]]
    begin: int
    end: int


def sdk_of(name: str) -> Sdk:
    """The SDK of this name."""
    return next(sdk for sdk in SDKS if sdk.name == name)


class Clients:
    """Writers and readers by name; programs are started at their first use."""

    def __init__(self, node: NodeProcess, request: pytest.FixtureRequest) -> None:
        self._node = node
        self._request = request
        self._kafka = Opener(node.kafka, {"max.request.size": str(8 << 20)})
        self._java: Java | None = None
        self._open: dict[str, Client] = {}
        self._stack = ExitStack()
        self._stack.callback(self._kafka.close)
        self._readers: dict[tuple[str, str], Reader] = {}

    def close(self) -> None:
        self._stack.close()

    def _pravega(self) -> Java:
        if self._java is None:
            self._java = Java(self._node.addresses["pravega"], "default")
            self._stack.callback(self._java.close)
        return self._java

    def _ydb(self, name: str) -> Client:
        if name not in self._open:
            driver = sdk_of(name).program.start()
            self._stack.callback(driver.close)
            self._open[name] = Client(driver, Place(self._node.ydb))
        return self._open[name]

    def writer(self, name: str) -> Writer:
        """The writer of this name."""
        match name:
            case "pravega-wheel":
                return writers.Wheel(self._node)
            case "pravega-java":
                return writers.PravegaJava(self._pravega())
            case "pravega-bytes":
                return writers.PravegaBytes(self._pravega())
            case "ydb-grpc":
                return writers.YdbRaw(self._node)
            case "ydb-python":
                return writers.YdbPython(self._node)
            case "ydb-go" | "ydb-java":
                return writers.YdbSdk(sdk_of(name), self._ydb(name))
            case "sbp-v0.1":
                return writers.Document(self._node)
            case "produce":
                return writers.Produce(self._node)
            case "spark":
                return writers.SparkBatch(self._request.getfixturevalue("spark"), self._node)
            case "spark-stream":
                directory = self._request.getfixturevalue("tmp_path_factory").mktemp("streams")
                return writers.SparkStream(self._request.getfixturevalue("spark"), self._node, directory)
        return writers.KafkaWriter(self._kafka(name))

    def bytes_of(self, stream: str) -> bytes:
        """What Java's ByteStreamReader gets of a stream of one segment."""
        (found,) = plain([self._pravega()("read_bytes", stream=stream)])
        return found

    def reader(self, name: str, prefix: str = PREFIX) -> Reader:
        """The reader of this name, the same each time; ``prefix`` begins the names of topics that Spark reads."""
        if (name, prefix) not in self._readers:
            self._readers[name, prefix] = self._reader(name, prefix)
        return self._readers[name, prefix]

    def _reader(self, name: str, prefix: str) -> Reader:
        match name:
            case "pravega-wheel":
                return readers.Wheel(self._node)
            case "pravega-java":
                return readers.PravegaJava(self._pravega())
            case "ydb-grpc":
                return readers.YdbRaw(self._node)
            case "ydb-python":
                return readers.YdbPython(self._node)
            case "ydb-go" | "ydb-java":
                return readers.YdbSdk(sdk_of(name), self._ydb(name))
            case "tail":
                return readers.Tail(self._node)
            case "spark":
                return readers.Spark(self._request.getfixturevalue("spark"), self._node, prefix)
            case "spark-stream":
                return readers.SparkStream(self._request.getfixturevalue("spark"), self._node, prefix)
        return readers.KafkaReader(self._kafka(name))


@pytest.fixture(scope="session")
def clients(node: NodeProcess, request: pytest.FixtureRequest) -> Iterator[Clients]:
    found = Clients(node, request)
    yield found
    found.close()


@pytest.fixture(scope="session")
def written(node: NodeProcess, clients: Clients) -> Callable[[str], Written]:
    """Has a writer write everything that it can say, once."""
    done: dict[str, Written | Exception] = {}

    def write(name: str) -> Written:
        if name not in done:
            try:
                done[name] = write_all(node, clients.writer(name), f"{PREFIX}{name}".replace(".", "-"))
            except Exception as error:  # noqa: BLE001
                done[name] = error  # of all cells of this writer
        found = done[name]
        if isinstance(found, Exception):
            raise found
        return found

    return write


def write_all(node: NodeProcess, writer: Writer, prefix: str, kinds: Sequence[Kind] = KINDS) -> Written:
    """Everything that a writer can say, into topics made for it."""
    sayable = [kind for kind in kinds if not writer.refuses(kind)]
    by_topic = {where: [kind for kind in sayable if kind.where is where] for where in Where}
    by_topic = {where: some for where, some in by_topic.items() if some}
    topics = {where: f"{prefix}-{where.value}" for where in by_topic}
    if topics:
        make_topics(node, {topics[where]: CONFIG[where] for where in by_topic})
    begin = time.time_ns() // 1_000_000
    for where, some in by_topic.items():
        writer.write(topics[where], some)
    return Written(topics, by_topic, begin, time.time_ns() // 1_000_000)


def differences(writer: Writer, reader: Reader, source: Written) -> tuple[list[str], dict[str, Told]]:
    """What a reader tells otherwise than it should, in words, and what it tells of each kind."""
    found: list[str] = []
    seen: dict[str, Told] = {}
    for where, kinds in source.kinds.items():
        if where not in reader.topics:
            continue
        readable = list(kinds)
        for place, kind in enumerate(kinds):
            if not reader.passes(kind):
                readable = readable[:place]
                break
        if not readable:
            continue
        records = reader.read(source.topics[where], len(readable))
        if len(records) != len(readable):
            found.append(f"{len(records)} records instead of {len(readable)} in {source.topics[where]}")
        for offset, kind, told in zip(writer.offsets(readable), readable, records, strict=False):
            wanted = wanted_of(writer, reader, kind, offset)
            told = seen[kind.name] = settled(told, wanted, writer, reader, source)
            found += [f"{kind.name}: {line}" for line in unlike(wanted, told)]
    return found, seen


def wanted_of(writer: Writer, reader: Reader, kind: Kind, offset: int) -> Told:
    """What the reader should tell of the record at this offset, as far as its library can."""
    wanted = expected(writer.protocol, reader.protocol, kind)
    if not writer.times and wanted.created is not UNTOLD:
        wanted = replace(wanted, created=APPENDED)  # stamped by itself, a moment before
    if not reader.times:
        wanted = replace(wanted, created=UNTOLD)
    elif wanted.created is None:
        wanted = replace(wanted, created=reader.no_time)
    if isinstance(wanted.headers, tuple):
        wanted = replace(wanted, headers=_as_kept(wanted.headers, writer, reader))
    return wanted if reader.protocol == "Pravega" else replace(wanted, offset=offset)


def _as_kept(headers: Headers, writer: Writer, reader: Reader) -> Headers:
    if reader.dictionary:
        headers = tuple(dict(headers).items())
    return headers if writer.ordered_headers and reader.ordered_headers else tuple(sorted(headers))


def settled(told: Told, wanted: Told, writer: Writer, reader: Reader, source: Written) -> Told:
    """With what only the log knows put as the test says it, if it is within bounds."""
    if wanted.created is APPENDED and _within(told.created, source):
        told = replace(told, created=APPENDED)
    if _within(told.written, source):
        told = replace(told, written=UNTOLD)
    if isinstance(told.headers, tuple) and not (writer.ordered_headers and reader.ordered_headers):
        told = replace(told, headers=tuple(sorted(told.headers)))
    return told


def _within(time_ms: object, source: Written) -> bool:
    return isinstance(time_ms, int) and source.begin - 1000 <= time_ms <= source.end + 1000


def unlike(wanted: Told, told: Told) -> Iterator[str]:
    """Each field that differs."""
    for name in Told.__slots__:
        one, other = getattr(wanted, name), getattr(told, name)
        if one != other:
            yield f"{name} is {shortened(other)}, and should be {shortened(one)}"


def shortened(value: object) -> str:
    """For a message."""
    text = repr(value)
    return text if len(text) < 120 else f"{text[:100]}... ({len(text)} characters)"
