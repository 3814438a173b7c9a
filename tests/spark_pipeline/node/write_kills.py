"""A query of two batches on a node that is killed with kill -9 at a step of its choice: what is then in the log."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from spark_pipeline.core.client.node_client import NodeClient, NodeError, NodeOptions
from spark_pipeline.core.client.sink_client import GONE, SinkBatch, SinkDriver, SinkTask, Written
from tests.lives import Lives
from tests.spark_pipeline.node.pipeline_lab import Lab, batch_of, committed, node_of
from tests.spark_pipeline.node.write_lives import live

TASKS = 2
BATCHES = 2


def values(batch: int, task: int) -> dict[tuple[int, int], list[bytes]]:
    """What a task writes: by request and partition."""
    return {
        (request, partition): [b"%d.%d.%d.%d.%d" % (batch, task, request, partition, row) for row in range(2)]
        for request in range(2)
        for partition in range(2)
    }


def attempt(client: NodeClient, batch: SinkBatch, task: int, *, fail: bool = False) -> Written | None:
    """One attempt of a task; None if it fails, on purpose or because its node knows nothing of it any more."""
    writing = SinkTask(client, batch, task, timeout_ms=600_000, request_bytes=1 << 20)
    try:
        if not writing.begin():
            rows = sum(map(len, values(batch.number, task).values()))
            return Written(None, rows, committed=True)
        for (request, partition), rows in values(batch.number, task).items():
            writing.add("t", partition, batch_of(*rows))
            if partition:
                writing.flush()
            if fail and request:
                return None
        return writing.finish()
    except NodeError as error:
        if error.kind != GONE:
            raise
        return None


def scenario(client: NodeClient) -> None:
    """What Spark does: a task of the first batch fails once, its driver fails once behind the commit."""
    driver = SinkDriver(client)
    for number in range(BATCHES):
        batch = SinkBatch("query", number)
        for round_ in range(2):
            while True:
                if not number and not round_:
                    attempt(client, batch, 0, fail=True)
                written = [attempt(client, batch, task) for task in range(TASKS)]
                good = [one for one in written if one is not None]
                if len(good) < TASKS:
                    continue  # Spark has other attempts
                try:
                    already = driver.commit(batch, good)
                except NodeError as error:
                    if error.kind != GONE:
                        raise
                    continue
                assert already or not round_
                break
            assert driver.abort(batch) is True


async def lived(path: Path, kill_at: int | None) -> tuple[int, int]:
    """The scenario on a node that is killed at a step: (lives there were, steps of the last one). Asserts that each
    record is there once, in its order, and that nothing is open."""
    with Lives(path, kill_at, live) as lives:
        client = NodeClient(NodeOptions.parse(f"anabranch://{lives.address}", {"patienceMs": "120000"}))
        await asyncio.to_thread(scenario, client)
        client.close()
        await asyncio.to_thread(lives.end)
    node = node_of(path)
    await node.start()
    lab = Lab(node, client)
    found: list[bytes] = []
    for partition in range(2):
        here = await committed(lab, "t", partition)
        log = lab.log("t", partition)
        assert log.last_stable_offset == log.high_watermark
        assert not log.state.transactions.open
        for batch in range(BATCHES):
            for task in range(TASKS):
                mine = [one for one in here if one.startswith(b"%d.%d." % (batch, task))]
                assert mine == sorted(mine)
        assert [one[:1] for one in here] == sorted(one[:1] for one in here)
        found += here
    expected = [
        row
        for batch in range(BATCHES)
        for task in range(TASKS)
        for rows in values(batch, task).values()
        for row in rows
    ]
    assert Counter(found) == Counter(expected)
    await node.stop()
    return lives.lives, lives.steps
