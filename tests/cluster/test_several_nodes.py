"""Several nodes over one PostgreSQL: what one of them changes the others have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import NodeFactory
from tests.node_process import NodeProcess
from tests.postgres import Postgres

T = TypeVar("T")

PATIENCE = 60


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    """Two that were started together over a database that nobody had."""
    factory = NodeFactory(tmp_path_factory.mktemp("several"))
    url = postgres.made()
    try:
        made = [
            factory(f"node{number}", settings={"cluster.database": url, "node.id": f"{number}"}, start=False)
            for number in (1, 2)
        ]
        for node in made:
            node.launch()
        for node in made:
            node.await_ready()
        yield made
    finally:
        factory.dispose()


@pytest.fixture
def admins(nodes: list[NodeProcess]) -> list[AdminClient]:
    return [AdminClient({"bootstrap.servers": node.kafka}) for node in nodes]


def until(look: Callable[[], T], wanted: T) -> float:
    """Milliseconds until ``look`` gives what is wanted."""
    began = time.monotonic()
    while (found := look()) != wanted:
        assert time.monotonic() - began < PATIENCE, found
    return (time.monotonic() - began) * 1000


def topics(admin: AdminClient) -> set[str]:
    return set(admin.list_topics(timeout=PATIENCE).topics)


def test_a_topic_that_is_made_at_one_node_is_there_at_the_other_within_milliseconds(admins: list[AdminClient]) -> None:
    one, other = admins
    took = []
    for number in range(10):
        name = f"made{number}"
        one.create_topics([NewTopic(name, 3)])[name].result(PATIENCE)
        took.append(until(lambda name=name: name in topics(other), True))
    took.sort()
    print(f"seen after {took[len(took) // 2]:.0f} ms, at the latest {took[-1]:.0f}")
    assert took[len(took) // 2] < 500
