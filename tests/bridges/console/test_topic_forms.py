"""Whole topics and groups on the page: topics made with options, cloned, emptied; positions set in all topics."""

from __future__ import annotations

import asyncio

import pytest
from selenium.webdriver.support.ui import Select

from bridges.catalog.progress import Committed
from tests.bridges.console.page import Page
from tests.bridges.console.test_browser import DIALOG
from tests.bridges.node.test_node import append

pytestmark = [pytest.mark.browser, pytest.mark.slow]


async def test_a_topic_is_made_with_options_cloned_changed_and_emptied(page: Page) -> None:
    def make() -> None:
        page.open("topics")
        page.press("New topic")
        page.field("Name", DIALOG).send_keys("orders")
        page.field("Kept for", DIALOG).send_keys("soon")
        page.press("Create", DIALOG)
        page.shows("“soon” is none")
        page.field("Kept for", DIALOG).clear()
        page.field("Kept for", DIALOG).send_keys("2 d")
        page.field("Kept bytes", DIALOG).send_keys("1.5 GiB")
        Select(page.field("Old records", DIALOG)).select_by_value("compact,delete")
        page.field("Other configuration", DIALOG).send_keys("min.compaction.lag.ms=60000")
        page.press("Create", DIALOG)
        page.shows("made orders", "1–1 of 1")
        page.open("topic/orders/config")
        page.shows("Means here", "2 d", "Milliseconds for which a compacted topic still shows that a key was deleted.")
        page.press("Clone…")
        assert page.field("Kept for", DIALOG).get_attribute("value") == "2 d"
        page.press("Create", DIALOG)
        page.shows("made orders-copy")
        page.open("topic/orders-copy/config")
        page.press("Change…")
        page.field("Kept for", DIALOG).clear()
        page.press("Change", DIALOG)
        page.shows("changed orders-copy")

    await asyncio.to_thread(make)
    topics = page.node.catalog.topics
    made = {
        "retention.ms": "172800000", "retention.bytes": "1610612736", "cleanup.policy": "compact,delete",
        "min.compaction.lag.ms": "60000",
    }  # fmt: skip
    assert topics["orders"].config == made
    assert topics["orders-copy"].config == {key: value for key, value in made.items() if key != "retention.ms"}
    await append(page.node, "orders", 0, 1_000)

    def empty() -> None:
        page.open("topic/orders/config")
        page.press("Empty…")
        page.field("Type its name", DIALOG).send_keys("orders")
        page.press("Empty it", DIALOG)
        page.shows("emptied orders of 1 offsets")

    await asyncio.to_thread(empty)
    log = page.node.logs.get("orders", 0)
    assert log is not None
    assert (log.log_start_offset, log.high_watermark) == (1, 1)


async def test_positions_are_set_in_all_topics_at_once(page: Page) -> None:
    front = page.node.progress.front("one")
    for topic in ("a", "b"):
        await page.node.catalog.create_topic(topic, 1)
        await append(page.node, topic, 0, 1_000)
        await front.commit("readers", [(topic, 0, Committed(0))])

    def act() -> None:
        page.open("group/readers")
        page.shows("Positions", "b")
        page.press("Set positions…")
        Select(page.field("To", DIALOG)).select_by_value("latest")
        page.press("Preview", DIALOG)
        page.shows("+1")
        page.press("Set them", DIALOG)
        page.shows("positions of readers in all topics are set")

    await asyncio.to_thread(act)
    found = [page.node.progress.committed(("consumers", "readers"), topic, 0) for topic in ("a", "b")]
    assert [one and one.offset for one in found] == [1, 1]
