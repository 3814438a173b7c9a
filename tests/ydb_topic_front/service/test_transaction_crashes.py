"""A node ends in the middle of a commit: its next start has all of the transaction or nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridges.node.assembly import Node
from bridges.node.settings.config import load
from tests.node_process import FRONTS, SELDOM
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.reading import Session, write
from tests.ydb_topic_front.service.test_transactions import Client, Writer
from ydb_topic_front.service.transactions import coordinator
from ydb_topic_front.service.transactions.coordinator import Transactions
from ydb_topic_front.wire.statuses import Status


async def started(directory: Path) -> Node:
    flags = {
        "data_dir": str(directory / "data"),
        "listen.ydb": "127.0.0.1:0",
        **{f"listen.{name}": "off" for name in (*FRONTS, *SELDOM) if name != "ydb"},
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
    }
    node = Node(load(flags, environ={}, directory=directory).settings)
    await node.start()
    return node


def begin(address: str) -> None:
    with RawClient(address) as raw:
        raw.result("CreateTopic", path="t", consumers=[{"name": "c"}])
        client = Client(raw)
        tx = client.begin()
        Writer(raw, "t", partition_id=0, producer_id="p").stage(tx, 1, 2)
        client.commit(tx)


def read(address: str, count: int) -> tuple[list[bytes], int]:
    """The messages behind the transaction's place, and the producer's last number."""
    with RawClient(address) as raw:
        while True:
            stream = raw.stream("StreamWrite")
            stream.send(init_request={"path": "t", "partition_id": 0, "producer_id": "p"})
            opened = stream.receive()
            stream.half_close()
            if opened.status != Status.UNAVAILABLE:  # until the transaction has ended
                break
        last = opened.init_response.last_seq_no
        write(raw, "t", b"next")
        reader = Session(raw, "t", consumer="c")
        reader.started()
        return [message.data for message in reader.read(count)], last


@pytest.mark.parametrize("decided", [False, True])
async def test_the_next_start_carries_out_what_was_decided_and_aborts_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    arrived = asyncio.Event()

    async def stand_still(*args: object) -> None:
        arrived.set()
        await asyncio.Event().wait()

    node = await started(tmp_path)
    with monkeypatch.context() as patch:
        if decided:  # no marker is written
            patch.setattr(Transactions, "_carry_out", lambda *args: arrived.set())
            patch.setattr(coordinator, "VISIBLE_S", 0.0)
        else:  # all is in the log, without a decision
            patch.setattr(Transactions, "_decide", stand_still)
        client = asyncio.create_task(asyncio.to_thread(begin, str(node.addresses["ydb"])))
        await arrived.wait()
        if decided:
            await client
        await node.stop()
        await asyncio.gather(client, return_exceptions=True)
    node = await started(tmp_path)
    try:
        expected = ([b"1", b"2", b"next"], 2) if decided else ([b"next"], 0)
        assert await asyncio.to_thread(read, str(node.addresses["ydb"]), len(expected[0])) == expected
    finally:
        await node.stop()
