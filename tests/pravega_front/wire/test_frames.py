"""The segment store's codec: against recorded exchanges, by properties, and on damaged bytes."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_front.wire import commands, fields
from pravega_front.wire.blocks import appended
from pravega_front.wire.commands import LAYOUTS, AppendBlockEnd, Command, DataAppended, Hello, SegmentRead
from pravega_front.wire.fields import AttributeUpdate, Merged, TableEntry, TableKey, WireError
from pravega_front.wire.frames import HEAD, MAX_FRAME, decode, encode, segment_read
from tests.pravega_front.golden import FRAMES

COMMANDS = [one for one in vars(commands).values() if isinstance(one, type) and hasattr(one, "code")]

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
INT = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(max_size=20)
BYTES = st.binary(max_size=40)
VERSIONED_KEY = st.builds(TableKey, st.binary(min_size=1, max_size=9), LONG) | st.just(
    TableKey(b"", fields.ANY_VERSION)
)
ENTRY = st.builds(lambda key, value: TableEntry(key.key, key.version, value), VERSIONED_KEY, BYTES)
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    fields.I8: st.integers(-128, 127),
    fields.I32: INT,
    fields.I64: LONG,
    fields.Bool: st.booleans(),
    fields.Uuid: st.binary(min_size=16, max_size=16),
    fields.Str: TEXT,
    fields.Blob: BYTES,
    fields.Rest: BYTES,
    fields.Event: BYTES.map(lambda data: struct.pack(">ii", 0, len(data)) + data),
    fields.Keys: st.lists(VERSIONED_KEY, max_size=4),
    fields.PackedKeys: st.lists(VERSIONED_KEY, max_size=4),
    fields.Entries: st.lists(ENTRY, max_size=4),
    fields.PackedEntries: st.lists(ENTRY, max_size=4),
    fields.Numbers: st.lists(LONG, max_size=4),
    fields.Strings: st.lists(TEXT, max_size=4),
    fields.Updates: st.lists(
        st.builds(AttributeUpdate, st.binary(min_size=16, max_size=16), st.integers(0, 9), LONG, LONG), max_size=3
    ),
    fields.Merges: st.lists(st.builds(Merged, TEXT, LONG), max_size=3),
}


def any_command(kind: type[Command]) -> st.SearchStrategy[Command]:
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: KINDS[hints[name]] for name in kind.__struct_fields__})


ANY = st.one_of(*map(any_command, COMMANDS))


def plain(command: Command) -> dict[str, Any]:
    """The fields of a command; those that are views as bytes."""
    values = {name: getattr(command, name) for name in command.__struct_fields__}
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in values.items()}


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: f"{frame[:12].hex()}")
def test_recorded_frames_are_read_and_written_as_they_are(frame: bytes) -> None:
    command = decode(frame)
    written = b"".join(encode(command))
    # What the recording client left out at the end, answers and newer clients say.
    assert written[HEAD.size :].startswith(frame[HEAD.size :])
    assert plain(decode(written)) == plain(command)


@settings(deadline=None)
@given(ANY)
def test_what_is_written_is_read(command: Command) -> None:
    frame = b"".join(encode(command))
    found = decode(frame)
    assert type(found) is type(command)
    assert plain(found) == plain(command)


@settings(deadline=None)
@given(ANY, st.data())
def test_a_frame_that_is_cut_short_is_an_error_or_an_older_peers(command: Command, data: st.DataObject) -> None:
    frame = b"".join(encode(command))
    cut = data.draw(st.integers(0, len(frame) - 1))
    short = frame[:4] + struct.pack(">i", cut - HEAD.size) + frame[8:cut]
    try:
        found = decode(short[:cut])
    except WireError:
        return
    defaults = command.__struct_fields__[len(command.__struct_fields__) - len(command.__struct_defaults__) :]
    whole, shown = plain(command), plain(found)
    for name, value in shown.items():
        if get_args(get_type_hints(type(command), include_extras=True)[name])[1] is get_args(fields.Rest)[1]:
            assert whole[name].startswith(value)
        else:
            assert value == whole[name] or name in defaults


@settings(deadline=None, max_examples=300)
@given(ANY, st.randoms(use_true_random=False), st.integers(1, 8))
def test_damaged_frames_are_commands_or_errors(command: Command, random: Any, damages: int) -> None:
    frame = bytearray(b"".join(encode(command)))
    for _ in range(damages):
        at = random.randrange(len(frame))
        frame[at] = random.choice((0, 0xFF, 0x7F, 0x80, random.randrange(256)))
    try:
        encode(decode(bytes(frame)))
    except WireError:
        return


@settings(deadline=None)
@given(st.sampled_from(sorted(LAYOUTS)), st.binary(max_size=200))
def test_random_fields_are_commands_or_errors(code: int, data: bytes) -> None:
    try:
        encode(decode(HEAD.pack(code, len(data)) + data))
    except WireError:
        return


@settings(deadline=None)
@given(any_command(SegmentRead), st.lists(BYTES, max_size=3))
def test_bytes_of_a_read_may_come_in_pieces(command: Command, pieces: list[bytes]) -> None:
    assert isinstance(command, SegmentRead)
    command.data = b"".join(pieces)
    assert b"".join(segment_read(command, list(pieces))) == b"".join(encode(command))


def test_a_count_without_elements_costs_nothing() -> None:
    head = struct.pack(">qH", 1, 1) + b"t" + struct.pack(">H", 0)
    for code in (74, 76, 78):
        with pytest.raises(WireError, match="do not fit"):
            decode(HEAD.pack(code, len(head) + 4) + head + struct.pack(">i", 0x7FFFFFFF))


def test_types_and_sizes_that_are_none() -> None:
    for frame in (b"", b"\0\0\0\1", HEAD.pack(6, 0), HEAD.pack(1, 5), HEAD.pack(100, -1), HEAD.pack(100, 1)):
        with pytest.raises(WireError):
            decode(frame)
    with pytest.raises(WireError, match="fits into no frame"):
        encode(commands.PartialEvent(bytes(MAX_FRAME)))
    with pytest.raises(WireError):
        encode(commands.SegmentSealed(1, "x" * 70_000))
    with pytest.raises(WireError):
        encode(Hello(1 << 40, 0))


def test_the_quick_way_writes_the_same() -> None:
    command = DataAppended(bytes(range(16)), 1, 2, 3, 4)
    parts: list[Any] = []
    LAYOUTS[DataAppended.code].write(command, parts)
    assert b"".join(encode(command))[HEAD.size :] == b"".join(parts)


def end(whole: int, data: bytes = b"", events: int = 1) -> AppendBlockEnd:
    return AppendBlockEnd(bytes(16), whole, data, events, 1)


def inner(code: int, data: bytes) -> bytes:
    return HEAD.pack(code, len(data)) + data


@pytest.mark.parametrize(
    ("block", "ending", "expected"),
    [
        (None, end(99, b"data"), b"data"),
        (None, end(0), b""),
        (b"whole", end(5), b"whole"),
        (b"whole", end(5, b"ignored"), b"whole"),
        (b"whole" + inner(-2, b"part"), end(5, b"ial"), b"wholepartial"),
        (b"whole" + inner(-2, b"partial"), end(5), b"wholepartial"),
        (inner(-2, b"part"), end(0, b"ial"), b"partial"),
        (b"whole" + inner(-1, bytes(20)), end(5), b"whole"),
        (b"", end(0), b""),
    ],
)
def test_a_block_gives_the_bytes_that_its_end_counts(
    block: bytes | None, ending: AppendBlockEnd, expected: bytes
) -> None:
    assert b"".join(appended(block, ending)) == expected


@pytest.mark.parametrize(
    ("block", "ending"),
    [
        (b"whole", end(6)),
        (b"whole", end(-1)),
        (b"whole", end(2)),
        (b"whole" + inner(-1, bytes(20)), end(5, b"x")),
        (b"whole" + inner(0, bytes(20)), end(5)),
        (b"whole" + inner(-2, b"part") + b"!", end(5)),
        (b"whole" + HEAD.pack(-2, 1000), end(5)),
        (b"whole", end(5, events=0)),
        (None, end(0, b"x", events=-1)),
    ],
)
def test_blocks_that_do_not_go_together(block: bytes | None, ending: AppendBlockEnd) -> None:
    with pytest.raises(WireError):
        appended(block, ending)


def test_lists_that_clients_send_take_no_memory_besides_their_frames() -> None:
    keys = [TableKey(b"%d" % place, place) for place in range(10_000)]
    entries = [TableEntry(b"%d" % place, fields.ANY_VERSION, b"v") for place in range(10_000)]
    sent = (
        commands.ReadTable(1, "t", "", keys),
        commands.RemoveTableKeys(1, "t", "", keys, 5),
        commands.UpdateTableEntries(1, "t", "", entries, 5),
    )
    for command in sent:
        frame = b"".join(encode(command))
        tracemalloc.start()
        try:
            found = decode(frame)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found == command
        assert held < len(frame) / 4
