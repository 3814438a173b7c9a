"""JSON values by a JSON Schema (a subset of it: what has columns).

``type`` object with ``properties`` and ``required``, array with ``items``, string (``format`` date-time or date),
integer, number, boolean; ``["x", "null"]`` for what may be null. A schema without ``type``, with several, or an object
without ``properties`` is a column of JSON text. Properties that the schema does not name are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from spark_pipeline.core.errors import OptionError
from spark_pipeline.lake.decoding import Decoding, Unreadable, unframed

Check = Callable[[Any, str], Any]
"""From a parsed value and where it stands to what Arrow takes. Raises Unreadable."""

_NOT_SAID = object()


@dataclass(slots=True)
class JsonReader:
    """See ValueReader."""

    type: pa.DataType
    _check: Check
    _framed: bool

    @classmethod
    def of(cls, decoding: Decoding) -> JsonReader:
        """Raises OptionError."""
        try:
            schema = json.loads(decoding.schema)
        except ValueError as error:
            raise OptionError(f"the JSON Schema is no JSON: {error}") from error
        kind, check = _compiled(schema)
        if not pa.types.is_struct(kind):
            raise OptionError("a JSON Schema of values is one of an object with properties")
        return cls(kind, check, decoding.framing == "registry")

    def read(self, value: bytes) -> Any:
        """See ValueReader."""
        if self._framed:
            _, value = unframed(value)
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"is no JSON: {error}") from error
        return self._check(parsed, "$")


def _compiled(schema: Any) -> tuple[pa.DataType, Check]:
    """The column and the check of a schema, which is one level of another or the whole."""
    if schema is True:
        return pa.string(), _text
    if not isinstance(schema, dict):
        raise OptionError(f"{schema!r} is no JSON Schema")
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    nullable = "null" in kinds
    kinds = [kind for kind in kinds if kind != "null"]
    kind, check = _of_kind(kinds[0], schema) if len(kinds) == 1 else (pa.string(), _text)
    if not nullable:
        return kind, check
    return kind, lambda value, where: None if value is None else check(value, where)


def _of_kind(kind: str, schema: dict[str, Any]) -> tuple[pa.DataType, Check]:
    match kind:
        case "object":
            return _object(schema) if schema.get("properties") else (pa.string(), _text)
        case "array":
            inner, check = _compiled(schema.get("items", True))
            return pa.list_(pa.field("element", inner)), lambda value, where: [
                check(one, f"{where}[{number}]") for number, one in enumerate(_expect(value, list, "an array", where))
            ]
        case "string":
            match schema.get("format"):
                case "date-time":
                    return pa.timestamp("us", "UTC"), _moment
                case "date":
                    return pa.date32(), _day
            return pa.string(), lambda value, where: _expect(value, str, "a string", where)
        case "integer":
            return pa.int64(), _integer
        case "number":
            return pa.float64(), _number
        case "boolean":
            return pa.bool_(), lambda value, where: _expect(value, bool, "true or false", where)
    raise OptionError(f"{kind!r} is no type of a JSON Schema")


def _object(schema: dict[str, Any]) -> tuple[pa.DataType, Check]:
    compiled = {name: _compiled(inner) for name, inner in schema["properties"].items()}
    required = set(schema.get("required", ()))
    fields = [(name, check, name in required) for name, (_, check) in compiled.items()]

    def check_object(value: Any, where: str) -> Any:
        _expect(value, dict, "an object", where)
        made: dict[str, Any] = {}
        for name, check, must in fields:
            inner = value.get(name, _NOT_SAID)
            if inner is _NOT_SAID:
                if must:
                    raise Unreadable(f"{where}.{name} is missing")
                made[name] = None
            else:
                made[name] = check(inner, f"{where}.{name}")
        return made

    return pa.struct([pa.field(name, kind) for name, (kind, _) in compiled.items()]), check_object


def _expect(value: Any, kind: type, name: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise Unreadable(f"{where} is not {name}")
    return value


def _text(value: Any, _: str) -> Any:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _integer(value: Any, where: str) -> int:
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise Unreadable(f"{where} is not an integer")
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise Unreadable(f"{where} does not fit in 64 bits")
    return number


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{where} is not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise Unreadable(f"{where} is too large") from error


def _moment(value: Any, where: str) -> datetime:
    try:
        moment = datetime.fromisoformat(_expect(value, str, "a string", where))
    except ValueError as error:
        raise Unreadable(f"{where} is no date-time") from error
    if moment.tzinfo is None:
        raise Unreadable(f"{where} is a date-time without an offset from UTC")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise Unreadable(f"{where} is no date-time") from error


def _day(value: Any, where: str) -> date:
    try:
        return date.fromisoformat(_expect(value, str, "a string", where))
    except ValueError as error:
        raise Unreadable(f"{where} is no date") from error
