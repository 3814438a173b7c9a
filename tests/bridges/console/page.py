"""The console's page in a browser, with the node that it looks at; and a node that has very much to show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from bridges.catalog.progress import Committed
from bridges.catalog.topics.topic import Topic
from bridges.console.history.rings import FINE_S
from bridges.console.history.sampling import GROUPS, RECORDS, SECONDS, TOPICS
from bridges.node.assembly import Node
from tests.bridges.console.chromium import complaints
from tests.bridges.console.groups.test_console_groups import Directory
from tests.bridges.node.test_node import append

T = TypeVar("T")
WAIT_S = 20


class Window:
    """The browser, and the page at ``url``. Its methods block."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, screen: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}#/{screen}")

    def until(self, condition: Callable[[], T]) -> T:
        ignored = (WebDriverException, StaleElementReferenceException)
        return WebDriverWait(self.driver, WAIT_S, 0.05, ignored).until(lambda _: condition())

    def text(self) -> str:
        return str(self.driver.find_element(By.TAG_NAME, "body").text)

    def shows(self, *texts: str) -> None:
        try:
            self.until(lambda: all(text in self.text() for text in texts))
        except WebDriverException:
            raise AssertionError(f"{texts} is not all of\n{self.text()}\n{complaints(self.driver)}") from None

    def find(self, path: str) -> WebElement:
        found: WebElement = self.until(lambda: self.driver.find_element(By.XPATH, path))
        return found

    def press(self, name: str, within: str = "") -> None:
        path = f"{within}//button[normalize-space()={name!r}]"
        self.until(lambda: (self.driver.find_element(By.XPATH, path).click(), True)[1])

    def field(self, name: str, within: str = "") -> WebElement:
        told = " or ".join(f"starts-with(text(), '{name}{end}')" for end in (" (", ","))
        label = f"{within}//label[text()='{name}' or {told}]"
        return self.find(f"{label}/*[self::input|self::textarea|self::select]")

    def keys(self, *keys: str) -> None:
        # To whatever has the keyboard: an element that is asked for may be another one by then.
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()


class Page(Window):
    """The browser, and the node that it looks at, in this process: so its methods are called in a thread."""

    def __init__(self, driver: Any, node: Node, directory: Directory) -> None:
        super().__init__(driver, f"http://{node.addresses['console']}/")
        self.node = node
        self.directory = directory


async def crowd(node: Node) -> None:
    """10,000 topics and 1,000 groups, and an hour of history of each that is there without the hour."""
    base = await node.catalog.create_topic("base", 1)
    for number in range(10_000):
        # As if they had been made: so many streams would take the test's time.
        clone = Topic(f"t{number:05}", base.topic_id, base.partitions, {}, base.created_ms)
        node.catalog.index.add(clone)
    one = [("base", 0, Committed(0))]
    await append(node, "base", 0, 1_000)
    for number in range(1_000):
        node.progress.store(("consumers", f"g{number:04}"), one)
    history, now = node.floors.host.recorder.history, time.monotonic()
    for step in range(180, 0, -1):
        at = now - step * FINE_S
        for number in range(10_000):
            history.count(TOPICS, (f"t{number:05}", "one", "bytes_in"), at, 100 + number)
        for number in range(1_000):
            for what in (RECORDS, SECONDS):
                history.measure(GROUPS, ("consumers", f"g{number:04}", what), at, number + step)
        await asyncio.sleep(0)
    node.metrics.front("one")
    for number in range(10_000):
        node.metrics.front("one").topic(f"t{number:05}")
