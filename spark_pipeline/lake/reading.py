"""Reading an archive's files in the order of the log: ascending offsets of one partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_pipeline.lake.layout import DataFile
from spark_pipeline.lake.store import Store

WINDOW = 65_536
"""Rows of files that overlap which are sorted at a time, about."""
ROWS = 16_384
"""Rows of a batch at most."""
BYTES = 16 * 1024 * 1024
"""Bytes of a batch, about: rows are as large as their writers made them."""
OPEN = 64
"""Files that overlap which are open at the same time; where there are more, they are opened again for each window."""


class Readable(Protocol):
    """What is asked of a table to read its files."""

    @property
    def store(self) -> Store:
        """Tells the file system."""

    def open_path(self, file: DataFile) -> str:
        """Where a file can be read now."""


def clusters(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """``files`` of one partition, in order: those whose offsets overlap stand together.

    Files overlap where times went back over the end of a day, or where something is archived twice.
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
    table: Readable, files: Sequence[DataFile], columns: Sequence[str], start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """The rows at the offsets ``[start, end)`` of ``files``, which are of one partition, in order.

    What is there twice comes twice. Raises OSError and pyarrow's errors for files that are gone or damaged.
    """
    wanted = [one for one in files if one.last >= start and one.first < end]
    filesystem = table.store.filesystem()
    for together in clusters(wanted):
        if len(together) == 1:
            with filesystem.open_input_file(table.open_path(together[0])) as stream:
                yield from _rows(pq.ParquetFile(stream), columns, start, end)
            continue
        low = max(start, min(one.first for one in together))
        high = min(end, max(one.last for one in together) + 1)
        # Offsets may be far apart, such as positions in bytes: a window has as many rows then as it has elsewhere.
        step = WINDOW * max(1, (high - low) // max(1, sum(one.rows for one in together)))
        with closing(_Opened(table, filesystem)) as opened:
            for begin in range(low, high, step):
                until = min(begin + step, high)
                inside = (opened.file(one) for one in together if one.first < until and one.last >= begin)
                yield from _sorted(inside, columns, begin, until)


class _Opened:
    """Files that are kept open, as long as they are not too many."""

    def __init__(self, table: Readable, filesystem: Any) -> None:
        self._table = table
        self._filesystem = filesystem
        self._open: dict[str, tuple[Any, Any]] = {}

    def file(self, one: DataFile) -> Any:
        """A file, to be used before another is asked for. The one that was used longest ago is closed for it."""
        found = self._open.pop(one.path, None)
        if found is None:
            if len(self._open) >= OPEN:
                self._open.pop(next(iter(self._open)))[0].close()
            stream = self._filesystem.open_input_file(self._table.open_path(one))
            found = stream, pq.ParquetFile(stream)
        self._open[one.path] = found
        return found[1]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][0].close()


def _groups(file: Any, start: int, end: int) -> list[int]:
    """The row groups that may have offsets of a range."""
    leaf = next(number for number in range(len(file.schema)) if file.schema.column(number).path == "offset")
    wanted = []
    for number in range(file.metadata.num_row_groups):
        stats = file.metadata.row_group(number).column(leaf).statistics
        if stats is None or not stats.has_min_max or (stats.max >= start and stats.min < end):
            wanted.append(number)
    return wanted


def _rows(file: Any, columns: Sequence[str], start: int, end: int) -> Iterator[pa.RecordBatch]:
    groups = _groups(file, start, end)
    if not groups:
        return
    names = list(dict.fromkeys([*columns, "offset"]))
    kept = [file.metadata.row_group(number) for number in groups]
    at_once = min([ROWS, *(BYTES * one.num_rows // max(1, one.total_byte_size) for one in kept)])
    for batch in file.iter_batches(max(1, at_once), row_groups=groups, columns=names):
        offsets = batch.column("offset")
        if offsets[0].as_py() < start or offsets[-1].as_py() >= end:
            batch = batch.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
        if batch.num_rows:
            yield batch.select(list(columns))


def _sorted(files: Iterable[Any], columns: Sequence[str], start: int, end: int) -> Iterator[pa.RecordBatch]:
    names = list(dict.fromkeys([*columns, "offset"]))
    batches = [batch for file in files for batch in _rows(file, names, start, end)]
    if not batches:
        return
    whole = pa.Table.from_batches(batches)
    order = pc.sort_indices(whole.column("offset"))
    ordered = whole.take(order).select(list(columns)).combine_chunks()
    yield from ordered.to_batches(max_chunksize=ROWS)
