from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from bridges import log


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_is_one_object_a_line_for_our_events_and_others() -> None:
    out = io.StringIO()
    log.configure("info", "json", out)
    structlog.get_logger("x").info("event happened", topic="t", number=5)
    structlog.get_logger("x").debug("too small")
    logging.getLogger("elsewhere").warning("from %s", "outside")
    try:
        raise ValueError("reason")
    except ValueError:
        structlog.get_logger("x").exception("went wrong")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["event happened", "from outside", "went wrong"]
    assert (lines[0]["topic"], lines[0]["number"], lines[0]["level"]) == ("t", 5, "info")
    assert lines[1]["level"] == "warning"
    assert "ValueError: reason" in lines[2]["exception"]
    assert all(line["time"].endswith("Z") for line in lines)


def test_console_is_for_people() -> None:
    out = io.StringIO()
    log.configure("debug", "console", out)
    structlog.get_logger().debug("small", key="value")
    assert "small" in out.getvalue()
    assert "key=value" in out.getvalue()


def test_a_stream_that_fails_does_not_break_the_program() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    log.configure("info", "json", Full())
    structlog.get_logger().info("nobody will read this")
    logging.getLogger().warning("nor this")
