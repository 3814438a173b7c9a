"""Every writer times every reader: what one wrote, as the other tells it, over real sockets, kind by kind.

Clients of one protocol are rows of their own: what a library does with a field is as much of the way as what the node
does.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Mapping

import pytest
from kafka.record import MemoryRecords

from sbp_document import DocumentClient, RecordBatch
from tests.matrix import table
from tests.matrix.cells import LONG, READERS, WRITERS, marks
from tests.matrix.conftest import CONFIG, Clients, Written, differences, make_topics
from tests.matrix.expected import Protocol
from tests.matrix.kinds import BYTES, KINDS, LARGE, Kind, Told, Where
from tests.matrix.writers import partitions_of, stream_id
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NOTHING = (("pravega-bytes", "pravega-wheel"),)
"""Cells in which nothing is read: the wheel takes bytes that are no event for a fault."""
# Spark reads all topics with one query, when everything is written; as a stream last of all.
CELLS = [
    pytest.param(writer, reader, marks=marks(writer, reader, seldom=reader in LONG))
    for last in (False, True)
    for writer in WRITERS
    for reader in READERS
    if reader.startswith("spark") is last and (writer, reader) not in NOTHING
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
    where = next(iter(source.kinds))
    kinds = source.kinds[where]
    batches = stored_batches(node, source.topics[where])
    ends = [0, *(batch.end_offset for batch in batches)]
    assert [batch.base_offset for batch in batches] == ends[:-1]
    number = STORED.get(writer.protocol, 1)
    assert {batch.wrapped for batch in batches} == {number}
    if number != 1:
        bodies = b"".join(bytes(record.body) for batch in batches for record in batch.records)
        at = 0
        for kind in kinds:
            sent = (kind.sent if kind.bytes_alone else kind.value) or b""
            if kind.codec in ("none", BYTES):
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


@pytest.mark.java
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in WRITERS])
def test_a_byte_stream_s_reader_gets_events_as_pravega_frames_them(
    name: str, clients: Clients, written: Callable[[str], Written]
) -> None:
    """Java's ByteStreamReader, from the first byte to the last; of a byte stream it gets its bytes."""
    source = written(name)
    where = next(iter(source.kinds))
    values = [kind.value or b"" for kind in source.kinds[where]]
    framed = [struct.pack(">ii", 0, len(value)) + value for value in values]
    wanted = [kind.sent or b"" for kind in source.kinds[where]] if name == "pravega-bytes" else framed
    assert clients.bytes_of(source.topics[where]) == b"".join(wanted)


@pytest.mark.java
def test_a_byte_stream_of_megabytes_is_its_bytes_for_all(node: NodeProcess, clients: Clients) -> None:
    """In as many records as it came in, each marked."""
    make_topics(node, {"long-bytes": CONFIG[Where.MAIN]})
    kind = Kind("long", LARGE, key=None, codec=BYTES, sent=LARGE, decodes=False, bytes_alone=True)
    clients.writer("pravega-bytes").write("long-bytes", [kind])
    assert clients.bytes_of("long-bytes") == LARGE
    (partition,) = partitions_of(node, "long-bytes")
    for name in ("confluent-kafka", "ydb-grpc", "tail"):
        records = clients.reader(name).read("long-bytes", partition["end_offset"])
        assert b"".join(one.value or b"" for one in records) == LARGE, name
        assert {one.headers for one in records} == {(("anabranch.codec", BYTES.encode()),)}, name


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
    Protocol.KAFKA: ("confluent-kafka",),
    Protocol.PRAVEGA: ("pravega-wheel", "pravega-bytes"),
    Protocol.YDB: ("ydb-grpc",),
    Protocol.SBP: ("sbp-v0.1",),
    Protocol.CONSOLE: ("produce",),
    Protocol.SPARK: ("spark", "spark-stream"),
}
READS = {
    Protocol.KAFKA: "confluent-kafka",
    Protocol.PRAVEGA: "pravega-java",
    Protocol.YDB: "ydb-grpc",
    Protocol.CONSOLE: "tail",
    Protocol.SPARK: "spark",
}
"""Whose cells the table is made of: the clients that can say, and are told, the most."""


@pytest.mark.java
@pytest.mark.spark
def test_the_table_of_the_documentation_is_what_readers_told(cell: Cell) -> None:
    results = {
        (writer, reader): {kind: told for name in names for kind, told in cell(name, other).items()}
        for writer, names in WRITES.items()
        for reader, other in READS.items()
    }
    made = table.render(KINDS, list(WRITES), list(READS), results)
    if os.environ.get("ANBR_MATRIX") == "write":
        table.store(made)
    assert table.stored() == made, "ANBR_MATRIX=write pytest tests/matrix/test_cells.py writes it"
