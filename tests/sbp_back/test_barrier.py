"""One callback that raises costs nobody else an answer."""

from __future__ import annotations

import logging

import pytest

from sbp_back import barrier
from sbp_back.barrier import DEFECTS, Defects, guarded


def broken(*_: object) -> None:
    raise RuntimeError("a defect")


def test_a_barrier_tells_counts_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    before = DEFECTS.counts.get("one of these tests", 0)
    got: list[int] = []
    assert guarded("one of these tests", got.append, 1)
    with caplog.at_level(logging.ERROR):
        assert not guarded("one of these tests", broken, 1, 2)
    assert guarded("one of these tests", got.append, 2)
    assert got == [1, 2]
    assert DEFECTS.counts["one of these tests"] == before + 1
    assert "one of these tests failed" in caplog.text
    assert "a defect" in caplog.text, "with the traceback"


def test_a_barrier_lets_the_end_of_a_process_through() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded("one of these tests", interrupted)


def test_a_flood_of_defects_is_counted_but_not_logged_one_by_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(barrier, "monotonic", lambda: now[0])
    defects = Defects()

    def catch(kind: str) -> None:
        try:
            broken()
        except RuntimeError:
            defects.caught(kind)

    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            catch("one kind")
        catch("another")
        now[0] += 10
        catch("one kind")
    assert defects.counts == {"one kind": 1001, "another": 1}
    told = [("one kind", n) for n in range(1, 11)]
    assert [record.args for record in caplog.records] == [*told, ("another", 1), ("one kind", 1001)]
