"""Codecs of schemas: Avro, Protobuf and JSON Schema, each between stored bytes and JSON text.

They use foreign libraries, which a value can keep busy for ever, or crash: 128 KiB of nested Avro overflow fastavro's
stack. So only the process of :mod:`bridges.console.schemas.worker` imports this module.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

_FILE = re.compile(r"(?!.*\.\./)[\w][\w./-]*")
"""A Protobuf import that may become a file's name."""


_ROOT = "AnabranchRoot"


class Unfit(Exception):
    """A value does not fit its schema, or the schema is none; the message says why."""


def make_codec(kind: str, schema: str, references: Mapping[str, str]) -> Codec:
    """Return the codec of a schema. ``references``: other schemas by the name it has for them, their own before them.

    Its ``decode`` makes JSON of what follows a schema's id (``indexes``: Protobuf's, if a header has them), and
    ``encode`` the reverse. All raise Unfit, ImportError, and whatever the kind's library raises.
    """
    kinds: Mapping[str, type[_Avro | _Protobuf | _Json]] = {"AVRO": _Avro, "PROTOBUF": _Protobuf, "JSON": _Json}
    if kind not in kinds:
        raise Unfit(f"schemas of the type {kind} are not decoded here")
    return kinds[kind](schema, references)


class _Avro:
    """Avro. In JSON, bytes are the characters of their numbers, as in Avro's own; times and decimals are text."""

    def __init__(self, schema: str, references: Mapping[str, str]) -> None:
        self._avro = import_module("fastavro")
        validation = import_module("fastavro.validation")
        self._validate = validation.validate
        self._unfit = (ValueError, validation.ValidationError)
        self._named: dict[str, Any] = {}
        for one in references.values():
            self._avro.parse_schema(_document(one), named_schemas=self._named)
        # fastavro keeps the names that a schema uses in it: so it has to be a record, whose bytes are its field's.
        root = {"type": "record", "name": _ROOT, "fields": [{"name": "it", "type": _document(schema)}]}
        self._root = self._avro.parse_schema(root, named_schemas=self._named)
        self._schema = self._root["fields"][0]["type"]

    def decode(self, data: bytes, indexes: bytes) -> str:
        stream = BytesIO(data)
        value = self._avro.schemaless_reader(stream, self._root)["it"]
        if rest := len(data) - stream.tell():
            raise Unfit(f"{rest} more bytes follow than its schema says")
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)

    def encode(self, text: str) -> bytes:
        document = _document(text, plain=True)
        value = self._fit(self._schema, document)
        if self._schema == "string" and not isinstance(value, str):
            value = text
        stream = BytesIO()
        try:
            self._validate({"it": value}, self._root, raise_errors=True)
            self._avro.schemaless_writer(stream, self._root, {"it": value}, strict_allow_default=True)
        except self._unfit as error:
            raise Unfit(str(error).replace(f"{_ROOT}.it.", "").replace(f"{_ROOT}.it", "it")) from None
        return stream.getvalue()

    def _fit(self, schema: Any, value: Any) -> Any:
        """Return the Python value that fastavro takes for a value of JSON; what does not fit stays as it is."""
        if isinstance(schema, list):
            for branch in schema:
                fitted = self._fit(branch, value)
                alone = {**self._root, "fields": [{"name": "it", "type": branch}]}
                if self._validate({"it": fitted}, alone, raise_errors=False):
                    return fitted
            return value
        if isinstance(schema, str):
            return self._fit(self._named[schema], value) if schema in self._named else _scalar(schema, "", value)
        kind, logical = schema["type"], schema.get("logicalType", "")
        if isinstance(kind, dict | list):
            return self._fit(kind, value)
        if kind in ("record", "error") and isinstance(value, dict):
            types = {field["name"]: field["type"] for field in schema["fields"]}
            return {name: self._fit(types[name], one) if name in types else one for name, one in value.items()}
        if kind == "array" and isinstance(value, list):
            return [self._fit(schema["items"], one) for one in value]
        if kind == "map" and isinstance(value, dict):
            return {name: self._fit(schema["values"], one) for name, one in value.items()}
        return _scalar(kind, logical, value)


def _scalar(kind: str, logical: str, value: Any) -> Any:
    if kind in ("float", "double") and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    try:
        if logical == "decimal" and isinstance(value, str | int | float) and not isinstance(value, bool):
            return Decimal(str(value))
        if isinstance(value, str) and logical == "date":
            return date.fromisoformat(value)
        if isinstance(value, str) and logical.startswith("time-"):
            return time.fromisoformat(value)
        if isinstance(value, str) and logical.startswith(("timestamp-", "local-timestamp-")):
            return datetime.fromisoformat(value)
        if isinstance(value, str) and kind in ("bytes", "fixed"):
            return value.encode("latin-1")
    except (ValueError, ArithmeticError):
        pass  # it does not fit: validation says so
    return value


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value.isoformat() if isinstance(value, date | time) else str(value)


