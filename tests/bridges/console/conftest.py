"""A browser, and the page of a node in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridges.node.assembly import Node
from tests.bridges.console.chromium import browser
from tests.bridges.console.groups.test_console_groups import Directory, GroupFront
from tests.bridges.console.page import Page
from tests.bridges.node.test_node import settings_of


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def set_to() -> dict[str, str]:
    """Settings of the node that the page looks at, for tests to say otherwise."""
    return {}


@pytest.fixture
async def page(chromium: Any, tmp_path: Path, set_to: dict[str, str]) -> AsyncIterator[Page]:
    known = Directory()

    class One(GroupFront):
        name = "one"
        directory = known

    node = Node(settings_of(tmp_path, limits__max_partitions="100000", **set_to), fronts=[One])
    await node.start()
    chromium.get_log("browser")
    yield Page(chromium, node, known)
    await asyncio.to_thread(chromium.get, "about:blank")
    await node.stop()
