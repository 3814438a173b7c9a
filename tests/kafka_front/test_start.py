"""Kafka's clients are answered while the fronts behind Kafka's are still starting."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from anabranch_kit.net.address import Address
from benchmarks.probe import METADATA_REQUEST
from bridges.node.assembly import Node
from bridges.node.front import Front, Listener, NodeServices
from bridges.node.settings.config import load
from kafka_front.front import KafkaFront


class Late(Front):
    """A front that has not started until it is told to."""

    name = "late"
    listeners = (Listener("late", 1),)
    begun: ClassVar[asyncio.Event]
    go: ClassVar[asyncio.Event]

    def __init__(self, node: NodeServices) -> None:
        pass

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        self.begun.set()
        await self.go.wait()
        return listen

    async def drain(self) -> None:
        pass

    async def stop(self) -> None:
        pass


async def test_metadata_is_told_before_other_fronts_have_started(tmp_path: Path) -> None:
    Late.begun, Late.go = asyncio.Event(), asyncio.Event()
    fronts = (KafkaFront, Late)
    off = {f"listen.{name}": "off" for name in ("console", "sbp-pd", "sbp-range-server")}
    flags = {"data_dir": str(tmp_path / "data"), "listen.kafka": "127.0.0.1:0", **off}
    node = Node(load(flags, environ={}, directory=tmp_path, fronts=fronts).settings)
    starting = asyncio.create_task(node.start())
    await Late.begun.wait()
    address = node.addresses["kafka"]
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(len(METADATA_REQUEST).to_bytes(4) + METADATA_REQUEST)
    answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    assert int.from_bytes(answer[4:8]) == 1  # a broker
    assert not starting.done()
    assert not node.is_serving
    writer.close()
    Late.go.set()
    await starting
    assert node.is_serving
    await node.stop()
