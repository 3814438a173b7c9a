"""Why a group lags, as its positions tell."""

from __future__ import annotations

from typing import Any

from bridges.console.groups.causes import Causes


def row(partition: int, offset: int | None, end: int | None, **others: Any) -> dict[str, Any]:
    known = end is not None and offset is not None
    return {
        "topic": "t",
        "partition": partition,
        "offset": offset,
        "start_offset": 0,
        "end_offset": end,
        "last_stable_offset": end,
        "lag": end - offset if known else None,  # type: ignore[operator]
        "member_id": "m",
    } | others


def causes(*rows: dict[str, Any], shared: bool = False) -> dict[str, Any]:
    made = Causes()
    for one in rows:
        made.add(one, shared=shared)
    return dict(made.as_json["causes"])  # type: ignore[call-overload]


def test_a_position_before_an_open_transaction_waits_for_it() -> None:
    passed = row(0, 3, 9, last_stable_offset=5)
    at_it = row(1, 5, 9, last_stable_offset=5)
    nothing_committed = row(2, None, 9, last_stable_offset=0)
    at_the_end = row(3, 9, 9)
    assert causes(passed, at_it, nothing_committed, at_the_end)["held"] == 2


def test_partitions_with_records_and_without_a_reader_are_counted() -> None:
    rows = row(0, 1, 9, member_id=None), row(1, 9, 9, member_id=None), row(2, 1, 9)
    assert causes(*rows)["unread"] == 1
    assert causes(*rows, shared=True)["unread"] == 0


def test_the_partition_with_the_largest_lag_is_named() -> None:
    rows = row(0, 1, 9), row(1, 0, 50), row(2, 4, 9), row(3, None, None, last_stable_offset=None)
    assert causes(*rows)["worst"] == {"topic": "t", "partition": 1, "lag": 50}
    assert causes(row(0, 9, 9))["worst"] is None
