"""The examples of docs/spark.md and the README as they stand there, with addresses and places of a test instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
README = PAGE.parents[1] / "README.md"
_PARTS = re.compile(r"^## (?P<title>[^\n]*)$|^```(?P<language>sh|python)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A block of the page, below the heading ``section``."""

    section: str
    language: str
    code: str


def examples(page: Path = PAGE) -> list[Example]:
    """All of the page, in its order."""
    found: list[Example] = []
    section = ""
    for part in _PARTS.finditer(page.read_text(encoding="utf-8")):
        if part["title"] is not None:
            section = part["title"]
        else:
            found.append(Example(section, part["language"], part["code"]))
    return found


def placed(code: str, places: Mapping[str, str]) -> str:
    """``code`` with other words for those of the page, the longest first. Raises AssertionError if nothing of it is
    replaced: an example that names no place would touch the machine's own."""
    pattern = re.compile("|".join(re.escape(one) for one in sorted(places, key=len, reverse=True)))
    told = pattern.sub(lambda match: places[match[0]], code)
    assert told != code or "://" not in code, f"an example names none of {', '.join(places)}:\n{code}"
    return told


def run_python(code: str, names: dict[str, Any]) -> None:
    """Run one in this process; queries that it has started are run to the end of what there is, and stopped."""
    exec(compile(code, str(PAGE), "exec"), names)
    for query in names["spark"].streams.active:
        query.processAllAvailable()
        query.stop()
        failure = query.exception()
        if failure is not None:
            raise AssertionError(f"a query of the page failed: {failure}\n{code}")
