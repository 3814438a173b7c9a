"""``anabranch transaction``: readers get on past a transaction that nobody ends any more."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner

from bridges.commands.cli import main
from bridges.formats import FormatId
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import append, log_of, serving
from tests.kafka_front.transactions.test_requests import GROUP, Producer


def written(producer: int) -> Batch:
    payload = encode(
        [Record(None, b"x", timestamp=5)], attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0
    )
    return Batch(memoryview(payload), 1, int(FormatId.KAFKA), 5, transaction=InTransaction(producer, 0))


@pytest.mark.parametrize("how", ["abort", "commit"])
async def test_a_hanging_transaction_is_found_and_ended(tmp_path: Path, how: str) -> None:
    async with serving(tmp_path, {"listen.console": "127.0.0.1:0"}) as node:
        await node.catalog.create_topic("t", 2)
        log = log_of(node, "t")
        await append(log, written(7))
        await append(log, written(8))

        async def command(*words: str, code: int = 0) -> Any:
            address = ["--node", str(node.addresses["console"]), "--json"]
            result = await asyncio.to_thread(CliRunner().invoke, main, ["transaction", *words, *address])
            assert result.exit_code == code, result.output
            return json.loads(result.output.splitlines()[-1])  # before it may stand what the node logs

        found = await command("find-hanging", "t")
        assert [one["producer_id"] for one in found["transactions"]] == [7, 8]
        assert (found["last_stable_offset"], found["end_offset"]) == (0, 2)
        assert (await command("find-hanging", "t", "--partition", "1"))["transactions"] == []
        everywhere = [
            (one["topic"], one["partition"], one["producer_id"], one["held"]) for one in await command("find-hanging")
        ]
        assert everywhere == [("t", 0, 7, 2), ("t", 0, 8, 1)]
        for nobody in (["t", "9"], ["t", "7", "--partition", "1"], ["nowhere", "7"]):
            assert "error" in await command(how, *nobody, "--yes", code=1)
        assert (await command(how, "t", "7", "--yes"))["last_stable_offset"] == 1
        assert (await command(how, "t", "8", "--yes"))["last_stable_offset"] == log.high_watermark == 4
        shown = [one.base_offset for one in await log.read_committed(0, 1000) if one.base_offset < 2]
        aborted = [one.producer_id for one in log.aborted(0, 4)]
        assert (shown, aborted) == ([0, 1], [] if how == "commit" else [7, 8])


async def test_transactions_are_listed_described_and_aborted_by_their_ids(tmp_path: Path) -> None:
    async with serving(tmp_path, {"listen.console": "127.0.0.1:0"}) as node:
        await node.catalog.create_topic("t", 2)
        log = log_of(node, "t")

        async def command(*words: str, code: int = 0) -> str:
            address = ["--node", str(node.addresses["console"])]
            result = await asyncio.to_thread(CliRunner().invoke, main, ["transaction", *words, *address])
            assert result.exit_code == code, result.output
            return result.output

        async def told(*words: str) -> Any:
            return json.loads((await command(*words, "--json")).splitlines()[-1])

        kafka = node.addresses["kafka"]
        async with WireClient(kafka.host, kafka.port) as client:
            idle, hanging = Producer(client, "idle"), Producer(client, "orders/1 \x1b[1m")
            assert (await idle.init(), await hanging.init(30_000)) == (0, 0)
            assert [await hanging.produce(12, number) for number in (1, 0)] == [0, 0]
            assert await hanging.offsets(5, 7) == 0
            await append(log, written(hanging.id + 100))  # whose coordinator nobody knows

            rows = await told("list")
            assert [(one["transactional_id"], one["state"]) for one in rows] == [
                ("idle", "Empty"),
                (hanging.name, "Ongoing"),
            ]
            assert rows[0]["open_ms"] is None
            assert await told("list", "--open") == [one | {"open_ms": mock.ANY} for one in rows[1:]]
            assert "\x1b" not in await command("list")
            found = await told("describe", hanging.name)
            assert (found["front"], found["producer_id"], found["epoch"], found["timeout_ms"]) == (
                "kafka",
                hanging.id,
                0,
                30_000,
            )
            assert (found["groups"], found["topics"]) == ([GROUP], 1)
            assert found["partitions"] == [{"topic": "t", "partition": number} for number in (0, 1)]
            known, unknown = (await told("find-hanging", "t"))["transactions"]
            assert (known["producer_id"], known["transaction"]["transactional_id"]) == (hanging.id, hanging.name)
            assert unknown["transaction"] is None
            assert (known["coordinated"], unknown["coordinated"]) == (True, False)
            assert [one["producer_id"] for one in await told("find-hanging")] == [unknown["producer_id"]]
            text = await command("find-hanging", "t")
            assert "orders/1" in text
            assert "\x1b" not in text

            assert log.last_stable_offset == 0
            assert (await told("abort", hanging.name, "--yes"))["state"] == "CompleteAbort"
            assert log.last_stable_offset == 1, "it is open nowhere any more, and the other one is next"
            assert log_of(node, "t", 1).last_stable_offset == log_of(node, "t", 1).high_watermark == 2
            assert await hanging.produce(12) == ErrorCode.INVALID_PRODUCER_EPOCH
            for words in (["abort", hanging.name], ["abort", "idle"], ["abort", "nobody"], ["describe", "nobody"]):
                await command(*words, *(["--yes"] if words[0] == "abort" else []), code=1)
            await command("abort", "idle", "--partition", "1", "--yes", code=2)
