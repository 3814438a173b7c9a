"""What no client sends, and what they send when things go wrong: commands one by one."""

from __future__ import annotations

import itertools
import resource
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from pravega_front.wire import commands as wire
from pravega_front.wire.fields import ANY_VERSION, NO_VERSION, AttributeUpdate, TableEntry, TableKey
from pravega_front.wire.frames import HEAD, MAX_FRAME
from tests.node_process import NodeProcess
from tests.pravega_front.examples import examples
from tests.pravega_front.raw_client import Closed, RawClient, event

NUMBERS = itertools.count(1)


@pytest.fixture
def client(segment_store: str) -> Iterator[RawClient]:
    with RawClient(segment_store) as found:
        yield found


@pytest.fixture
def segment(client: RawClient) -> str:
    """The name of a new segment."""
    name = f"raw/segment-{next(NUMBERS)}/0.#epoch.0"
    client.ask(wire.CreateSegment(1, name, 0, 0, ""), wire.SegmentCreated)
    return name


def set_up(client: RawClient, segment: str, writer: bytes | None = None) -> bytes:
    writer = writer or uuid4().bytes
    client.ask(wire.SetupAppend(1, writer, segment, ""), wire.AppendSetup)
    return writer


def append(writer: bytes, number: int, data: bytes, events: int = 1) -> wire.AppendBlockEnd:
    return wire.AppendBlockEnd(writer, len(data), data, events, number, number)


def test_every_append_is_acknowledged_and_repeated_ones_are_not_stored_again(client: RawClient, segment: str) -> None:
    writer = set_up(client, segment)
    client.send(*(append(writer, number, event(b"x")) for number in range(1, 101)))
    acknowledged = 0
    while acknowledged < 100:
        answer = client.receive(wire.DataAppended)
        assert (answer.previous_event_number, answer.current_segment_write_offset) == (
            acknowledged or wire.NO_NUMBER,
            9 * answer.event_number,
        )
        acknowledged = answer.event_number
    client.send(append(writer, 100, event(b"x")))
    client.receive(wire.DataAppended)
    info = client.ask(wire.GetStreamSegmentInfo(1, segment, ""), wire.StreamSegmentInfo)
    assert info.write_offset == 900


def test_a_writers_number_is_known_after_the_end_of_its_connection(segment_store: str, segment: str) -> None:
    with RawClient(segment_store) as first:
        writer = set_up(first, segment)
        first.ask(append(writer, 7, event(b"a") * 3, 3), wire.DataAppended)
    with RawClient(segment_store) as second:
        found = second.ask(wire.SetupAppend(9, writer, segment, ""), wire.AppendSetup)
        assert (found.request_id, found.last_event_number) == (9, 7)
        assert second.ask(append(writer, 8, event(b"b")), wire.DataAppended).previous_event_number == 7


def test_two_connections_of_one_writer_are_a_conflict(segment_store: str, segment: str) -> None:
    with RawClient(segment_store) as first, RawClient(segment_store) as second:
        writer = set_up(first, segment)
        set_up(second, segment, writer)
        first.ask(append(writer, 5, event(b"a")), wire.DataAppended)
        answer = second.ask(append(writer, 6, event(b"b")), wire.InvalidEventNumber)
        assert (answer.writer_id, answer.event_number) == (writer, 6)
        assert second.ends()
        first.ask(append(writer, 6, event(b"b")), wire.DataAppended)


def test_many_writers_share_a_connection_and_others_are_read_meanwhile(client: RawClient, segment: str) -> None:
    writers = [set_up(client, segment) for _ in range(50)]
    client.send(wire.ReadSegment(segment, 0, 1000, "", 77))
    client.send(*(append(writer, 1, event(b"x")) for writer in writers))
    answered: list[object] = []
    while len(answered) < 51:
        command = client.receive(wire.Command)
        if isinstance(command, wire.SegmentRead):
            assert command.request_id == 77
            assert bytes(command.data).startswith(event(b"x"))
        answered.append(type(command))
    assert answered.count(wire.DataAppended) == 50


