"""What must hold of a log, judged from what was acknowledged, what was shown, and what is there in the end.

It knows nothing of nodes: it is told of acknowledgements and readings, and asks for the contents at the end.
"""

from __future__ import annotations


class Broken(AssertionError):
    """A promise that was not kept; the message names it."""


class Checker:
    """By partition and offset: the value that was acknowledged, or shown, first."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], str] = {}
        self.acknowledged: dict[tuple[int, int], str] = {}

    def acknowledge(self, partition: int, offset: int, value: str) -> None:
        """A writer was told that its value lies at the offset."""
        self.show(partition, offset, value)
        self.acknowledged[partition, offset] = value

    def show(self, partition: int, offset: int, value: str) -> None:
        """A reader was given the value."""
        before = self.seen.setdefault((partition, offset), value)
        if before != value:
            raise Broken(f"two values at {partition}@{offset}: {before} and {value}")

    def judge(self, contents: dict[int, list[str]]) -> None:
        """``contents``: of each partition what is in it in the end, from offset 0 on."""
        for (partition, offset), value in self.seen.items():
            there = contents[partition]
            if offset >= len(there):
                what = "acknowledged" if (partition, offset) in self.acknowledged else "shown"
                raise Broken(f"{what} and lost: {value} at {partition}@{offset}, which ends at {len(there)}")
            if there[offset] != value:
                raise Broken(f"two values at {partition}@{offset}: {value}, and {there[offset]} in the end")
