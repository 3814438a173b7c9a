"""``anabranch group reset``, ``tail`` that searches, and ``api``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner

from bridges.catalog.progress import Committed
from bridges.commands.cli import main
from bridges.node.assembly import Node
from tests.bridges.node.test_node import append, settings_of


async def test_positions_are_set_records_found_and_anything_asked(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    await node.catalog.create_topic("words", 1)
    for number in range(10):
        await append(node, "words", 0, 1_767_225_600_000 + number * 1000, b"value %d" % number)
    await node.progress.front("kafka").commit("readers", [("words", 0, Committed(3))])

    async def run(*words: str, code: int = 0) -> str:
        address = ["--node", str(node.addresses["console"])]
        result = await asyncio.to_thread(CliRunner().invoke, main, [*words, *address])
        assert result.exit_code == code, result.output
        return str(result.stdout)

    async def position() -> int:
        found = node.progress.committed(("consumers", "readers"), "words", 0)
        assert found is not None
        return found.offset

    reset = ("group", "reset", "readers", "--topic", "words", "--to")
    shown = await run(*reset, "latest", "--dry-run")
    assert "nothing was changed" in shown
    assert await position() == 3
    for to, offset in (
        ("latest", 10),
        ("earliest", 0),
        ("4", 4),
        ("2026-01-01T00:00:06Z", 6),
        ("2026-01-01T00:00:02", 2),
    ):
        told = json.loads((await run(*reset, to, "--json")).splitlines()[-1])
        assert told["positions"][0]["offset"] == offset
        assert await position() == offset
    await run(*reset, "middle", code=2)
    await run("group", "reset", "nobody", "--topic", "words", "--to", "latest", code=1)

    assert (await run("tail", "words", "--text", "value 7")).splitlines()[-1] == "value 7"
    promises = await run("api", "GET", "/api/promises")
    assert '"durability": "fsync"' in promises
    await run("api", "GET", "api", code=2)
    await run("api", "POST", "/api/topics", "--body", "{", code=2)
    await run("api", "POST", "/api/topics", "--body", '{"name": "made"}')
    assert "made" in node.catalog.topics
    await node.stop()
