"""All clients under test, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from _pytest.mark import ParameterSet

from tests.clients.api import Abilities, Client
from tests.clients.client_aiokafka import AiokafkaClient
from tests.clients.client_confluent import ConfluentClient
from tests.clients.client_kafka_python import KafkaPythonClient
from tests.clients.client_kcat import KcatClient
from tests.clients.client_remote import REMOTES, RemoteClient
from tests.drivers import Driver

LOCAL: dict[str, type[Client]] = {
    kind.name: kind for kind in (ConfluentClient, KafkaPythonClient, AiokafkaClient, KcatClient)
}

ABILITIES: dict[str, Abilities] = {
    **{name: kind.abilities for name, kind in LOCAL.items()},
    **{remote.name: remote.abilities for remote in REMOTES},
}

NAMES = tuple(ABILITIES)

_MARKERS = {"kcat": "kcat", **{remote.name: remote.program.marker for remote in REMOTES}}


def marks(*names: str) -> list[pytest.MarkDecorator]:
    """The toolchain markers of tests that use these clients."""
    return [getattr(pytest.mark, _MARKERS[name]) for name in names if name in _MARKERS]


def clients(can: Callable[[Abilities], bool] = lambda _: True) -> list[ParameterSet]:
    """Parameters for a test of every client that has the ability."""
    return [pytest.param(name, marks=marks(name)) for name in NAMES if can(ABILITIES[name])]


REFERENCE = "confluent-kafka"
"""The client that prepares what another one is tested with."""


def pairs(*names: str) -> list[ParameterSet]:
    """Parameters for a test of every writer with every reader."""
    return [pytest.param(writer, reader, marks=marks(writer, reader)) for writer in names for reader in names]


class Opener:
    """Gives clients by name; driver programs are started at first use and kept."""

    def __init__(self, bootstrap: str, java: Mapping[str, str] | None = None) -> None:
        """``java``: settings of Java's clients."""
        self.bootstrap = bootstrap
        self._java = java
        self._drivers: dict[str, Driver] = {}
        self._opened: dict[str, Client] = {}

    def __call__(self, name: str) -> Client:
        """The client, connected to the broker under test."""
        if name not in self._opened:
            self._opened[name] = self.at(name, self.bootstrap)
        return self._opened[name]

    def at(self, name: str, bootstrap: str) -> Client:
        """The client, connected to another broker."""
        if name in LOCAL:
            return LOCAL[name](bootstrap)
        remote = next(remote for remote in REMOTES if remote.name == name)
        if name not in self._drivers:
            self._drivers[name] = remote.program.start()
        return RemoteClient(bootstrap, name, remote.abilities, self._drivers[name], self._java)

    def close(self) -> None:
        """End all drivers."""
        for driver in self._drivers.values():
            driver.close()
