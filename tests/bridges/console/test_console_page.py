"""The parts of the console's page fit together; what it shows is tested where the JSON interface is."""

from __future__ import annotations

import re
from pathlib import Path

import aiohttp

from bridges.node.assembly import Node
from tests.bridges.node.test_node import settings_of

STATIC = Path(__file__).parents[3] / "bridges" / "console" / "static"


SCRIPTS = sorted(STATIC.glob("*.js"))
MOST_BYTES = 256 * 1024
"""Of the page with all its files, as they are sent."""


def test_nothing_of_the_node_is_put_into_the_page_as_markup() -> None:
    assert len(SCRIPTS) > 5
    for script in SCRIPTS:
        text = script.read_text("utf-8")
        for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert name not in text, (script.name, name)


def test_the_page_is_small_and_nothing_comes_from_elsewhere() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    names = {str(path.relative_to(STATIC)) for path in files}
    for path in [*SCRIPTS, STATIC / "index.html", STATIC / "console.css"]:
        text = path.read_text("utf-8")
        found = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", text))
        assert found <= {"http://www.w3.org"}, path.name  # the name of SVG
        for imported in re.findall(r'from "\./([^"]+)"|(?:src|href)="/static/([^"]+)"', text):
            assert (imported[0] or imported[1]) in names, path.name


def test_scripts_use_styles_that_there_are() -> None:
    styles = (STATIC / "console.css").read_text("utf-8")
    for script in SCRIPTS:
        for told in re.findall(r'\bclass: "([^"]+)"', script.read_text("utf-8")):
            for name in told.split():
                assert f".{name}" in styles or name in ("sealed", "other"), (script.name, name)


def test_colours_have_the_contrast_of_wcag_aa() -> None:
    styles = (STATIC / "console.css").read_text("utf-8")
    for block in re.findall(r":root[^{]*\{([^}]+)\}", styles)[:2]:
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        for ground in ("ground", "card", "hover"):
            for ink in ("ink", "faint", "accent", "good", "busy", "bad"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
            for line in ("kafka", "pravega", "ydb", "http", "pipeline", "other"):
                assert contrast(colours[line], colours[ground]) >= 3, (line, ground)
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
        assert contrast(colours["bad"], colours["bad-ground"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """WCAG 2.1, "contrast ratio"."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


async def test_browsers_ask_for_the_files_of_a_newer_release(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    async with aiohttp.ClientSession(f"http://{node.addresses['console']}") as session:
        for path in ("/", "/static/app.js", "/static/console.css", "/static/vendor/uPlot.iife.min.js"):
            async with session.get(path) as response:
                assert response.headers["Cache-Control"] == "no-cache"
                assert ("default-src 'self'" in response.headers.get("Content-Security-Policy", "")) == (path == "/")
                changed = response.headers["Last-Modified"]
            async with session.get(path, headers={"If-Modified-Since": changed}) as response:
                assert (response.status, response.headers["Cache-Control"]) == (304, "no-cache")
    await node.stop()
