from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from bridges.node.process import log_limit
from bridges.node.process import logging as log
from bridges.node.process.log_levels import LOG_LEVELS, UnknownLogger
from bridges.node.process.log_limit import LogLimit, tell_left_out


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


def test_a_loggers_level_changes_while_the_process_runs() -> None:
    out = io.StringIO()
    log.configure("info", "json", out)
    one, other = structlog.get_logger("anabranch.one.two"), structlog.get_logger("anabranch.other")
    for level, name in ((logging.DEBUG, "anabranch.one"), (logging.ERROR, "root")):
        LOG_LEVELS.set(name, level)
    for each in (one, other):
        each.debug("detail")
        each.warning("warning")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["detail", "warning"]
    for name in ("anabranch.one", "root"):
        LOG_LEVELS.set(name, None)
    one.debug("detail")
    other.info("heard again")
    assert json.loads(out.getvalue().splitlines()[-1])["event"] == "heard again"
    for name in ("elsewhere", "anabranch." + "x" * 200):
        with pytest.raises(UnknownLogger, match="does not exist"):
            LOG_LEVELS.check(name)


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


# --- what clients cause ----------------------------------------------------------------------------------------------


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(log_limit, "monotonic", lambda: clock[0])
    return clock


def lines_of(out: io.StringIO) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    out.seek(0)
    out.truncate()
    return lines


def test_a_flood_of_one_line_is_cut_and_counted_and_the_next_one_says_so(now: list[float]) -> None:
    out, limit = io.StringIO(), LogLimit(3)
    log.configure("info", "json", out, limit)
    ours = structlog.get_logger("x")
    for number in range(1_775):
        ours.warning("connection closed", reason=f"version {number} is not served")
    ours.info("something else")
    assert [line["event"] for line in lines_of(out)] == ["connection closed"] * 3 + ["something else"]
    assert limit.left_out == {"connection closed": 1_772}
    now[0] += log_limit.PERIOD_SECONDS
    ours.warning("connection closed", reason="one more")
    ours.warning("connection closed", reason="and one")
    first, second = lines_of(out)
    assert (first["left_out"], first["reason"]) == (1_772, "one more")
    assert "left_out" not in second
    assert limit.left_out == {"connection closed": 1_772}


def test_lines_of_other_loggers_are_limited_by_what_they_say_without_their_arguments(now: list[float]) -> None:
    out, limit = io.StringIO(), LogLimit(2)
    log.configure("info", "json", out, limit)
    theirs = logging.getLogger("sbp_back.transport.listener")
    for number in range(100):
        theirs.warning("%s is cut: %s", f"peer {number}", "bad frame")
    assert [line["event"] for line in lines_of(out)] == ["peer 0 is cut: bad frame", "peer 1 is cut: bad frame"]
    now[0] += log_limit.PERIOD_SECONDS
    theirs.warning("%s is cut: %s", "a peer", "100%")
    assert [line["event"] for line in lines_of(out)] == ["a peer is cut: 100% (98 like this left out before)"]


def test_what_was_left_out_is_told_when_the_flood_has_ended(now: list[float]) -> None:
    out, limit = io.StringIO(), LogLimit(1)
    log.configure("info", "json", out, limit)
    for _ in range(5):
        structlog.get_logger("x").warning("refused")
    lines_of(out)
    tell_left_out(limit)
    assert lines_of(out) == []
    now[0] += log_limit.PERIOD_SECONDS
    tell_left_out(limit)
    (line,) = lines_of(out)
    assert (line["event"], line["like"], line["lines"]) == ("log lines were left out", "refused", 4)
    tell_left_out(limit)
    assert lines_of(out) == []
    structlog.get_logger("x").warning("refused")
    structlog.get_logger("x").warning("refused")
    lines_of(out)
    now[0] += log_limit.PERIOD_SECONDS
    tell_left_out(limit, all_of_them=True)
    assert [line["lines"] for line in lines_of(out)] == [1]


def test_the_kinds_of_lines_and_the_texts_in_them_are_bounded(now: list[float]) -> None:
    out, limit = io.StringIO(), LogLimit(2)
    log.configure("info", "json", out, limit)
    ours = structlog.get_logger("x")
    for number in range(2_000):
        ours.warning(f"a library says {number}\nand a page more")
    assert len(lines_of(out)) == 500 + 2
    assert limit.left_out == {"other lines": 1_498}
    now[0] += log_limit.PERIOD_SECONDS
    ours.warning("fields", client_id="x" * 1_000_000)
    (line,) = lines_of(out)
    assert len(str(line["client_id"])) < 1_100
    assert str(line["client_id"]).endswith("(1000000 characters)")


def test_the_end_of_a_process_and_what_was_asked_for_are_not_left_out(now: list[float]) -> None:
    out, limit = io.StringIO(), LogLimit(1)
    log.configure("debug", "json", out, limit)
    for _ in range(3):
        structlog.get_logger("x").critical("the node cannot go on")
        structlog.get_logger("x").debug("detail")
        logging.getLogger("y").critical("gone")
    assert len(lines_of(out)) == 9
