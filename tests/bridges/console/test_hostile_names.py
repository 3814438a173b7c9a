"""Whatever a name, a value or the address says, the page shows it as text: on every screen and in every dialog."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from bridges.catalog.views.groups import GroupMemberView
from bridges.catalog.views.jobs import JobView
from tests.bridges.console.chromium import complaints
from tests.bridges.console.page import Page
from tests.bridges.console.test_browser import SCREENS, enter_client, filled
from tests.bridges.console.test_long_lists import Coordinated

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE = '<img src=x onerror="window.taken=1"><b>\u202e\'\\'
EVERY_TEXT = """
const hostile = arguments[0];
const maps = ["addresses", "config", "details", "effective_config", "entity", "fronts", "listeners", "names",
    "partitions", "values"];
const worse = (one, isMap) => {
    if (typeof one === "string") return hostile + one;
    if (Array.isArray(one)) return one.map((each) => worse(each, false));
    if (one === null || typeof one !== "object") return one;
    const name = (key) => isMap ? hostile + key : key;
    return Object.fromEntries(Object.entries(one).map(([key, value]) => [name(key), worse(value, maps.includes(key))]));
};
const real = window.fetch;
window.fetch = async (where, options) => {
    const answer = await real(where, options);
    if (!/json/.test(answer.headers.get("Content-Type"))) return answer;
    const text = await answer.text();
    const lines = text.split("\\n").filter(Boolean).map((line) => JSON.stringify(worse(JSON.parse(line), false)));
    return new Response(lines.join("\\n"), { status: answer.status, headers: answer.headers });
};"""
OPENS_A_DIALOG = "//main//button[contains(., '…') or ancestor::td][not(@disabled or contains(., 'Copy'))]"
ADDRESSES = (
    "{}",
    "topic/{}",
    "topic/{}/clients?search={}",
    "topic/{}/config",
    "topic/words/{}",
    "topics?search={}&sort={}&skip={}&descending={}",
    "groups?search={}&sort={}&skip={}",
    "group/{}?space={}&search={}",
    "connections?search={}&protocol={}&topic={}",
    "transactions?search={}&all={}",
    "jobs?search={}",
    "topic/words/records?partition={}&from={}&offset={}&since={}&until={}&limit={}&text={}&key={}&header={}&json={}&look={}",
    "topic/words/records?follow=true&key={}&header={}&json={}",
    "topic/words/records?from=offset&offset={}",
)


RULE = {
    "allow": True,
    "principal": "User:ann",
    "host": "*",
    "operation": "read",
    "resource": "topic",
    "pattern": "literal",
    "name": "ledger",
}


@pytest.fixture
def set_to() -> dict[str, str]:
    return {"auth__rules": "allow"}


class Jobs:
    def jobs(self) -> list[JobView]:
        return [JobView("v", "audit", "orders", "running", "root", 3, 4, "records", 1, 2, 0, 0, {"says": "that"})]


class FewCoordinated(Coordinated):
    """Three transactional ids."""

    def transactions(self):  # type: ignore[no-untyped-def]
        return map(self.view, ("x0", "x1", "x2"))


def post(page: Page, path: str, body: object) -> None:
    urlopen(Request(f"{page.url}api/{path}", json.dumps(body).encode(), method="POST"), timeout=60).close()


def check(page: Page, where: str) -> None:
    driver = page.driver
    assert driver.find_elements(By.CSS_SELECTOR, "main img, main b > *, dialog img, #notes img, header img") == [], (
        where
    )
    assert driver.execute_script("return window.taken") is None, where
    assert "\u202e" not in page.text(), where
    assert complaints(driver) == [], where


async def test_every_text_of_every_answer_is_text(page: Page) -> None:
    node = page.node
    await filled(node)
    member = GroupMemberView("m", "i", "c", "/1", (("words", 0), ("words", 1)), "librdkafka", "ann")
    page.directory.put("readers", member)
    enter_client(node, "reader").read("words", 0, 1, 10)
    node.floors.host.job_directories = lambda: {"pipeline": Jobs()}
    node.floors.host.transaction_directories = lambda: {"kafka": FewCoordinated()}

    def look() -> None:
        post(page, "acls", RULE)
        post(page, "quotas", {"entity": {"user": "ann"}, "values": {"producer_byte_rate": 1}})
        source = {"source": f"(function () {{{EVERY_TEXT}}})({json.dumps(HOSTILE)})"}
        added = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
        try:
            assert sum(map(open_dialogs, SCREENS)) > 15
        finally:
            page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def open_dialogs(screen: str) -> int:
        driver = page.driver
        page.open(screen)
        page.shows("<img src=x")
        check(page, screen)
        count = min(8, len(driver.find_elements(By.XPATH, OPENS_A_DIALOG)))
        for number in range(count):
            page.until(lambda at=number: is_open() or click(at))
            check(page, f"{screen}: dialog {number}")
            page.keys(Keys.ESCAPE)
            page.until(lambda: not is_open())
        return count

    def click(at: int) -> None:
        # By script: names of such a length may leave no place on the screen. A round may replace the button meanwhile.
        page.driver.execute_script("arguments[0].click()", page.driver.find_elements(By.XPATH, OPENS_A_DIALOG)[at])

    def is_open() -> bool:
        return bool(page.driver.find_elements(By.CSS_SELECTOR, "dialog[open]"))

    await asyncio.to_thread(look)


async def test_everything_of_an_address_is_text(page: Page) -> None:
    await filled(page.node)

    def look() -> None:
        for address in ADDRESSES:
            page.open(address.replace("{}", quote(HOSTILE, safe="")))
            page.until(lambda: page.driver.find_elements(By.CSS_SELECTOR, "main h1"))
            page.until(
                lambda: page.driver.execute_script("return document.querySelector('#status').textContent") == "serving"
            )
            check(page, address)

    await asyncio.to_thread(look)
