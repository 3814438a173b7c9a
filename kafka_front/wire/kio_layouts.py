"""Layouts of messages read from the library kio, which has those of Apache Kafka 4.2 as one dataclass per message and
version.

Used by :mod:`kafka_front.wire.make_messages` alone; nodes read the files that it has written.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import types
import typing

from msgspec.structs import replace

from kafka_front.wire.apis import APIS
from kafka_front.wire.primitives import UnsupportedVersion
from kafka_front.wire.schema import ZERO_UUID, Default, FieldType, MessageType, StructType

#: Types of kio that are a plain number on the wire; fields of a time get their unit into the name.
_TIMES = {"timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
_ALIASES = {"error_code": "int16", **_TIMES}


def load(key: int, version: int, request: bool) -> MessageType:
    """Return the layout of one message. Raises UnsupportedVersion."""
    api = APIS.get(key)
    if api is None or not api.first <= version <= api.last:
        raise UnsupportedVersion(f"no layout of API {key} version {version}")
    if key == 0 and version < 3:
        return _old_produce(version, request)
    direction = "request" if request else "response"
    module = importlib.import_module(f"kio.schema.{api.module}.v{version}.{direction}")
    entity = next(
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and getattr(getattr(value, "__type__", None), "name", "") == direction
    )
    header = entity.__dict__["__header_schema__"]
    return MessageType(key, version, request, int(header.__version__), _struct(entity))


def _old_produce(version: int, request: bool) -> MessageType:
    """Return the layout of Produce 0-2, which lack fields of version 3 and are otherwise laid out the same.

    Kafka 4 dropped their schema. They are needed to refuse such clients with a proper answer: docs/protocols/kafka.md,
    rule B.
    """
    missing = (
        {"transactional_id"}
        if request
        else {0: {"log_append_time_ms", "throttle_time_ms"}, 1: {"log_append_time_ms"}}.get(version, set())
    )
    base = load(0, 3, request)
    return MessageType(0, version, request, base.header_version, _without(base.body, missing))


def _without(struct: StructType, names: set[str]) -> StructType:
    fields = []
    for field in struct.fields:
        if field.name not in names:
            inner = _without(field.struct, names) if field.struct else None
            fields.append(replace(field, struct=inner))
    return StructType(struct.name, struct.flexible, tuple(fields))


def _struct(entity: type) -> StructType:
    fields = tuple(_field(f) for f in dataclasses.fields(entity))
    return StructType(entity.__name__, entity.__dict__["__flexible__"], fields)


def _field(field: dataclasses.Field[object]) -> FieldType:
    declared: object = field.type
    declared, nullable = _strip_none(declared)
    array = typing.get_origin(declared) is tuple
    if array:
        declared = _strip_none(typing.get_args(declared)[0])[0]
    tag: int | None = field.metadata.get("tag")
    explicit = field.default is not dataclasses.MISSING
    if dataclasses.is_dataclass(declared):
        assert isinstance(declared, type)
        return FieldType(
            field.name, "struct", _struct(declared), array, nullable, tag, None, explicit and field.default is None
        )
    source: str = field.metadata["kafka_type"]
    kind = _ALIASES.get(source, source)
    name = field.name + "_ms" if source in _TIMES else field.name
    if kind == "uuid" or source == "datetime_i64":
        nullable = nullable and array  # absence has its own value on the wire: the zero UUID, -1
    null_default = nullable and explicit and field.default is None
    default = _plain_default(source, kind, field.default if explicit else None, null_default, array)
    return FieldType(name, kind, None, array, nullable, tag, default, null_default)


def _strip_none(declared: object) -> tuple[object, bool]:
    if typing.get_origin(declared) not in (types.UnionType, typing.Union):
        return declared, False
    rest = [arg for arg in typing.get_args(declared) if arg is not types.NoneType]
    assert len(rest) == 1, declared
    return rest[0], True


def _plain_default(source: str, kind: str, value: object, null_default: bool, array: bool) -> Default:
    """Return Kafka's default as a plain value: the one that the schema names, else the type's zero."""
    if array or null_default:
        return None
    if isinstance(value, datetime.timedelta):
        return round(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    match kind:
        case "records":
            return None
        case "uuid":
            return ZERO_UUID
        case "bool":
            return bool(value)
        case "float64":
            return float(typing.cast(float, value or 0.0))
        case "string":
            return str(value or "")
        case "bytes":
            return bytes(typing.cast(bytes, value or b""))
    if source == "datetime_i64" and value is None:
        return -1
    return int(typing.cast(int, value or 0))
