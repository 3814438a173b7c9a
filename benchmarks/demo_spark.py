"""The last step of the demonstration: Spark counts the flights, read straight from the range servers."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.flights import DemoFailed, Flight
from spark_pipeline.spark.session import session


def count_flights(pipeline: str, topic: str, flights: Sequence[Flight]) -> list[str]:
    """What was checked of a topic's rows; ``pipeline``: address of the node's listener.

    Raises DemoFailed if Spark counts something else, JavaMissing where there is no Java.
    """
    quiet = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    spark = session("anabranch-demo", f"local[{os.cpu_count()},3]", quiet)
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
