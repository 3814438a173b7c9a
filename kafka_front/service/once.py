"""Requests whose few bytes ask for many rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kafka_front.wire.errors import ErrorCode, KafkaError

MAX_ROWS = 500_000
"""Of an answer whose rows are more than its request names: some 300 bytes each until they are sent."""


class Once:
    """What a request may name once: where a few bytes ask for many rows, repeating them would ask for all memory."""

    __slots__ = ("_named", "_rows")

    def __init__(self) -> None:
        self._named: set[object] = set()
        self._rows = 0

    def name(self, thing: object) -> None:
        """Raise KafkaError (INVALID_REQUEST) if the request has named it, or its answer is long enough."""
        if thing in self._named:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice")
        if self._rows > MAX_ROWS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the answer would be too long: ask for less at a time")
        self._named.add(thing)

    def rows(self, count: int) -> None:
        """So many rows of the answer tell of what was named last."""
        self._rows += count


def repeated(names: Iterable[object]) -> set[object]:
    """What occurs more than once: requests that name a thing twice are refused for it, as Kafka does."""
    return {name for name, times in Counter(names).items() if times > 1}
