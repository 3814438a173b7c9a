"""Our description of a message's layout, read from kio's message dataclasses.

kio carries the layouts of Apache Kafka 4.2 as one dataclass per message and version; this module turns the dataclass
of one (API, version, direction) into :class:`StructType`. Only the modules asked for are imported.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import types
import typing
from dataclasses import dataclass

from kafka_front.wire.apis import APIS
from kafka_front.wire.primitives import UnsupportedVersion

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
#: Types of kio that are a plain number on the wire; those of a time get their unit into the name.
_TIMES = {"timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
_ALIASES = {"error_code": "int16", **_TIMES}

ZERO_UUID = bytes(16)

Default = int | float | bool | str | bytes | None


@dataclass(frozen=True, slots=True)
class FieldType:
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


@dataclass(frozen=True, slots=True)
class StructType:
    name: str
    flexible: bool
    fields: tuple[FieldType, ...]

    @property
    def plain(self) -> list[FieldType]:
        return [f for f in self.fields if f.tag is None]

    @property
    def tagged(self) -> list[FieldType]:
        """Tagged fields in the order they must be written."""
        return sorted((f for f in self.fields if f.tag is not None), key=lambda f: typing.cast(int, f.tag))


@dataclass(frozen=True, slots=True)
class MessageType:
    """A request or response of one version. ``header_version`` is that of the header in front of it."""

    key: int
    version: int
    request: bool
    header_version: int
    body: StructType


def load(key: int, version: int, request: bool) -> MessageType:
    """Layout of one message. Raises UnsupportedVersion."""
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
    """Produce 0-2 lack fields of version 3 and are otherwise laid out the same (Kafka 4 dropped their schema).

    They are needed to refuse them politely: see reference/kafka.md 1.2, rule B.
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
            fields.append(dataclasses.replace(field, struct=inner))
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
    """Kafka's default as a plain value: what the schema names, else the type's zero."""
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
