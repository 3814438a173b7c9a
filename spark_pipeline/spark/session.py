"""A Spark session with the settings that were measured to matter for sources and sinks in Python.

Each setting stands with its reason: docs/protocols/spark.md, "Workers" and "Sizes".
"""

from __future__ import annotations

import logging
import os
import pkgutil
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.spark.refused import refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_log = logging.getLogger("anabranch.spark")

NOT_STARTED = "failed to connect back"
"""What Spark says of a Python process that did not start in time."""
JAVA = 17
"""The least version that PySpark 4 runs on."""
DEFAULT_MASTER = "local[*,3]"
"""All processors of this machine, and three attempts for each task: plain ``local[*]`` makes one."""

SETTINGS: dict[str, str] = {
    # Over TCP each task waits 40 ms for an acknowledgement that is late; micro-batches take 4 times as long.
    "spark.python.unix.domain.socket.enabled": "true",
    # What goes to a sink in Python: the fastest of what was measured, and a bound on a worker's memory.
    "spark.sql.execution.arrow.maxBytesPerBatch": "1m",
    # Times are shown and compared as they are stored.
    "spark.sql.session.timeZone": "UTC",
    # Two attempts of one task at a time would only get in each other's way at a sink.
    "spark.speculation": "false",
}


class JavaMissing(PipelineError):
    """There is no Java, or one that is too old."""


def session(
    app: str = "anabranch", master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made with :data:`SETTINGS` if there is none yet; ``settings`` go before these.

    ``master``: default :data:`DEFAULT_MASTER`, or what spark-submit says. Raises JavaMissing, PipelineError for a
    setting that breaks sinks.
    """
    require_java()
    from pyspark.sql import SparkSession

    from spark_pipeline.spark.data_source import AnabranchDataSource

    # Workers are started with `python3` of the path otherwise, which has none of our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = {**SETTINGS, **shuffle_setting(), **(settings or {})}
    refuse(chosen)
    builder: Any = SparkSession.builder.appName(app)
    if master is not None or "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(master or DEFAULT_MASTER)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("WARN")
    if not _finds_sources():
        made.dataSource.register(AnabranchDataSource)
    return made


def _finds_sources() -> bool:
    """Whether Spark finds the source by itself, and would warn of one that is registered as well: it looks for modules
    in the directories of its Python's path, among which those of a package that is installed editable are not."""
    path = os.environ.get("PYTHONPATH", "")
    places = [os.getcwd(), *path.split(os.pathsep), *site.getsitepackages(), site.getusersitepackages()]
    return any(one.name == "pyspark_anabranch" for one in pkgutil.iter_modules([place for place in places if place]))


def started(work: Callable[[], T]) -> T:
    """What ``work`` gives; it is begun once again if Spark's Python did not start in time.

    Java waits ten seconds for a process of Python, which no setting changes (PythonWorkerFactory), and a machine that
    is busy may take longer. Raises what ``work`` raises.
    """
    try:
        return work()
    except Exception as error:
        if NOT_STARTED not in str(error):
            raise
        _log.warning("a Python process of Spark's did not start in time, once again: %s", error)
        return work()


def shuffle_setting() -> dict[str, str]:
    """Two partitions of a shuffle for each processor of this machine, instead of 200: most are for a few rows."""
    return {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}


def require_java() -> None:
    """Raises JavaMissing, which names the package to install."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME = {home} has no java" if home else "there is no java on the path"
        raise JavaMissing(f"Spark needs Java {JAVA} or later, and {where}: {_INSTALL}")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if match is None:
        raise JavaMissing(f"{java} does not tell its version: {_INSTALL}")
    if int(match[1]) < JAVA:
        raise JavaMissing(f"Spark needs Java {JAVA} or later, and {java} is Java {match[1]}: {_INSTALL}")


_INSTALL = (
    "install openjdk-17-jre-headless (Debian, Ubuntu), java-17-openjdk-headless (Fedora, RHEL) or openjdk@17 (Homebrew)"
)
