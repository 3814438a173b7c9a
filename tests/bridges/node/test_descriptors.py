"""Connections leave file descriptors to the store, however many are allowed and however few there are."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bridges.node.process.descriptors import RESERVED, fit, share
from bridges.node.settings.config import load

NUMBERS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 100_000), min_size=1)


@given(NUMBERS, st.integers(0, 300_000))
def test_what_is_shared_out_leaves_the_reserve_and_nobody_without(wanted: dict[str, int], descriptors: int) -> None:
    given_out = share(wanted, descriptors)
    assert given_out.keys() == wanted.keys()
    assert all(0 < number <= wanted[name] for name, number in given_out.items())
    if sum(wanted.values()) + RESERVED <= descriptors:
        assert given_out == wanted
    elif descriptors >= RESERVED + 64 * len(wanted):
        assert sum(given_out.values()) <= descriptors - RESERVED + 8 * len(wanted)


def test_settings_that_fit_stay_as_they_are(tmp_path: Path) -> None:
    settings = load(environ={}, directory=tmp_path).settings
    assert fit(settings, 1 << 20) == (settings, None)


def test_settings_that_do_not_fit_are_lowered_and_it_is_said(tmp_path: Path) -> None:
    fitting, said = fit(load(environ={}, directory=tmp_path).settings, 1024)
    total = fitting.kafka.max_connections + 2 * fitting.sbp.max_connections + fitting.limits.http_connections
    assert total <= 1024 - RESERVED
    assert said is not None
    assert f"kafka.max_connections = {fitting.kafka.max_connections}" in said
    assert fitting.kafka.max_connections > fitting.limits.http_connections


def test_a_process_takes_all_descriptors_it_may_have() -> None:
    code = "from bridges.node.process.descriptors import raise_limit; print(raise_limit())"
    limits = (300, 900)
    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "900"
