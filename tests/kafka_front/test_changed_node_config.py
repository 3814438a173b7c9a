"""A node's configuration that changes while it runs is in force at once, at every node, and after a restart."""

from __future__ import annotations

from pathlib import Path

from bridges.node.assembly import Node
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import serving

BROKER, SET, DELETE = 4, 0, 1
CONNECTIONS, IDLE = "max.connections", "producer.id.expiration.ms"


async def change(node: Node, name: str, key: str, value: str | None) -> E:
    of = m.IncrementalAlterConfigsRequest
    row = of.AlterableConfig(key, DELETE if value is None else SET, value)
    address = node.addresses["kafka"]
    async with WireClient(address.host, address.port) as client:
        answer = await client.call(1, of([of.AlterConfigsResource(BROKER, name, [row])]))
    return E(answer.responses[0].error_code)


def in_force(node: Node) -> tuple[int, int]:
    (server,) = (front.server.server for front in node.fronts)  # type: ignore[attr-defined]
    return server.limits.max_connections, node.logs.options.producer_idle_ms


async def test_a_change_is_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        own, usual = str(node.settings.node.id), in_force(node)
        assert await change(node, "", CONNECTIONS, "70") == E.NONE
        assert await change(node, "", IDLE, "3600000") == E.NONE
        assert in_force(node) == (70, 3_600_000)
        assert await change(node, own, CONNECTIONS, "60") == E.NONE
        assert in_force(node) == (60, 3_600_000)
        assert await change(node, own, CONNECTIONS, "2000000000") == E.INVALID_CONFIG, "without descriptors a node ends"
    async with serving(tmp_path) as node:
        assert in_force(node) == (60, 3_600_000)
        assert await change(node, own, CONNECTIONS, None) == E.NONE
        assert in_force(node) == (70, 3_600_000)
        for key in (CONNECTIONS, IDLE):
            assert await change(node, "", key, None) == E.NONE
        assert in_force(node) == usual