def test_blocks_of_a_writer(client: RawClient, segment: str) -> None:
    writer = set_up(client, segment)
    whole = event(b"first") + event(b"second")
    rest = event(b"third")
    partial = struct.pack(">ii", -2, 5) + rest[:5]
    client.send(
        wire.AppendBlock(writer, whole + partial),
        wire.AppendBlockEnd(writer, len(whole), rest[5:], 3, 3, 1),
        wire.AppendBlock(writer, b""),
        wire.AppendBlockEnd(writer, 0, b"", 1, 4, 1),
    )
    ends: list[wire.DataAppended] = []
    while not ends or ends[-1].event_number < 4:
        ends.append(client.receive(wire.DataAppended))
    assert ends[-1].current_segment_write_offset == len(whole + rest)
    found = client.ask(wire.ReadSegment(segment, 0, 1000, "", 1), wire.SegmentRead)
    assert bytes(found.data) == whole + rest


def test_a_segment_that_is_sealed_or_deleted_under_its_writers(client: RawClient, segment_store: str) -> None:
    for number, (operation, done, told) in enumerate(
        [
            (wire.SealSegment, wire.SegmentSealed, wire.SegmentIsSealed),
            (wire.DeleteSegment, wire.SegmentDeleted, wire.NoSuchSegment),
        ]
    ):
        name = f"raw/ended-{number}/0.#epoch.0"
        client.ask(wire.CreateSegment(1, name, 0, 0, ""), wire.SegmentCreated)
        with RawClient(segment_store) as other:
            writer = set_up(other, name)
            other.send(wire.ReadSegment(name, 0, 100, "", 5))
            client.ask(operation(1, name, ""), done)
            assert other.receive(wire.Command).request_id == 5  # type: ignore[attr-defined]
            other.ask(append(writer, 1, event(b"late")), told)
            other.send(append(writer, 2, event(b"late")))  # it was not set up anew
            assert other.ends()


def test_a_conditional_append_depends_on_the_end(client: RawClient, segment: str) -> None:
    writer = set_up(client, segment)
    client.ask(wire.ConditionalBlockEnd(writer, 1, 0, b"abc", 1), wire.DataAppended)
    refused = client.ask(wire.ConditionalBlockEnd(writer, 2, 0, b"def", 2), wire.ConditionalCheckFailed)
    assert (refused.event_number, refused.request_id) == (2, 2)
    # The number may be used again, and what is sent behind one that waits comes behind it.
    client.send(wire.ConditionalBlockEnd(writer, 2, 3, b"def", 3), wire.ConditionalBlockEnd(writer, 3, 6, b"ghi", 4))
    last = client.receive(wire.DataAppended)
    if last.event_number < 3:
        last = client.receive(wire.DataAppended)
    assert (last.event_number, last.current_segment_write_offset) == (3, 9)
    assert bytes(client.ask(wire.ReadSegment(segment, 1, 100, "", 1), wire.SegmentRead).data) == b"bcdefghi"


def test_reads_begin_anywhere_and_stop_where_they_are_asked_to(client: RawClient, segment: str) -> None:
    writer = set_up(client, segment)
    data = b"".join(event(bytes([number]) * number) for number in range(60))
    for number in range(20):
        client.ask(append(writer, number + 1, data, 60), wire.DataAppended)
    data *= 20
    for at in range(0, len(data), 997):
        found = client.ask(wire.ReadSegment(segment, at, 1300, "", 1), wire.SegmentRead)
        assert bytes(found.data) == data[at : at + 1300]
    client.ask(wire.TruncateSegment(1, segment, 1234, ""), wire.SegmentTruncated)
    assert client.ask(wire.ReadSegment(segment, 1233, 10, "", 1), wire.SegmentIsTruncated).start_offset == 1234
    assert bytes(client.ask(wire.ReadSegment(segment, 1234, 10, "", 1), wire.SegmentRead).data) == data[1234:1244]


