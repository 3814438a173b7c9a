"""The clients of the matrix, by name, and what they need."""

from __future__ import annotations

import pytest

MARKERS = {
    "java-new": "java",
    "pravega-java": "java",
    "pravega-bytes": "java",
    "ydb-go": "go",
    "ydb-java": "java",
    "spark": "spark",
    "spark-stream": "spark",
}
LONG = ("spark-stream",)
"""Readers whose cells `make matrix` alone reads: they take a minute."""
WRITERS = (
    *("confluent-kafka", "kafka-python", "java-new"),
    *("pravega-wheel", "pravega-java", "pravega-bytes"),
    *("ydb-grpc", "ydb-python", "ydb-go", "ydb-java"),
    *("sbp-v0.1", "produce", "spark", "spark-stream"),
)
READERS = (
    *("confluent-kafka", "kafka-python", "java-new"),
    *("pravega-wheel", "pravega-java"),
    *("ydb-grpc", "ydb-python", "ydb-go", "ydb-java"),
    *("tail", "spark", "spark-stream"),
)


def marks(*names: str, seldom: bool = False) -> list[pytest.MarkDecorator]:
    """The toolchains that these clients need, and whether `make matrix` alone runs them."""
    found = [getattr(pytest.mark, MARKERS[name]) for name in names if name in MARKERS]
    return [*found, pytest.mark.matrix] if seldom else found
