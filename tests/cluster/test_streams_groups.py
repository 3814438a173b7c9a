"""Streams groups (KIP-1071) over three nodes, whose coordinator is killed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_front.wire.errors import ErrorCode as E
from tests.cluster.load import PATIENCE
from tests.kafka_front.groups.wire_client import WireClient, commit, committed
from tests.kafka_front.place import error_codes, fresh
from tests.kafka_front.streams.test_requests import NOT_YET, Member, Request, copying
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Anywhere:
    """Where a member's requests go: to the nodes in turn until its coordinator answers."""

    def __init__(self, nodes: list[NodeProcess]) -> None:
        self._nodes = nodes
        self.at = nodes[0]

    async def eventually(self, version: int, message: Any, *codes: int) -> Any:
        """Repeat a request while it answers with ``codes``, or its node does not answer."""
        while True:
            for node in (self.at, *self._nodes):
                host, _, port = node.kafka.rpartition(":")
                try:
                    async with WireClient(host, int(port)) as client:
                        answer = await client.call(version, message)
                except (OSError, asyncio.IncompleteReadError):
                    continue
                if set(error_codes(answer)).isdisjoint(codes):
                    self.at = node
                    return answer
            await asyncio.sleep(0.05)


async def test_members_keep_their_tasks_and_epochs_when_their_coordinator_is_killed(nodes: list[NodeProcess]) -> None:
    topic, group = fresh(), fresh()
    admin = AdminClient({"bootstrap.servers": ",".join(node.kafka for node in nodes)})
    admin.create_topics([NewTopic(topic, 6)])[topic].result(PATIENCE)
    anywhere = Anywhere(nodes)
    members = [Member(anywhere, group, copying(topic), name) for name in ("one", "two")]  # type: ignore[arg-type]

    def tasks() -> list[int]:
        return sorted(number for member in members for _, numbers in member.active for number in numbers)

    async def beat() -> None:
        for member in members:
            held = [Request.TaskIds(*one) for one in member.active] if member.epoch else []
            answer = await member.beat(active_tasks=held, standby_tasks=[], warmup_tasks=[])
            assert answer.error_code == E.NONE, answer.error_message

    while tasks() != [*range(6)] or not all(member.active for member in members):
        await beat()
    await beat()
    before = [(member.epoch, member.active) for member in members]
    coordinator = anywhere.at
    coordinator.kill()
    for _ in range(3):
        await beat()
    assert anywhere.at is not coordinator
    assert [(member.epoch, member.active) for member in members] == before
    for member in members:
        ((_, numbers),) = member.active
        asked = commit(group, {(topic, numbers[0]): 0}, member.id, member.epoch)
        answer = await anywhere.eventually(9, asked, *NOT_YET)
        assert committed(answer) == {(topic, numbers[0]): E.NONE}
