"""Reads an archive's files in the order of the log: ascending offsets of one partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_pipeline.core.errors import UnreadableBatch
from spark_pipeline.lake.layout import DataFile
from spark_pipeline.lake.store import Store
from spark_pipeline.lake.table import Table

WINDOW = 65_536
"""About how many rows of overlapping files are sorted at a time."""
ROWS = 16_384
"""Most rows of a batch."""
BYTES = 16 * 1024 * 1024
"""About the most bytes of a batch, since rows may be large."""
OPEN = 64
"""Most overlapping files open at the same time; further ones are opened again for each window."""


def clusters(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Group ``files`` of one partition, in order, so that files with overlapping offsets are in one group.

    Files overlap where timestamps went back over the end of a day, or where offsets were archived twice.
    """
    found: list[list[DataFile]] = []
    reached = -1
    for one in sorted(files, key=lambda file: (file.first, file.last, file.path)):
        if found and one.first <= reached:
            found[-1].append(one)
        else:
            found.append([one])
        reached = max(reached, one.last)
    return found


def read_files(
    table: Table,
    files: Sequence[DataFile],
    columns: Sequence[str],
    start: int,
    end: int,
    elsewhere: Mapping[str, Store] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows at the offsets ``[start, end)`` of ``files``, which are of one partition, in order.

    ``elsewhere``: paths of files that are not the table's, and their stores. Offsets that are stored twice come twice.
    Raises UnreadableBatch for missing or damaged files, after all rows in front of the damage; its range is the
    unreadable offsets of a file, or a whole window of overlapping files.
    """
    wanted = [one for one in files if one.last >= start and one.first < end]
    with closing(_Opened(table.store, elsewhere or {})) as opened:
        for together in clusters(wanted):
            if len(together) == 1:
                yield from _rows(together[0], opened, columns, start, end)
                opened.close()
                continue
            low = max(start, min(one.first for one in together))
            high = min(end, max(one.last for one in together) + 1)
            # Offsets may be far apart, such as positions in bytes: widen the window to the usual number of rows.
            step = WINDOW * max(1, (high - low) // max(1, sum(one.rows for one in together)))
            for begin in range(low, high, step):
                until = min(begin + step, high)
                inside = [one for one in together if one.first < until and one.last >= begin]
                try:
                    ordered = sort_rows(inside, opened, columns, begin, until)
                except UnreadableBatch as error:
                    raise UnreadableBatch(error.topic, error.partition, begin, error.reason, until) from error
                yield from ordered
            opened.close()


class _Opened:
    """A cache of open files of limited size."""

    def __init__(self, store: Store, elsewhere: Mapping[str, Store]) -> None:
        self._store = store
        self._elsewhere = elsewhere
        self._filesystem = store.filesystem()
        self._open: dict[str, tuple[Any, pq.ParquetFile]] = {}

    def file(self, one: DataFile) -> pq.ParquetFile:
        """Return an open file, valid until the next call, which may close the least recently used one.

        Raises OSError and pyarrow's errors.
        """
        found = self._open.pop(one.path, None)
        if found is None:
            if len(self._open) >= OPEN:
                self._open.pop(next(iter(self._open)))[0].close()
            stream = self._filesystem.open_input_file(f"{self._elsewhere.get(one.path, self._store).path}/{one.path}")
            try:
                found = stream, pq.ParquetFile(stream)
            except BaseException:
                stream.close()
                raise
        self._open[one.path] = found
        return found[1]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][0].close()


def _groups(file: pq.ParquetFile, start: int, end: int) -> list[tuple[int, int | None]]:
    """Return the row groups that may have offsets of a range, each with its last offset if its statistics have one."""
    leaf = next(number for number in range(len(file.schema)) if file.schema.column(number).path == "offset")
    wanted: list[tuple[int, int | None]] = []
    for number in range(file.metadata.num_row_groups):
        stats = file.metadata.row_group(number).column(leaf).statistics
        if stats is None or not stats.has_min_max:
            wanted.append((number, None))
        elif stats.max >= start and stats.min < end:
            wanted.append((number, stats.max))
    return wanted


def _rows(one: DataFile, opened: _Opened, columns: Sequence[str], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in a range of offsets. Raises UnreadableBatch for what is missing or damaged."""
    names = list(dict.fromkeys([*columns, "offset"]))
    reached, last = max(start, one.first), one.last
    try:
        file = opened.file(one)
        for number, highest in _groups(file, start, end):
            last = one.last if highest is None else highest
            group = file.metadata.row_group(number)
            at_once = min(ROWS, BYTES * group.num_rows // max(1, group.total_byte_size))
            for batch in file.iter_batches(max(1, at_once), row_groups=[number], columns=names):
                offsets = batch.column("offset")
                reached = max(reached, offsets[-1].as_py() + 1)
                if offsets[0].as_py() < start or offsets[-1].as_py() >= end:
                    batch = batch.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
                if batch.num_rows:
                    yield batch.select(list(columns))
    except (OSError, pa.ArrowException) as error:
        reason = f"the file {one.path}: {error}"
        raise UnreadableBatch(one.topic, one.partition, reached, reason, last + 1) from error


def sort_rows(
    files: Iterable[DataFile], opened: _Opened, columns: Sequence[str], start: int, end: int
) -> list[pa.RecordBatch]:
    names = list(dict.fromkeys([*columns, "offset"]))
    batches = [batch for file in files for batch in _rows(file, opened, names, start, end)]
    if not batches:
        return []
    whole = pa.Table.from_batches(batches)
    order = pc.sort_indices(whole.column("offset"))
    found: list[pa.RecordBatch] = (
        whole.take(order).select(list(columns)).combine_chunks().to_batches(max_chunksize=ROWS)
    )
    return found
