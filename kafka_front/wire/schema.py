"""Descriptions of message layouts: one for each API, version and direction.

They are read from the files of :data:`LAYOUTS`, each when the first message of its API is asked for. A file is a JSON
object: ``structs``, each with its name, whether it is flexible, and its fields, inner structs by their place in this
list; ``request`` and ``response``, each a list of version, version of the header, and place of the body.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from functools import cache
from pathlib import Path

from msgspec import Struct

from kafka_front.wire.apis import APIS, Api
from kafka_front.wire.primitives import UnsupportedVersion

LAYOUTS = Path(__file__).with_name("layouts")
"""The directory of one file for each API, written by :mod:`kafka_front.wire.make_messages`."""

#: struct format of each fixed-size type.
FIXED = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "B",
    "uuid": "16s",
}

ZERO_UUID = bytes(16)

Default = int | float | bool | str | bytes | None


class FieldType(Struct, frozen=True):
    """One field. ``kind`` is a key of FIXED, or string, bytes, records, struct; ``array`` wraps it in an array.

    ``default`` is None for a struct (all its fields at their defaults), and unused for an array unless
    ``null_default`` is set.
    """

    name: str
    kind: str
    struct: StructType | None
    array: bool
    nullable: bool
    tag: int | None
    default: Default
    null_default: bool


class StructType(Struct, frozen=True):
    name: str
    flexible: bool
    fields: tuple[FieldType, ...]

    @property
    def plain(self) -> list[FieldType]:
        return [f for f in self.fields if f.tag is None]

    @property
    def tagged(self) -> list[FieldType]:
        """Return the tagged fields in the order in which they must be written."""
        return sorted((f for f in self.fields if f.tag is not None), key=lambda f: typing.cast(int, f.tag))


class MessageType(Struct, frozen=True):
    """A request or response of one version. ``header_version`` is that of the header in front of it."""

    key: int
    version: int
    request: bool
    header_version: int
    body: StructType


def load(key: int, version: int, request: bool) -> MessageType:
    """Return the layout of one message. Raises UnsupportedVersion."""
    api = APIS.get(key)
    if api is None or not api.first <= version <= api.last:
        raise UnsupportedVersion(f"no layout of API {key} version {version}")
    return _messages(api)[version, request]


@cache
def _messages(api: Api) -> dict[tuple[int, bool], MessageType]:
    document = json.loads((LAYOUTS / f"{api.module}.json").read_text(encoding="utf-8"))
    structs: list[StructType] = []
    for name, flexible, fields in document["structs"]:  # inner ones come first
        structs.append(StructType(name, flexible, tuple(_field(row, structs) for row in fields)))
    return {
        (version, request): MessageType(api.key, version, request, header, structs[place])
        for request, direction in ((True, "request"), (False, "response"))
        for version, header, place in document[direction]
    }


def _field(row: list[typing.Any], structs: list[StructType]) -> FieldType:
    name, kind, place, array, nullable, tag, default, null_default = row
    struct = None if place is None else structs[place]
    if default is not None and kind in ("uuid", "bytes"):
        default = bytes.fromhex(default)
    return FieldType(name, kind, struct, array, nullable, tag, default, null_default)


def written(api: Api, load_: Callable[[int, int, bool], MessageType]) -> str:
    """Return the text of an API's file; ``load_`` returns layouts as :func:`load` does."""
    structs: dict[str, int] = {}

    def place_of(struct: StructType) -> int:
        fields = [_row(field, None if field.struct is None else place_of(field.struct)) for field in struct.fields]
        text = json.dumps([struct.name, struct.flexible, fields], separators=(",", ":"))
        return structs.setdefault(text, len(structs))

    lists = []
    for direction in ("request", "response"):
        rows = []
        for version in range(api.first, api.last + 1):
            message = load_(api.key, version, direction == "request")
            rows.append([version, message.header_version, place_of(message.body)])
        lists.append(f'"{direction}":{json.dumps(rows, separators=(",", ":"))}')
    return '{"structs":[\n' + ",\n".join(structs) + "\n],\n" + ",\n".join(lists) + "}\n"


def _row(field: FieldType, place: int | None) -> list[object]:
    default = field.default.hex() if isinstance(field.default, bytes) else field.default
    return [field.name, field.kind, place, field.array, field.nullable, field.tag, default, field.null_default]
