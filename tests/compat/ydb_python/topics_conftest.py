"""Put beside the suite's own topic tests: they ask for an address, and would start YDB in a container for it."""

import os

import pytest


@pytest.fixture(scope="module")
def endpoint() -> str:
    return os.environ["YDB_TEST_ENDPOINT"]
