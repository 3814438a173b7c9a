"""What the files of compose/ suggest in comments is what a node takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bridges.node.config import load
from tests.compose.engine import COMPOSE

_SUGGESTED = re.compile(r"^ *# (ANABRANCH_\w+): (.*)$", re.MULTILINE)


@pytest.mark.parametrize("path", sorted(COMPOSE.glob("*/compose.yaml")), ids=lambda path: path.parent.name)
def test_commented_settings_are_taken(path: Path) -> None:
    suggested = {name: value.strip('"') for name, value in _SUGGESTED.findall(path.read_text())}
    settings = load({}, environ=suggested).settings
    asked_for = path.parent.name in ("single", "cluster")
    assert settings.sbp.tickets == settings.auth.required == asked_for
