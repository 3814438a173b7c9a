"""Decoding of a partition's range into rows: stored batches of any format in, Arrow record batches out.

Batches that readers of committed data must not see are left out here: control batches, other batches without records,
and batches of aborted transactions. Several batches of one format are decoded together, since array code has a fixed
cost per pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from anabranch_kit.run.sliced import at_once
from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats import FORMAT_MASK, FormatId, format_of
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.columns import Unusual
from bridges.formats.columns.rows import Body
from bridges.formats.columns.translation import ARRAYS
from bridges.formats.kafka import TRANSACTIONAL
from bridges.formats.producer import InTransaction
from bridges.formats.records import StoredBatch
from spark_pipeline.core.client.node_answers import AbortedTransaction
from spark_pipeline.core.decoding import records as decode_records
from spark_pipeline.core.decoding.columns import decode as decode_bodies
from spark_pipeline.core.errors import UnreadableBatch
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns

_WITHOUT_TRANSACTIONS = frozenset({FormatId.RAW, FormatId.YDB, FormatId.LEDGER_NOTE})
_ATTRIBUTES_AT = 22
"""Position in a Kafka batch of the attributes byte that holds the transactional bit."""
_TOO_LARGE = 2
"""A batch of rows larger than this many times the intended size is cut."""


class Aborted:
    """The batches of aborted transactions, as a container for ``in``.

    ``told`` returns every aborted transaction that reaches into the range. It is called at the first transactional
    batch, so readers of other batches do not pay for it.
    """

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
    """Return the transaction of a batch of records. The usual batch, without one, is recognised without parsing."""
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
    """Yield the committed records of ``wanted`` found in ``batches``, which come in order.

    Each yielded batch of rows has at least one row and holds about ``batch_bytes`` bytes of records. ``limit`` is how
    many bytes one stored batch may decompress to. Raises UnreadableBatch.
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
            except (BatchInvalid, Unusual):
                yield from _cut(group.finish(), batch_bytes)
                yield from _cut(group.one_by_one([batch]), batch_bytes)
    except UnreadableBatch:
        yield from _cut(group.finish(), batch_bytes)  # the rows in front of the unreadable batch
        raise
    yield from _cut(group.finish(), batch_bytes)


def _cut(found: Iterable[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield ``found`` without empty batches; cut those that came out much larger than ``batch_bytes``."""
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
    """Opened batches of one format that will be decoded together."""

    __slots__ = ("_bodies", "_columns", "_limit", "_wanted", "form", "size")

    def __init__(self, wanted: OffsetRange, columns: Columns, limit: int) -> None:
        self._wanted = wanted
        self._columns = columns
        self._limit = limit
        self._bodies: list[Body] = []
        self.form = -1
        self.size = 0

    def add(self, batch: StoredBatch) -> None:
        """Open a batch of this group's format and keep it. Raises BatchInvalid, and Unusual."""
        arrays = ARRAYS.get(self.form)
        if arrays is None:
            raise Unusual
        body = at_once(arrays.open_body(batch, self._limit))
        if body is not None:
            self._bodies.append(body)
            self.size += len(body.data)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all kept batches and forget them. Raises UnreadableBatch."""
        bodies, self._bodies, self.size = self._bodies, [], 0
        if not bodies:
            return
        try:
            yield decode_bodies(ARRAYS[self.form], format_of(self.form).name, bodies, self._wanted, self._columns)
            return
        except Unusual:
            pass
        if len(bodies) == 1:
            yield from self.one_by_one([body.batch for body in bodies])
            return
        # One unusual batch must not slow down the others, nor hide the batches in front of it.
        for body in bodies:
            self._bodies = [body]
            yield from self.finish()

    def one_by_one(self, batches: Sequence[StoredBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``batches``, record by record; raises UnreadableBatch at the first damaged record."""
        return decode_records.decode(batches, self._wanted, self._columns, self._limit)
