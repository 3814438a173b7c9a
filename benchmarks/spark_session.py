"""What runs in the processes of `benchmarks/spark_queries.py`: a Spark session that does one query after the other.

Started with either of two Pythons, so it imports nothing of ours but for the session helper, where that is. The first
line of its input is a JSON object with ``format``, ``master`` and ``settings``, each further one names a ``query``,
which is a method of :class:`Session`, and its arguments. Answers are JSON objects in lines that begin with ANSWER.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

_MARK = "ANSWER "
_STARTS = 5


class Session:
    """The queries. ``options`` are those of the source, ``sink`` those of the sink, ``exprs`` SQL expressions."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._format = told["format"]
        settings, master = told["settings"], told["master"]
        if self._format == "anabranch":
            from spark_pipeline.spark.session import session

            self._spark: Any = session("queries", master, settings)
        else:
            from pyspark.sql import SparkSession

            builder: Any = SparkSession.builder.appName("queries").master(master)
            for name, value in settings.items():
                builder = builder.config(name, value)
            self._spark = builder.getOrCreate()
            self._spark.sparkContext.setLogLevel("WARN")

    # --- what is there ----------------------------------------------------------------------------------------------

    def save(self, options: dict[str, str], out: str) -> dict[str, Any]:
        """All rows into Parquet files."""
        self._read(options).write.parquet(out)
        return {}

    def count(self, options: dict[str, str], schema: str | None = None) -> dict[str, Any]:
        """How many rows there are."""
        began = time.perf_counter()
        rows = self._read(options, schema).count()
        return {"rows": rows, "seconds": time.perf_counter() - began}

    def values(self, options: dict[str, str], schema: str | None = None) -> dict[str, Any]:
        """How many rows there are, and the bytes of their values."""
        began = time.perf_counter()
        rows, size = self._read(options, schema).selectExpr("count(1)", "sum(length(value))").first()
        return {"rows": rows, "bytes": size, "seconds": time.perf_counter() - began}

    def _read(self, options: dict[str, str], schema: str | None = None) -> Any:
        reader = self._spark.read.format(self._format).options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    # --- writing ----------------------------------------------------------------------------------------------------

    def generate(self, count: int, tasks: int, exprs: list[str], sink: dict[str, str]) -> dict[str, Any]:
        """Write rows that are made of the numbers below ``count`` (column ``id``)."""
        rows = self._spark.range(0, count, 1, tasks).selectExpr(*exprs)
        began = time.perf_counter()
        rows.write.format(self._format).options(**sink).mode("append").save()
        return {"rows": count, "seconds": time.perf_counter() - began}

    # --- streams ----------------------------------------------------------------------------------------------------

    def stream_save(self, options: dict[str, str], out: str, checkpoint: str) -> dict[str, Any]:
        """What there is by now into Parquet files, as a stream."""
        writer = self._stream(options, None).writeStream.format("parquet").option("path", out)
        return self._run(writer.option("checkpointLocation", checkpoint))

    def copy(
        self,
        options: dict[str, str],
        sink: dict[str, str],
        checkpoint: str,
        exprs: list[str] | None = None,
        schema: str | None = None,
    ) -> dict[str, Any]:
        """What there is by now from the source into the sink, as a stream."""
        rows = self._stream(options, schema)
        rows = rows if exprs is None else rows.selectExpr(*exprs)
        writer = rows.writeStream.format(self._format).options(**sink)
        return self._run(writer.option("checkpointLocation", checkpoint))

    def beats(
        self, options: dict[str, str], sink: dict[str, str] | None, checkpoint: str, number: int, warm: int
    ) -> dict[str, Any]:
        """How long ``number`` micro-batches take that bring rows, behind ``warm`` others that are not told; somebody
        has to write rows meanwhile. ``sink`` None: the rows are counted and dropped (format ``noop``).

        Gives ``ms`` by the names of Spark's progress, a list each, and the ``rows`` of these batches.
        """
        rows = self._stream(options, None)
        if sink is None:
            writer = rows.writeStream.format("noop")
        else:
            writer = rows.writeStream.format(self._format).options(**sink)
        query = writer.option("checkpointLocation", checkpoint).start()
        ms: dict[str, list[int]] = {}
        seen: list[int] = []
        last = -1
        try:
            while len(seen) < warm + number:
                if not query.isActive:
                    raise RuntimeError(f"the query ended: {query.exception()}")
                for progress in query.recentProgress:
                    told = json.loads(progress.json)
                    if told["batchId"] <= last or not told["numInputRows"]:
                        continue
                    last = told["batchId"]
                    seen.append(told["numInputRows"])
                    if len(seen) > warm:
                        for name, took in told["durationMs"].items():
                            ms.setdefault(name, []).append(took)
                query.awaitTermination(1)
        finally:
            query.stop()
        return {"ms": ms, "rows": seen[warm:]}

    def _stream(self, options: dict[str, str], schema: str | None) -> Any:
        reader = self._spark.readStream.format(self._format).options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    def _run(self, writer: Any) -> dict[str, Any]:
        for attempt in range(_STARTS):
            began = time.perf_counter()
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
                break
            except Exception as error:
                # Spark gives the Python of a stream some seconds to start, which a busy machine may not have for it.
                if "failed to connect back" not in str(error) or attempt == _STARTS - 1:
                    raise
        seconds = time.perf_counter() - began
        told = [json.loads(progress.json) for progress in query.recentProgress]
        batches = [[one["numInputRows"], one["durationMs"].get("triggerExecution", 0)] for one in told]
        return {"rows": sum(rows for rows, _ in batches), "seconds": seconds, "batches": batches}

    def stop(self) -> None:
        """End the session."""
        self._spark.stop()


def main() -> int:
    """Until the input ends."""
    # Java prints to the standard output it inherits; answers have one of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(told: dict[str, Any]) -> None:
        answers.write(_MARK + json.dumps(told) + "\n")
        answers.flush()

    session: Session | None = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if session is None:
                session = Session(told)
                answer({})
            else:
                answer(getattr(session, told.pop("query"))(**told))
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and may ask on
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"[:2000]})
    if session is not None:
        session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
