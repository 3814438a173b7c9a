"""Limits on requests whose few bytes ask for many rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kafka_front.wire.errors import ErrorCode, KafkaError

MAX_ROWS = 500_000
"""Most rows of an answer beyond those that its request names; a row takes some 300 bytes until it is sent."""


class Once:
    """The names of a request, each allowed once. A few bytes may ask for many rows, so repeating a name could use up
    all memory."""

    __slots__ = ("_named", "_rows")

    def __init__(self) -> None:
        self._named: set[object] = set()
        self._rows = 0

    def name(self, thing: object) -> None:
        """Note a name. Raises KafkaError (INVALID_REQUEST) if the request has named it before, or its answer is too
        long."""
        if thing in self._named:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice")
        if self._rows > MAX_ROWS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the answer would be too long: ask for less at a time")
        self._named.add(thing)

    def rows(self, count: int) -> None:
        """Count the rows of the answer for the last name."""
        self._rows += count


def repeated(names: Iterable[object]) -> set[object]:
    """Return the names that occur more than once: Kafka refuses requests that name a thing twice."""
    return {name for name, times in Counter(names).items() if times > 1}