def test_positions_and_starts_survive_the_end_of_the_process(node: NodeProcess, segment_store: str) -> None:
    name = "raw/survives/0.#epoch.0"
    with RawClient(segment_store) as client:
        client.ask(wire.CreateSegment(1, name, 0, 0, ""), wire.SegmentCreated)
        writer = set_up(client, name)
        client.ask(append(writer, 1, event(b"0123456789")), wire.DataAppended)
        client.ask(wire.TruncateSegment(1, name, 4, ""), wire.SegmentTruncated)
        client.ask(wire.UpdateSegmentAttribute(1, name, writer[::-1], 5, wire.NO_NUMBER, ""), wire.Command)
    node.restart(kill=True)
    with RawClient(segment_store) as client:
        info = client.ask(wire.GetStreamSegmentInfo(1, name, ""), wire.StreamSegmentInfo)
        assert (info.start_offset, info.write_offset) == (4, 18)
        assert client.ask(wire.GetSegmentAttribute(1, name, writer[::-1], ""), wire.SegmentAttribute).value == 5
        assert client.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup).last_event_number == 1
        answer = client.ask(append(writer, 2, event(b"x")), wire.DataAppended)
        assert answer.current_segment_write_offset == 27


def test_tables(client: RawClient) -> None:
    name = "raw/table_kvtable/0.#epoch.0"
    client.ask(wire.CreateTableSegment(1, name, ""), wire.SegmentCreated)
    entries = [TableEntry(f"{n:03}".encode(), NO_VERSION, b"v") for n in range(100)]
    versions = client.ask(wire.UpdateTableEntries(1, name, "", entries), wire.TableEntriesUpdated).versions
    assert versions == sorted(set(versions))
    bad = [TableEntry(b"new", ANY_VERSION, b"v"), TableEntry(b"000", 12345, b"v")]
    client.ask(wire.UpdateTableEntries(1, name, "", bad), wire.TableKeyBadVersion)
    assert client.ask(wire.GetTableSegmentInfo(1, name, ""), wire.TableSegmentInfo).entry_count == 100, "all or none"
    for _ in range(3):  # what is written again takes no more room, and is told as it is now
        client.ask(wire.UpdateTableEntries(1, name, "", [TableEntry(b"005", ANY_VERSION, b"w")]), wire.Command)
    found: list[TableEntry] = []
    position = 0
    while True:
        page = client.ask(wire.ReadTableEntriesDelta(1, name, "", position, 10), wire.TableEntriesDeltaRead)
        if not page.entries:
            break
        found += page.entries
        position = page.last_position
    assert len(found) == 100
    assert found[-1][::2] == (b"005", b"w")
    keys: list[TableKey] = []
    token = b""
    while True:
        some = client.ask(wire.ReadTableKeys(1, name, "", 30, token), wire.TableKeysRead)
        if not some.keys:
            break
        keys += some.keys
        token = bytes(some.continuation)
    assert [one.key for one in keys] == [f"{n:03}".encode() for n in range(100)]
    client.ask(wire.RemoveTableKeys(1, name, "", [TableKey(b"007", ANY_VERSION)]), wire.TableKeysRemoved)
    for key, told in ((b"007", wire.TableKeyBadVersion), (b"never", wire.TableKeyDoesNotExist)):
        client.ask(wire.UpdateTableEntries(1, name, "", [TableEntry(key, versions[7], b"v")]), told)
        client.ask(wire.RemoveTableKeys(1, name, "", [TableKey(key, versions[7])]), told)
    client.ask(wire.UpdateTableEntries(1, name, "", [TableEntry(b"007", NO_VERSION, b"v")]), wire.TableEntriesUpdated)
    long = [TableEntry(b"k" * 9000, ANY_VERSION, b"")]
    assert client.ask(wire.UpdateTableEntries(1, name, "", long), wire.ErrorMessage).error_code == 0
    client.ask(wire.UpdateTableEntries(1, name, "", [], 3), wire.SegmentIsTruncated)


