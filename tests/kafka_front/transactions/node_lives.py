"""Lives of a node that transactional producers write to and that may be killed at any step of that.

A step is an instant just before or just after something becomes durable: a commit of the node's database, a batch, a
marker.
"""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kafka_front.front import KafkaFront
from kafka_front.service.transactions.transaction import Transaction, TxnState
from tests.kafka_front.node_lab import serving
from tests.kill_steps import Steps
from tests.kit.waiting import until


def live(path: str, address: str, kill_at: int | None, pipe: Connection) -> None:
    """One life of the node on the directory ``path``, until it is told to end."""
    asyncio.run(_live(Path(path), address, kill_at, pipe))


async def _live(path: Path, address: str, kill_at: int | None, pipe: Connection) -> None:
    flags = {"listen.kafka": address, "kafka.group.initial_rebalance_delay_ms": "0"}
    async with serving(path, flags) as node:
        if "t" not in node.catalog.topics:
            await node.catalog.create_topic("t", 2, {})
        (front,) = node.fronts
        assert isinstance(front, KafkaFront)
        assert front.server is not None
        assert front.server.service is not None
        transactions: Any = front.server.service.transactions
        steps = Steps(kill_at)
        steps.around_commits(node.db)
        steps.around_markers()
        appends: Any = Transaction
        append = appends.append

        def stepped(self: Any, to: Any, batch: Any, done: Any) -> None:
            steps.step()

            def answered(appended: Any, error: Any) -> None:
                steps.step()
                done(appended, error)

            append(self, to, batch, answered)

        appends.append = stepped
        pipe.send(str(node.addresses["kafka"]))
        await asyncio.to_thread(pipe.recv)
        await until(
            lambda: not any(one.state is TxnState.ONGOING or not one.ended.is_set() for one in _begun(transactions))
        )
        pipe.send(steps.seen)


def _begun(transactions: Any) -> list[Transaction]:
    return [one for one in transactions.coordinator.transactions.values() if one.places]
