"""Apache Kafka, which some tests are run against as well: a demand that it does not meet is a mistake in the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.kafka_broker import KafkaBroker

SETTINGS = {"group.min.session.timeout.ms": "1000", "group.max.size": "4", "auto.create.topics.enable": "false"}


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker of these tests' own."""
    directory = tmp_path_factory.mktemp("kafka")
    with KafkaBroker(directory, heap="512m", settings=SETTINGS, options=SHORT_LIVED_JAVA) as broker:
        yield broker
