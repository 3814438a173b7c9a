"""The parts of the console's page fit together; what it shows is tested where the JSON interface is."""

from __future__ import annotations

import re
from pathlib import Path

import aiohttp

from bridges.node.assembly import Node
from tests.bridges.node.test_node import settings_of

STATIC = Path(__file__).parents[3] / "bridges" / "console" / "static"


def test_the_script_uses_elements_and_styles_that_there_are() -> None:
    page, script, styles = ((STATIC / name).read_text("utf-8") for name in ("index.html", "console.js", "console.css"))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:\$|\bdraw)\("([^"]+)"', script))
    assert used
    assert used <= set(ids)
    classes = set(re.findall(r'\btagged\("([^"]+)"', script)) | set(re.findall(r'\bclass="([^"]+)"', page))
    assert {name for name in classes if f".{name.strip()}" not in styles} == set()


def test_nothing_of_the_node_is_put_into_the_page_as_markup() -> None:
    script = (STATIC / "console.js").read_text("utf-8")
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):
        assert name not in script


async def test_browsers_ask_for_the_files_of_a_newer_release(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    async with aiohttp.ClientSession(f"http://{node.addresses['console']}") as session:
        for path in ("/", "/static/console.js", "/static/console.css"):
            async with session.get(path) as response:
                assert response.headers["Cache-Control"] == "no-cache"
                changed = response.headers["Last-Modified"]
            async with session.get(path, headers={"If-Modified-Since": changed}) as response:
                assert (response.status, response.headers["Cache-Control"]) == (304, "no-cache")
    await node.stop()
