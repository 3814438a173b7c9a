"""A driver of its own process: one streaming query that copies a topic into another, until it is there or is killed.

Started by tests/spark_proof/stream_copy.py and clusters.py. Prints what the session runs on.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


def main() -> int:
    """0 when everything that was there at the start has been copied."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--offsets", type=int, default=500, help="of one micro-batch")
    parser.add_argument("--master", default="local[2,3]")
    parser.add_argument("--remote", help="sc://HOST:PORT of a Spark Connect server, instead of a master")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="settings of the session")
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if args.remote:
        from pyspark.sql import SparkSession

        spark: Any = SparkSession.builder.remote(args.remote).getOrCreate()
    else:
        from spark_pipeline.spark.session import session

        host = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        spark = session("copy", args.master, {**host, **dict(one.split("=", 1) for one in args.conf)})
    counted = spark.read.format("anabranch").option("endpoint", args.endpoint).option("subscribe", args.source).load()
    print(f"{args.remote or args.master} counts {counted.count()}", flush=True)
    query = (
        spark.readStream.format("anabranch")
        .option("endpoint", args.endpoint)
        .option("subscribe", args.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", args.offsets)
        .option("includeHeaders", "true")
        .load()
        .select("key", "value", "headers", "partition", "timestamp")
        .writeStream.format("anabranch")
        .option("endpoint", args.endpoint)
        .option("topic", args.target)
        .option("checkpointLocation", args.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if query.exception() is not None:
        print(query.exception(), file=sys.stderr)
        return 1
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
