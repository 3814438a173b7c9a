"""Decoding of keys and values that name a schema of the registry, and encoding by one.

The id of a schema is in the first five bytes (a zero, and an int32), or, with its GUID, in a header of the record
(Confluent's wire format). What cannot be decoded keeps its bytes and gets a reason. The work itself is done in a
process of its own (:mod:`bridges.console.schemas.worker`), which a thread here asks for one value after the other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from select import select
from typing import BinaryIO, cast
from uuid import UUID

import msgspec
from msgspec import Struct

from bridges.console.schemas.jobs import MOST_SECONDS, NO_MEMORY, Job, Result, read_frame, write_frame
from bridges.console.schemas.registry import Key, Registry, Schema, SchemaError
from bridges.formats.records import Record

MOST_BYTES = 128 * 1024
"""Longest key or value that is decoded."""
TOO_LONG = f"it is longer than {MOST_BYTES // 1024} KiB"
_MOST_MISSES = 20
"""Schemas that one answer may ask for in vain: bytes that are no id look like one."""
MOST_SCHEMAS = 200
"""Schemas that a process gets."""
_IDLE_S = 60.0
"""Seconds after which a process without work ends, and a schema that is none is tried again."""
PATIENCE_S = 60.0
_TURN_S = 0.05
_TOGETHER = 256 * 1024
"""Seconds, and bytes made, after which the works of others come first."""
_ENDS: Mapping[int | None, str] = {
    -signal.SIGPROF: f"it takes more than {MOST_SECONDS:g} s of processor time",
    NO_MEMORY: "it takes too much memory",
    None: "the process that decodes does not start",
}
Work = tuple[Schema, bytes, bytes, bool]
"""A schema, data, Protobuf's indexes, and whether to encode."""


class Frame(Struct, frozen=True):
    """A key or value that names its schema. ``data`` is what follows the id; ``indexes`` those of Protobuf, if they are
    in a header.
    """

    key: Key
    data: bytes
    indexes: bytes = b""

    @property
    def label(self) -> int | str:
        """Return the key as users see it."""
        return self.key if isinstance(self.key, int) else str(self.key)


class Decoded(Struct, omit_defaults=True):
    """The JSON of a key or value as ``text``, or the ``error`` that there is none. ``schema``: its id or GUID."""

    schema: int | str
    type: str = ""
    text: str = ""
    error: str = ""


def frames_of(record: Record) -> Iterator[tuple[str, Frame]]:
    """Yield the key and the value of a record that name a schema, each with its name."""
    for name, data in (("key", record.key), ("value", record.value)):
        if data is None:
            continue
        header = next((value for one, value in record.headers if one == f"__{name}_schema_id" and value), b"")
        if header[0:1] == b"\1" and len(header) >= 17:
            yield name, Frame(UUID(bytes=header[1:17]), data, header[17:])
        elif data[0:1] == b"\0" and len(data) >= 5 and data[1] < 0x80:
            yield name, Frame(int.from_bytes(data[1:5]), data[5:])


class Schemas:
    """The schemas of a registry at work. Belongs to the event loop."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._worker = _Worker()

    async def encode(self, key: Key, text: bytes) -> bytes:
        """Return JSON as a schema of the registry says, behind the schema's id. Raises SchemaError."""
        schema = await self.registry.find(key)
        if schema.id is None:
            raise SchemaError(f"the schema registry tells no id of {key}")
        (result,) = await self._worker.run([(schema, text, b"", True)])
        if result.error:
            raise SchemaError(f"it does not fit schema {key}: {result.error}")
        return b"\0" + schema.id.to_bytes(4) + result.data

    def decoder(self) -> Decoder:
        """Return what decodes the records of one answer."""
        return Decoder(self.registry, self._worker)

    def close(self) -> None:
        """End the process."""
        self._worker.close()


