"""A Spark session with the settings that measurably matter for sources and sinks in Python.

The reason for each setting is in docs/protocols/spark.md, "Workers" and "Sizes".
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_log = logging.getLogger("anabranch.spark")

NOT_STARTED = "failed to connect back"
"""Part of Spark's message about a Python process that did not start in time."""
JAVA = 17
"""The lowest version of Java that PySpark 4 runs on."""
DEFAULT_MASTER = "local[*,3]"
"""All processors of this machine, and three attempts per task; with plain ``local[*]`` there is one."""

SETTINGS: dict[str, str] = {
    # Over TCP each task waits 40 ms for a delayed acknowledgement; micro-batches take 4 times as long.
    "spark.python.unix.domain.socket.enabled": "true",
    # Size of batches to a sink in Python: the fastest of the measured sizes, and a bound on a worker's memory.
    "spark.sql.execution.arrow.maxBytesPerBatch": "1m",
    # Times are shown and compared as they are stored.
    "spark.sql.session.timeZone": "UTC",
    # Two concurrent attempts of one task would only conflict at a sink.
    "spark.speculation": "false",
}


class JavaMissing(PipelineError):
    """Java is missing or too old."""


def session(
    app: str = "anabranch", master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process; without one, make it with :data:`SETTINGS`, overridden by ``settings``.

    ``master``: default :data:`DEFAULT_MASTER`, or the one of spark-submit. Raises JavaMissing, PipelineError for a
    setting that breaks sinks.
    """
    require_java()
    from pyspark.sql import SparkSession

    from spark_pipeline.spark.data_source import AnabranchDataSource
    from spark_pipeline.spark.sink import refuse

    # By default workers run the path's `python3`, which lacks our packages.
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
    """Return whether Spark finds the source by itself; it would then warn of a registered one.

    Spark searches the directories of its Python path; a package that is installed as editable is not in them.
    """
    path = os.environ.get("PYTHONPATH", "")
    places = [os.getcwd(), *path.split(os.pathsep), *site.getsitepackages(), site.getusersitepackages()]
    return any(one.name == "pyspark_anabranch" for one in pkgutil.iter_modules([place for place in places if place]))


def started(work: Callable[[], T]) -> T:
    """Return the result of ``work``; call it a second time if Spark's Python process did not start in time.

    Java waits ten seconds for a Python process, which no setting changes (PythonWorkerFactory), and a busy machine may
    take longer. Raises the error of ``work``.
    """
    try:
        return work()
    except Exception as error:
        if NOT_STARTED not in str(error):
            raise
        _log.warning("a Python process of Spark's did not start in time, once again: %s", error)
        return work()


def shuffle_setting() -> dict[str, str]:
    """Return the setting of two shuffle partitions per processor, instead of 200: most shuffles have few rows."""
    return {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}


def require_java() -> None:
    """Raise JavaMissing, which names the package to install, unless a suitable Java is there."""
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
