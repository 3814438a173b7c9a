"""One node with YDB's listener for the tests of a session, and clients for it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, NodeProcess
from tests.ydb_topic_front.raw import RawClient

LISTEN = {"ydb": ANY, "kafka": ANY, "console": ANY, "sbp-pd": "off", "sbp-range-server": "off"}


@pytest.fixture(scope="session")
def ydb_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that nobody restarts."""
    with NodeProcess(tmp_path_factory.mktemp("ydb") / "data", settings=TEST_SETTINGS, listen=LISTEN).lent() as node:
        yield node


@pytest.fixture
def raw(ydb_node: NodeProcess) -> Iterator[RawClient]:
    """What sends any bytes to the shared node."""
    with RawClient(ydb_node.ydb) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t-{uuid4().hex[:12]}"
