"""The console without a mouse: every screen and action with Tab, Enter, Space, arrows and Escape alone."""

from __future__ import annotations

import asyncio

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import GroupMemberView
from bridges.node.assembly import Node
from tests.bridges.console.keyboard import Keyboard
from tests.bridges.console.page import Page
from tests.bridges.node.test_node import append

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAV = ("Overview", "Topics", "Groups", "Connections", "Transactions", "Jobs", "Access", "Nodes")
HEADS = (
    "Overview",
    "Topics",
    "Consumer groups",
    "Connections",
    "Transactions",
    "Migrations and jobs",
    "Access",
    "Nodes",
)


@pytest.fixture
def set_to() -> dict[str, str]:
    return {"auth__rules": "allow"}


async def filled(node: Node) -> None:
    await node.catalog.create_topic("words", 2)
    for partition in (0, 1):
        for number in range(5):
            await append(node, "words", partition, 1_000 + number, b'{"number": %d}' % number)
        await node.progress.front("one").commit("readers", [("words", partition, Committed(2))])
    node.metrics.front("one").topic("words").appended(1, 20, 2_000)
    await node.floors.host.recorder.sample()


async def test_every_screen_of_the_navigation(page: Page) -> None:
    await filled(page.node)

    def act() -> None:
        keys = Keyboard(page)
        page.open("")
        page.shows("Protocols")
        for name, head in zip(NAV, HEADS, strict=True):
            keys.to(name, back=keys.here()["where"] == "main")
            assert keys.here()["where"] == "header"
            keys.press(Keys.ENTER)
            page.until(lambda head=head: page.driver.find_element(By.TAG_NAME, "h1").text == head)  # type: ignore[misc]
            assert page.driver.find_element(By.CSS_SELECTOR, "#nav a[aria-current=page]").text == name
        page.open("topics")
        page.shows("1–1 of 1")
        keys.to("Skip to content")
        keys.press(Keys.ENTER, Keys.TAB)
        assert keys.here()["where"] == "main"
        keys.use("Size", key=Keys.SPACE)
        page.find("//th[@aria-sort='descending']/button[text()='Size']")
        keys.back_on("Size")
        told = page.driver.find_element(By.ID, "told")
        assert told.get_attribute("role") == "status"
        page.until(lambda: told.text == "1 of 1 shown, by bytes")

    await asyncio.to_thread(act)


async def test_a_topic_is_opened_its_records_are_seen_and_one_is_produced(page: Page) -> None:
    await filled(page.node)

    def act() -> None:
        keys = Keyboard(page)
        page.open("topics")
        page.shows("1–1 of 1")
        keys.use("words")
        page.shows("kept for")
        keys.to("Records")
        keys.press(Keys.ENTER)
        page.shows("10 records, the newest first")
        keys.use("0:3")
        keys.in_dialog()
        page.shows("Pravega", "YDB", "as written")
        keys.press(Keys.ESCAPE)
        keys.dialog_is_gone()
        keys.back_on("0:3")
        keys.to("Produce…", back=True)
        keys.press(Keys.SPACE)
        keys.in_dialog()
        keys.back_on("Key (none if empty)")
        keys.press("colour", Keys.TAB, "blue")
        keys.use("Produce")
        page.shows("at offset 5")
        keys.back_on("Produce…")

    await asyncio.to_thread(act)
    ends = [log.high_watermark for log in (page.node.logs.get("words", number) for number in (0, 1)) if log]
    assert sorted(ends) == [5, 6]


async def test_positions_are_set_after_their_preview(page: Page) -> None:
    await filled(page.node)

    def act() -> None:
        keys = Keyboard(page)
        page.open("group/readers")
        page.shows("Positions", "words")
        keys.to("words", "1")
        keys.to("words", "1") if keys.here()["row"].split()[1] == "0" else None
        row = keys.here()["row"]
        keys.a_round_passes()  # two rows lead to the same place
        keys.back_on("words", row)
        keys.to("Set positions…", back=True)
        keys.press(Keys.ENTER)
        keys.in_dialog()
        keys.to("To")
        keys.press(Keys.ARROW_DOWN)
        keys.use("Preview")
        page.shows("+3")
        keys.use("Set them")
        page.shows("positions of readers in words are set")
        keys.back_on("Set positions…")

    await asyncio.to_thread(act)
    found = [page.node.progress.committed(("consumers", "readers"), "words", number) for number in (0, 1)]
    assert [one and one.offset for one in found] == [5, 5]


async def test_positions_are_refused_while_a_member_runs(page: Page) -> None:
    await filled(page.node)
    page.directory.put("readers", GroupMemberView("m", None, "c", "/1", (("words", 0),)))

    def act() -> None:
        keys = Keyboard(page)
        page.open("group/readers")
        page.shows("Positions", "words")
        keys.use("Set positions…")
        keys.in_dialog()
        keys.use("Preview")
        page.shows("has a member")
        keys.to("Cancel")  # and never to what would set them
        keys.press(Keys.ENTER)
        keys.dialog_is_gone()
        keys.back_on("Set positions…")

    await asyncio.to_thread(act)
    found = page.node.progress.committed(("consumers", "readers"), "words", 0)
    assert found is not None
    assert found.offset == 2


