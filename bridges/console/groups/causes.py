"""Reasons why a group lags, by its positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Causes:
    """Counts over the positions of a group.

    ``unread``: partitions with records that no member reads. ``held``: positions at the first record of an open
    transaction, which readers of committed data do not pass. ``worst``: the partition with the largest lag.
    """

    def __init__(self) -> None:
        self._unread = self._held = 0
        self._worst: Mapping[str, Any] | None = None

    def add(self, row: Mapping[str, Any], *, shared: bool) -> None:
        """Count a row of the group's positions; ``shared``: its records go to any member."""
        stable, end = row["last_stable_offset"], row["end_offset"]
        if end is None:
            return
        # A member that has committed nothing stands at the start, if it can read nothing there.
        position = row["start_offset"] if row["offset"] is None else row["offset"]
        self._held += stable <= position < end
        if not row["lag"]:
            return
        self._unread += row["member_id"] is None and not shared
        if self._worst is None or row["lag"] > self._worst["lag"]:
            self._worst = row

    @property
    def as_json(self) -> dict[str, object]:
        worst = self._worst and {key: self._worst[key] for key in ("topic", "partition", "lag")}
        return {"causes": {"unread": self._unread, "held": self._held, "worst": worst}}
