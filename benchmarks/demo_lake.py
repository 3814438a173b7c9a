"""The end of the demonstration: Spark archives the flights and audits the copy, each record exactly once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.flights import DemoFailed
from spark_pipeline.jobs.archive.run import ArchiveRun
from spark_pipeline.jobs.archive.verify import verify
from spark_pipeline.jobs.engine_spark import SparkEngine
from spark_pipeline.lake.archive import Description
from spark_pipeline.spark.session import session

_QUIET = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}


@contextmanager
def spark_engine() -> Iterator[SparkEngine]:
    """Tasks of a Spark session of this process's own. Raises JavaMissing."""
    engine = SparkEngine(session=session("anabranch-demo", f"local[{os.cpu_count()},3]", _QUIET))
    try:
        yield engine
    finally:
        engine.session.stop()


def archive_flights(engine: SparkEngine, pipeline: str, topic: str, count: int, place: str) -> list[str]:
    """Copy the topic to a Delta table; what was checked. Raises DemoFailed."""
    told = ArchiveRun(
        f"anabranch://{pipeline}", {}, place, (topic,), Description("delta", "none"), engine
    ).available_now()
    if told.rows != count or told.left:
        raise DemoFailed(f"{told.rows} of {count} records were archived, {told.left} offsets are left")
    return [f"{told.files} Parquet files of a Delta table"]


def audit_flights(engine: SparkEngine, pipeline: str, count: int, place: str) -> list[str]:
    """Compare the archive with the log; what was checked. Raises DemoFailed."""
    found = verify(place, f"anabranch://{pipeline}", {}, [], 3, engine)
    if not found["equal"] or found["records"] != count:
        raise DemoFailed(f"the archive and the log differ: {found['differences'][:3] or found['records']}")
    blocks = sum(one["blocks"] for one in found["partitions"])
    return [f"digests of {blocks} blocks", "no gaps", "nothing twice"]
