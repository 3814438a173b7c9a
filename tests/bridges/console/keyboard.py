"""The keyboard of a browser, and the place where it is."""

from __future__ import annotations

from typing import Any

from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.bridges.console.page import Window

MOST_STEPS = 150
HERE = """
const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
const label = one.labels && one.labels[0];
return {
    name: one.getAttribute('aria-label') || (label ? label.innerText : one.innerText || one.textContent).trim(),
    where: one.closest('dialog') ? 'dialog' : one.closest('header') ? 'header' : one.closest('main') ? 'main' : '',
    row: one.closest('tr') ? one.closest('tr').innerText : '',
    outlined: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1,
    inside: box.width > 0 && box.height > 0 && box.bottom > 0 && box.right > 0
        && box.top < innerHeight && box.left < innerWidth,
};"""


class Keyboard:
    """Presses keys in the page, and looks where the keyboard is. It has no mouse."""

    def __init__(self, page: Window) -> None:
        self.page = page
        self.strokes = 0
        """How many keys were pressed, each letter of a text among them."""

    def press(self, *keys: str) -> None:
        self.strokes += sum(map(len, keys))
        self.page.keys(*keys)

    def press_with(self, modifier: str, key: str) -> None:
        self.strokes += 1
        ActionChains(self.page.driver).key_down(modifier).send_keys(key).key_up(modifier).perform()

    def here(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page.driver.execute_script(HERE)
        return found

    def to(self, name: str, row: str = "", key: str = Keys.TAB, back: bool = False) -> dict[str, Any]:
        """Tab until the element of that name (whose row of a table says `row`) has the keyboard, which is seen."""
        passed = []
        for _ in range(MOST_STEPS):
            if back:
                self.press_with(Keys.SHIFT, Keys.TAB)
            else:
                self.press(key)
            now = self.here()
            passed.append(now["name"][:30])
            if now["where"]:
                assert (now["outlined"], now["inside"]) == (True, True), now
            if now["name"].split("\n")[0] == name and row in now["row"]:
                return now
        raise AssertionError(f"{name!r} is not reached: {passed}")

    def use(self, name: str, row: str = "", key: str = Keys.ENTER) -> None:
        self.to(name, row)
        self.press(key)

    def in_dialog(self) -> None:
        self.page.until(lambda: self.here()["where"] == "dialog")

    def dialog_is_gone(self) -> None:
        self.page.until(lambda: not self.page.driver.find_elements(By.CSS_SELECTOR, "dialog[open]"))

    def back_on(self, name: str, row: str = "") -> None:
        def is_there() -> bool:
            now = self.here()
            return bool(now["name"].split("\n")[0] == name and row in now["row"])

        try:
            self.page.until(is_there)
        except TimeoutException:
            raise AssertionError(f"the keyboard is not on {name!r} but on {self.here()}") from None

    def a_round_passes(self) -> None:
        """All rows of its tables are made anew; names below a chart are not."""
        self.page.driver.execute_script(
            "for (const one of document.querySelectorAll('main .wide tr')) one.dataset.old = '1'"
        )
        self.page.until(lambda: not self.page.driver.find_elements(By.CSS_SELECTOR, "main tr[data-old]"))
