"""Fixture of the group coordinator's tests."""

from __future__ import annotations

import pytest

from tests.kafka_front.groups.lab import Lab


@pytest.fixture
def lab() -> Lab:
    return Lab()
