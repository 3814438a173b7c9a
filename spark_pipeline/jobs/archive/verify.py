"""The comparison of an archive with the log that it copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_pipeline.core.digest import ALL_FIELDS
from spark_pipeline.jobs.audit.audit import Audit, Side, Told
from spark_pipeline.jobs.engine import Engine
from spark_pipeline.lake.archive import Archive


def verify(
    place: str,
    url: str,
    options: Mapping[str, str],
    topics: Sequence[str],
    level: int,
    engine: Engine,
    told: Told = lambda done, total: None,
) -> dict[str, Any]:
    """Compare the archive's ranges with what the log still has of them; return a report.

    Records that were removed from the archive by expiry are left out on both sides. For decoded values, and for the
    dead letters of records whose values could not be decoded, keys, headers and times are compared.
    """
    archive = Archive.open(place)
    description = archive.description
    fields: tuple[str, ...] = ALL_FIELDS
    copy = f"archive+{archive.store.url}" if not archive.store.local else f"archive://{archive.store.path}"
    if description.decoding is not None:
        fields = tuple(name for name in ALL_FIELDS if name != "value")
    since = None if description.expired_ms is None else description.expired_ms * 1000
    audit = Audit(engine, fields, since, told)
    sides = Side(url, options), Side(copy, {"dead_letters": "true"})
    report = audit.diff(*sides, topics or sorted(description.topics), level, same_ends=False)
    done = archive.records.progress(description.parts)
    for one in report["partitions"]:
        one["not_archived_yet"] = max(0, one["left"]["stable"] - one["right"]["stable"])
    letters = archive.dead_letters.files() if archive.dead_letters is not None else []
    return {
        "archive": archive.store.url,
        "expired_before_ms": description.expired_ms,
        "dead_letters": sum(one.rows for one in letters),
        "archived_to": {str(part): offset for part, offset in sorted(done.items())},
        **report,
    }
