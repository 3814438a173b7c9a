"""Fixtures of all tests: node processes, and the rule that no toolchain may be missing in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from anabranch_kit.run import turns
from tests import databases, ports
from tests.drivers import await_builds
from tests.foreign_crashes import pytest_runtest_protocol as pytest_runtest_protocol
from tests.node_process import DocumentNode, NodeProcess
from tests.postgres import Postgres

settings.register_profile("steady", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No property test fails because the machine is busy with something else. Otherwise what Hypothesis has chosen."""
settings.load_profile("steady")

settings.register_profile("thorough", settings.get_profile("steady"), max_examples=2000)
"""`make thorough`: for a night, or for a machine that has nothing else to do (tests/depth.py)."""

TOOLS_OF_MARKER = {
    "java": ("java", "javac", "mvn"),
    "go": ("go",),
    "node": ("node", "npm"),
    "kcat": ("kcat",),
    "kerberos": ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "krb5-config"),
    "rust": ("cargo",),
    "spark": ("java",),
    "browser": ("chromium", "chromedriver"),
}
"""Marker -> programs that its tests need."""

TEST_SETTINGS = {
    "kafka.group.consumer_heartbeat_interval_ms": "500",
    "kafka.group.initial_rebalance_delay_ms": "0",
    "kafka.group.min_session_timeout_ms": "1000",
}
"""Settings of every test node: the first join of a group need not wait for members that never come, nor members of the
new protocol for their next heartbeat."""


def pytest_configure() -> None:
    """Another node may run where the tests do."""
    ports.guard()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose toolchain is missing; in CI that is a failure, so that no client goes untested unnoticed."""
    for marker in _toolchains(item):
        missing = [program for program in TOOLS_OF_MARKER[marker] if shutil.which(program) is None]
        if missing:
            reason = f"{', '.join(missing)} not installed"
            if os.environ.get("CI"):
                pytest.fail(f"{reason}: in CI no client may go untested", pytrace=False)
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_runtest_protocol")
def pytest_wait_for_builds(item: pytest.Item) -> Any:
    """Wait for the programs of other languages that a test needs, before its time limit counts."""
    for toolchain in _toolchains(item):
        await_builds(toolchain)
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where files are run beside one another, those with slow tests go first: what is left at the end is short.

    Of these, files that need programs of other languages go last, since those are being built meanwhile.
    """
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        built = {item.path for item in items if _toolchains(item)}
        items.sort(key=lambda item: 2 if item.path not in slow else item.path in built)


def _toolchains(item: pytest.Item) -> list[str]:
    """Return the toolchains that a test is marked with."""
    return [marker for marker in TOOLS_OF_MARKER if item.get_closest_marker(marker) is not None]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Have the nodes run that a test shares with others: what one of them has ended is to fail that one alone."""
    if isinstance(item, pytest.Function):
        for value in item.funcargs.values():
            if isinstance(value, NodeProcess):
                value.revive()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show the end of the node's log with a failure of a test that used one."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for name, value in item.funcargs.items():
            nodes = value.nodes if isinstance(value, NodeFactory) else [value]
            for node in nodes:
                if isinstance(node, NodeProcess):
                    report.sections.append((f"log of {name}", node.tail()))
    return report


BACKENDS = ("embedded", "document")
"""Where a test node keeps its data: itself, or in another process that it speaks to in SBP's dialect v0.1 alone."""


class NodeFactory:
    """Makes node processes that end with the fixture that made the factory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes: list[NodeProcess] = []

    def __call__(
        self,
        name: str = "node",
        *,
        settings: Mapping[str, str] | None = None,
        listen: Mapping[str, str] | None = None,
        start: bool = True,
    ) -> NodeProcess:
        """A node on the data directory ``name``, started unless told otherwise."""
        node = NodeProcess(self.directory / name, settings={**TEST_SETTINGS, **(settings or {})}, listen=listen)
        self.nodes.append(node)
        if start:
            node.start()
        return node

    def on(
        self,
        backend: str,
        name: str = "node",
        *,
        settings: Mapping[str, str] | None = None,
        listen: Mapping[str, str] | None = None,
    ) -> NodeProcess:
        """A started node of one of the ``BACKENDS``."""
        if backend == "embedded":
            return self(name, settings=settings, listen=listen)
        given = {**TEST_SETTINGS, **(settings or {})}
        node = DocumentNode(self.directory / name, settings=given, backend_settings=TEST_SETTINGS, listen=listen)
        self.nodes += [node.backend, node]
        return node.start()

    def restart(self, *, kill: bool) -> None:
        """End all nodes, the youngest first, with SIGKILL or in order, and start them again."""
        for node in reversed(self.nodes):
            if kill:
                node.kill()
            else:
                node.terminate()
        for node in self.nodes:
            node.start()

    def dispose(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.dispose()


@pytest.fixture(scope="session")
def shared_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], NodeProcess]]:
    """One node of each of the ``BACKENDS``, for all tests that leave it running and use topics of their own."""
    factory = NodeFactory(tmp_path_factory.mktemp("shared"))
    made: dict[str, NodeProcess] = {}

    def node_on(backend: str) -> NodeProcess:
        if backend not in made:
            made[backend] = factory.on(backend, backend)
        return made[backend]

    try:
        yield node_on
    finally:
        factory.dispose()


@pytest.fixture(scope="session")
def shared_node(shared_nodes: Callable[[str], NodeProcess]) -> NodeProcess:
    """The node of all tests that leave it running and use topics of their own."""
    return shared_nodes("embedded")


@pytest.fixture
def slow_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in turns has a clock on which every look costs a third of a turn."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr(turns, "monotonic", monotonic)


@pytest.fixture
def node_factory(tmp_path: Path) -> Iterator[NodeFactory]:
    """Makes nodes that live as long as the test; for tests that kill, restart or fill them."""
    factory = NodeFactory(tmp_path)
    try:
        yield factory
    finally:
        factory.dispose()


@pytest.fixture
def node(node_factory: NodeFactory) -> NodeProcess:
    """A running node of the test's own."""
    return node_factory()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server for all tests that need one and leave it running."""
    server = Postgres()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which engine the databases of :mod:`tests.databases` have."""
    kind: str = request.param
    if kind == "sqlite":
        yield kind
        return
    with databases.on_postgres(request.getfixturevalue("postgres")):
        yield kind
