"""What is done every few seconds beside a job: until the job ends, and not behind it."""

from __future__ import annotations

import threading

import pytest

from spark_pipeline.core.repeating import Repeating
from spark_pipeline.jobs.progress import show_progress


def test_work_is_repeated_until_it_is_left() -> None:
    calls = 0
    thrice = threading.Event()

    def work() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            thrice.set()

    with Repeating(work, 0.001, "test"):
        assert thrice.wait(30)
    assert not any(thread.name == "test" for thread in threading.enumerate())


def test_the_last_line_is_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["so far", "all of it"])
    with show_progress(lambda: next(lines), 3600, quiet=False):
        pass
    with pytest.raises(ZeroDivisionError), show_progress(lambda: next(lines), 3600, quiet=False):
        1 / 0  # noqa: B018
    assert capsys.readouterr().err == "so far\nall of it\n"
    with show_progress(lambda: next(lines), 3600, quiet=True):
        pass
    assert capsys.readouterr().err == ""
