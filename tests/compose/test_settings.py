"""What the files of compose/ suggest in comments is what a node takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bridges.commands.failure import EXIT_CANNOT_START, EXIT_USAGE
from bridges.node.settings.config import load
from tests.compose.engine import COMPOSE

_SUGGESTED = re.compile(r"^ *# (ANABRANCH_\w+): (.*)$", re.MULTILINE)


@pytest.mark.parametrize("path", sorted(COMPOSE.glob("*/compose.yaml")), ids=lambda path: path.parent.name)
def test_commented_settings_are_taken(path: Path) -> None:
    suggested = {name: value.strip('"') for name, value in _SUGGESTED.findall(path.read_text())}
    loaded = load({}, environ=suggested)
    assert loaded.warnings == ()
    settings = loaded.settings
    asked_for = path.parent.name in ("single", "cluster")
    assert settings.sbp.tickets == settings.auth.required == asked_for


def test_systemd_starts_a_node_again_unless_somebody_has_to_look_first() -> None:
    unit = (COMPOSE / "systemd" / "anabranch.service").read_text()
    (prevented,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert "Restart=on-failure\n" in unit
    assert set(map(int, prevented.split())) == {EXIT_USAGE, EXIT_CANNOT_START}
