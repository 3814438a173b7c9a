"""A generator of the files from which nodes know Kafka's messages: ``messages.py``, one class per message, unified over
all versions of its API, and ``layouts``, how each version is laid out.

Run ``python -m kafka_front.wire.make_messages kafka-clients-4.4.0.jar`` after a change of the API table or of Kafka's
version; a test fails when a file is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kafka_front.wire.apis import APIS, Api
from kafka_front.wire.kafka_schemas import KafkaSchemas
from kafka_front.wire.schema import LAYOUTS, ZERO_UUID, FieldType, StructType, written

TARGET = Path(__file__).with_name("messages.py")

_HEADER = '''"""Messages of the Kafka protocol, one class per message for all of its versions. GENERATED, do not edit.

Written by ``python -m kafka_front.wire.make_messages``. Structures inside a message are classes nested in it. A field
that a version lacks has Kafka's default after decoding and is left out by encoding. Numbers are plain ints, topic ids
16 bytes (zero: none), names ending in ``_ms`` milliseconds. None in a structure-valued optional field means that all
of its fields have their defaults. Records decode to a memoryview of the frame, without a copy; a response may carry
them as a list of buffers, which are written one after the other.
"""

# ruff: noqa
# fmt: off

from __future__ import annotations

from typing import Any, ClassVar, Final

from kafka_front.wire.message import Message
from kafka_front.wire.primitives import Buffer

_NEW: Final[Any] = object()
_NO_ID: Final = bytes(16)
'''

_PYTHON = {"float64": "float", "bool": "bool", "uuid": "bytes", "string": "str", "bytes": "bytes"}


class Unified(Struct, frozen=True):
    """A structure with the fields of all versions; ``fields`` are in the newest version's order, dropped ones
    follow."""

    name: str
    fields: dict[str, FieldType]
    nested: dict[str, Unified]


def unify(schemas: KafkaSchemas, api: Api, request: bool) -> Unified:
    """Merge all versions of one message. Raises ValueError if two versions disagree about a field's type."""
    root: Unified | None = None
    nested: dict[str, Unified] = {}
    for version in range(api.last, api.first - 1, -1):
        body = schemas.load(api.key, version, request).body
        root = root or Unified(body.name, {}, nested)
        _merge(root, body, nested)
    assert root is not None
    return root


def _merge(into: Unified, struct: StructType, nested: dict[str, Unified]) -> None:
    for field in struct.fields:
        if field.struct is not None:
            inner = nested.get(field.struct.name)
            if inner is None:
                inner = nested[field.struct.name] = Unified(field.struct.name, {}, {})
            _merge(inner, field.struct, nested)
        known = into.fields.get(field.name)
        into.fields[field.name] = field if known is None else _common(into.name, known, field)


def _common(owner: str, newer: FieldType, older: FieldType) -> FieldType:
    if (newer.kind, newer.array, newer.default) != (older.kind, older.array, older.default) and not (
        newer.nullable != older.nullable
    ):
        raise ValueError(f"{owner}.{newer.name} changed its type: {older} -> {newer}")
    return replace(
        newer,
        nullable=newer.nullable or older.nullable,
        tag=newer.tag if newer.tag is not None else older.tag,
    )


def files(jar: Path) -> dict[Path, str]:
    """Return the text of every generated file by its path; ``jar`` is that of kafka-clients."""
    schemas = KafkaSchemas(jar)
    layouts = {LAYOUTS / f"{api.module}.json": written(api, schemas.load) for api in APIS.values()}
    return {TARGET: source(schemas), **layouts}


def source(schemas: KafkaSchemas) -> str:
    """Return the text of ``messages.py``."""
    parts = [_HEADER]
    for api in APIS.values():
        for request in (True, False):
            root = unify(schemas, api, request)
            parts.append(_class(root, api, request))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _class(root: Unified, api: Api, request: bool) -> str:
    lines = [f"class {root.name}(Message):"]
    lines += _body(root, root.name, request, "    ", f"API_KEY: ClassVar[int] = {api.key}")
    for inner in root.nested.values():
        lines += ["", f"    class {inner.name}(Message):"]
        lines += _body(inner, root.name, request, "        ", None)
    return "\n".join(lines)


def _body(struct: Unified, root: str, request: bool, indent: str, constant: str | None) -> list[str]:
    names = ", ".join(f'"{name}"' for name in struct.fields)
    if len(struct.fields) == 1:
        names += ","
    lines = [f"{indent}__slots__ = ({names})"]
    if constant:
        lines.append(f"{indent}{constant}")
    if not struct.fields:
        return lines
    lines += ["", f"{indent}def __init__(", f"{indent}    self,"]
    stores = []
    for field in struct.fields.values():
        hint = type_hint(field, root, request)
        default, store = _default(field, root)
        lines.append(f"{indent}    {field.name}: {hint} = {default},")
        annotated = f"self.{field.name}: {hint}"
        stores.append(f"{indent}    {annotated} = {store}")
    lines.append(f"{indent}) -> None:")
    return lines + stores


def type_hint(field: FieldType, root: str, request: bool) -> str:
    """Return the Python type of a field; nested structures are named through the message ``root``."""
    if field.kind == "struct":
        assert field.struct is not None
        hint = f"{root}.{field.struct.name}"
    elif field.kind == "records":
        hint = "memoryview" if request else "Buffer | list[Buffer]"
    else:
        hint = _PYTHON.get(field.kind, "int")
    if field.array:
        hint = f"list[{hint}]"
    tagged_struct = field.kind == "struct" and not field.array and field.tag is not None
    return f"{hint} | None" if field.nullable or tagged_struct else hint


def _default(field: FieldType, root: str) -> tuple[str, str]:
    """Return the parameter's default and the expression stored in the slot."""
    name = field.name
    if field.array and not field.null_default:
        return "_NEW", f"[] if {name} is _NEW else {name}"
    if field.array or (field.nullable and name == "error_message"):
        # Kafka's schema often has "" for an error message, but brokers send null unless there is an error.
        return "None", name
    if field.kind == "struct":
        assert field.struct is not None
        if field.nullable or field.tag is not None:
            return "None", name
        return "_NEW", f"{root}.{field.struct.name}() if {name} is _NEW else {name}"
    if field.default == ZERO_UUID:
        return "_NO_ID", name
    if field.default is None and not field.nullable:
        return 'b""', name  # records; other kinds have a default of their own
    literal = repr(field.default)
    return literal.replace("'", '"') if isinstance(field.default, str | bytes) else literal, name


if __name__ == "__main__":
    LAYOUTS.mkdir(exist_ok=True)
    for path, text in files(Path(sys.argv[1])).items():
        path.write_text(text)
        sys.stdout.write(f"{path}\n")
