"""``anabranch transaction``: readers get on past a transaction that nobody ends any more."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bridges.commands.cli import main
from bridges.formats import FormatId
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record
from bridges.log.partition_log import Batch
from tests.kafka_front.node_lab import append, log_of, serving


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
        for nobody in (["t", "9"], ["t", "7", "--partition", "1"], ["nowhere", "7"]):
            assert "error" in await command(how, *nobody, "--yes", code=1)
        assert (await command(how, "t", "7", "--yes"))["last_stable_offset"] == 1
        assert (await command(how, "t", "8", "--yes"))["last_stable_offset"] == log.high_watermark == 4
        shown = [one.base_offset for one in await log.read_committed(0, 1000) if one.base_offset < 2]
        aborted = [one.producer_id for one in log.aborted(0, 4)]
        assert (shown, aborted) == ([0, 1], [] if how == "commit" else [7, 8])
