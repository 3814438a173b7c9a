"""Positions in transactions while a node's process is killed: the short form of deriving.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_front.transactions.deriving import AWAY_EVERY, DERIVED, SOURCE, Records, compared, run


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.long), "consumer"])
def test_each_record_is_derived_once_whenever_the_node_is_killed(tmp_path: Path, protocol: str) -> None:
    report = run(tmp_path, AWAY_EVERY, protocol, seed=1)
    assert not report.violations
    assert report.kills == AWAY_EVERY
    assert report.outcomes["committed"] > AWAY_EVERY
    assert report.derived > 100


@pytest.mark.parametrize(
    "values",
    [
        ["m:0:a"],
        ["m:0:a", "m:1:b", "m:2:b"],
        ["m:0:b", "m:1:a"],
        ["m:0:a", "m:1:c"],
    ],
    ids=["missing", "twice", "reordered", "invented"],
)
def test_what_is_not_once_and_in_order_is_told(values: list[str]) -> None:
    source: Records = [(f"{SOURCE}/1", 0, "a"), (f"{SOURCE}/1", 1, "b")]
    assert not compared(source, [(f"{DERIVED}/1", 0, "m:0:a"), (f"{DERIVED}/1", 2, "m:1:b")])
    assert compared(source, [(f"{DERIVED}/1", offset, value) for offset, value in enumerate(values)])