async def test_records_are_followed_chosen_and_replayed(page: Page) -> None:
    await filled(page.node)
    await page.node.catalog.create_topic("to", 1)

    def follow() -> None:
        keys = Keyboard(page)
        page.open("topic/words/records")
        page.shows("10 records, the newest first")
        keys.use("Follow live", key=Keys.SPACE)
        page.shows("following")
        keys.back_on("Stop")

    def replay() -> None:
        keys = Keyboard(page)
        page.shows("the last record", "news")
        keys.back_on("Stop")
        keys.press(Keys.SPACE)
        keys.back_on("Follow live")
        keys.use("Show")
        page.shows("11 records, the newest first")
        for place in ("0:4", "1:2"):
            keys.to(f"choose {place}")
            keys.press(Keys.SPACE)
            keys.back_on(f"choose {place}")
        keys.to("Replay into another topic…", back=True)
        keys.press(Keys.ENTER)
        keys.in_dialog()
        page.shows("2 records, as chosen")
        keys.to("Topic")
        keys.press("to")
        keys.use("Replay")
        page.shows("2 records stored in to")
        keys.back_on("Replay into another topic…")

    await asyncio.to_thread(follow)
    await append(page.node, "words", 0, 2_000, b"news")
    await asyncio.to_thread(replay)
    log = page.node.logs.get("to", 0)
    assert log is not None
    assert log.high_watermark == 2


async def test_keys_of_one_letter_are_switched_off(page: Page) -> None:
    def act() -> None:
        keys = Keyboard(page)
        page.open("")
        page.shows("Protocols")
        theme = page.driver.execute_script("return document.documentElement.dataset.theme")

        def is_other() -> bool:
            return bool(page.driver.execute_script("return document.documentElement.dataset.theme") != theme)

        keys.press("d")
        page.until(is_other)
        keys.press("d")
        page.until(lambda: not is_other())
        keys.press("?")
        keys.in_dialog()
        keys.to("Use these keys")
        keys.press(Keys.SPACE, Keys.ESCAPE)
        keys.dialog_is_gone()
        keys.press("d", "?", "g", "t")
        assert not is_other()
        assert not page.driver.find_elements(By.CSS_SELECTOR, "dialog[open]")
        assert page.driver.find_element(By.TAG_NAME, "h1").text == "Overview"
        keys.use("Keys")  # the button is still there
        keys.in_dialog()
        keys.to("Use these keys")
        keys.press(Keys.SPACE, Keys.ESCAPE)
        keys.dialog_is_gone()
        keys.press("d")
        page.until(is_other)

    await asyncio.to_thread(act)


async def test_a_rule_is_made_and_removed(page: Page) -> None:
    def act() -> None:
        keys = Keyboard(page)
        page.open("access")
        page.shows("No rules.")
        for name in ("alice", "bob"):
            keys.to("Add a rule…", back=keys.here()["where"] == "main")
            keys.press(Keys.ENTER)
            keys.in_dialog()
            keys.to("Who")
            keys.press(Keys.END, name)
            keys.to("Name")
            keys.press("*")
            keys.use("Add")
            page.shows(f"User:{name}")
            keys.dialog_is_gone()
            keys.back_on("Add a rule…")
        keys.to("Remove…", "alice")
        keys.press(Keys.ENTER)
        keys.in_dialog()
        assert keys.here()["name"] == "Cancel"
        keys.a_round_passes()  # the button that the dialog came from is another one now
        keys.press(Keys.ESCAPE)
        keys.dialog_is_gone()
        keys.back_on("Remove…", "alice")
        keys.press(Keys.ENTER)
        keys.in_dialog()
        keys.use("Remove")
        page.until(lambda: "User:alice" not in page.text())
        keys.back_on("Remove…", "bob")

    await asyncio.to_thread(act)
    assert page.node.floors.metadata.access_rules is not None
    assert [rule.principal for rule in page.node.floors.metadata.access_rules.rules] == ["User:bob"]


async def test_a_chart_is_read_with_arrows_and_its_lines_are_hidden(page: Page) -> None:
    await filled(page.node)

    def act() -> None:
        keys = Keyboard(page)
        page.open("")
        # A step is 20 s, and the page asks for what is remembered every 15.
        drawn = (By.CSS_SELECTOR, "[aria-label^='Memory: '] .u-legend")
        WebDriverWait(page.driver, 90, 0.1).until(lambda driver: driver.find_elements(*drawn))
        while not keys.here()["name"].startswith("Memory"):
            keys.press(Keys.TAB)
        keys.press(Keys.END)
        page.until(
            lambda: "resident" in page.driver.execute_script("return document.getElementById('told').textContent")
        )
        keys.to("resident")
        assert page.driver.switch_to.active_element.get_attribute("aria-pressed") == "true"
        keys.press(Keys.SPACE)
        assert page.driver.switch_to.active_element.get_attribute("aria-pressed") == "false"
        assert page.driver.find_elements(By.CSS_SELECTOR, ".u-series.u-off")

    await asyncio.to_thread(act)


@pytest.mark.parametrize("width", [390, 320])
async def test_the_navigation_is_reached_whole_on_a_phone(page: Page, width: int) -> None:
    def act() -> None:
        driver, keys = page.driver, Keyboard(page)
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.open("")
        page.shows("Protocols")
        for name in NAV:
            keys.to(name)
            box = driver.execute_script(
                "const box = document.activeElement.getBoundingClientRect();"
                "const nav = document.getElementById('nav');"
                "return [box.left, box.right, box.top, box.bottom,"
                " scrollX, nav.scrollLeft, nav.scrollWidth - nav.clientWidth]"
            )
            assert 0 <= box[0] < box[1] <= width, name
            assert 0 <= box[2] < box[3] <= 800, name
            assert box[4:] == [0, 0, 0], name
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    await asyncio.to_thread(act)
