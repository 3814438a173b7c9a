"""Conversion between our messages and kio's, and strategies that make messages of any layout."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import uuid
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer

from kafka_front.wire import messages
from kafka_front.wire.apis import APIS
from kafka_front.wire.codec import message_type
from kafka_front.wire.schema import FIXED, FieldType, StructType

EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)
MS = datetime.timedelta(milliseconds=1)

#: Fields that Kafka has renamed since.
RENAMED = {
    "generation_id_or_member_epoch": "generation_id",
    "acceptable_recovery_lag_legacy": "acceptable_recovery_lag",
}


def kio_has(key: int, version: int) -> bool:
    """Whether kio has a dataclass: it follows Kafka 4.2."""
    return version in schema_name_map.get(APIS[key].module, ())


def kio_class(key: int, version: int, request: bool) -> type:
    direction = "request" if request else "response"
    module = importlib.import_module(f"kio.schema.{APIS[key].module}.v{version}.{direction}")
    return getattr(module, message_type(key, version, request).body.name)


def to_kio(value: Any, cls: type, layout: StructType) -> Any:
    """Our message as kio's dataclass."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    arguments = {}
    for ours in layout.fields:
        theirs = fields.get(ours.name) or fields[RENAMED.get(ours.name, ours.name.removesuffix("_ms"))]
        got = getattr(value, ours.name)
        if ours.array:
            converted = None if got is None else tuple(_one_to_kio(item, ours, theirs) for item in got)
        else:
            converted = _one_to_kio(got, ours, theirs)
        arguments[theirs.name] = converted
    return cls(**arguments)


def _one_to_kio(value: Any, ours: FieldType, theirs: Any) -> Any:
    if ours.kind == "struct":
        if value is None:
            return theirs.default
        return to_kio(value, _entity_class(theirs), ours.struct)
    source = theirs.metadata["kafka_type"]
    if source.startswith("timedelta"):
        return value * MS
    if source == "datetime_i64":
        return None if value == -1 else EPOCH + value * MS
    if source == "error_code":
        return ErrorCode(value)
    if source == "uuid":
        return uuid.UUID(bytes=value) if any(value) else None
    if source == "records" and isinstance(value, list):
        return b"".join(value)
    return bytes(value) if isinstance(value, memoryview) else value


def _entity_class(field: Any) -> type:
    found = [t for t in _flatten(field.type) if dataclasses.is_dataclass(t)]
    assert len(found) == 1
    return found[0]


def _flatten(declared: Any) -> list[Any]:
    arguments = getattr(declared, "__args__", None)
    return [declared] if not arguments else [leaf for a in arguments if a is not Ellipsis for leaf in _flatten(a)]


def kio_encode(value: Any, key: int, version: int, request: bool) -> bytes:
    cls = kio_class(key, version, request)
    out = io.BytesIO()
    entity_writer(cls)(out, to_kio(value, cls, message_type(key, version, request).body))
    return out.getvalue()


def kio_decode(data: bytes, key: int, version: int, request: bool) -> Any:
    entity, used = entity_reader(kio_class(key, version, request))(data, 0)
    assert used == len(data)
    return entity


# --- strategies -----------------------------------------------------------------------------------------------------

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
#: kio's times are Python's: they end in the year 9999, none is before 1970, and milliseconds suffer from floats.
_YEAR_9999_MS = 253_000_000_000_000


def value_of(layout: StructType) -> st.SearchStrategy[Any]:
    """Our messages of one version of a layout: what decoding can give."""
    return _value_of(layout, getattr(messages, layout.name))


def _value_of(layout: StructType, root: type) -> st.SearchStrategy[Any]:
    cls = root if layout.name == root.__name__ else getattr(root, layout.name)
    return st.builds(cls, **{f.name: _field(f, root) for f in layout.fields})


def _field(field: FieldType, root: type) -> st.SearchStrategy[Any]:
    if field.kind == "struct":
        one = _value_of(field.struct, root)
        if field.tag is not None and not field.array:
            # A structure at its defaults is not written, and reads back as None.
            one = one.filter(lambda v: not _at_defaults(v, field.struct))
    elif field.name.endswith("_ms") and field.kind == "int64":
        one = st.integers(0, _YEAR_9999_MS // 1000).map(lambda seconds: seconds * 1000)
    elif field.kind in _INTEGERS and ("error_code" in field.name):
        one = st.sampled_from([int(code) for code in ErrorCode])
    elif field.kind in _INTEGERS:
        one = st.one_of(st.just(field.default or 0), st.integers(*_INTEGERS[field.kind]))
    elif field.kind == "bool":
        one = st.booleans()
    elif field.kind == "float64":
        one = st.floats(allow_nan=False, allow_infinity=False)
    elif field.kind == "uuid":
        one = st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16))
    elif field.kind == "string":
        one = st.text(max_size=200)
    elif field.kind == "records":
        one = st.binary(max_size=400).map(memoryview)
    else:
        one = st.binary(max_size=400)
    if field.array:
        one = st.lists(one, max_size=3)
    tagged_struct = field.kind == "struct" and field.tag is not None and not field.array
    if field.nullable or tagged_struct:
        one = st.one_of(st.none(), one)
    return one


def _at_defaults(value: Any, layout: StructType) -> bool:
    return all(getattr(value, f.name) == f.default for f in layout.fields)


assert set(FIXED) >= set(_INTEGERS)
