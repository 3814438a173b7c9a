"""Spark's own connector for Kafka, in an environment of its own: what our source and sink are compared with.

The connector is published for an older PySpark than ours, and not all of its parts are published for each version:
`benchmarks/spark_jars/pom.xml` has those that fit together. The environment and the jars are kept below
`.tools/spark-connector`.

    python -m benchmarks.spark_connector        # makes both, if they are not there, and prints where they are

Needs `java` (17 or newer) and, the first time, `mvn` and PyPI.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.java_server import fetch_jars
from benchmarks.python_environment import install_environment
from benchmarks.tools import ROOT
from benchmarks.tools import TOOLS as ALL_TOOLS

POM = Path(__file__).resolve().parent / "spark_jars" / "pom.xml"
LOCK = ROOT / "requirements" / "spark-connector.lock"
TOOLS = ALL_TOOLS / "spark-connector"


def install_jars(tools: Path = TOOLS) -> list[Path]:
    """The connector's jars, fetched once. Raises ServerFailed when they cannot be had."""
    return sorted(fetch_jars(POM, tools).glob("*.jar"))


def install_python(tools: Path = TOOLS) -> Path:
    """The Python that has the connector's PySpark, made once. Raises ServerFailed when it cannot be had."""
    return install_environment(LOCK, tools)


def main() -> int:
    """Make what is not there, and print where it is."""
    print(install_python())
    print(*install_jars(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
