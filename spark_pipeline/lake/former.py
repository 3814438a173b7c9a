"""Archives of plain Parquet files, which earlier versions made, as Delta tables of the same files.

Beside the files, in ``records/``, there was a manifest in ``state/``: a Delta table whose rows said which files were
added and taken out, and whose transaction identifiers how far partitions were archived. Files that a commit had decided
on lay in ``state/.../staged`` until they were renamed into place. All of it is brought over in one commit, and may be
done again after a crash.
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
    """Whether an archive is of plain files, by its description."""
    try:
        return bool(json.loads(description)["kind"] == "parquet")
    except (ValueError, KeyError, TypeError):
        return False


def as_delta(store: Store, description: bytes, crash: Crash) -> bytes:
    """Make the tables of an archive Delta tables; its description as it is then. Raises OSError, PipelineError."""
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
        if progress and not table.progress(parts):  # or else it was brought over, and the process ended then
            table.commit(kept, {}, progress)
    return json.dumps({**told, "kind": "delta"}, indent=1, sort_keys=True).encode()


def _schema(place: Store, files: list[DataFile]) -> pa.Schema:
    """Of decoded values it is the files' own."""
    if not files:
        return schema_of()
    with place.filesystem().open_input_file(f"{place.path}/{files[0].path}") as stream:
        return pq.read_schema(stream)


def _place(staged: Store, place: Store, files: list[DataFile]) -> None:
    """Files that were decided on and are not in place yet."""
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
