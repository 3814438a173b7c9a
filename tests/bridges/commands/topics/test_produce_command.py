"""What ``anabranch produce`` sends while nothing comes from its input."""

from __future__ import annotations

import json
import os

import pytest

from bridges.commands.topics import produce


def test_somebody_who_types_slowly_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "QUIET_S", 0.001)
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source:
        bodies = produce.bodies_of(produce.blocks_of(source), False, None, {})
        assert next(bodies) == b"\n"  # which the node takes for no record
        os.write(write, b"first\nsec")
        while (line := next(bodies)) == b"\n":
            pass
        assert json.loads(line) == {"value": "first"}
        assert next(bodies) == b"\n"
        os.write(write, b"ond")
        os.close(write)
        rest = [body for body in bodies if body != b"\n"]
    assert [json.loads(body) for body in rest] == [{"value": "second"}]
