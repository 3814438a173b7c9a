"""Conversion of an earlier version's archives of plain Parquet files into Delta tables of the same files.

Beside the files, in ``records/``, these archives have a manifest in ``state/``: a Delta table whose rows list the added
and removed files, and whose transaction identifiers are the progress of partitions. Files of a decided commit were in
``state/.../staged`` until they were renamed into place. The conversion is one commit, and can be repeated after a
crash.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_pipeline.core.files import make_directory, sync
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake.delta import DeltaRecords, application
from spark_pipeline.lake.layout import Crash, DataFile, schema_of
from spark_pipeline.lake.store import Store


def is_plain(description: bytes) -> bool:
    """Return whether a description is that of an archive of plain files."""
    try:
        return bool(json.loads(description)["kind"] == "parquet")
    except (ValueError, KeyError, TypeError):
        return False


def as_delta(store: Store, description: bytes, crash: Crash) -> bytes:
    """Convert an archive's tables to Delta tables; return its new description. Raises OSError, PipelineError."""
    told = json.loads(description)
    parts = [TopicPartition(topic, number) for topic, numbers in told["topics"].items() for number in numbers]
    for name in ("records", "dead_letters"):
        state = store.below("state").below(name)
        manifest = state.below("manifest")
        options = manifest.delta_options()
        if not DeltaTable.is_deltatable(manifest.url, options):
            continue
        former = DeltaTable(manifest.url, storage_options=options)
        present: dict[str, DataFile] = {}
        gone: set[str] = set()
        for row in former.to_pyarrow_table().to_pylist():
            added = row.pop("added")
            one = DataFile(**row)
            if added:
                present[one.path] = one
            else:
                gone.add(one.path)
        kept = [one for path, one in present.items() if path not in gone]
        place = store.below(name)
        _place(state.below("staged"), place, kept)
        table = DeltaRecords(place, _schema(place, kept), told["partitioning"], crash)
        table.make()
        versions = {part: former.transaction_version(application(part)) for part in parts}
        progress = {part: version for part, version in versions.items() if version is not None}
        if progress and not table.progress(parts):  # else an earlier run committed this table before it crashed
            table.commit(kept, {}, progress)
    return json.dumps({**told, "kind": "delta"}, indent=1, sort_keys=True).encode()


def _schema(place: Store, files: list[DataFile]) -> pa.Schema:
    """Return the schema: that of the files if there are any, since decoded values have their own."""
    if not files:
        return schema_of()
    with place.filesystem().open_input_file(f"{place.path}/{files[0].path}") as stream:
        return pq.read_schema(stream)


def _place(staged: Store, place: Store, files: list[DataFile]) -> None:
    """Move the files of decided commits that are still staged into place."""
    waiting = staged.files()
    filesystem = place.filesystem()
    for one in files:
        if one.path not in waiting:
            continue
        source, target = f"{staged.path}/{one.path}", f"{place.path}/{one.path}"
        if place.local:
            make_directory(Path(target).parent)
            Path(source).replace(target)
            sync(Path(target).parent)
        else:
            filesystem.move(source, target)
