"""One of every command of the segment store's wire, with something in every field."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from pravega_front.wire import fields
from pravega_front.wire.commands import LAYOUTS, Command

SEGMENT = "scope/stream/0.#epoch.0"
EVENT = b"\0\0\0\0\0\0\0\1a"
_ENTRY, _KEY = fields.TableEntry(b"key", 7, b"value"), fields.TableKey(b"key", 7)


def examples(segment: str = SEGMENT, writer: bytes = bytes(range(16))) -> list[Command]:
    """All commands, of one segment and one writer."""
    return [_example(layout._make, segment, writer) for layout in LAYOUTS.values()]


def _example(kind: Any, segment: str, writer: bytes) -> Command:
    hints = get_type_hints(kind, include_extras=True)
    values = [_value(get_args(hints[name])[1], segment, writer) for name in kind.__struct_fields__]
    command: Command = kind(*values)
    return command


def _value(field: Any, segment: str, writer: bytes) -> Any:
    if isinstance(field, str):
        return writer if field == "16s" else field == "?" or 3
    kinds: tuple[tuple[Any, Any], ...] = (
        (fields.Str, segment),
        (fields.Blob, b"blob"),
        (fields.Rest, b"rest"),
        (fields.Event, EVENT),
        (fields.Keys, [_KEY, _KEY]),
        (fields.PackedKeys, [_KEY, _KEY]),
        (fields.Entries, [_ENTRY, _ENTRY]),
        (fields.PackedEntries, [_ENTRY, _ENTRY]),
        (fields.Numbers, [1, -1]),
        (fields.Strings, ["a", "b"]),
        (fields.Updates, [fields.AttributeUpdate(bytes(16), 4, 1, 0)]),
        (fields.Merges, [fields.Merged("a", 9)]),
    )
    return next(value for kind, value in kinds if field is get_args(kind)[1])
