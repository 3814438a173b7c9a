"""A standalone cluster of Spark: what one machine cannot show of the source and the sink, in little.

`make spark-proof` shows it with whole machines that die, with local-cluster and Spark Connect.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.java_server import SHORT_LIVED_JAVA
from tests.node_process import NodeProcess
from tests.spark_proof import victims
from tests.spark_proof.clusters import processes, where
from tests.spark_proof.copied import Copy

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1300)]

RECORDS = 900
PATIENCE_S = 600
SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.multiplier=1.0",
    "spark.speculation.quantile=0.1",
    "spark.speculation.minTaskRuntime=100ms",
    "spark.speculation.interval=50ms",
)
"""A second attempt of whatever takes longer than the shortest task."""


def kill_executor(workers: list[subprocess.Popen[bytes]], query: subprocess.Popen[bytes], copy: Copy) -> int:
    """kill -9 of one with its Python workers, when a third was copied; how many processes that were."""
    deadline = time.monotonic() + PATIENCE_S
    while copy.copied() < copy.records // 3:
        assert query.poll() is None, copy.log.read_text(errors="replace")[-4000:]
        assert time.monotonic() < deadline, copy.log.read_text(errors="replace")[-4000:]
        time.sleep(0.05)
    executor = next(one for worker in workers for one in victims.executors(worker.pid))
    return victims.kill([*victims.below(executor.pid), executor])


@pytest.mark.long
def test_a_copy_is_exact_with_speculation_and_an_executor_that_is_killed(
    pipeline_node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Six JVMs on a few processors that compile for a future which they do not have.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(SHORT_LIVED_JAVA))
    with processes(tmp_path) as started:
        copy = Copy(pipeline_node, tmp_path, RECORDS)
        settings = [word for one in SPECULATION for word in ("--conf", one)]
        query = copy.query("--offsets", str(RECORDS // 6), *settings, *where("standalone", tmp_path, started))
        started.append(query)
        assert kill_executor(started[1:3], query, copy) >= 1
        code = query.wait(PATIENCE_S)
        assert code == 0, copy.log.read_text(errors="replace")[-4000:]
    assert copy.differences() == []
