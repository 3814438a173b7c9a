"""The table of results in docs/translation.md: made of what readers told, not of what they should have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.matrix.expected import Protocol
from tests.matrix.kinds import APPENDED, UNTOLD, Headers, Kind, Told

PAGE = Path(__file__).resolve().parents[2] / "docs" / "translation.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->\n"
SAME = "same"
MARKS = ("anabranch.tombstone", "anabranch.null", "anabranch.timestamp", "anabranch.codec")

Results = Mapping[tuple[Protocol, Protocol], Mapping[str, Told]]
"""(writer, reader) -> name of the kind -> what the reader told."""


def render(kinds: Sequence[Kind], writers: Sequence[Protocol], readers: Sequence[Protocol], results: Results) -> str:
    """The table, as Markdown."""
    head = ["record", "written through", *(f"{reader} reads" for reader in readers)]
    lines = [head, ["---"] * len(head)]
    for kind in kinds:
        able = [writer for writer in writers if any(kind.name in results[writer, reader] for reader in readers)]
        cells = [_merged(kind, able, reader, results) for reader in readers]
        lines.append([kind.name, ", ".join(able), *cells])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _merged(kind: Kind, writers: Sequence[Protocol], reader: Protocol, results: Results) -> str:
    """What a reader tells of a record of each writer: what it tells of most, and by name what it tells of others."""
    told: dict[str, list[str]] = {}
    for writer in writers:
        found = results[writer, reader].get(kind.name)
        text = "not read" if found is None else ", ".join(_words(kind, found)) or SAME
        told.setdefault(text, []).append(writer)
    usual = max(told, key=lambda text: len(told[text]))
    return "; ".join([usual, *(f"of {' and '.join(some)}: {text}" for text, some in told.items() if text != usual)])


def _words(kind: Kind, told: Told) -> Iterator[str]:
    """In what a reader's record is another, or how it is told."""
    if told.key is UNTOLD and told.headers is UNTOLD:
        if told.value != kind.value:
            yield "as it was sent" if told.value == kind.sent else "no bytes"
        return
    key, headers, value, created, marks = as_record(told)
    if key != kind.key:
        yield "no key" if key is None else "another key"
    if value != kind.value:
        yield "as it was sent" if value == kind.sent else "another value"
    if headers != kind.headers:
        yield "other headers"
    if created is APPENDED:
        yield "time of the append"
    elif created is None:
        yield "no time"
    elif created != kind.created and created is not UNTOLD:
        yield "another time"
    yield from (f"`{name}`" for name in marks)


def as_record(told: Told) -> tuple[object, Headers, bytes | None, object, list[str]]:
    """Key, headers, value, time, and the marks by which they are known: YDB's readers find them in items."""
    assert isinstance(told.headers, tuple)
    marks = [name for name, _ in told.headers if name in MARKS]
    headers: Headers = tuple(one for one in told.headers if one[0] not in MARKS)
    if told.key is not UNTOLD:
        return told.key, headers, told.value, told.created, marks
    said = dict(told.headers)
    nulls = (said.get("anabranch.null") or b"").decode().split(",")
    key = None
    place = next((place for place, one in enumerate(headers) if one[0] == "__key"), -1)
    if place >= 0 and "key" not in nulls:
        key = headers[place][1]
        headers = (*headers[:place], *headers[place + 1 :])
    headers = tuple((name, None if str(place) in nulls else value) for place, (name, value) in enumerate(headers))
    value = None if "anabranch.tombstone" in said and not told.value else told.value
    created = told.created
    if created is None and "anabranch.timestamp" in said:
        created = int(said["anabranch.timestamp"] or b"")
    return key, headers, value, created, marks


def stored() -> str:
    """What the page says."""
    text = PAGE.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def store(table: str) -> None:
    """Have the page say it."""
    text = PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:begin]}{table}{text[end:]}")
