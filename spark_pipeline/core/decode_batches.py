"""A range of a partition as rows: stored batches in, Arrow's record batches out, whatever wrote them.

What readers of committed data must not see is left out here: control batches and other batches without records, and
those of aborted transactions. Several batches of one format are decoded together, since arrays pay by the pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats import FORMAT_MASK, FormatId, format_of
from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.kafka import TRANSACTIONAL
from bridges.formats.producer import InTransaction
from bridges.formats.records import StoredBatch
from spark_pipeline.core import decode_kafka, decode_pravega, decode_records, decode_ydb
from spark_pipeline.core.decode_varints import Unusual
from spark_pipeline.core.errors import UnreadableBatch
from spark_pipeline.core.node_answers import AbortedTransaction
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns

_WITHOUT_TRANSACTIONS = frozenset({FormatId.RAW, FormatId.YDB, FormatId.LEDGER_NOTE})
_ATTRIBUTES_AT = 22
"""Where a batch of Kafka's has the byte that says whether it belongs to a transaction."""
_TOO_LARGE = 2
"""As many times as large as it was meant to be a batch of rows is cut."""


class Body(Protocol):
    """A batch that was opened: checked as a whole, and decompressed where its format compresses whole batches."""

    @property
    def batch(self) -> StoredBatch: ...

    @property
    def size(self) -> int:
        """Bytes that it takes."""


class Arrays(Protocol):
    """A module that decodes batches of one format without a step of Python for each of their fields."""

    def open_body(self, batch: StoredBatch, limit: int) -> Any:
        """A :class:`Body`; None of a batch that holds no records for readers. Raises BatchInvalid."""

    def decode(
        self, bodies: Sequence[Any], topic: str, partition: int, columns: Columns, start: int, end: int
    ) -> pa.RecordBatch:
        """The records of ``bodies``, at least one, whose offsets are in ``[start, end)``.

        Raises Unusual for what has to be read one by one to be told apart from what is wrong.
        """


_ARRAYS: dict[int, Arrays] = {
    FormatId.KAFKA: decode_kafka,
    FormatId.PRAVEGA: decode_pravega,
    FormatId.YDB: decode_ydb,
}
"""Formats that are decoded so; the others are read record by record."""


class Aborted:
    """Which batches belong to aborted transactions. ``told`` gives all of those that reach into what is read; it is
    asked when the first batch of a transaction is met, so that who reads none pays nothing."""

    __slots__ = ("_of_producer", "_told")

    def __init__(self, told: Callable[[], Iterable[AbortedTransaction]]) -> None:
        self._told = told
        self._of_producer: dict[int, list[AbortedTransaction]] | None = None

    def __contains__(self, batch: StoredBatch) -> bool:
        part = _transaction(batch)
        if part is None or part.commit is not None:
            return False  # markers are left out anyhow
        if self._of_producer is None:
            self._of_producer = {}
            for one in sorted(self._told(), key=lambda one: one.last_offset):
                self._of_producer.setdefault(one.producer_id, []).append(one)
        ranges = self._of_producer.get(part.producer_id, [])
        # Transactions of one producer do not overlap: of those in order, the first that ends here or later is the one.
        at = bisect_left(ranges, batch.base_offset, key=lambda one: one.last_offset)
        return at < len(ranges) and ranges[at].first_offset <= batch.base_offset


def _transaction(batch: StoredBatch) -> InTransaction | None:
    """The transaction that a batch of records belongs to. Most belong to none, which is seen without parsing them."""
    form = batch.flags & FORMAT_MASK
    if form == FormatId.KAFKA:
        payload = batch.payload
        if len(payload) > _ATTRIBUTES_AT and not payload[_ATTRIBUTES_AT] & TRANSACTIONAL:
            return None
    elif form in _WITHOUT_TRANSACTIONS:
        return None
    return format_of(batch.flags).describe(batch.payload).transaction


def decode(
    batches: Iterable[StoredBatch],
    wanted: OffsetRange,
    columns: Columns,
    batch_bytes: int,
    aborted: Aborted | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Iterator[pa.RecordBatch]:
    """The committed records of ``wanted`` among ``batches``, which come in order, in batches of rows that are none of
    them empty and are made of about ``batch_bytes`` bytes of records.

    ``limit``: bytes that one stored batch may decompress to. Raises UnreadableBatch.
    """
    group = _Group(wanted, columns, limit)
    try:
        for batch in batches:
            if batch.end_offset <= wanted.start or batch.base_offset >= wanted.end:
                continue
            form = batch.flags & FORMAT_MASK
            if form != group.form or group.size >= batch_bytes:
                yield from _cut(group.finish(), batch_bytes)
                group.form = form
            try:
                if aborted is None or batch not in aborted:
                    group.add(batch)
            except BatchCorrupt as error:
                where = (wanted.topic, wanted.partition, batch.base_offset)
                raise UnreadableBatch(*where, str(error), batch.end_offset) from error
            except BatchInvalid:
                yield from _cut(group.finish(), batch_bytes)
                yield from _cut(group.one_by_one([batch]), batch_bytes)
    except UnreadableBatch:
        yield from _cut(group.finish(), batch_bytes)  # what lies in front of it
        raise
    yield from _cut(group.finish(), batch_bytes)


def _cut(found: Iterable[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """``found`` without empty ones, and those in pieces that came out much larger than they were meant to be."""
    for batch in found:
        rows, size = batch.num_rows, batch.nbytes
        if not rows:
            continue
        if size <= _TOO_LARGE * batch_bytes:
            yield batch
            continue
        step = max(1, rows * batch_bytes // size)
        for first in range(0, rows, step):
            yield batch.slice(first, step)


class _Group:
    """Opened batches of one format that are to be decoded together."""

    __slots__ = ("_bodies", "_columns", "_limit", "_wanted", "form", "size")

    def __init__(self, wanted: OffsetRange, columns: Columns, limit: int) -> None:
        self._wanted = wanted
        self._columns = columns
        self._limit = limit
        self._bodies: list[Body] = []
        self.form = -1
        self.size = 0

    def add(self, batch: StoredBatch) -> None:
        """Open a batch of this group's format and keep it. Raises BatchInvalid."""
        arrays = _ARRAYS.get(self.form)
        body: Body | None = _Whole(batch) if arrays is None else arrays.open_body(batch, self._limit)
        if body is not None:
            self._bodies.append(body)
            self.size += body.size

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rows of all that were kept, which are forgotten. Raises UnreadableBatch."""
        bodies, self._bodies, self.size = self._bodies, [], 0
        wanted, columns = self._wanted, self._columns
        arrays = _ARRAYS.get(self.form)
        if not bodies:
            return
        try:
            if arrays is not None:
                yield arrays.decode(bodies, wanted.topic, wanted.partition, columns, wanted.start, wanted.end)
                return
        except Unusual:
            pass
        if arrays is None or len(bodies) == 1:
            yield from self.one_by_one([body.batch for body in bodies])
            return
        # The one that it is about must not slow down the others, nor hide those in front of it.
        for body in bodies:
            self._bodies = [body]
            yield from self.finish()

    def one_by_one(self, batches: Sequence[StoredBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of ``batches``, record by record, up to one that is wrong. Then raises UnreadableBatch."""
        wanted = self._wanted
        where = (wanted.topic, wanted.partition, self._columns, wanted.start, wanted.end)
        return decode_records.decode(batches, *where, self._limit)


class _Whole:
    """A batch of a format that has nothing to open."""

    __slots__ = ("batch",)

    def __init__(self, batch: StoredBatch) -> None:
        self.batch = batch

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.batch.payload)
