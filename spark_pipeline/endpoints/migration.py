"""What a migration asks of the system that it copies from, besides what every endpoint has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from spark_pipeline.core import import_frames
from spark_pipeline.core.decode_batches import decode
from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.endpoints.base import BATCH_BYTES, Endpoint, endpoint

if TYPE_CHECKING:
    import pyarrow as pa

    from bridges.formats.records import StoredBatch
    from spark_pipeline.core.rows import Columns

READ_BYTES = 2 * 1024 * 1024
"""What one read of a segment asks for; segment stores give no more than that."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """What a group has committed in a partition: the next offset it reads, and what it said of it."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class RecordSet:
    """Whole batches in a row that hold the offsets from ``start`` to ``end``; there may be gaps. ``payload`` has them
    as the target takes them (Kafka's as they are, others as :mod:`spark_pipeline.core.import_frames`)."""

    start: int
    end: int
    batches: int
    payload: memoryview


class FramedRecords:
    """What is the same where the batches of a system are made here, of what its servers give, and where groups tell of
    positions: base of such endpoints."""

    form: int
    verbatim = False

    def batches(self, wanted: OffsetRange, read_bytes: int) -> Iterator[StoredBatch]:
        """A range in this form, none outside of it; ``read_bytes``: what is asked for at once, where that can be."""
        raise NotImplementedError

    def group_positions(self) -> dict[str, dict[TopicPartition, GroupPosition]]:
        """See :class:`MigrationSource`."""
        raise NotImplementedError

    def read(self, range: OffsetRange, columns: Columns, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Values are decoded, and keys and headers told, as for readers of other protocols. Raises UnreadableBatch."""
        yield from decode(self.batches(range, READ_BYTES), range, columns, batch_bytes)

    def read_raw(self, range: OffsetRange) -> Iterator[StoredBatch]:
        """In the stored format. Where batches begin and end may be another place each time."""
        return self.batches(range, READ_BYTES)

    def read_sets(self, range: OffsetRange, fetch_bytes: int) -> Iterator[RecordSet]:
        """See :class:`MigrationSource`."""
        out = bytearray()
        start = end = range.start
        count = 0
        for batch in self.batches(range, min(fetch_bytes, READ_BYTES)):
            if count and len(out) + len(batch.payload) > fetch_bytes:
                yield RecordSet(start, end, count, memoryview(out))
                out, count = bytearray(), 0
            if not count:
                start = batch.base_offset
            import_frames.put(out, batch.base_offset, batch.end_offset - batch.base_offset, batch.payload)
            end = batch.end_offset
            count += 1
        if count:
            yield RecordSet(start, end, count, memoryview(out))

    def groups(self) -> dict[str, dict[TopicPartition, int]]:
        """See :class:`spark_pipeline.endpoints.base.Endpoint`."""
        return offsets_of(self.group_positions())


def offsets_of(positions: Mapping[str, Mapping[TopicPartition, GroupPosition]]) -> dict[str, dict[TopicPartition, int]]:
    """The positions of groups, without what they said of them."""
    return {group: {part: at.offset for part, at in told.items()} for group, told in positions.items()}


@runtime_checkable
class MigrationSource(Endpoint, Protocol):
    """An endpoint whose topics can be moved. Raises as endpoints do."""

    form: int
    """The stored format of its record sets."""
    verbatim: bool
    """Whether these have the source's own batches: then they are the same bytes whenever they are read."""

    def read_sets(self, range: OffsetRange, fetch_bytes: int) -> Iterator[RecordSet]:
        """The batches that hold offsets of a range, about ``fetch_bytes`` together."""

    def group_positions(self) -> dict[str, dict[TopicPartition, GroupPosition]]:
        """Every group that has committed something, and what."""

    def group_states(self) -> dict[str, str]:
        """The groups of consumers, and their states in Kafka's words where the system tells them."""


def migration_source(url: str, options: Mapping[str, str]) -> MigrationSource:
    """The system to copy from at ``url``. Raises OptionError for one that cannot be copied from."""
    source = endpoint(url, options)
    if not isinstance(source, MigrationSource):
        source.close()
        raise OptionError(f"{url} cannot be migrated from: `anabranch replay` brings records of any system")
    return source
