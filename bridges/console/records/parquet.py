"""Records as a Parquet file, made of the lines that the interface sends otherwise. Needs pyarrow."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from anabranch_kit.memory.budget import Kind
from bridges.extras import remedy
from bridges.http.bodies import PARSED
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from aiohttp import web

    from anabranch_kit.memory.request_memory import RequestMemory

CONTENT = "application/vnd.apache.parquet"
_GROUP_BYTES = 1024 * 1024
"""Bytes of lines that become a row group."""
_DECODED = ("key_decoded", "value_decoded")


class ParquetSink:
    """Takes lines as pieces of bytes, and sends them as a Parquet file: a row group for each mebibyte.

    Columns are partition, offset, timestamp, key, value, headers, and the error of records that cannot be read; when
    records are decoded, also the JSON of key and value, or why there is none.
    """

    def __init__(self, response: web.StreamResponse, memory: RequestMemory, file: _File) -> None:
        self._response = response
        self._memory = memory
        self._file = file
        self._lines = bytearray()

    @classmethod
    async def open(cls, response: web.StreamResponse, memory: RequestMemory, *, decodes: bool) -> ParquetSink:
        """Return a sink that sends to a response. Raises RequestError if pyarrow is not installed."""
        try:
            file = await asyncio.to_thread(_File, decodes)
        except ImportError as error:
            raise RequestError(f"Parquet needs pyarrow, which this node does not have: {remedy(error)}", 501) from None
        return cls(response, memory, file)

    async def write(self, data: bytes) -> None:
        """Take a piece of lines."""
        self._memory.take(Kind.RESPONSES, len(data))
        self._lines += data
        if len(self._lines) >= _GROUP_BYTES and (end := self._lines.rfind(b"\n") + 1):
            await self._send(bytes(self._lines[:end]))
            del self._lines[:end]

    async def finish(self) -> None:
        """Send what is left, and the end of the file."""
        await self._send(bytes(self._lines))
        await self._response.write(await asyncio.to_thread(self._file.close))

    async def _send(self, lines: bytes) -> None:
        """Convert whole lines in a thread, and send the row group."""
        parsed = PARSED * len(lines)
        self._memory.take(Kind.RESPONSES, parsed)
        try:
            await self._response.write(await asyncio.to_thread(self._file.add, lines))
        finally:
            self._memory.give(Kind.RESPONSES, parsed + len(lines))


class _File:
    """A Parquet file in the making; its methods return the bytes that have been added. Raises ImportError."""

    def __init__(self, decodes: bool) -> None:
        self._arrow = pa = import_module("pyarrow")
        headers = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
        self._schema = pa.schema(
            [
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("ms", tz="UTC")),
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("headers", headers),
                ("error", pa.string()),
                *((name, pa.string()) for name in _DECODED if decodes),
            ]
        )
        self._bytes = io.BytesIO()
        self._writer = import_module("pyarrow.parquet").ParquetWriter(pa.PythonFile(self._bytes), self._schema)

    def add(self, lines: bytes) -> bytes:
        rows = [row for line in lines.splitlines() if (row := _row(json.loads(line))) is not None]
        if rows:
            self._writer.write_table(self._arrow.Table.from_pylist(rows, schema=self._schema))
        return self._take_written()

    def close(self) -> bytes:
        self._writer.close()
        return self._take_written()

    def _take_written(self) -> bytes:
        """Return what was written since the last call. The writer goes by its own count of bytes."""
        data = self._bytes.getvalue()
        self._bytes.seek(0)
        self._bytes.truncate()
        return data


def _row(line: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row of a line; None for the line with a search's progress."""
    if "looked" in line:
        return None
    return {
        "partition": line.get("partition"),
        "offset": line.get("offset"),
        "timestamp": line.get("timestamp"),
        "key": _bytes(line, "key"),
        "value": _bytes(line, "value"),
        "headers": [
            {"name": name, "value": _bytes(value, "") if isinstance(value, dict) else _encoded(value)}
            for name, value in line.get("headers", ())
        ],
        "error": line.get("error"),
        **{name: one.get("text") or f"error: {one['error']}" for name in _DECODED if (one := line.get(name))},
    }


def _bytes(line: dict[str, Any], name: str) -> bytes | None:
    encoded = line.get(f"{name}_base64" if name else "base64")
    return _encoded(line.get(name)) if encoded is None else base64.b64decode(encoded)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