@pytest.mark.parametrize(
    "frames",
    [
        [HEAD.pack(6, 0)],
        [HEAD.pack(100, -1)],
        [HEAD.pack(100, MAX_FRAME)],
        [HEAD.pack(1, 3) + b"abc"],
        [wire.AppendBlock(bytes(16), b"not set up")],
        [wire.AppendBlockEnd(bytes(16), 0, b"", 1, 1)],
        [wire.DataAppended(bytes(16), 1, 1, 1, 1)],
        [HEAD.pack(74, 40) + bytes(8) + b"\0\1t\0\0" + b"\x7f" * 27],
        # FlushToStorage, ListStorageChunks, MergeTableSegments, SealTableSegment, which Pravega's port does not take.
        *([HEAD.pack(code, 12) + bytes(12)] for code in (-3, -5, 72, 73)),
    ],
)
def test_what_is_malformed_costs_its_connection_and_no_other(
    client: RawClient, segment_store: str, frames: list[bytes | wire.Command]
) -> None:
    with RawClient(segment_store) as other:
        other.send(*frames)
        assert other.ends()
    client.ask(wire.KeepAlive(), wire.KeepAlive)


def test_what_a_writer_must_not_do(segment_store: str, segment: str) -> None:
    def setups() -> list[list[wire.Command]]:
        writer, other = uuid4().bytes, uuid4().bytes
        block = wire.AppendBlock(writer, event(b"x"))
        begun = [wire.SetupAppend(1, one, segment, "") for one in (writer, other)]
        wrong: list[list[wire.Command]] = [
            [block, block],
            [block, append(other, 1, b"")],
            [block, wire.ConditionalBlockEnd(writer, 1, 0, b"x", 1)],
            [append(writer, 5, event(b"x")), append(writer, 4, event(b"x"))],
            [append(writer, -5, event(b"x"))],
            [append(writer, 1, event(b"x"), 0)],
            [block, wire.AppendBlockEnd(writer, 100, b"", 1, 1, 1)],
        ]
        return [[*begun, *rest] for rest in wrong]

    for commands in setups():
        with RawClient(segment_store) as client:
            for command in commands[:2]:
                client.ask(command, wire.AppendSetup)
            client.send(*commands[2:])
            assert client.ends(), commands[2:]


def test_old_peers_leave_out_what_they_do_not_know(client: RawClient, segment: str) -> None:
    writer = set_up(client, segment)
    data = struct.pack(">ii", 9, 9) + event(b"x")
    frame = HEAD.pack(4, 16 + len(data) + 12) + writer + data + struct.pack(">iq", 1, 1)
    client.send(frame)
    assert client.receive(wire.DataAppended).request_id == -1
    name = segment.encode()
    read = struct.pack(">H", len(name)) + name + struct.pack(">qiH", 0, 100, 0)
    client.send(HEAD.pack(9, len(read)) + read)
    assert client.receive(wire.SegmentRead).request_id == -1


def test_versions_that_do_not_meet(segment_store: str) -> None:
    for high, low in ((4, 1), (30, 18)):
        with RawClient(segment_store) as client:
            answer = client.ask(wire.Hello(high, low), wire.Hello)
            assert (answer.high, answer.low) == (17, 5)
            with pytest.raises(Closed):
                client.receive_frame()


def test_a_large_event_whose_writer_goes_away_leaves_nothing(
    client: RawClient, segment_store: str, segment: str
) -> None:
    with RawClient(segment_store) as other:
        writer = uuid4().bytes
        name = other.ask(wire.CreateTransientSegment(1, writer, segment, ""), wire.SegmentCreated).segment
        set_up(other, name, writer)
        other.ask(wire.ConditionalBlockEnd(writer, 0, 0, b"part", 1), wire.DataAppended)
    reader = wire.GetStreamSegmentInfo(1, name, "")
    while not isinstance(client.ask(reader, wire.Command), wire.NoSuchSegment):
        pass  # it is deleted when the node has seen the end of the connection
    assert client.ask(wire.MergeSegments(1, segment, name, ""), wire.NoSuchSegment).segment == name


