"""A driver of its own process: one streaming query that keeps a history of what it is given, until its input ends.

Started by soak_clients.py. Prints ``given`` and the last offset of each partition for every batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spark_pipeline.spark.session import session
from tests.history.history import Poll, Recorder
from tests.torture.mixed_clients import told_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "spark"


def main() -> int:
    """0 when the query was stopped by the end of the input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--history", type=Path, required=True)
    args = parser.parse_args()
    protocol = "kafka" if args.endpoint.startswith("kafka:") else "sbp"
    recorder = Recorder(args.history, NAME)

    def given(rows: DataFrame, batch: int) -> None:
        invoked = time.monotonic()
        found = sorted(rows.select("partition", "offset", "value").collect())
        records = [(f"{args.topic}/{row.partition}", row.offset, told_value(bytes(row.value))) for row in found]
        if records:
            poll = Poll(
                client=NAME,
                invoked=invoked,
                told=time.monotonic(),
                protocol=f"spark, {protocol}",
                session="1",
                records=records,
            )
            recorder.keep(poll)
            print("given", json.dumps({partition: offset for partition, offset, _ in records}), flush=True)

    host = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    spark = session("soak", "local[1,3]", {**host, "spark.driver.memory": "512m"})
    query = (
        spark.readStream.format("anabranch")
        .option("endpoint", args.endpoint)
        .option("protocol", protocol)
        .option("subscribe", args.topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(given)
        .option("checkpointLocation", args.checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    sys.stdin.read()
    failure = query.exception()
    query.stop()
    spark.stop()
    if failure is not None:
        print(failure, file=sys.stderr)
    return int(failure is not None)


if __name__ == "__main__":
    sys.exit(main())
