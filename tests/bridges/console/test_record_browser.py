"""The records of a topic in a browser: searches in the address, ranges of times, live tail, hostile records."""

from __future__ import annotations

import asyncio
import sys

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch
from tests.bridges.console.chromium import complaints
from tests.bridges.console.page import Page
from tests.bridges.node.test_node import append

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


async def fill(page: Page) -> None:
    await page.node.catalog.create_topic("orders", 1)
    for number in range(20):
        country = "DE" if number % 5 == 0 else "FR"
        value = b'{"number": %d, "customer": {"country": "%s"}}' % (number, country.encode())
        await append(page.node, "orders", 0, 1_000_000 + number * 1_000, value)


async def test_a_search_is_in_the_address_and_found_again_there(page: Page) -> None:
    await fill(page)

    def act() -> None:
        page.open("topic/orders/records")
        page.shows("20 records")
        page.field("JSON of the value").send_keys("customer.country = DE and number > 4")
        page.field("Records").clear()
        page.field("Records").send_keys("2")
        page.press("Show")
        page.shows("2 found", "there is more to look at", "0:15")
        address = page.driver.current_url
        assert "json=customer.country" in address
        page.driver.get("about:blank")
        page.driver.get(address)
        page.shows("2 found", "0:15", "0:10")
        assert "0:5 " not in page.text()
        assert page.field("JSON of the value").get_attribute("value") == "customer.country = DE and number > 4"
        page.press("Continue")
        page.shows("1 found", "0:5")
        link = page.find("//a[normalize-space()='Download all that matches']").get_attribute("href")
        assert "json=customer.country%20%3D%20DE" in str(link)
        assert complaints(page.driver) == []

    await asyncio.to_thread(act)


async def test_a_range_of_times_is_sent_in_utc_and_the_newest_are_first(page: Page) -> None:
    await fill(page)

    def act() -> None:
        page.open("topic/orders/records?from=before&until=1009000&since=1005000")
        page.shows("5 found", "0:9", "0:5")
        assert page.field("Before").get_attribute("value") == "1970-01-01T00:16:49"
        Select(page.field("From")).select_by_value("time")
        page.press("Show")
        page.shows("5 found", "1970-01-01 00:16:45.000")
        assert "from=time" in page.driver.current_url

    await asyncio.to_thread(act)


async def test_a_followed_search_is_in_the_address_and_shows_what_comes(page: Page) -> None:
    await fill(page)

    def begin() -> None:
        page.open("topic/orders/records?follow=true&json=number+%3D+99")
        page.shows("following")

    await asyncio.to_thread(begin)
    await append(page.node, "orders", 0, 1_000, b'{"number": 98}')
    await append(page.node, "orders", 0, 1_000, b'{"number": 99}')

    def end() -> None:
        page.shows("the last record", "0:21")
        assert "0:20" not in page.text()
        page.press("Stop")
        page.until(lambda: "follow" not in page.driver.current_url)

    await asyncio.to_thread(end)


async def test_hostile_records_and_conditions_are_only_text(page: Page) -> None:
    await page.node.catalog.create_topic("evil", 1)
    log = page.node.logs.get("evil", 0)
    assert log is not None
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    text = HOSTILE.encode()
    batch = Batch(encode([Record(text, text, [(HOSTILE, text)], timestamp=5)]), 1, int(FormatId.KAFKA), 5)
    log.append(batch, lambda at, error: done.set_result(at.base))
    await done

    def look() -> None:
        page.open("topic/evil/records")
        page.shows("1 record", "<img src=x onerror=alert(1)>\\u202e")
        page.press("0:0")
        page.shows("as written")
        page.press("Close", "//dialog[@open]")
        page.open(
            "topic/evil/records?json=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E&text=%3Cb%3E&from=%3Cb%3E&until=%3Cb%3E"
        )
        page.shows("does not begin with a path")
        assert page.driver.find_elements(By.CSS_SELECTOR, "main img, main b") == []
        assert complaints(page.driver) == []

    await asyncio.to_thread(look)


async def test_without_pyarrow_the_page_says_what_to_install(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(page)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    def act() -> None:
        page.open("topic/orders/records")
        page.shows("20 records")
        page.press("as Parquet")
        page.shows("Parquet needs pyarrow", "anabranch[spark]")

    await asyncio.to_thread(act)
