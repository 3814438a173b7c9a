"""A node dies by kill -9 at a step of a share group's acknowledgements: what was answered holds, nothing is left out.

``ANABRANCH_EVERY_STEP=1`` takes every step.
"""

from __future__ import annotations

import asyncio
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from kafka_front.front import KafkaFront
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import serving
from tests.kafka_front.share.test_requests import ACCEPT, FAST, REJECT, Member, lab, write
from tests.kill_steps import Steps
from tests.lives import Lives

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RECORDS = 12
STEPS = range(1, 41) if os.environ.get("ANABRANCH_EVERY_STEP") else [1, 4, 7, 10, 15]


def live(path: str, address: str, kill_at: int | None, pipe: Connection) -> None:
    """One life of the node, until it is told to end."""
    asyncio.run(_live(Path(path), address, kill_at, pipe))


async def _live(path: Path, address: str, kill_at: int | None, pipe: Connection) -> None:
    async with serving(path, {**FAST, "listen.kafka": address}) as node:
        if "t" not in node.catalog.topics:
            await node.catalog.create_topic("t", 1, {})
            await write(node, [b"%d" % number for number in range(RECORDS)])
            (front,) = node.fronts
            assert isinstance(front, KafkaFront)
            assert front.server is not None
            assert front.server.service is not None
            await front.server.service.group_configs.change("shared", {"share.auto.offset.reset": "earliest"})
        steps = Steps(kill_at)
        steps.around_commits(node.db)
        pipe.send(node.catalog.topics["t"].topic_id.bytes)
        await asyncio.to_thread(pipe.recv)
        pipe.send(steps.seen)


async def read(address: str, topic_id: bytes) -> tuple[list[int], list[int]]:
    """Read until everything was acknowledged, from node to node: offsets delivered, and acknowledged, in order; what
    is told twice of an offset is in the list twice."""
    host, port = address.split(":")
    got: list[int] = []
    done: list[int] = []
    while len(set(done)) < RECORDS:
        try:
            async with WireClient(host, int(port)) as client:
                member = Member(client, topic_id)
                await member.beat()
                idle = 0
                while len(set(done)) < RECORDS:
                    ranges = await member.acquire(max_records=3, max_wait_ms=300)
                    idle = 0 if ranges else idle + 1
                    if idle > 5:  # the rest was acknowledged, and the answer was lost
                        return got, done
                    for offset in [one for first, last, _ in ranges for one in range(first, last + 1)]:
                        if offset in done:
                            pytest.fail(f"{offset} was acknowledged and came again")
                        got.append(offset)
                        code = await member.acknowledge(offset, offset, REJECT if offset == 5 else ACCEPT)
                        if code == ErrorCode.NONE:
                            done.append(offset)
        except (OSError, EOFError, AssertionError):
            await asyncio.sleep(0.02)  # until it is there again
    return got, done


@pytest.mark.parametrize("kill_at", STEPS)
async def test_what_was_answered_holds_when_the_node_is_killed(tmp_path: Path, kill_at: int) -> None:
    async with lab(tmp_path / "first", records=1) as made:
        assert made.topic_id  # the code that a life needs is compiled
    with Lives(tmp_path, kill_at, live) as lives:
        topic_id = await _topic_id(lives.address)
        got, _ = await read(lives.address, topic_id)
        await asyncio.to_thread(lives.end)
    assert lives.lives == 2 or kill_at > lives.steps
    assert set(got) == set(range(RECORDS)), "none is left out"


async def _topic_id(address: str) -> bytes:
    host, port = address.split(":")
    async with WireClient(host, int(port)) as client:
        answer = await client.call(12, m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="t")]))
        return bytes(answer.topics[0].topic_id)
