"""The first screen in a browser: what is wrong, how to connect, title and icon; axes, and columns on a phone."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

import pytest
from selenium.webdriver.common.by import By

from bridges.catalog.progress import Committed
from bridges.cluster.ownership import Outages
from bridges.console.history.sampling import NODE
from bridges.console.problems import requests
from bridges.console.problems.rules import Problem, Severity
from tests.bridges.console.accessible import faults
from tests.bridges.console.chromium import complaints
from tests.bridges.console.page import Page
from tests.bridges.node.test_node import append

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def icon(page: Page) -> str:
    found = page.driver.find_element(By.CSS_SELECTOR, "link[rel=icon]").get_attribute("href")
    return unquote(str(found))


async def test_a_node_that_is_well_says_so_in_one_line(page: Page) -> None:
    def look() -> None:
        page.open("")
        page.shows("What is wrong now", "Nothing is wrong.", "How to connect")
        assert page.find("//section[h2='What is wrong now']").text.count("\n") == 1
        page.until(lambda: page.driver.title == f"Overview · {page.url[7:-1]}")
        page.until(lambda: "#1b8a46" in icon(page))

    await asyncio.to_thread(look)


async def test_what_is_wrong_is_first_with_its_remedy_and_names_are_only_text(page: Page) -> None:
    found = [
        Problem(severity=Severity.NOTE, sentence="restored on Monday", about="restored"),
        Problem(severity=Severity.WARNING, sentence=f"of {HOSTILE}", remedy=HOSTILE, about="x", topic=HOSTILE),
        Problem(severity=Severity.CRITICAL, sentence="the disk is full", remedy="make room", about="x", more=3),
        Problem(severity=Severity.WARNING, sentence=f"group {HOSTILE}", about="GroupFallsBehind", group=HOSTILE),
    ]

    async def check() -> list[Problem]:
        return found

    page.node.floors.host.check = check

    def look() -> None:
        page.open("")
        page.shows("make room", "restored on Monday", "and 3 more", "<img src=x onerror=alert(1)>\\u202e")
        first = page.driver.find_elements(By.CSS_SELECTOR, ".problems li")[0].text
        assert first.startswith("critical the disk is full")
        assert page.driver.find_elements(By.CSS_SELECTOR, "main img") == []
        page.until(lambda: page.driver.title.startswith("3 wrong · Overview · "))
        assert "#d3261e" in icon(page)
        assert faults(page.driver) == []
        page.find("//a[starts-with(normalize-space(), 'group')]").click()
        page.until(lambda: "#/group/%3Cimg" in page.driver.current_url)
        page.until(lambda: page.driver.title.startswith("3 wrong · "))
        assert complaints(page.driver) == []

    await asyncio.to_thread(look)


async def test_the_same_at_several_nodes_is_said_once_and_names_them(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def everywhere(node: object) -> list[Problem]:
        told = {"severity": Severity.WARNING, "sentence": "clock: nobody keeps it right", "about": "clock"}
        return [Problem(node=node_id, **told) for node_id in (1, 2, 3)]  # type: ignore[arg-type]

    monkeypatch.setattr(requests, "find_everywhere", everywhere)
    silent = Outages({1: 0.1, 2: 0.1, 3: 0.1})
    monkeypatch.setattr(page.node.floors.host.cluster, "outages", lambda: silent)

    def look() -> None:
        page.open("")
        page.shows("clock: nobody keeps it right · nodes 1–3")
        page.until(lambda: page.driver.title.startswith("1 wrong · "))

    await asyncio.to_thread(look)


async def test_a_line_to_connect_with_is_copied(page: Page) -> None:
    page.node.floors.host.connect = lambda host: {"kafka-outside": f"bootstrap.servers={host}:1,b:2"}

    def act() -> None:
        driver = page.driver
        driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
        page.open("")
        page.shows("bootstrap.servers=127.0.0.1:1,b:2", "kafka outside")
        page.press("Copy")
        page.shows("copied: bootstrap.servers=127.0.0.1:1,b:2")
        assert driver.execute_script("return navigator.clipboard.readText()") == "bootstrap.servers=127.0.0.1:1,b:2"

    await asyncio.to_thread(act)


LABELS = """
const seen = []; const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  seen.push(text);
  return write.call(this, text, ...rest);
};
window.seenLabels = seen;"""


async def test_axes_have_binary_steps_and_no_label_twice(page: Page) -> None:
    host, history = page.node.floors.host, page.node.floors.host.recorder.history
    await host.recorder.sample()
    now = asyncio.get_running_loop().time()
    for step in range(20, 0, -1):
        history.measure(NODE, "memory", now - step * 20, 95_400_000 + step)
        history.count(NODE, "cpu", now - step * 20, 0.02)

    def look() -> list[str]:
        driver = page.driver
        added = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": LABELS})
        page.open("")
        page.until(lambda: any("MiB" in one for one in driver.execute_script("return window.seenLabels")))
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
        seen: list[str] = driver.execute_script("return window.seenLabels")
        return seen

    labels = await asyncio.to_thread(look)
    sizes = [one for one in labels if one.endswith("MiB")]
    assert sizes
    assert all(float(one.split()[0]).is_integer() for one in sizes), sizes
    shares = [one for one in labels if one.endswith("%")]
    assert len(set(shares)) == len(shares) > 1, shares


async def test_a_phone_shows_lag_and_buttons_without_scrolling(page: Page) -> None:
    node = page.node
    await node.catalog.create_topic("words", 1)
    for number in range(20):
        await append(node, "words", 0, 1_000 + number)
    await node.progress.front("one").commit("readers", [("words", 0, Committed(5))])

    def look() -> None:
        driver = page.driver
        size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {
            "group/readers": ("Lag", "Behind"),
            "groups": ("Lag", "Behind"),
            "topic/words/partitions": ("First offset", "Next offset"),
        }
        for screen, heads in wanted.items():
            page.open(screen)
            page.shows(*heads)
            for head in heads:
                cell = page.find(f"//th[normalize-space()='{head}']")
                assert cell.rect["x"] + cell.rect["width"] <= 390, (screen, head)
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    await asyncio.to_thread(look)
