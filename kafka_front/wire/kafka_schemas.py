"""Layouts of messages read from Apache Kafka's own schemas, the files ``common/message/*.json`` in the jar of its
clients.

Used by :mod:`kafka_front.wire.make_messages` alone; nodes read the files that it has written.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.primitives import UnsupportedVersion
from kafka_front.wire.schema import FIXED, ZERO_UUID, Default, FieldType, MessageType, StructType

_Schema = dict[str, Any]
"""A message, a structure or a field of a schema."""


class KafkaSchemas:
    """The schemas in a jar of kafka-clients."""

    def __init__(self, jar: Path) -> None:
        self._by_key = {(one["apiKey"], one["type"] == "request"): one for one in _messages(jar)}

    def load(self, key: int, version: int, request: bool) -> MessageType:
        """Return the layout of one message. Raises UnsupportedVersion."""
        api = APIS.get(key)
        if api is None or not api.first <= version <= api.last:
            raise UnsupportedVersion(f"no layout of API {key} version {version}")
        if key == ApiKey.PRODUCE and version < 3:
            return self._old_produce(version, request)
        schema = self._by_key[key, request]
        if not _has(schema["validVersions"], version):
            raise UnsupportedVersion(f"Kafka has no {schema['name']} {version}")
        flexible = _has(schema["flexibleVersions"], version)
        header = int(flexible) + int(request)
        if key == ApiKey.API_VERSIONS and not request:
            header = 0  # docs/protocols/kafka.md, rule 5
        named = {one["name"]: one for one in schema.get("commonStructs", ())}
        body = _struct(schema["name"], schema["fields"], named, version, flexible)
        return MessageType(key, version, request, header, body)

    def _old_produce(self, version: int, request: bool) -> MessageType:
        """Return the layout of Produce 0-2, which lack fields of version 3 and are otherwise laid out the same.

        Kafka 4 dropped their schema. They are needed to refuse such clients with a proper answer:
        docs/protocols/kafka.md, rule B.
        """
        missing = (
            {"transactional_id"}
            if request
            else {0: {"log_append_time_ms", "throttle_time_ms"}, 1: {"log_append_time_ms"}}.get(version, set())
        )
        base = self.load(ApiKey.PRODUCE, 3, request)
        return MessageType(0, version, request, base.header_version, _without(base.body, missing))


def _messages(jar: Path) -> Iterator[_Schema]:
    with zipfile.ZipFile(jar) as files:
        for name in files.namelist():
            if name.startswith("common/message/") and name.endswith(("Request.json", "Response.json")):
                text = files.read(name).decode()
                yield json.loads("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//")))


def _without(struct: StructType, names: set[str]) -> StructType:
    fields = []
    for field in struct.fields:
        if field.name not in names:
            inner = _without(field.struct, names) if field.struct else None
            fields.append(replace(field, struct=inner))
    return StructType(struct.name, struct.flexible, tuple(fields))


def _has(versions: str, version: int) -> bool:
    """Return whether a range, as "2", "2-4", "2+" or "none", has the version."""
    if versions == "none":
        return False
    first, last = re.fullmatch(r"(\d+)(?:-(\d+)|\+)?", versions).groups()  # type: ignore[union-attr]
    if versions.endswith("+"):
        return version >= int(first)
    return int(first) <= version <= int(last or first)


def _struct(name: str, fields: list[_Schema], named: Mapping[str, _Schema], version: int, flexible: bool) -> StructType:
    found = (_field(one, named, version, flexible) for one in fields if _has(one["versions"], version))
    return StructType(name, flexible, tuple(found))


def _field(field: _Schema, named: Mapping[str, _Schema], version: int, flexible: bool) -> FieldType:
    kind: str = field["type"]
    array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", field["name"]).lower()
    nullable = _has(field.get("nullableVersions", "none"), version)
    tag: int | None = field["tag"] if _has(field.get("taggedVersions", "none"), version) else None
    default = field.get("default")
    null_default = nullable and default == "null"
    if kind in FIXED or kind in ("string", "bytes", "records"):
        value = None if array or null_default else _default(kind, default)
        return FieldType(name, kind, None, array, nullable, tag, value, null_default)
    inner = field.get("fields") or named[kind]["fields"]
    return FieldType(
        name, "struct", _struct(kind, inner, named, version, flexible), array, nullable, tag, None, null_default
    )


def _default(kind: str, text: Any) -> Default:
    """Return Kafka's default as a plain value: the one that the schema names, else the type's zero."""
    match kind:
        case "records":
            return None
        case "uuid":
            return ZERO_UUID
        case "bool":
            return text in (True, "true")
        case "float64":
            return float(text or 0)
        case "string":
            return "" if text in (None, "null") else str(text)
        case "bytes":
            return b""
    return int(str(text or 0), 0)
