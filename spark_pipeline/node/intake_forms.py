"""The wire forms in which a migration sends batches: Kafka's as they are, others behind heads with their offsets.

A form finds the end of a batch in the received bytes, and the facts about it that the log needs. Kafka numbers
producers per cluster, so the numbers of another cluster mean nothing here, and the entry is flagged so (IMPORTED).
YDB's producers keep their names: their last ``seq_no`` is known once the batch is in the log, as if it had been written
here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import crc32c

from bridges.errors import BatchInvalid, BatchTooLarge
from bridges.formats import IMPORTED, FormatId, format_of, ydb
from bridges.formats import pravega as pravega_format
from bridges.formats.kafka import CONTROL as KAFKA_CONTROL
from bridges.formats.kafka import HEADER_SIZE, LOG_OVERHEAD, MAGIC, parse_header
from bridges.formats.kafka import transaction_of as transaction_of_batch
from bridges.formats.producer import InTransaction, Stamp
from spark_pipeline.core.frames import HEAD
from spark_pipeline.core.kafka_batches import same

MOST_BATCH_BYTES = 16 * 1024 * 1024 - 4096
"""Size of the largest batch that fits into a frame of the backend."""
_CRC_FROM = 21


class Brought(NamedTuple):
    """A checked batch of a migration at offsets ``[base, base + span)``. ``newest`` is in ms, -1 if unknown."""

    base: int
    span: int
    payload: memoryview
    newest: int
    transaction: InTransaction | None = None
    producer: Stamp | None = None


class Form(ABC):
    """The wire form of batches of one stored format: behind heads (:mod:`spark_pipeline.core.frames`), by default."""

    flags: int
    """Flags of the log entry that the batch becomes."""
    head_bytes = HEAD.size
    """Bytes that must have arrived before :meth:`size` may be called."""

    def size(self, view: memoryview, at: int) -> int:
        """Return the bytes of the batch at ``at``, with its head. Raises BatchInvalid, BatchTooLarge."""
        base, count, size = HEAD.unpack_from(view, at)
        if base < 0 or not 1 <= count < 1 << 31:
            raise BatchInvalid(f"a batch at offset {base} that spans {count} offsets is none")
        if size > MOST_BATCH_BYTES:
            raise BatchTooLarge(f"the batch at offset {base} has {size} bytes")
        return int(HEAD.size + size)

    @abstractmethod
    def open(self, piece: memoryview) -> Brought:
        """Check the whole batch in ``piece`` and return it. Raises BatchInvalid, BatchCorrupt."""

    def same(self, there: memoryview, brought: memoryview) -> bool:
        """Return whether the stored batch equals the received one, except for fields that the log fills in."""
        return bytes(there) == bytes(brought)


class KafkaForm(Form):
    """The form of record batches of message format 2."""

    flags = int(FormatId.KAFKA) | IMPORTED
    head_bytes = HEADER_SIZE

    def size(self, view: memoryview, at: int) -> int:
        header = parse_header(view, at)
        if header.magic != MAGIC or header.length < HEADER_SIZE - LOG_OVERHEAD:
            raise BatchInvalid(f"what lies at offset {header.base_offset} is no batch of format 2")
        if header.size > MOST_BATCH_BYTES:
            raise BatchTooLarge(f"the batch at offset {header.base_offset} has {header.size} bytes")
        return int(header.size)

    def open(self, piece: memoryview) -> Brought:
        header = parse_header(piece)
        count, base = header.last_offset_delta + 1, header.base_offset
        if count < 1 or not 0 <= header.record_count <= count or base < 0:
            raise BatchInvalid(f"the batch at offset {base} claims {header.record_count} records in {count} offsets")
        if crc32c.crc32c(piece[_CRC_FROM:]) != header.crc:
            raise BatchInvalid(f"the batch at offset {base} does not match its checksum")
        newest = -1 if header.attributes & KAFKA_CONTROL else header.max_timestamp
        return Brought(base, count, piece, newest, transaction_of_batch(piece, header))

    def same(self, there: memoryview, brought: memoryview) -> bool:
        return same(there, brought)


class YdbForm(Form):
    """The form of messages of YDB's writers."""

    flags = int(FormatId.YDB)

    def open(self, piece: memoryview) -> Brought:
        base, count, _ = HEAD.unpack_from(piece)
        payload = piece[HEAD.size :]
        head = ydb.parse_head(payload)
        if head.messages < 1 or (head.messages > count if head.sparse else head.messages != count):
            raise BatchInvalid(f"the batch at offset {base} has {head.messages} messages in {count} offsets")
        if head.part is not None:
            raise BatchInvalid(f"the batch at offset {base} is part of a transaction, which no marker would end here")
        for _ in ydb.check_crc(payload):
            pass
        told = format_of(self.flags).describe(payload)
        return Brought(base, count, payload, told.max_timestamp, producer=told.producer)


class PravegaForm(Form):
    """The form of events of a Pravega segment, whose writers are no longer known."""

    flags = int(FormatId.PRAVEGA) | IMPORTED

    def open(self, piece: memoryview) -> Brought:
        base, count, _ = HEAD.unpack_from(piece)
        payload = piece[HEAD.size :]
        header = pravega_format.check(payload)
        scattered = header.shape == pravega_format.Shape.SCATTERED
        fits = header.records <= count if scattered else header.records == count
        fits = fits and header.shape != pravega_format.Shape.GATHERED  # the shape of several writers' appends
        if not fits or header.transaction >= 0 or header.writer_id != pravega_format.NO_WRITER:
            raise BatchInvalid(
                f"the batch at offset {base} has {header.records} events in {count} offsets, or a writer"
            )
        return Brought(base, count, payload, header.time_ms)


FORMS: dict[int, Form] = {FormatId.KAFKA: KafkaForm(), FormatId.YDB: YdbForm(), FormatId.PRAVEGA: PravegaForm()}
"""Stored format -> the form of its batches."""


def form_of(named: str) -> Form:
    """Return the form of the stored format with number ``named``; Kafka's if it is empty. Raises BatchInvalid."""
    form = FORMS.get(int(named)) if named.isdecimal() else None
    if named and form is None:
        raise BatchInvalid(f"batches of format {named!r:.20} cannot be brought: there are {sorted(map(int, FORMS))}")
    return form or FORMS[FormatId.KAFKA]
