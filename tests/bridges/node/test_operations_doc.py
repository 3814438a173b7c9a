"""docs/operations.md tells what the program does."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from bridges.catalog.topics.config import MAX_MESSAGE_BYTES
from bridges.commands.cli import main
from bridges.node.listening import CONSOLE, CONSOLE_PORT
from bridges.node.storage.backend import LISTENERS

DOC = Path(__file__).parents[3] / "docs" / "operations.md"
MARKS = ("<!-- settings: begin -->\n", "<!-- settings: end -->")


def test_the_settings_table_is_current() -> None:
    printed = CliRunner().invoke(main, ["config", "--markdown"], catch_exceptions=False).output
    text = DOC.read_text("utf-8")
    begin, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    assert text[begin:end] == printed, "put the output of 'anabranch config --markdown' between the marks"


def test_commands_and_listeners_are_named() -> None:
    text = DOC.read_text("utf-8")
    for name in main.list_commands(None):  # type: ignore[arg-type]
        assert re.search(rf"`{name}\b", text), name
    for name, port in {**LISTENERS, CONSOLE: CONSOLE_PORT}.items():
        assert f"| `{name}` | {port} |" in text
    assert str(MAX_MESSAGE_BYTES) in text
