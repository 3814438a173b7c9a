"""Rows that two readers have saved: the same ones, field by field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_pipeline.core.digest import hashes

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
_ORDER = [(name, "ascending") for name in ("topic", "partition", "offset")]


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of a source, in order of topic, partition and offset."""

    table: pa.Table

    @classmethod
    def saved(cls, path: Path) -> Rows:
        """Those that a query has written into Parquet files, if it has written any."""
        found = pq.read_table(path).select(list(COLUMNS))
        return cls(found.sort_by(_ORDER).combine_chunks())

    def __len__(self) -> int:
        return len(self.table)

    def of(self, topic: str) -> list[dict[str, object]]:
        """The rows of a topic."""
        return self.table.filter(pc.equal(self.table["topic"], topic)).to_pylist()

    @property
    def digest(self) -> str:
        """The sum of the hashes of all rows' canonical forms (see `spark_pipeline.core.digest`)."""
        total = sum(int(np.add.reduce(hashes(batch))) for batch in self.table.to_batches())
        return f"{total & (1 << 64) - 1:016x}"


def differences(name: str, left: Rows, right: Rows) -> list[str]:
    """What is not the same: a sentence, or nothing. Names and types of columns are compared too."""
    if left.table.schema.remove_metadata() != right.table.schema.remove_metadata():
        return [f"{name}: columns {left.table.schema} and {right.table.schema}"]
    if left.table.equals(right.table) and left.digest == right.digest:
        return []
    mine, theirs = left.table.to_pylist(), right.table.to_pylist()
    pairs = zip(mine, theirs, strict=False)
    first = next((pair for pair in pairs if pair[0] != pair[1]), (mine[len(theirs) :][:1], theirs[len(mine) :][:1]))
    return [f"{name}: {len(mine)} and {len(theirs)} rows, the first that differ: {first[0]} and {first[1]}"]
