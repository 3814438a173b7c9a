"""Share groups as people see them: the list, one group, metrics, and their deletion."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
from click.testing import CliRunner

from bridges.commands.cli import main
from tests.kafka_front.share.test_requests import ACCEPT, GROUP, RELEASE, Lab, lab

CONSOLE = {"listen.console": "127.0.0.1:0"}


async def ask(made: Lab, path: str, method: str = "GET") -> Any:
    url = f"http://{made.node.addresses['console']}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        return await answer.json() if answer.content_type == "application/json" else await answer.text()


async def run(made: Lab, *words: str, code: int = 0) -> str:
    address = ["--node", str(made.node.addresses["console"])]
    result = await asyncio.to_thread(CliRunner().invoke, main, [*words, *address])
    assert result.exit_code == code, result.output
    return str(result.output)


async def test_lag_records_in_flight_and_deliveries_are_shown(tmp_path: Path) -> None:
    async with lab(tmp_path, CONSOLE) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire(max_records=6)
        assert await member.acknowledge(0, 5, ACCEPT, RELEASE, ACCEPT, RELEASE, ACCEPT, ACCEPT) == 0
        await member.acquire(max_records=1)  # record 1 again
        found = await ask(made, f"/api/groups/{GROUP}")
        assert (found["kind"], found["state"], len(found["members"])) == ("share", "Stable", 1)
        assert found["members"][0]["partitions"] == {"t": [0]}
        (row,) = found["positions"]
        assert (row["offset"], row["end_offset"], row["lag"]) == (1, 10, 6), "1, 3 and the last four are unfinished"
        assert (row["acquired"], row["deliveries"]) == (1, {"1": 1, "2": 1})
        assert found["lag"] == 6

        await made.node.floors.host.recorder.sample()
        (listed,) = (await ask(made, "/api/groups"))["groups"]
        assert (listed["group"], listed["kind"], listed["lag"], listed["topics"]) == (GROUP, "share", 6, ["t"])
        scraped = await ask(made, "/metrics")
        labels = f'{{group="{GROUP}",partition="0",space="consumers",topic="t"}}'
        for name, value in (("group_lag_records", 6), ("share_group_acquired_records", 1)):
            assert f"anabranch_{name}{labels} {value}.0" in scraped
        assert f"anabranch_share_group_redelivered_records{labels} 1.0" in scraped

        assert "kafka/share" in await run(made, "group", "list")
        rows = (await run(made, "group", GROUP)).splitlines()
        (shown,) = [line.split() for line in rows if line.startswith("t ")]
        assert shown[:5] == ["t", "0", "1", "10", "6"]
        assert shown[6:] == ["1", "1", "x", "1,", "1", "x", "2"]


async def test_a_share_group_is_deleted_with_its_state_once_nobody_reads(tmp_path: Path) -> None:
    async with lab(tmp_path, CONSOLE) as made:
        await made.earliest()
        member = await made.member()
        await member.acquire()
        assert await member.acknowledge(0, 9, ACCEPT) == 0
        refused = await run(made, "group", "delete", GROUP, "--yes", code=1)
        assert "has a member through kafka" in refused
        assert "stop them first" in refused
        await member.beat(member_epoch=-1)
        assert f"deleted {GROUP}" in await run(made, "group", "delete", GROUP, "--yes")
        assert (await ask(made, "/api/groups"))["groups"] == []
        assert "there is no group" in await run(made, "group", "delete", GROUP, "--yes", code=1)
        again = await made.member()
        assert await again.acquire() == [(n, n, 1) for n in range(10)], "it begins anew"
