"""The last step of the demonstration: Spark counts the flights, read straight from the range servers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.flights import DemoFailed, Flight
from spark_pipeline.spark.session import session


def _session() -> Any:
    quiet = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    return session("anabranch-demo", f"local[{os.cpu_count()},3]", quiet)


def read_all(pipeline: str, topic: str, count: int) -> list[bytes]:
    """The values of a topic of ``count`` records, as rows of a batch query; raises DemoFailed for another number."""
    spark = _session()
    try:
        frame = spark.read.format("anabranch").option("endpoint", f"anabranch://{pipeline}")
        values = [bytes(value) for value in frame.option("subscribe", topic).load().select("value").toPandas()["value"]]
    finally:
        spark.stop()
    if len(values) != count:
        raise DemoFailed(f"Spark reads {len(values)} where there are {count}")
    return values


def count_flights(pipeline: str, topic: str, flights: Sequence[Flight]) -> list[str]:
    """What was checked of a topic's rows; ``pipeline``: address of the node's listener.

    Raises DemoFailed if Spark counts something else, JavaMissing where there is no Java.
    """
    spark = _session()
    try:
        frame = spark.read.format("anabranch").option("endpoint", f"anabranch://{pipeline}")
        counted = (
            frame.option("subscribe", topic)
            .load()
            .selectExpr("count(1)", "count(distinct partition, offset)", "count(distinct value)", "sum(length(value))")
            .first()
        )
    finally:
        spark.stop()
    values = [flight.value for flight in flights]
    expected = (len(values), len(values), len(set(values)), sum(map(len, values)))
    if counted is None or tuple(counted) != expected:
        raise DemoFailed(f"Spark counts {counted} where there are {expected}")
    return [f"{expected[2]:,} different values", f"{expected[3] / 1e6:.1f} MB"]
