"""What clients of the segment store cannot make the node hold, or do at once: tables, blocks, unread answers."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from pravega_front.tables import MIGRATIONS
from pravega_front.wire import commands as wire
from pravega_front.wire.controller import CreateTableStatus
from pravega_front.wire.fields import ANY_VERSION, NO_VERSION, TableEntry, TableKey
from tests.node_process import ANY, FRONTS, NodeProcess
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.raw_client import Closed, RawClient

SEGMENTS = 20
RECEIVE_S = 2.0
OLDER = 5
"""Version of the front's tables before entries were counted."""
NUMBERS = itertools.count(1)
ENTRIES = "SELECT count(*) FROM front_pravega_entries"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {
        "pravega.segments": str(SEGMENTS),
        "pravega.receive_ms": str(int(RECEIVE_S * 1000)),
        "pravega.reader_patience_ms": "500",
        "limits.connections_memory_bytes": "32MiB",
    }
    listen = dict.fromkeys((*FRONTS, "pravega", "pravega-segmentstore"), ANY)
    process = NodeProcess(tmp_path_factory.mktemp("node") / "data", settings=settings, listen=listen)
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.fixture
def client(segment_store: str) -> Iterator[RawClient]:
    with RawClient(segment_store) as found:
        yield found


def new_table(client: RawClient) -> str:
    name = f"bounds/table-{next(NUMBERS)}_kvtable/0.#epoch.0"
    client.ask(wire.CreateTableSegment(1, name, ""), wire.SegmentCreated)
    return name


def small(count: int) -> list[TableEntry]:
    return [TableEntry(b"%06d" % place, ANY_VERSION, b"v") for place in range(count)]


def entry_count(client: RawClient, name: str) -> int:
    return client.ask(wire.GetTableSegmentInfo(1, name, ""), wire.TableSegmentInfo).entry_count


def delete(client: RawClient, name: str) -> None:
    client.ask(wire.DeleteTableSegment(1, name, False, ""), wire.SegmentDeleted)


def left_in_database(node: NodeProcess, query: str = ENTRIES) -> int:
    with closing(sqlite3.connect(f"file:{database(node)}?mode=ro", uri=True, timeout=30)) as connection:
        return int(connection.execute(query).fetchone()[0])


def database(node: NodeProcess) -> Path:
    (found,) = (path for path in node.data.rglob("*.db") if has_tables(path))
    return found


