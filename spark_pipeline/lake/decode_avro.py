"""Avro values by the schema of their writer, with fastavro."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa

from spark_pipeline.core.errors import OptionError
from spark_pipeline.lake.decoding import Decoding, Unreadable, unframed

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "null": pa.null(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


@dataclass(slots=True)
class AvroReader:
    """See ValueReader. ``_writers`` are schemas by number, for values that name theirs."""

    type: pa.DataType
    _schema: Any
    _framed: bool
    _uuids: bool = False
    _writers: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, decoding: Decoding) -> AvroReader:
        """Raises OptionError."""
        schema = _parsed(decoding.schema)
        kind = _column(schema, {}, ())
        if not pa.types.is_struct(kind):
            raise OptionError("an Avro schema of values is one of a record")
        writers = {}
        for number, text in decoding.writers.items():
            if not number.isdecimal():
                raise OptionError(f"{number!r} is no number of a schema")
            writers[int(number)] = _parsed(text)
        return cls(kind, schema, decoding.framing == "registry", "uuid" in decoding.schema, writers)

    def read(self, value: bytes) -> Any:
        """See ValueReader. Without other writers' schemas, every number stands for the one schema."""
        schema = self._schema
        if self._framed:
            number, value = unframed(value)
            if self._writers:
                if number not in self._writers:
                    raise Unreadable(f"names the schema {number}, which was not given")
                schema = self._writers[number]
        stream = BytesIO(value)
        try:
            made = fastavro.schemaless_reader(stream, schema, self._schema if schema is not self._schema else None)
        except Exception as error:
            raise Unreadable(f"is no Avro of the schema: {type(error).__name__} {error}") from error
        if stream.tell() != len(value):
            raise Unreadable(f"has {len(value) - stream.tell()} bytes behind what the schema says")
        return _texts(made) if self._uuids else made


def _parsed(text: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(text))
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise OptionError(f"the Avro schema cannot be read: {error}") from error


def _texts(value: Any) -> Any:
    """UUIDs as text, which Arrow's string columns take."""
    if isinstance(value, dict):
        return {name: _texts(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return str(value) if type(value).__name__ == "UUID" else value


def _column(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> pa.DataType:
    """The column of a schema; ``named`` are the types that were defined before, ``within`` those around this one."""
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema in within:
            raise OptionError(f"the Avro schema holds itself ({schema}): it has no columns")
        if schema in named:
            return _column(named[schema], named, within)
        raise OptionError(f"{schema!r} is no Avro type")
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise OptionError("a union of several types has no column: only one with null has")
        return _column(others[0], named, within)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _column(kind, named, within)
    logical = schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if "name" in schema:
        named[schema["name"]] = schema
    match kind:
        case "record" | "error":
            inside = (*within, schema["name"])
            return pa.struct([pa.field(one["name"], _column(one["type"], named, inside)) for one in schema["fields"]])
        case "array":
            return pa.list_(pa.field("element", _column(schema["items"], named, within)))
        case "map":
            return pa.map_(pa.string(), _column(schema["values"], named, within))
        case "enum":
            return pa.string()
        case "fixed":
            return pa.binary()
    return _column(kind, named, within)