class Decoder:
    """Decodes the records of one answer."""

    def __init__(self, registry: Registry, worker: _Worker) -> None:
        self._registry = registry
        self._worker = worker
        self._misses = 0

    async def ask(self, frames: Iterable[Frame]) -> None:
        """Ask the registry for what :meth:`decode` will need."""
        for key in {frame.key for frame in frames}:
            with suppress(SchemaError):
                await self._find(key)

    async def decode(self, frames: Sequence[Frame]) -> list[Decoded]:
        """Return what became of the first of them, at least of one: together their texts are short."""
        told: list[Decoded] = []
        works: list[Work] = []
        places: list[int] = []
        for place, frame in enumerate(frames):
            told.append(Decoded(frame.label))
            try:
                if len(frame.data) > MOST_BYTES:
                    raise SchemaError(TOO_LONG)
                schema = await self._find(frame.key)
            except SchemaError as error:
                told[place].error = str(error)
                continue
            told[place].type = schema.definition.kind
            works.append((schema, frame.data, frame.indexes, False))
            places.append(place)
        results = await self._worker.run(works) if works else []
        for place, result in zip(places, results, strict=False):
            told[place].text, told[place].error = result.data.decode(), result.error
        return told if len(results) == len(works) else told[: places[len(results)]]

    async def _find(self, key: Key) -> Schema:
        is_new = self._registry.find_kept(key) is None
        if is_new and self._misses >= _MOST_MISSES:
            raise SchemaError(f"not asked for: {_MOST_MISSES} others of this answer are no schemas")
        try:
            return await self._registry.find(key)
        except SchemaError:
            self._misses += is_new
            raise


class _Worker:
    """The process that decodes, started when it is needed, and ended when it is not."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[int] = set()
        self._broken: dict[int, tuple[float, Result]] = {}
        self._running = 0
        self._idle: asyncio.TimerHandle | None = None

    async def run(self, works: Sequence[Work]) -> list[Result]:
        """Do the first of the works, at least one, in turns with those of others."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="schemas")
        loop = asyncio.get_running_loop()
        self._running += 1
        try:
            return await loop.run_in_executor(self._thread, self._exchange, works)
        finally:
            self._running -= 1
            if self._idle is not None:
                self._idle.cancel()
            self._idle = loop.call_later(_IDLE_S, self._rest)

    def _rest(self) -> None:
        if not self._running:
            self.close()

    def close(self) -> None:
        """End the process and the thread."""
        if self._idle is not None:
            self._idle.cancel()
        if (process := self._process) is not None:
            process.kill()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        self._end()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _exchange(self, works: Sequence[Work]) -> list[Result]:
        """Do works up to one that ended the process, until they have taken long or made much."""
        began, size = time.monotonic(), 0
        results: list[Result] = []
        for work in works:
            results.append(self._ask(*work))
            size += len(results[-1].data)
            if self._process is None or size > _TOGETHER or time.monotonic() - began > _TURN_S:
                break
        return results

    def _ask(self, schema: Schema, data: bytes, indexes: bytes, encode: bool) -> Result:
        until, broken = self._broken.get(schema.number, (0.0, Result(b"", "")))
        if until > time.monotonic():
            return broken
        if len(self._known) >= MOST_SCHEMAS:
            self._end()
        if schema.number not in self._known:
            result = self._call(Job(schema.number, b"", b"", False, schema.definition))
            if result.error:
                if len(self._broken) >= MOST_SCHEMAS:
                    self._broken.clear()
                self._broken[schema.number] = (time.monotonic() + _IDLE_S, result)
                return result
            self._known.add(schema.number)
        return self._call(Job(schema.number, data, indexes, encode, None))

    def _call(self, job: Job) -> Result:
        try:
            process = self._process or self._start()
            write_frame(cast("BinaryIO", process.stdin), msgspec.msgpack.encode(job))
            source = cast("BinaryIO", process.stdout)
            frame = read_frame(source) if select([source], [], [], PATIENCE_S)[0] else None
        except OSError:
            frame = None
        if frame is not None:
            return msgspec.msgpack.decode(frame, type=Result)
        ended = self._end()
        return Result(b"", _ENDS.get(ended, f"it ends the process that decodes ({ended})"))

    def _start(self) -> subprocess.Popen[bytes]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bridges.console.schemas.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=own,  # without passwords
            start_new_session=True,  # an interrupt at a terminal is the node's
        )
        return self._process

    def _end(self) -> int | None:
        process, self._process = self._process, None
        self._known.clear()
        if process is None:
            return None
        cast("BinaryIO", process.stdin).close()
        process.kill()
        with process:
            return process.wait()