def has_tables(path: Path) -> bool:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return bool(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'front_pravega_entries'").fetchone())


def test_the_entries_of_a_table_are_counted_as_they_come_and_go(client: RawClient) -> None:
    name = new_table(client)
    client.ask(wire.UpdateTableEntries(1, name, "", small(100)), wire.TableEntriesUpdated)
    again = [*small(10), TableEntry(b"twice", ANY_VERSION, b"v"), TableEntry(b"twice", ANY_VERSION, b"w")]
    client.ask(wire.UpdateTableEntries(1, name, "", again), wire.TableEntriesUpdated)
    assert entry_count(client, name) == 101
    gone = [TableKey(key, ANY_VERSION) for key in (b"000001", b"000002", b"000002", b"never")]
    client.ask(wire.RemoveTableKeys(1, name, "", gone), wire.TableKeysRemoved)
    assert entry_count(client, name) == 99
    refused = [TableEntry(b"new", ANY_VERSION, b"v"), TableEntry(b"000003", NO_VERSION, b"v")]
    client.ask(wire.UpdateTableEntries(1, name, "", refused), wire.TableKeyBadVersion)
    assert entry_count(client, name) == 99
    client.ask(wire.DeleteTableSegment(1, name, True, ""), wire.TableSegmentNotEmpty)
    delete(client, name)
    client.ask(wire.GetTableSegmentInfo(1, name, ""), wire.NoSuchSegment)


def test_a_deleted_table_is_removed_behind_its_deletion_and_over_kills(node: NodeProcess, segment_store: str) -> None:
    with RawClient(segment_store) as client:
        name = new_table(client)
        for at in range(0, 60_000, 10_000):
            entries = [TableEntry(b"%06d" % (at + place), ANY_VERSION, b"v") for place in range(10_000)]
            client.ask(wire.UpdateTableEntries(1, name, "", entries), wire.TableEntriesUpdated)
        large = [TableEntry(b"large-%d" % place, ANY_VERSION, bytes(1_000_000)) for place in range(10)]
        client.ask(wire.UpdateTableEntries(1, name, "", large), wire.TableEntriesUpdated)
        delete(client, name)
        # Its name is free at once, whatever is left of it; what the new one holds stays.
        client.ask(wire.CreateTableSegment(1, name, ""), wire.SegmentCreated)
        client.ask(wire.UpdateTableEntries(1, name, "", small(3)), wire.TableEntriesUpdated)
        node.kill()
    left = left_in_database(node)
    assert left > 3, "all of it was removed before the kill: nothing was tested"
    node.start()
    while left_in_database(node) > 3:
        time.sleep(0.02)
    assert left_in_database(node, "SELECT count(*) FROM front_pravega_removed") == 0
    with RawClient(segment_store) as client:
        assert entry_count(client, name) == 3
        page = client.ask(wire.ReadTableEntries(1, name, "", 10), wire.TableEntriesRead)
        assert [(one.key, bytes(one.value)) for one in page.entries] == [one[::2] for one in small(3)]
        delete(client, name)


def test_lists_of_many_things_are_read_and_written_whole_and_longer_ones_end_their_connection(
    client: RawClient, segment_store: str
) -> None:
    name = new_table(client)
    entries = small(10_000)
    versions = client.ask(wire.UpdateTableEntries(1, name, "", entries), wire.TableEntriesUpdated).versions
    assert len(versions) == len(set(versions)) == 10_000
    keys = [TableKey(one.key, ANY_VERSION) for one in reversed(entries)]
    found = client.ask(wire.ReadTable(2, name, "", keys), wire.TableRead)
    assert [(one.key, bytes(one.value)) for one in found.entries] == [one[::2] for one in reversed(entries)]
    assert [one.version for one in found.entries] == versions[::-1]
    page = client.ask(wire.ReadTableKeys(3, name, "", 5000), wire.TableKeysRead)
    assert [one.key for one in page.keys] == [one.key for one in entries[:1000]]
    client.ask(wire.ReadTable(4, name, "", [*keys, keys[0]]), wire.ErrorMessage)
    with RawClient(segment_store) as other:
        other.send(wire.ReadTable(5, name, "", [TableKey(b"", ANY_VERSION)] * 100_001))
        assert other.ends()
    delete(client, name)


def test_table_segments_are_bounded_with_the_other_segments_of_no_stream(
    client: RawClient, controller: ControllerClient
) -> None:
    controller.createScope(scope="bounds")
    made = [new_table(client) for _ in range(SEGMENTS - 1)]
    loose = "bounds/loose/0.#epoch.0"
    client.ask(wire.CreateSegment(1, loose, 0, 0, ""), wire.SegmentCreated)
    refused = client.ask(wire.CreateTableSegment(1, "bounds/more/0.#epoch.0", ""), wire.ErrorMessage)
    assert str(SEGMENTS - 1) in refused.message
    client.ask(wire.CreateSegment(1, "bounds/more/0.#epoch.0", 0, 0, ""), wire.ErrorMessage)
    table = {"scope": "bounds", "kvtName": "kv", "primaryKeyLength": 8, "secondaryKeyLength": 0}
    assert controller.createKeyValueTable(partitionCount=1, **table).status == CreateTableStatus.FAILURE
    delete(client, made.pop())
    client.ask(wire.CreateTableSegment(1, made[0], ""), wire.SegmentAlreadyExists)  # takes no place
    assert controller.createKeyValueTable(partitionCount=2, **table).status == CreateTableStatus.FAILURE
    assert controller.createKeyValueTable(partitionCount=1, **table).status == CreateTableStatus.SUCCESS
    client.ask(wire.DeleteSegment(1, loose, ""), wire.SegmentDeleted)
    made.append(new_table(client))
    client.ask(wire.CreateSegment(1, loose, 0, 0, ""), wire.ErrorMessage)
    controller.deleteKeyValueTable(scope="bounds", kvtName="kv")
    for name in made:
        delete(client, name)


def test_a_block_that_is_not_ended_in_time_costs_its_connection(client: RawClient, segment_store: str) -> None:
    segment = "bounds/blocks/0.#epoch.0"
    client.ask(wire.CreateSegment(1, segment, 0, 0, ""), wire.SegmentCreated)
    writer = uuid4().bytes
    with RawClient(segment_store) as other:
        other.ask(wire.SetupAppend(1, writer, segment, ""), wire.AppendSetup)
        began = time.monotonic()
        other.send(wire.AppendBlock(writer, b"half"))
        with pytest.raises(Closed):
            say_that_it_lives(other)
        assert time.monotonic() - began >= RECEIVE_S
    assert client.ask(wire.GetStreamSegmentInfo(1, segment, ""), wire.StreamSegmentInfo).write_offset == 0
    client.ask(wire.DeleteSegment(1, segment, ""), wire.SegmentDeleted)


def test_those_who_take_nothing_of_a_table_neither_fill_the_memory_nor_keep_others_from_it(
    node: NodeProcess, client: RawClient, segment_store: str
) -> None:
    name = new_table(client)
    for place in range(8):
        large = [TableEntry(b"%d" % place, ANY_VERSION, bytes([place]) * 1_000_000)]
        client.ask(wire.UpdateTableEntries(1, name, "", large), wire.TableEntriesUpdated)
    greedy = [RawClient(segment_store) for _ in range(150)]
    try:
        before = resident_bytes(node)
        for one in greedy:
            one.send(*[wire.ReadTableEntries(1, name, "", 1000)] * 20)
        continuation = b""
        found: list[TableEntry] = []
        reader = client
        while len(found) < 8:  # in pages as large as there is room for, when somebody has been cut
            try:
                page = reader.ask(wire.ReadTableEntries(1, name, "", 1000, continuation), wire.TableEntriesRead)
            except Closed:  # it was held up for as long itself, as anybody is on a busy machine
                reader = RawClient(segment_store)
                greedy.append(reader)
                continue
            found += page.entries
            continuation = bytes(page.continuation)
        grown = resident_bytes(node) - before
    finally:
        for one in greedy:
            one.close()
    assert [bytes(one.value[:1]) for one in found] == [bytes([place]) for place in range(8)]
    assert grown < 150 * 1_000_000, "what nobody takes is held"
    with RawClient(segment_store) as last:
        delete(last, name)


def say_that_it_lives(client: RawClient) -> None:
    """Signs of life, until the connection ends."""
    while True:
        client.ask(wire.KeepAlive(), wire.KeepAlive)
        time.sleep(0.05)


def resident_bytes(node: NodeProcess) -> int:
    pages = Path(f"/proc/{node.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def test_tables_of_an_older_release_are_counted_once_and_keep_their_entries() -> None:
    connection = sqlite3.connect(":memory:")
    for migration in MIGRATIONS[:OLDER]:
        migration(connection)
    connection.executemany("INSERT INTO front_pravega_tables VALUES (?, 100, 0, 9)", [("a",), ("b",)])
    entries = [("a", b"k%d" % place, place, b"v") for place in range(3)]
    connection.executemany("INSERT INTO front_pravega_entries VALUES (?, ?, ?, ?)", entries)
    MIGRATIONS[OLDER](connection)
    query = "SELECT segment, stored, entries, bytes FROM front_pravega_tables ORDER BY segment"
    assert connection.execute(query).fetchall() == [("a", "a", 3, 9), ("b", "b", 0, 9)]
    assert connection.execute("SELECT tables FROM front_pravega_table_count").fetchall() == [(2,)]


def test_names_are_bounded(client: RawClient) -> None:
    client.ask(wire.CreateSegment(1, f"bounds/{'x' * 60_000}/0.#epoch.0", 0, 0, ""), wire.ErrorMessage)
    client.ask(wire.CreateTableSegment(1, f"bounds/{'x' * 60_000}_kvtable/0.#epoch.0", ""), wire.ErrorMessage)
    name = f"bounds/{'x' * 250}_kvtable/0.#epoch.0"
    client.ask(wire.CreateTableSegment(1, name, ""), wire.SegmentCreated)
    delete(client, name)
