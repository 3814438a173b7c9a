"""The interface of a migration's source, beyond that of every endpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_pipeline.core import frames
from spark_pipeline.core.decoding.batches import decode
from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.endpoints.base import BATCH_BYTES, Endpoint, endpoint

if TYPE_CHECKING:
    import pyarrow as pa

    from bridges.formats.records import StoredBatch
    from spark_pipeline.core.rows import Columns

READ_BYTES = 2 * 1024 * 1024
"""Bytes that one read of a segment asks for; segment stores send no more than that."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group's committed position in a partition: the next offset it reads, and its metadata."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class RecordSet:
    """Consecutive whole batches that hold the offsets from ``start`` to ``end``, possibly with gaps.

    ``payload`` has them in the form that the target takes (Kafka's as they are, others as in
    :mod:`spark_pipeline.core.frames`).
    """

    start: int
    end: int
    batches: int
    payload: memoryview


class MigrationSource(Endpoint):
    """An endpoint whose topics can be migrated. Raises as endpoints do."""

    form: int
    """The stored format of its record sets."""
    verbatim: bool
    """Whether the record sets have the source's own batches, which are the same bytes in every read."""

    @abstractmethod
    def read_sets(self, range: OffsetRange, fetch_bytes: int) -> Iterator[RecordSet]:
        """Yield the batches that hold offsets of a range, in sets of about ``fetch_bytes``."""

    @abstractmethod
    def group_positions(self) -> dict[str, dict[TopicPartition, GroupPosition]]:
        """Return every group with committed positions, and the positions."""

    @abstractmethod
    def group_states(self) -> dict[str, str]:
        """Return the consumer groups, and their states in Kafka's words if the system reports them."""

    def groups(self) -> dict[str, dict[TopicPartition, int]]:
        return {
            group: {part: at.offset for part, at in found.items()} for group, found in self.group_positions().items()
        }


class FramedRecords(MigrationSource):
    """The base of endpoints that make the batches themselves, from their servers' records."""

    verbatim = False

    @abstractmethod
    def batches(self, wanted: OffsetRange, read_bytes: int) -> Iterator[StoredBatch]:
        """Yield a range, and no offsets outside, as batches of this form; ``read_bytes`` is the size of a read."""

    def read(self, range: OffsetRange, columns: Columns, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield records with decoded values, and with keys and headers as readers of other protocols see them.

        Raises UnreadableBatch.
        """
        yield from decode(self.batches(range, READ_BYTES), range, columns, batch_bytes)

    def read_raw(self, range: OffsetRange) -> Iterator[StoredBatch]:
        """Yield batches in the stored format. Their borders may differ between two reads."""
        return self.batches(range, READ_BYTES)

    def read_sets(self, range: OffsetRange, fetch_bytes: int) -> Iterator[RecordSet]:
        out = bytearray()
        start = end = range.start
        count = 0
        for batch in self.batches(range, min(fetch_bytes, READ_BYTES)):
            if count and len(out) + len(batch.payload) > fetch_bytes:
                yield RecordSet(start, end, count, memoryview(out))
                out, count = bytearray(), 0
            if not count:
                start = batch.base_offset
            frames.put_batch(out, batch.base_offset, batch.end_offset - batch.base_offset, batch.payload)
            end = batch.end_offset
            count += 1
        if count:
            yield RecordSet(start, end, count, memoryview(out))


def migration_source(url: str, options: Mapping[str, str]) -> MigrationSource:
    """Open the source at ``url``. Raises OptionError for a system that cannot be migrated from."""
    source = endpoint(url, options)
    if not isinstance(source, MigrationSource):
        source.close()
        raise OptionError(f"{url} cannot be migrated from: `anabranch replay` brings records of any system")
    return source
