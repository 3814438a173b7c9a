"""Messages of gRPC services, built from tables of their fields, in a private descriptor pool.

A table has a line for each message, enumeration and field, which is all that the wire format needs:

    message Outer
      1 name string
      2 parts repeated Outer.Part
      3 labels map<string,string>
      4 limit int64 optional
      5 one int64 in choice
    message Outer.Part
    enum Outer.Colour
      0 COLOUR_UNSPECIFIED

An ``optional`` field records whether it was set. Fields ``in`` a name belong to the oneof of that name. A message's
name is relative to the table's package, or complete with the package in front. An enumeration's name follows the word
``enum``.

The pool is private, so that a client library in the same process may define the same messages without a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

MessageClass = Any
"""A class built at run time, whose attributes are the fields of its table."""

WELL_KNOWN = (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
"""Files of the package ``google.protobuf`` that every table may use."""

_SCALARS: Mapping[str, int] = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "sint64": FieldDescriptorProto.TYPE_SINT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "fixed64": FieldDescriptorProto.TYPE_FIXED64,
    "sfixed32": FieldDescriptorProto.TYPE_SFIXED32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


class Messages:
    """The messages of several packages. ``tables`` are by package; each uses only packages before it.

    Raises ValueError for a table that cannot be parsed, TypeError for messages that are inconsistent.
    """

    def __init__(self, tables: Mapping[str, str]) -> None:
        self.pool = DescriptorPool()
        known = []
        for module in WELL_KNOWN:
            self.pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
            known.append(module.DESCRIPTOR.name)
        for package, text in tables.items():
            file = _file(package, text, known)
            self.pool.AddSerializedFile(file.SerializeToString())
            known.append(file.name)
        self._classes: dict[str, MessageClass] = {}

    def __getitem__(self, name: str) -> MessageClass:
        """Return the class of a message by its full name. Raises KeyError."""
        found = self._classes.get(name)
        if found is None:
            found = self._classes[name] = GetMessageClass(self.pool.FindMessageTypeByName(name))
        return found


def _file(package: str, text: str, known: Iterable[str]) -> FileDescriptorProto:
    file = FileDescriptorProto(name=f"{package}.table", package=package, syntax="proto3", dependency=list(known))
    lines = [(number, line.partition("#")[0].split()) for number, line in enumerate(text.splitlines(), 1)]
    own = {words[1] for _, words in lines if len(words) == 2 and words[0] in ("message", "enum")}
    types = _Types(package, own)
    messages: dict[str, DescriptorProto] = {}
    message, enum = DescriptorProto(), EnumDescriptorProto()
    in_enum = False
    choices: list[tuple[DescriptorProto, FieldDescriptorProto, str]] = []
    for number, words in lines:
        try:
            match words:
                case []:
                    continue
                case ["message", name]:
                    outer, _, last = name.rpartition(".")
                    message = (messages[outer].nested_type if outer else file.message_type).add(name=last)
                    messages[name], in_enum = message, False
                    types.at = name
                case ["enum", name]:
                    outer, _, last = name.rpartition(".")
                    enum, in_enum = (messages[outer].enum_type if outer else file.enum_type).add(name=last), True
                case [digits, name] if in_enum:
                    enum.value.add(number=int(digits), name=name)
                case [digits, name, *kind]:
                    field = message.field.add(name=name, number=int(digits), label=FieldDescriptorProto.LABEL_OPTIONAL)
                    if choice := types.fill(message, field, kind):
                        choices.append((message, field, choice))
                case _:
                    raise ValueError("neither a message, an enumeration nor a field")
        except (KeyError, ValueError) as error:
            raise ValueError(f"{package}, line {number}: {' '.join(words)!r} cannot be read: {error}") from error
    # Oneofs that stand for an optional field must come last in their message: descriptors require it.
    for message, field, choice in sorted(choices, key=lambda one: one[1].proto3_optional):
        field.oneof_index = _index(message, choice)
    return file


class _Types:
    """Sets the type of fields from the words behind their names."""

    __slots__ = ("_own", "_package", "at")

    def __init__(self, package: str, own: set[str]) -> None:
        self._package = package
        self._own = own
        self.at = ""
        """The message whose fields are being parsed."""

    def fill(self, message: DescriptorProto, field: FieldDescriptorProto, words: list[str]) -> str:
        """Set the type of a field, and return the name of its oneof, empty if it has none. Raises ValueError."""
        match words:
            case ["repeated", *words]:
                field.label = FieldDescriptorProto.LABEL_REPEATED
            case [word] if word.startswith("map<") and word.endswith(">"):
                self._map(message, field, word[4:-1])
                return ""
        match words:
            case ["enum", name, *rest]:
                field.type, field.type_name = FieldDescriptorProto.TYPE_ENUM, self._whole(name)
            case [word, *rest] if word in _SCALARS:
                field.type = _SCALARS[word]
            case [name, *rest]:
                field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, self._whole(name)
            case _:
                raise ValueError("no type")
        match rest:
            case []:
                return ""
            case ["optional"]:
                field.proto3_optional = True
                return f"_{field.name}"
            case ["in", choice]:
                return choice
        raise ValueError(f"what does {' '.join(rest)!r} mean?")

    def _map(self, message: DescriptorProto, field: FieldDescriptorProto, types: str) -> None:
        name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
        entry = message.nested_type.add(name=name)
        entry.options.map_entry = True
        for number, (part, scalar) in enumerate(zip(("key", "value"), types.split(","), strict=True), 1):
            label = FieldDescriptorProto.LABEL_OPTIONAL
            entry.field.add(name=part, number=number, label=label, type=_SCALARS[scalar])
        field.label, field.type = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{self._package}.{self.at}.{name}"

    def _whole(self, name: str) -> str:
        return f".{self._package}.{name}" if name in self._own else f".{name}"


def _index(message: DescriptorProto, choice: str) -> int:
    for index, known in enumerate(message.oneof_decl):
        if known.name == choice:
            return index
    message.oneof_decl.add(name=choice)
    return len(message.oneof_decl) - 1
