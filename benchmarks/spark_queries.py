"""Spark sessions in processes of their own, each with the Python and the PySpark that it needs, asked one query after
the other: ours, and one with Spark's connector for Kafka. `benchmarks/spark_session.py` is what runs in them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.spark_connector import install_jars, install_python
from benchmarks.tools import ROOT

SESSION = Path(__file__).resolve().parent / "spark_session.py"
OURS = "anabranch"
CONNECTOR = "kafka"
_MARK = "ANSWER "
_TAIL = 4000


class QueryFailed(Exception):
    """A query, or the session, ended badly; the message carries what was said of it."""


class Queries:
    """One session. ``kind``: ``OURS`` or ``CONNECTOR``, which is the format that its queries read and write.

    ``settings`` go before those of the session; ``seconds`` is how long one query may take before the process is
    killed. What Spark logs goes to ``directory``/session.log.
    """

    def __init__(
        self,
        kind: str,
        directory: Path,
        *,
        master: str = "local[2,3]",
        settings: Mapping[str, str] | None = None,
        seconds: float = 600.0,
    ) -> None:
        self.kind = kind
        self.directory = directory
        self.log = directory / "session.log"
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        own = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(directory / "local"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        }
        self._python = Path(sys.executable)
        if kind == CONNECTOR:
            self._python = install_python()
            own["spark.jars"] = ",".join(map(str, install_jars()))
        self._told = {"format": kind, "master": master, "settings": {**own, **(settings or {})}}

    def start(self) -> Self:
        """Start the process and wait for the session. Raises QueryFailed."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environment = {**clean, "PYSPARK_PYTHON": str(self._python), "SPARK_LOCAL_IP": "127.0.0.1"}
        if self.kind == OURS:
            # Spark looks for packages with formats where they lie, and an editable install has put ours nowhere.
            environment["PYTHONPATH"] = str(ROOT)
        # -P: the modules that lie beside the program are not for it.
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._python), "-P", str(SESSION)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=self.directory,
            )
        self._ask(self._told)
        return self

    @property
    def pid(self) -> int:
        """Of the driver's Python; the rest of Spark are its descendants."""
        assert self._process is not None, "started first"
        return self._process.pid

    def ask(self, query: str, **arguments: Any) -> dict[str, Any]:
        """The answer of one of the queries of `benchmarks/spark_session.py`. Raises QueryFailed."""
        return self._ask({"query": query, **arguments})

    def _ask(self, told: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None, "started first"
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(self._seconds, process.kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith(_MARK):
                    answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
                    break
            else:
                raise QueryFailed(f"the session ended at {told.get('query', 'its start')}:\n{self.tail()}")
        except BrokenPipeError:
            raise QueryFailed(f"the session ended before {told.get('query', 'its start')}:\n{self.tail()}") from None
        finally:
            watchdog.cancel()
        if "error" in answer:
            raise QueryFailed(f"{self.kind}, {told}: {answer['error']}\n(more in {self.log})")
        return answer

    def tail(self) -> str:
        """The end of what the session has logged."""
        return self.log.read_text(errors="replace")[-_TAIL:]

    def stop(self) -> None:
        """End the session: its process ends with its input."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