def test_reads_that_are_asked_for_at_once_are_read_as_they_are_taken(
    node: NodeProcess, segment_store: str, segment: str
) -> None:
    most = 2 * 1024**2
    with RawClient(segment_store) as writing:
        writer = set_up(writing, segment)
        for number in range(1, 4):
            writing.ask(append(writer, number, bytes([number]) * 4 * most), wire.DataAppended)
    reads = [wire.ReadSegment(segment, most * (number % 12), most, "", number) for number in range(600)]
    with RawClient(segment_store) as greedy, RawClient(segment_store) as other:
        greedy.send(*reads)
        for number in range(100):  # as long as the node may read for a client that takes nothing
            other.ask(wire.ReadSegment(segment, most * (number % 12), 8, "", number), wire.SegmentRead)
        held = _resident_bytes(node)
        for read in reads:
            found = greedy.receive(wire.SegmentRead)
            assert (found.request_id, found.offset) == (read.request_id, read.offset)
            assert found.data[0] == read.offset // (4 * most) + 1
    assert held < 600 * most // 2, "most of what was asked for was read, and nothing of it taken"


def _resident_bytes(node: NodeProcess) -> int:
    pages = int(Path(f"/proc/{node.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_a_segment_that_is_merged_takes_no_more(client: RawClient, segment: str) -> None:
    source = f"raw/source-{next(NUMBERS)}/0.#epoch.0"
    client.ask(wire.CreateSegment(1, source, 0, 0, ""), wire.SegmentCreated)
    writer = set_up(client, source)
    client.ask(append(writer, 1, event(b"gone")), wire.DataAppended)
    client.ask(append(writer, 2, event(b"merged")), wire.DataAppended)
    client.ask(wire.TruncateSegment(1, source, len(event(b"gone")), ""), wire.SegmentTruncated)
    replaced = AttributeUpdate(uuid4().bytes, 1, 7, 5)  # replaces, whatever it was
    merged = client.ask(wire.MergeSegments(1, segment, source, "", [replaced]), wire.SegmentsMerged)
    assert merged.new_target_write_offset == len(event(b"merged"))
    value = client.ask(wire.GetSegmentAttribute(1, segment, replaced.attribute, ""), wire.SegmentAttribute)
    assert value.value == 7
    client.ask(append(writer, 3, event(b"late")), wire.SegmentIsSealed)
    again = client.ask(wire.MergeSegments(1, segment, source, ""), wire.SegmentsMerged)
    assert again.new_target_write_offset == len(event(b"merged")), "it was merged before"


def test_names_that_clients_do_not_give_are_refused(client: RawClient, segment: str) -> None:
    for suffix in ("#transaction.0123", "#transient.0.1", "#anything"):
        client.ask(wire.CreateSegment(1, segment + suffix, 0, 0, ""), wire.ErrorMessage)
    client.ask(wire.CreateTransientSegment(1, uuid4().bytes, f"{segment}#transaction.0123", ""), wire.NoSuchSegment)


def test_an_append_of_two_whole_frames(client: RawClient, segment: str) -> None:
    """The most that a block and its end can hold: so does Pravega."""
    writer = set_up(client, segment)
    block = b"b" * (MAX_FRAME - 8 - 16)
    end = b"e" * (MAX_FRAME - 8 - 16 - 4 - 4 - 4 - 8 - 8)
    partial = struct.pack(">ii", -2, len(block) - 8) + block[8:]
    client.send(wire.AppendBlock(writer, partial), wire.AppendBlockEnd(writer, 0, end, 1, 1, 7))
    size = len(block) - 8 + len(end)
    assert client.receive(wire.DataAppended).current_segment_write_offset == size
    found = bytearray()
    while len(found) < size:
        found += client.ask(wire.ReadSegment(segment, len(found), 1 << 23, "", 1), wire.SegmentRead).data
    assert bytes(found) == block[8:] + end


@pytest.mark.parametrize("code", sorted(one.code for one in examples()))
def test_names_that_are_not_utf_8_are_refused_in_every_command(node: NodeProcess, client: RawClient, code: int) -> None:
    (command,) = (one for one in examples("raw/caf\udce9/0.#epoch.0") if one.code == code)
    before = node.log.stat().st_size
    client.send(command)
    if isinstance(command, wire.CreateSegment | wire.CreateTableSegment | wire.CreateTransientSegment):
        assert client.receive(wire.ErrorMessage).error_code == 0
    client.send(wire.Hello(17, 5))
    with suppress(Closed):
        client.receive_frame()
    assert b"Traceback" not in node.log.read_bytes()[before:]
