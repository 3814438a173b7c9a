"""Every writer times every reader: what one wrote, as the other tells it, over real sockets, kind by kind.

Clients of one protocol are rows of their own: what a library does with a field is as much of the way as what the node
does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

import pytest
from kafka.record import MemoryRecords

from sbp_back import DocumentClient, RecordBatch
from tests.matrix import table
from tests.matrix.conftest import Clients, Written, differences
from tests.matrix.expected import Protocol
from tests.matrix.kinds import KINDS, Told, Where
from tests.matrix.writers import stream_id
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MARKERS = {
    "java-new": "java",
    "pravega-java": "java",
    "ydb-go": "go",
    "ydb-java": "java",
    "spark": "spark",
    "spark-stream": "spark",
}
LONG = ("spark-stream",)
"""Clients whose cells `make matrix` alone reads: they take a minute."""
WRITERS = (
    *("confluent-kafka", "kafka-python", "java-new"),
    *("pravega-wheel", "pravega-java"),
    *("ydb-grpc", "ydb-python", "ydb-go", "ydb-java"),
    *("sbp-v0.1", "produce", "spark"),
)
READERS = (
    *("confluent-kafka", "kafka-python", "java-new"),
    *("pravega-wheel", "pravega-java"),
    *("ydb-grpc", "ydb-python", "ydb-go", "ydb-java"),
    *("tail", "spark", "spark-stream"),
)


def marks(*names: str) -> list[pytest.MarkDecorator]:
    """The toolchains that these clients need, and how long they take."""
    found = [getattr(pytest.mark, MARKERS[name]) for name in names if name in MARKERS]
    return [*found, pytest.mark.matrix] if any(name in LONG for name in names) else found


# Spark reads all topics with one query, when everything is written; as a stream last of all.
CELLS = [
    pytest.param(writer, reader, marks=marks(writer, reader))
    for last in (False, True)
    for writer in WRITERS
    for reader in READERS
    if reader.startswith("spark") is last
]


Cell = Callable[[str, str], Mapping[str, Told]]


@pytest.fixture(scope="module")
def cell(clients: Clients, written: Callable[[str], Written]) -> Cell:
    """What a reader tells of each kind that a writer has written; read, and compared, once."""
    done: dict[tuple[str, str], tuple[list[str], dict[str, Told]]] = {}

    def read(writer: str, reader: str) -> Mapping[str, Told]:
        if (writer, reader) not in done:
            source = written(writer)
            done[writer, reader] = differences(clients.writer(writer), clients.reader(reader), source)
        found, seen = done[writer, reader]
        assert not found, "\n".join(found)
        assert seen
        return seen

    return read


@pytest.mark.parametrize(("writer", "reader"), CELLS)
def test_cell(writer: str, reader: str, cell: Cell) -> None:
    cell(writer, reader)


STORED = {Protocol.PRAVEGA: 2, Protocol.YDB: 3, Protocol.SBP: -1}
"""The formats' numbers, as docs/translation.md has them; SBP's own batches are not wrapped. Of others: Kafka's."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in WRITERS])
def test_sbp_s_reader_gets_what_is_stored(
    name: str, node: NodeProcess, clients: Clients, written: Callable[[str], Written]
) -> None:
    """Every batch as its writer sent it, one behind the other without a gap."""
    source, writer = written(name), clients.writer(name)
    kinds = source.kinds[Where.MAIN]
    batches = stored_batches(node, source.topics[Where.MAIN])
    ends = [0, *(batch.end_offset for batch in batches)]
    assert [batch.base_offset for batch in batches] == ends[:-1]
    number = STORED.get(writer.protocol, 1)
    assert {batch.wrapped for batch in batches} == {number}
    if number != 1:
        bodies = b"".join(bytes(record.body) for batch in batches for record in batch.records)
        at = 0
        for kind in kinds:
            sent = kind.value or b""
            if kind.codec == "none":
                at = bodies.find(sent, at)
                assert at >= 0, kind.name
                at += len(sent)
        return
    records = [
        record
        for batch in batches
        for one in MemoryRecords(b"".join(bytes(record.body) for record in batch.records))
        if not one.is_control_batch
        for record in one
    ]
    found = [(one.offset, one.key, one.value, tuple(one.headers), one.timestamp) for one in records]
    offsets = writer.offsets(kinds)
    assert found == [
        (at, kind.key, kind.value, kind.headers, kind.created) for at, kind in zip(offsets, kinds, strict=True)
    ]


def stored_batches(node: NodeProcess, topic: str) -> list[RecordBatch]:
    """All batches of partition 0, through SBP's dialect v0.1."""

    async def fetch() -> list[RecordBatch]:
        host, _, port = node.addresses["sbp-v0.1"].rpartition(":")
        client = DocumentClient.connect(host, int(port))
        found: list[RecordBatch] = []
        try:
            while True:
                fetched = await client.fetch(stream_id(node, topic), found[-1].end_offset if found else 0)
                if not fetched.batches:
                    return found
                found += fetched.batches
        finally:
            await client.close()

    return asyncio.run(fetch())


WRITES = {
    Protocol.KAFKA: "confluent-kafka",
    Protocol.PRAVEGA: "pravega-wheel",
    Protocol.YDB: "ydb-grpc",
    Protocol.SBP: "sbp-v0.1",
    Protocol.CONSOLE: "produce",
    Protocol.SPARK: "spark",
}
READS = {
    Protocol.KAFKA: "confluent-kafka",
    Protocol.PRAVEGA: "pravega-java",
    Protocol.YDB: "ydb-grpc",
    Protocol.CONSOLE: "tail",
    Protocol.SPARK: "spark",
}
"""Whose cells the table is made of: the client that can say, and is told, the most."""


@pytest.mark.java
@pytest.mark.spark
def test_the_table_of_the_documentation_is_what_readers_told(cell: Cell) -> None:
    results = {
        (writer, reader): cell(name, other) for writer, name in WRITES.items() for reader, other in READS.items()
    }
    made = table.render(KINDS, list(WRITES), list(READS), results)
    if os.environ.get("ANBR_MATRIX") == "write":
        table.store(made)
    assert table.stored() == made, "ANBR_MATRIX=write pytest tests/matrix/test_cells.py writes it"
