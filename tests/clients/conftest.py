"""The broker under test: a node of ours, for one client also on the further backends; or another broker, at
ANABRANCH_TEST_BOOTSTRAP (host:port).

Running these tests against Apache Kafka (benchmarks/kafka_broker.py) shows that what they demand is what Kafka does.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.clients.api import Client
from tests.clients.raw import offered_apis
from tests.clients.registry import REFERENCE, Opener
from tests.clients.sharing import await_topic
from tests.conftest import BACKENDS
from tests.node_process import NodeProcess

MakeTopic = Callable[..., str]


GIVEN = os.environ.get("ANABRANCH_TEST_BOOTSTRAP")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all clients but the reference on further backends: clients meet the front, which is always the same."""
    again = {item for item in items if _is_superfluous(item)}
    if again:
        config.hook.pytest_deselected(items=list(again))
        items[:] = [item for item in items if item not in again]


def _is_superfluous(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    params = dict(item.callspec.params)
    return params.pop("bootstrap", None) in BACKENDS[1:] and set(params.values()) != {REFERENCE}


@pytest.fixture(scope="session", params=["given"] if GIVEN else BACKENDS)
def bootstrap(request: pytest.FixtureRequest, shared_nodes: Callable[[str], NodeProcess]) -> str:
    """`host:port` of the broker under test."""
    return GIVEN or shared_nodes(request.param).kafka


@pytest.fixture(scope="session")
def open_client(bootstrap: str) -> Iterator[Opener]:
    """Clients by name."""
    opener = Opener(bootstrap)
    try:
        yield opener
    finally:
        opener.close()


@pytest.fixture(scope="session")
def reference(open_client: Opener) -> Client:
    """The client that prepares what another one is tested with."""
    return open_client(REFERENCE)


@pytest.fixture(scope="session")
def make_topic(reference: Client) -> MakeTopic:
    """Creates a topic with a name of its own; returns when clients see it."""

    def make(prefix: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        topic = fresh(prefix)
        reference.create_topic(topic, partitions, config)
        await_topic(reference, topic, partitions)
        return topic

    return make


@pytest.fixture(scope="session")
def needs_api(bootstrap: str) -> Callable[..., None]:
    """Skips a test of a feature that the broker under test does not offer; offering it makes the test run."""
    offered = offered_apis(bootstrap)

    def need(feature: str, *keys: int) -> None:
        missing = [key for key in keys if key not in offered]
        if missing:
            pytest.skip(f"the broker does not offer {feature} (API {', '.join(map(str, missing))})")

    return need


def fresh(prefix: str) -> str:
    """A name that nothing has had before."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """Makes names that nothing has had before."""
    return fresh
