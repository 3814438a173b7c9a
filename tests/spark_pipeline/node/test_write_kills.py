"""A node dies by kill -9 while sinks write to it: each batch is there once all the same.

Some of the steps; ``make spark-proof`` takes every one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_pipeline.node.write_kills import lived

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kill_at", [9, 16, 34])
async def test_each_batch_is_there_once_when_the_node_is_killed(tmp_path: Path, kill_at: int) -> None:
    lives, _ = await lived(tmp_path, kill_at)
    assert lives == 2
