"""The parts of the console's page fit together; what it shows is tested where the JSON interface is."""

from __future__ import annotations

import re
from pathlib import Path

STATIC = Path(__file__).parents[2] / "bridges" / "console" / "static"


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
