"""A node in the test's own event loop, asked through its pipeline's listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.spark_pipeline.node.pipeline_lab import Lab, open_lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = await open_lab(tmp_path)
    yield made
    await made.close()
