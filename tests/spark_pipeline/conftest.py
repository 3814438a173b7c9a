"""What tests with Spark share: one session, and one node; each takes seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import NodeFactory
from tests.node_process import ANY, FRONTS, SELDOM, NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PIPELINE = {**dict.fromkeys(FRONTS, ANY), "pipeline": ANY}
"""Listeners of a node that the pipeline reads and writes."""


LONG_LIVED = {"log.retention_check_interval_ms": "1d"}
"""Tests write records with times of years ago: a node that lives for minutes must not take them for old."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two processors, as the session helper makes it. Tasks have three attempts, so retries happen."""
    from spark_pipeline.spark.session import session

    directory = tmp_path_factory.mktemp("spark")
    made = session(
        "tests",
        "local[2,3]",
        {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.local.dir": str(directory / "local"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        },
    )
    yield made
    for query in made.streams.active:
        query.stop()
    made.stop()


@pytest.fixture(scope="session")
def pipeline_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with all listeners, for all tests that leave it running and use topics of their own."""
    factory = NodeFactory(tmp_path_factory.mktemp("pipeline"))
    try:
        yield factory("node", settings=LONG_LIVED, listen={**PIPELINE, **dict.fromkeys(SELDOM, ANY)})
    finally:
        factory.dispose()


@pytest.fixture(scope="session")
def pipeline_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Another such node, for tests that kill and restart it, one after the other."""
    factory = NodeFactory(tmp_path_factory.mktemp("target"))
    try:
        yield factory("node", settings=LONG_LIVED, listen={**PIPELINE, **dict.fromkeys(SELDOM, ANY)})
    finally:
        factory.dispose()


@pytest.fixture
def new_pipeline_node(node_factory: NodeFactory) -> Callable[[str], NodeProcess]:
    """Makes nodes of the test's own, to kill or restart."""
    return lambda name: node_factory(name, listen=PIPELINE)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Where a query of this test keeps how far it is."""
    return str(tmp_path / "checkpoint")
