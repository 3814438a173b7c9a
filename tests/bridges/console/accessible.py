"""What WCAG 2.1 AA asks of a page that can be seen in the page itself: contrast of all text, names of all controls."""

from __future__ import annotations

from pathlib import Path

from selenium import webdriver

_FAULTS = Path(__file__).with_suffix(".js").read_text("utf-8")


def faults(driver: webdriver.Chrome) -> list[str]:
    """What is wrong with what the browser shows, all parts of the page that can be scrolled to included."""
    found: list[str] = driver.execute_script(_FAULTS)
    return found
