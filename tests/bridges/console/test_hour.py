"""The page looked at for an hour, by somebody who goes from screen to screen and by somebody who leaves it open: its
memory does not grow, and what it costs the node is printed. ``make console-hour`` runs it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from msgspec import Struct

from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import GroupMemberView
from bridges.console.history.sampling import slope
from bridges.node.assembly import Node
from tests.bridges.console.chromium import browser, complaints
from tests.bridges.console.page import Page, crowd
from tests.bridges.node.test_node import append

pytestmark = [pytest.mark.browser, pytest.mark.hour, pytest.mark.timeout(3 * 3600)]

MINUTES = float(os.environ.get("ANBR_CONSOLE_MINUTES", "60"))
STAY_S = 18.0
"""On each screen of a lap."""
WARM = 0.15
"""Part of the time in which code is compiled and caches are filled."""
MIB_AN_HOUR = 1.0
LAP = (
    "topics", "topics?sort=bytes_in&descending=true", "topic/live", "topic/live/partitions", "topic/live/records",
    "topic/live/config", "topic/live/clients", "groups", "group/readers", "connections", "transactions", "jobs",
    "access", "nodes", "",
)  # fmt: skip


class Look(Struct):
    """How large a page is, once what nobody needs is let go of. ``nodes`` are also those that are in no document."""

    at: float
    heap: int
    nodes: int
    listeners: int


def look(driver: Any) -> Look:
    driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    counted = driver.execute_cdp_cmd("Memory.getDOMCounters", {})
    heap = driver.execute_script("return performance.memory.usedJSHeapSize")
    return Look(time.monotonic(), heap, counted["nodes"], counted["jsEventListeners"])


def lap(page: Page, until: float) -> list[Look]:
    """One document all the time, a screen after the other; looked at whenever it has the first again."""
    page.open("")
    looks = []
    while time.monotonic() < until:
        for screen in LAP:
            page.driver.execute_script("location.hash = arguments[0]", f"#/{screen}")
            time.sleep(STAY_S)
        looks.append(look(page.driver))
        assert complaints(page.driver) == []
    return looks


def stay(page: Page, until: float, screen: str) -> list[Look]:
    """The same screen all the time."""
    page.open(screen)
    if screen.endswith("records"):
        page.press("Follow live")
    looks = []
    while time.monotonic() < until:
        time.sleep(STAY_S)
        looks.append(look(page.driver))
        assert complaints(page.driver) == []
    return looks


@asynccontextmanager
async def traffic(node: Node) -> AsyncIterator[None]:
    """Twenty records a second that a group reads late, and something through two hundred other topics."""
    await node.catalog.create_topic("live", 2)
    front, group = node.metrics.front("one"), node.progress.front("one")

    async def go_on() -> None:
        number = 0
        while True:
            await append(node, "live", number % 2, time.time_ns() // 1_000_000, b'{"number": %d}' % number)
            front.topic("live").appended(1, 1, 20)
            front.topic(f"t{number % 200:05}").appended(1, 10, 1_000)
            if number % 20 == 0:
                await group.commit("readers", [("live", part, Committed(number // 3)) for part in (0, 1)])
            number += 1
            await asyncio.sleep(0.05)

    task = asyncio.create_task(go_on())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def share_of_processor(seconds: float) -> float:
    cpu, begun = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)  # the time that is measured
    return (time.process_time() - cpu) / (time.monotonic() - begun)


async def test_memory_of_the_page_stays_what_it_is_for_an_hour(
    page: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = page.node
    await crowd(node)
    page.directory.put("readers", GroupMemberView("m", None, "c", "/1", (("live", 0), ("live", 1))))

    def left_open(until: float, screen: str) -> list[Look]:
        with browser(tmp_path / screen.replace("/", "-")) as driver:
            return stay(Page(driver, node, page.directory), until, screen)

    async with traffic(node):
        without = await share_of_processor(MINUTES)
        node.stalls.longest = 0.0
        cpu, begun = time.process_time(), time.monotonic()
        end = begun + MINUTES * 60
        looks = await asyncio.gather(
            asyncio.to_thread(lap, page, end),
            asyncio.to_thread(left_open, end, ""),
            asyncio.to_thread(left_open, end, "topic/live/records"),
        )
        with_pages = (time.process_time() - cpu) / (time.monotonic() - begun)
    cost = f"the node's processor: {without:.1%} of a core without, {with_pages:.1%} with three pages"
    told = [f"{MINUTES:g} minutes; {cost}"]
    told.append(f"latest beat of the loop: {node.stalls.longest * 1000:.1f} ms")
    grown = {}
    for name, seen in zip(("from screen to screen", "overview", "followed live"), looks, strict=True):
        warm = [one for one in seen if one.at - begun >= WARM * MINUTES * 60]
        step = (warm[-1].at - warm[0].at) / (len(warm) - 1)
        grown[name] = (slope([one.heap / 2**20 for one in warm], step) or 0.0) * 3600
        told.append(
            f"{name}: {len(seen)} looks, heap {median(one.heap for one in warm) / 2**20:.2f} MiB, first "
            f"{warm[0].heap / 2**20:.2f}, last {warm[-1].heap / 2**20:.2f}, {grown[name]:+.3f} MiB an hour; "
            f"nodes {warm[0].nodes} to {warm[-1].nodes}, listeners {warm[0].listeners} to {warm[-1].listeners}"
        )
    with capsys.disabled():
        print("", *told, sep="\n  ")
    assert all(growth < MIB_AN_HOUR for growth in grown.values()), grown
    for seen in looks:
        third = len(seen) // 3
        assert median(one.nodes for one in seen[-third:]) <= 1.1 * median(one.nodes for one in seen[third:-third]) + 50
