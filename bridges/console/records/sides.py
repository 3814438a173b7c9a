"""A record side by side as the readers of each protocol get it, made by the translation that serves them."""

from __future__ import annotations

import base64
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec import to_builtins

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import worked_off
from bridges.auth import Operation
from bridges.console.handlers import Handlers, route
from bridges.console.host import Host
from bridges.console.schemas.decoding import frames_of
from bridges.formats import FORMAT_MASK, FORMATS, FormatId, format_of, records_of
from bridges.formats.base import EVENT_HEADER
from bridges.formats.records import Record, StoredBatch, told_headers
from bridges.formats.ydb import KEY_ITEM, TOMBSTONE_ITEM
from bridges.http.errors import RequestError
from bridges.http.memory import memory_of

if TYPE_CHECKING:
    from anabranch_kit.memory.request_memory import RequestMemory
    from bridges.log.partition.partition_log import PartitionLog

_LARGEST = 1024 * 1024
"""Largest record, in bytes, that is shown like this."""
_INFLATED = 16 * 1024 * 1024
"""Most bytes to which its batch may decompress; meanwhile _TIMES times the batch's bytes are counted, at most this."""
_TIMES = 16
_SHOWN = 4 * 1024
"""Most bytes that are shown of each field."""
_HEADERS = 100
Shown = dict[str, object]


class SideHandlers(Handlers):
    """Handler of ``/api/topics/{topic}/partitions/{partition}/records/{offset}``."""

    def __init__(self, node: Host) -> None:
        super().__init__(node)
        self._inflated_bytes = min(node.batch_inflated_bytes, _INFLATED)

    @route(
        "GET /api/topics/{topic}/partitions/{partition}/records/{offset}",
        "One record as stored, and as the readers of each protocol get it",
        Operation.READ,
    )
    async def record(self, request: web.Request) -> web.Response:
        """Return how the record at an offset, or the next existing one, is stored, and how Kafka, Pravega and YDB
        readers get it; with a schema registry, also what its schemas make of key and value (``decoded``).

        Of a long field the answer has the beginning, and its ``size``.
        """
        name, number, offset = (request.match_info[one] for one in ("topic", "partition", "offset"))
        self._node.catalog.topic(name)
        if not (number.isascii() and number.isdigit() and offset.isascii() and offset.isdigit() and len(offset) < 20):
            raise RequestError("partition and offset are to be whole numbers")
        log = self._node.logs.get(name, int(number)) if len(number) < 10 else None
        if log is None:
            raise RequestError(f"topic {name!r} has no partition {number}", 404)
        await log.ready()
        batch, record = await self._find(log, int(offset), memory_of(request))
        if record.size > _LARGEST:
            raise RequestError(f"a record of {record.size} bytes is too large for this: download it", 413)
        plug = format_of(batch.flags)
        body: Shown = {
            "partition": log.partition,
            "offset": record.offset,
            "stored": {
                "format": plug.name,
                "base_offset": batch.base_offset,
                "end_offset": batch.end_offset,
                "bytes": len(batch.payload),
                "appended_ms": batch.written_ms if batch.written_ms >= 0 else None,
            },
        }
        for target, told in ((FormatId.KAFKA, _kafka), (FormatId.PRAVEGA, _pravega), (FormatId.YDB, _ydb)):
            same = batch.flags & FORMAT_MASK == target
            shown = record if same else await worked_off(_translated(record, int(target), batch.written_ms))
            body[FORMATS[int(target)].name] = {**told(shown, record), "translated": not same}
        if self._node.schemas is not None:
            decoder = self._node.schemas.decoder()
            frames = frames_of(record)
            body["decoded"] = {name: to_builtins((await decoder.decode([frame]))[0]) for name, frame in frames}
        return web.json_response(body, headers={"Cache-Control": "no-store"})

    async def _find(self, log: PartitionLog, offset: int, memory: RequestMemory) -> tuple[StoredBatch, Record]:
        while offset < log.last_stable_offset:
            batches = await log.read_committed(max(offset, log.log_start_offset), 1)
            size = sum(len(batch.payload) for batch in batches)
            await memory.admit(Kind.READS, max(size, min(_INFLATED, _TIMES * size)))
            for batch in batches:
                found = await worked_off(_first(batch, offset, self._inflated_bytes))
                if found is not None:
                    return batch, found
            if not batches:
                break
            offset = batches[-1].end_offset
        raise RequestError(f"{log.topic}-{log.partition} has no record from there on", 404)


def _first(batch: StoredBatch, offset: int, inflated_bytes: int) -> Generator[None, None, Record | None]:
    for record in records_of(format_of(batch.flags), batch, inflated_bytes, offset):
        if record is None:
            yield
        elif record.offset >= offset:
            return record
    return None


def _translated(record: Record, target: int, written_ms: int) -> Generator[None, None, Record]:
    """Translate a record into the format ``target``, and return what a reader of that format decodes."""
    plug = FORMATS[target]
    builder = plug.builder(record.offset, record.offset + 1)
    builder.add(record)
    payload = yield from builder.finish_in_slices()
    made = StoredBatch(record.offset, record.offset + 1, target, payload, written_ms)
    found = yield from _first(made, record.offset, 2 * _LARGEST)
    assert found is not None  # the batch has one record
    return found


def _kafka(shown: Record, original: Record) -> Shown:
    return {
        "offset": shown.offset,
        "timestamp": shown.timestamp if shown.timestamp >= 0 else None,
        "key": _bytes(shown.key),
        "value": _bytes(shown.value),
        "headers": [[name, _bytes(value)] for name, value in told_headers(shown)[:_HEADERS]],
        "producer_id": original.producer,
        "sequence": original.sequence if original.sequence >= 0 else None,
    }


def _pravega(shown: Record, original: Record) -> Shown:
    lost = [name for name, there in (("key", original.key is not None), ("headers", bool(original.headers))) if there]
    return {
        "event": _bytes(shown.value or b""),
        "event_bytes": EVENT_HEADER + len(shown.value or b""),
        "has_no_place_for": lost,
    }


def _ydb(shown: Record, original: Record) -> Shown:
    items: list[tuple[str, bytes | None]] = [] if shown.key is None else [(KEY_ITEM, shown.key)]
    items += told_headers(shown)[:_HEADERS]
    if shown.value is None:
        items.append((TOMBSTONE_ITEM, b""))
    return {
        "offset": shown.offset,
        "seq_no": shown.sequence if shown.sequence >= 0 else shown.offset + 1,
        "created_at": shown.timestamp if shown.timestamp >= 0 else None,
        "producer_id": shown.producer or "",
        "data": _bytes(shown.value or b""),
        "metadata_items": [[name, _bytes(value or b"")] for name, value in items],
    }


def _bytes(data: bytes | None) -> Any:
    """Return the ``text`` of bytes, or their ``base64`` if they are no text, with their total ``size``; None
    for None.
    """
    if data is None:
        return None
    some = data[:_SHOWN]
    try:
        return {"text": some.decode(), "size": len(data)}
    except UnicodeDecodeError as error:
        if error.start >= len(some) - 3 and len(data) > _SHOWN:
            return {"text": some[: error.start].decode(), "size": len(data)}  # cut inside a character
        return {"base64": base64.b64encode(some).decode(), "size": len(data)}
