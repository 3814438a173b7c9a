"""Every pointer to a document, in code and in documents, leads to a file, a heading and a rule that exist.

Forms: docs/design.md; docs/storage.md, "Objects"; docs/protocols/kafka.md, rules 29-33, or in Kafka's rooms just (rule
30); docs/protocols/sbp.md, "Faults of elastic-stream", 2; and links of Markdown.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from pathlib import Path

from tests.test_import_rules import ALLOWED, ROOT

_KAFKA = "docs/protocols/kafka.md"
_PLACES = [ROOT / top for top in (*ALLOWED, "tests", "benchmarks", "docs", "scripts", "compose")]
_RULES = r"(?:[A-Z]|\d+)\b(?:-(?:[A-Z]|\d+)\b)?"
_QUOTED = r'"[^"]+"(?:, \d+(?=[).;:]))?'
_POINTER = re.compile(
    r"(?:(?<![\w./:*-])(?P<path>(?:[\w.-]+/)*\w[\w-]*\.md)\b\)?|\((?=rules? ))"
    rf"(?P<where>(?:(?:,? and |, |(?<=\())(?:{_QUOTED}|rules? {_RULES}(?:(?:,| and|, and) {_RULES})*))*)"
)
_WHERE = re.compile(rf'"(?P<heading>[^"]+)"(?:, (?P<item>\d+))?|(?P<rules>\b{_RULES})')
_UNCLEAR = re.compile(r'\bdesign(?:\.md)?, sections?\b|(?<![\w/])design, "|\.md,? (?:sections? )?\d')
_LINK = re.compile(r"\]\((?P<path>[\w./-]*)#(?P<anchor>[\w-]+)\)")
_CONTINUED = re.compile(r"\s*\n[ \t]*(?:#:? )?")
_HEADING = re.compile(r"^(?:#+ |(?=\*\*))(?:\*\*)?(.+?)(?:$|\*\*.*$)", re.MULTILINE)
_RULE = re.compile(r"^(?:\* \*\*([A-Z])\.\*\*|(\d+)\.) ", re.MULTILINE)


class Document:
    """What pointers into a document may name."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        self.headings = _HEADING.findall(text)
        self.anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in self.headings}
        self.rules = self._rules(text)
        self._sections = dict(zip(self.headings, _HEADING.split(text)[2::2], strict=True))

    def lacks(self, heading: str | None, item: str | None, rules: str | None) -> bool:
        """Whether the document lacks a heading, an item of the list below it, or one of a range of rules."""
        if rules is not None:
            first, _, last = rules.partition("-")
            return not {first, last or first} <= self.rules
        return heading not in self.headings or (item is not None and item not in self._rules(self._sections[heading]))

    @staticmethod
    def _rules(text: str) -> set[str]:
        return {letter or number for letter, number in _RULE.findall(text)}


@cache
def _read(path: Path) -> Document:
    return Document(path.read_text(encoding="utf-8"))


def dead_pointers(text: str, source: Path, root: Path) -> list[str]:
    """Return the pointers in the text of ``source`` that lead nowhere below ``root``."""
    flat = _CONTINUED.sub(" ", text)
    dead = [found.group() for found in _UNCLEAR.finditer(flat)]
    for found in chain(_POINTER.finditer(flat), _LINK.finditer(text)):
        name = found["path"] or (source.name if "anchor" in found.groupdict() else _KAFKA)
        places = [base / name for base in (root, root / "docs", source.parent)]
        target = next((place for place in places if place.is_file()), None)
        if target is None:
            dead.append(found.group())
        elif "anchor" in found.groupdict():
            dead += [found.group()] if found["anchor"] not in _read(target).anchors else []
        else:
            named = [where.group("heading", "item", "rules") for where in _WHERE.finditer(found["where"])]
            dead += [f"{name}, {where}" for where in named if _read(target).lacks(*where)]
    return dead


def test_pointers_to_documents_lead_somewhere() -> None:
    sources = [path for place in _PLACES for pattern in ("*.py", "*.md", "*.y*ml") for path in place.rglob(pattern)]
    sources += ROOT.glob("*.md")
    dead = {}
    for path in sources:
        text = path.read_text(encoding="utf-8")
        if path != Path(__file__) and (found := dead_pointers(text, path, ROOT)):
            dead[str(path.relative_to(ROOT))] = found
    assert dead == {}


def test_a_pointer_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs/protocols").mkdir(parents=True)
    (tmp_path / "docs/design.md").write_text("# Design\n\n## Old and new\n\n**Who owns** what\n", encoding="utf-8")
    (tmp_path / "docs/protocols/kafka.md").write_text(
        "# Rules\n\n* **A.** First.\n\n## Produce\n\n1. One.\n2. Two.\n\n## Fetch\n\n3. Three.\n", encoding="utf-8"
    )
    good = (
        'docs/design.md, "Who owns" and "Old\n    # and new". (docs/protocols/kafka.md, rules A, 1-2 and 3) (rule 3)\n'
        'docs/protocols/kafka.md, "Produce", 2. [there](design.md#old-and-new), [here](#own)\n# Own\n'
    )
    source = tmp_path / "docs/storage.md"
    source.write_text(good, encoding="utf-8")
    assert dead_pointers(good, source, tmp_path) == []
    for wrong in (
        "docs/cluster.md",
        'docs/design.md, "Reading"',
        'docs/design.md, "Who owns" and "Reading"',
        "docs/protocols/kafka.md,\n    rule 4",
        "docs/protocols/kafka.md, rules 1 and 2-4",
        "docs/protocols/kafka.md, rules A-B",
        "as it says (rules 3 and 4)",
        'docs/protocols/kafka.md, "Fetch", 2)',
        "(design, section 4)",
        "docs/design.md, section 4",
        "[there](design.md#older)",
        "[here](#older)",
    ):
        assert len(dead_pointers(wrong, source, tmp_path)) == 1, wrong
