"""Driver programs of YDB's SDKs, each started once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.drivers import Driver
from tests.ydb_topic_front.sdks.programs import Client, Place, Sdk

Connect = Callable[[Sdk, Place], Client]


@pytest.fixture(scope="session")
def connect() -> Iterator[Connect]:
    """A client of an SDK; its driver is built and started at first use."""
    started: dict[str, Driver] = {}

    def opened(sdk: Sdk, place: Place) -> Client:
        if sdk.name not in started:
            started[sdk.name] = sdk.program.start()
        return Client(started[sdk.name], place)

    yield opened
    for driver in started.values():
        driver.close()
