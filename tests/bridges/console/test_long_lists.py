"""Lists as long as there are groups, topics or partitions are made and sent without holding up the event loop."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import ClassVar

import aiohttp
import pytest

from anabranch_kit.run.turns import sorting
from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import GroupDirectory, GroupSummary, GroupView
from bridges.catalog.views.transactions import TransactionView
from bridges.node.assembly import Node
from bridges.node.settings.config import load

GROUPS = 60_000
LONGEST_S = 0.04
"""Of this thread's processor time, in one turn; made at once each of these answers takes several times as much."""


READ = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"


class Joined(GroupDirectory):
    space = "consumers"

    def summaries(self) -> Iterable[GroupSummary]:
        return (GroupSummary(f"j{number}", "classic", "Stable", "consumer", 1) for number in range(GROUPS))

    def summary(self, group_id: str) -> GroupSummary | None:
        return GroupSummary(group_id, "classic", "Stable", "consumer", 1) if group_id.startswith("j") else None

    def view(self, group_id: str) -> GroupView | None:
        return None


class Coordinated:
    timed_out = 0
    places: ClassVar = {f"t{number}": {0} for number in range(5_000)}

    def transactions(self) -> Iterable[TransactionView]:
        return map(self.view, (f"x{number}" for number in range(GROUPS)))

    def view(self, transactional_id: str) -> TransactionView:
        return TransactionView(transactional_id, "Ongoing", 1, 0, 1000, 0, 0, self.places, ())

    async def read_others(self) -> list[TransactionView]:
        return []

    async def find(self, transactional_id: str) -> TransactionView | None:
        return self.view(transactional_id)

    def writing_to(self, topic: str, partition: int) -> Iterable[TransactionView]:
        return self.transactions()

    async def abort(self, transactional_id: str) -> TransactionView:
        return self.view(transactional_id)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    flags = {
        "data_dir": str(tmp_path),
        "listen.console": "127.0.0.1:0",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
    }
    made = Node(load(flags, environ={}, directory=tmp_path, fronts=()).settings)
    await made.start()
    await made.catalog.create_topic("wide", 5_000)
    one = [("wide", 0, Committed(0))]
    # As if it had been loaded: so many commits would take the test's time.
    for number in range(GROUPS):
        made.progress.store(("consumers", f"g{number}"), one)
        made.progress.listed.add(("consumers", f"j{number}"))
    made.progress.store(("consumers", "all"), [("wide", number, Committed(0)) for number in range(5_000)])
    monkeypatch.setattr(Node, "group_directories", property(lambda _: {"test": Joined()}))
    monkeypatch.setattr(Node, "transaction_directories", property(lambda _: {"test": Coordinated()}))
    gc.collect()
    gc.disable()
    try:
        yield made
    finally:
        gc.enable()
        await made.stop()


async def longest_turn(go_on: asyncio.Event) -> float:
    longest, last = 0.0, time.thread_time()
    while not go_on.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest


async def longest_turn_of_reading(url: str) -> float:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", READ, url)
    ended = asyncio.Event()
    measured = asyncio.create_task(longest_turn(ended))
    await process.wait()
    ended.set()
    return await measured


async def test_nothing_waits_for_a_list_of_many_groups_topics_or_partitions(node: Node) -> None:
    expected = {
        "/api/groups": ("groups", 2 * GROUPS + 1),
        "/api/groups/all": ("positions", 5_000),
        "/api/groups?limit=50": ("groups", 50),
        "/api/groups?limit=50&sort=lag&descending=true": ("groups", 50),
        "/api/groups?limit=50&search=9&skip=1000": ("groups", 50),
        "/api/groups/all?limit=50&skip=4000": ("positions", 50),
        "/api/topics/wide?limit=500": ("partitions", 500),
        "/api/transactions?limit=50": ("transactions", 50),
        "/api/groups/all/history": ("places", 0),
        "/api/topics": ("topics", 1),
        "/api/topics/wide": ("partitions", 5_000),
        "/api/transactions": ("transactions", GROUPS),
        "/api/transactions/x1": ("partitions", 5_000),
        "/api/topics/wide/partitions/0/transactions": ("transactions", 0),
        "/api/status": ("fronts", 0),
        "/metrics": ("", 0),
    }
    url = f"http://{node.addresses['console']}"
    async with aiohttp.ClientSession() as session:
        await (await session.get(url + "/api/topics/wide")).read()  # opens what is to be opened
        for path, (key, number) in expected.items():
            # What else runs takes the processor's caches away, so the quickest of some readings counts.
            readings = [await longest_turn_of_reading(url + path)]
            while readings[-1] >= LONGEST_S:
                assert len(readings) < 3, (path, readings)
                readings.append(await longest_turn_of_reading(url + path))
            async with session.get(url + path) as answer:
                assert answer.status == 200
                if key:
                    assert len((await answer.json())[key]) >= number, path


async def test_groups_and_topics_come_in_order(node: Node) -> None:
    url = f"http://{node.addresses['console']}"
    async with aiohttp.ClientSession() as session, session.get(url + "/api/groups") as answer:
        groups = (await answer.json())["groups"]
    names = [(one["group"], one["space"]) for one in groups]
    assert names == sorted(names)
    assert len({*names}) == len(names)
    assert groups[0] == {
        "group": "all",
        "space": "consumers",
        "fronts": [],
        "kind": "",
        "state": "Empty",
        "protocol_type": "",
        "members": 0,
        "topics": ["wide"],
        "partitions": 5_000,
        "lag": None,
        "unknown_lags": 5_000,
        "lag_seconds": 0.0,
        "lag_exact": True,
        "trend": None,
    }
    assert [one for one in sorting(["b", "a"] * 1_000) if one is not None] == ["a"] * 1_000 + ["b"] * 1_000