class _Json:
    """JSON Schema. What it refers to is among its references: nothing is fetched."""

    def __init__(self, schema: str, references: Mapping[str, str]) -> None:
        validators = import_module("jsonschema.validators")
        known, draft = import_module("referencing"), import_module("referencing.jsonschema").DRAFT7
        content = _document(schema)
        base = content.get("$id", "") if isinstance(content, dict) else ""
        resources = []
        for name, text in references.items():
            made = known.Resource.from_contents(_document(text), default_specification=draft)
            resources += [(name, made), (urljoin(base, name), made)]
        registry = import_module("jsonschema_specifications").REGISTRY.with_resources(resources)
        kind = validators.validator_for(content, default=validators.Draft7Validator)
        self._validator = kind(content, registry=registry)

    def decode(self, data: bytes, indexes: bytes) -> str:
        text = data.decode()
        self._check(_document(text))
        return text

    def encode(self, text: str) -> bytes:
        document = _document(text, plain=True)
        self._check(document)
        return json.dumps(document, ensure_ascii=False).encode() if document is text else text.encode()

    def _check(self, document: Any) -> None:
        for error in self._validator.iter_errors(document):
            raise Unfit(f"{error.json_path}: {error.message[:500]}")


class _Protobuf:
    """Protobuf. Its schema is the text of a .proto file, or a descriptor in base64, which Python's client registers."""

    def __init__(self, schema: str, references: Mapping[str, str]) -> None:
        self._format = import_module("google.protobuf.json_format")
        self._factory = import_module("google.protobuf.message_factory")
        self._pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
        files = _compiled({**references, "schema.proto": schema})
        for file in files:
            self._pool.Add(file)
        self._file = files[-1]

    def decode(self, data: bytes, indexes: bytes) -> str:
        path, at = _indexes(indexes or data)
        message = self._message(path)
        message.ParseFromString(data if indexes else data[at:])
        text: str = self._format.MessageToJson(
            message, indent=None, preserving_proto_field_name=True, ensure_ascii=False, descriptor_pool=self._pool
        )
        return text

    def encode(self, text: str) -> bytes:
        message = self._message([0])
        self._format.ParseDict(_document(text), message, descriptor_pool=self._pool)
        data: bytes = message.SerializeToString()
        return b"\0" + data

    def _message(self, path: list[int]) -> Any:
        names, kinds = [self._file.package] if self._file.package else [], self._file.message_type
        for index in path:
            if not 0 <= index < len(kinds):
                raise Unfit(f"its schema has no message {path}")
            names.append(kinds[index].name)
            kinds = kinds[index].nested_type
        return self._factory.GetMessageClass(self._pool.FindMessageTypeByName(".".join(names)))()


def _compiled(files: Mapping[str, str]) -> Sequence[Any]:
    """Return the descriptors of files, and of all that they import, each before those that need it."""
    protoc = import_module("grpc_tools.protoc")
    made, given = (import_module("google.protobuf.descriptor_pb2").FileDescriptorSet() for _ in range(2))
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as errors:
        place = Path(name)
        for file, text in files.items():
            if not _FILE.fullmatch(file):
                raise Unfit(f"its schema imports {file[:100]!r}, which is no name of a file")
            try:
                descriptor = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                (place / file).write_text(text)
            else:
                given.file.add().MergeFromString(descriptor)
                given.file[-1].name = file
        (place / ".given").write_bytes(given.SerializeToString())
        options = [
            f"-I{place}",
            f"-I{Path(str(protoc.__file__)).parent / '_proto'}",
            f"--descriptor_set_in={place}/.given",
        ]
        os.dup2(errors.fileno(), 2)
        if protoc.main(
            ["protoc", *options, "--include_imports", f"--descriptor_set_out={place}/.made", "schema.proto"]
        ):
            errors.seek(0)
            lines = errors.read(10_000).decode(errors="replace").replace(f"{place}/", "").splitlines()
            told = [line for line in lines if line.partition(":")[0].endswith(".proto")]
            raise Unfit(f"its schema is not to be compiled: {'; '.join(told)[:500]}")
        made.ParseFromString((place / ".made").read_bytes())
    return list(made.file)


def _indexes(data: bytes) -> tuple[list[int], int]:
    """Return the path of a message in its file, and the bytes that it takes: a count and indexes, or a zero for the
    first message.
    """
    count, at = _zigzag(data, 0)
    if not 0 <= count <= 100:
        raise Unfit("its message's place in the schema is none")
    path = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        path.append(index)
    return path or [0], at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 35:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value >> 1 ^ -(value & 1), at
        shift += 7
    raise Unfit("it ends before its message")


def _document(text: str, *, plain: bool = False) -> Any:
    """Return what JSON says; with ``plain``, text that is no JSON is itself."""
    try:
        return json.loads(text)
    except ValueError as error:
        if plain:
            return text
        raise Unfit(f"it is not JSON: {error}") from None


Codec = _Avro | _Protobuf | _Json
