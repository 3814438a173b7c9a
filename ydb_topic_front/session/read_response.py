"""Builder of a ``ReadResponse`` or ``DirectReadResponse`` from encoded messages of one partition."""

from __future__ import annotations

from collections.abc import Generator
from io import BytesIO

from bridges.formats.pieces import STEP, written
from bridges.formats.protobuf import put_varint
from bridges.formats.records import Buffer

SUCCESS = b"\x08\x80\xb5\x18"
"""Encoded ``FromServer.status`` of every answer without an error."""

_READ_RESPONSE = 0x22
"""Field of a ``ReadResponse`` and of a ``DirectReadResponse``, each in its stream's ``FromServer``."""
_PARTITION_DATA = 0x0A
_SESSION_ID = 0x08
_BATCH = 0x12
_BYTES_SIZE = 0x10
_DIRECT_READ_ID = 0x10
_DIRECT_PARTITION_DATA = 0x1A
_DIRECT_BYTES_SIZE = 0x20


class ResponseBuilder:
    """One encoded ``FromServer`` with messages of one partition, of a StreamRead or a StreamDirectRead."""

    __slots__ = ("_batches", "_session_id", "size", "write_lag", "written_ms")

    def __init__(self, session_id: int) -> None:
        self._session_id = session_id
        self.written_ms = -1
        """Time at which the oldest message was written, -1 if unknown."""
        self.write_lag = 0
        """Longest time from creation to writing of a message, in ms."""
        self._batches: list[tuple[int, list[Buffer]]] = []
        self.size = 0
        """Bytes so far."""

    @property
    def batches(self) -> int:
        """Return the number of batches so far."""
        return len(self._batches)

    def batch(self, size: int, messages: list[Buffer], tail: bytes) -> None:
        """Add a ``Batch`` of encoded ``messages``, ``size`` bytes in total."""
        whole = size + len(tail)
        self._batches.append((whole, [*messages, tail]))
        self.size += whole

    def dated(self, written_ms: int, created_ms: int) -> None:
        """Note when a batch was written and its messages were created; -1 if unknown."""
        if written_ms >= 0:
            self.written_ms = written_ms if self.written_ms < 0 else min(self.written_ms, written_ms)
            if created_ms >= 0:
                self.write_lag = max(self.write_lag, written_ms - created_ms)

    def finish(self, direct_read_id: int = 0) -> Generator[None, None, tuple[bytes, int]]:
        """Return the encoded message and the bytes of credit it uses; with ``direct_read_id``, a
        ``DirectReadResponse``. Yields between slices (:mod:`anabranch_kit.run.sliced`), since a message may be very
        large."""
        data = bytearray((_SESSION_ID,))
        put_varint(data, self._session_id)
        parts: list[Buffer] = [data]
        size = len(data)
        for whole, batch in self._batches:
            lead = bytearray((_BATCH,))
            put_varint(lead, whole)
            parts.append(lead)
            parts += batch
            size += len(lead) + whole
        front = bytearray()
        if direct_read_id:
            front += data
            front.append(_DIRECT_READ_ID)
            put_varint(front, direct_read_id)
        front.append(_DIRECT_PARTITION_DATA if direct_read_id else _PARTITION_DATA)
        put_varint(front, size)
        credit = bytearray((_DIRECT_BYTES_SIZE if direct_read_id else _BYTES_SIZE,))
        put_varint(credit, size)
        response = len(front) + size + len(credit)
        lead = bytearray(SUCCESS)
        lead.append(_READ_RESPONSE)
        put_varint(lead, response)
        parts = [lead, front, *parts, credit]
        if size <= STEP:
            return b"".join(parts), size
        joined = BytesIO()
        for part in parts:
            yield from written(joined, part)
        return joined.getvalue(), size
