"""Commands about table segments."""

from __future__ import annotations

from pravega_front.wire.fields import I32, I64, Blob, Bool, Entries, Keys, Numbers, PackedEntries, PackedKeys, Str
from pravega_front.wire.layouts import Command, of_code


@of_code(68)
class GetTableSegmentInfo(Command):
    """Asks for the state of a table."""

    request_id: I64
    segment: Str
    token: Str


@of_code(69)
class TableSegmentInfo(Command):
    """State of a table."""

    request_id: I64
    segment: Str
    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


@of_code(70)
class CreateTableSegment(Command):
    """Creates a table; with a key length, one with sorted keys."""

    request_id: I64
    segment: Str
    token: Str
    sorted: Bool = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


@of_code(71)
class DeleteTableSegment(Command):
    """Deletes a table."""

    request_id: I64
    segment: Str
    must_be_empty: Bool
    token: Str


@of_code(74)
class UpdateTableEntries(Command):
    """Sets entries, all or none, if each key has the version given."""

    request_id: I64
    segment: Str
    token: Str
    entries: PackedEntries
    table_offset: I64 = -1


@of_code(75)
class TableEntriesUpdated(Command):
    """Answer to UpdateTableEntries: the versions of the entries."""

    request_id: I64
    versions: Numbers


@of_code(76)
class RemoveTableKeys(Command):
    """Removes keys, all or none."""

    request_id: I64
    segment: Str
    token: Str
    keys: PackedKeys
    table_offset: I64 = -1


@of_code(77)
class TableKeysRemoved(Command):
    """Answer to RemoveTableKeys."""

    request_id: I64
    segment: Str


@of_code(78)
class ReadTable(Command):
    """Asks for entries by their keys."""

    request_id: I64
    segment: Str
    token: Str
    keys: PackedKeys


@of_code(79)
class TableRead(Command):
    """Answer to ReadTable: entries in the order of the keys."""

    request_id: I64
    segment: Str
    entries: Entries


@of_code(80)
class TableSegmentNotEmpty(Command):
    """The table has entries."""

    request_id: I64
    segment: Str
    stack: Str = ""


@of_code(81)
class TableKeyDoesNotExist(Command):
    """A key that must have a version does not exist."""

    request_id: I64
    segment: Str
    stack: Str = ""


@of_code(82)
class TableKeyBadVersion(Command):
    """A key has another version than required."""

    request_id: I64
    segment: Str
    stack: Str = ""


@of_code(83)
class ReadTableKeys(Command):
    """Asks for a page of keys."""

    request_id: I64
    segment: Str
    token: Str
    suggested_count: I32
    continuation: Blob = b""
    prefix: Blob = b""
    first: Blob = b""
    last: Blob = b""


@of_code(84)
class TableKeysRead(Command):
    """Answer to ReadTableKeys: keys, and the continuation of the next page."""

    request_id: I64
    segment: Str
    keys: Keys
    continuation: Blob


@of_code(85)
class ReadTableEntries(Command):
    """Asks for a page of entries."""

    request_id: I64
    segment: Str
    token: Str
    suggested_count: I32
    continuation: Blob = b""
    prefix: Blob = b""
    first: Blob = b""
    last: Blob = b""


@of_code(86)
class TableEntriesRead(Command):
    """Answer to ReadTableEntries: entries, and the continuation of the next page."""

    request_id: I64
    segment: Str
    entries: Entries
    continuation: Blob


@of_code(88)
class ReadTableEntriesDelta(Command):
    """Asks for the entries set from a position on."""

    request_id: I64
    segment: Str
    token: Str
    from_position: I64
    suggested_count: I32


@of_code(87)
class TableEntriesDeltaRead(Command):
    """Answer to ReadTableEntriesDelta: entries, and the position after them."""

    request_id: I64
    segment: Str
    entries: Entries
    should_clear: Bool
    reached_end: Bool
    last_position: I64
