"""Records as lines of JSON, as the HTTP interface and the commands ``produce`` and ``tail`` exchange them.

A line is an object with any of ``key``, ``value``, ``headers``, ``partition``, ``timestamp``. Bytes that are UTF-8
appear as text in ``key`` and ``value``; other bytes as base64 in ``key_base64`` and ``value_base64``, in a header as an
object ``{"base64": ...}``. A value that is a JSON number, list or object is stored as its JSON text. What a schema of
the registry makes of them is beside them, in ``key_decoded`` and ``value_decoded``.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from msgspec import to_builtins

from bridges.console.schemas.decoding import Decoded
from bridges.formats.records import Record, told_headers
from bridges.http.errors import BadLine

_KEYS = frozenset({"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp"})
_OUTPUT_ONLY = frozenset({"offset", "topic", "producer", "sequence", "key_decoded", "value_decoded"})
"""Keys that reading adds and writing ignores, so that lines read can be written again."""


FURTHEST_MS = 1 << 53
"""The earliest time, in milliseconds before 1970."""
_UTF8 = codecs.getincrementaldecoder("utf-8")
_NOTHING: Mapping[str, Decoded] = {}


def parse_line(line: bytes) -> tuple[Record, int | None]:
    """Parse a line; return its record, and the partition that it names (None: chosen by key). Raises BadLine."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadLine("not a JSON object")
    if unknown := sorted(document.keys() - _KEYS - _OUTPUT_ONLY):
        raise BadLine(f"unknown field {unknown[0]!r}")
    partition = _whole(document, "partition", None)
    timestamp = _whole(document, "timestamp", -1, -FURTHEST_MS)
    assert timestamp is not None
    headers = _headers(document.get("headers"))
    return Record(_bytes(document, "key"), _bytes(document, "value"), headers, timestamp), partition


def to_line(record: Record, partition: int, decoded: Mapping[str, Decoded] = _NOTHING) -> bytes:
    """Return a record as a line of JSON, with the newline. ``decoded``: its key and value by their schemas."""
    document: dict[str, Any] = {"partition": partition, "offset": record.offset}
    if record.timestamp != -1:
        document["timestamp"] = record.timestamp
    _put(document, "key", record.key)
    _put(document, "value", record.value)
    if headers := told_headers(record):
        document["headers"] = [[name, _header_value(value)] for name, value in headers]
    for name, one in decoded.items():
        document[f"{name}_decoded"] = to_builtins(one)
    return _json(document) + b"\n"


PIECE = 64 * 1024
"""Bytes of a long record that are rendered at a time."""


def line_parts(record: Record, partition: int, decoded: Mapping[str, Decoded] = _NOTHING) -> Iterator[bytes]:
    """Yield :func:`to_line` in pieces. Each piece takes a short time however long the record is; some are empty."""
    if record.size <= PIECE:
        yield to_line(record, partition, decoded)
        return
    document: dict[str, Any] = {"partition": partition, "offset": record.offset}
    if record.timestamp != -1:
        document["timestamp"] = record.timestamp
    yield _json(document)[:-1]
    for name, value in (("key", record.key), ("value", record.value)):
        if value is None:
            yield b',"%s":null' % name.encode()
        elif (yield from _is_text(value)):
            yield b',"%s":' % name.encode()
            yield from _text_parts(value)
        else:
            yield b',"%s_base64":' % name.encode()
            yield from _base64_parts(value)
    if headers := told_headers(record):
        separator = b',"headers":['
        for name, value in headers:
            yield separator + b"["
            yield from _text_parts(name.encode())
            yield b","
            if value is None:
                yield b"null"
            elif (yield from _is_text(value)):
                yield from _text_parts(value)
            else:
                yield b'{"base64":'
                yield from _base64_parts(value)
                yield b"}"
            yield b"]"
            separator = b","
        yield b"]"
    for name, one in decoded.items():
        yield b',"%s_decoded":' % name.encode() + _json(to_builtins(one))
    yield b"}\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _pieces(data: bytes, size: int = PIECE) -> Iterator[tuple[memoryview, bool]]:
    """Yield pieces of ``data``, at least one, each with whether it is the last."""
    view = memoryview(data)
    for start in range(0, max(len(view), 1), size):
        yield view[start : start + size], start + size >= len(view)


def _is_text(data: bytes) -> Generator[bytes, None, bool]:
    decoder = _UTF8()
    try:
        for piece, last in _pieces(data):
            decoder.decode(piece, last)
            yield b""
    except UnicodeDecodeError:
        return False
    return True


def _text_parts(data: bytes) -> Iterator[bytes]:
    decoder = _UTF8()
    yield b'"'
    for piece, last in _pieces(data):
        yield _json(decoder.decode(piece, last))[1:-1]
    yield b'"'


def _base64_parts(data: bytes) -> Iterator[bytes]:
    yield b'"'
    for piece, _ in _pieces(data, PIECE // 3 * 3):
        yield base64.b64encode(piece)
    yield b'"'


def _whole(document: Mapping[str, Any], key: str, default: int | None, least: int = -1) -> int | None:
    value = document.get(key, default)
    if value is default or value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise BadLine(f"{key} is not a whole number in range")
    return value


def _bytes(document: Mapping[str, Any], key: str) -> bytes | None:
    encoded = document.get(f"{key}_base64")
    if encoded is None:
        return _text(document.get(key), key)
    if document.get(key) is not None:
        raise BadLine(f"both {key} and {key}_base64 are given")
    return _base64(encoded, f"{key}_base64")


def _text(value: Any, what: str) -> bytes | None:
    """Return text as bytes, and any other JSON value as its JSON text. Raises BadLine."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadLine(f"{what} has half a surrogate pair, which is no character") from None


def _base64(value: Any, what: str) -> bytes:
    if not isinstance(value, str):
        raise BadLine(f"{what} is not text")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise BadLine(f"{what} is not base64") from None


def _headers(value: Any) -> list[tuple[str, bytes | None]]:
    if value is None:
        return []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
    ):
        pairs = [(pair[0], pair[1]) for pair in value]
    else:
        raise BadLine("headers are neither an object nor a list of [name, value]")
    headers: list[tuple[str, bytes | None]] = []
    for name, content in pairs:
        _text(name, "a header's name")
        if isinstance(content, dict) and content.keys() == {"base64"}:
            headers.append((name, _base64(content["base64"], f"header {name}")))
        else:
            headers.append((name, _text(content, f"header {name}")))
    return headers


def _put(document: dict[str, Any], key: str, value: bytes | None) -> None:
    if value is None:
        document[key] = None
        return
    try:
        document[key] = value.decode()
    except UnicodeDecodeError:
        document[f"{key}_base64"] = base64.b64encode(value).decode()


def _header_value(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
