"""Objects that nobody needs any more, until they are deleted: when one more index than the first that does not name
them is there, in case that one is damaged, and after a time of grace, for those who were led to them before."""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec import Struct

from sbp_back.range_server.object_log.bucket import Bucket

_DELETED_AT_ONCE = 500


class _Some(Struct):
    """Objects that no index names from number ``index`` on; ``since``: when that was written."""

    bucket: Bucket
    keys: list[str]
    index: int
    since: float


class Doomed:
    """Owned by the event loop. ``index``: the number of the newest index."""

    def __init__(self) -> None:
        self._waiting: list[_Some] = []

    def add(self, bucket: Bucket, keys: list[str], index: int) -> None:
        if keys:
            self._waiting.append(_Some(bucket, keys, index, time.monotonic()))

    def wait(self, index: int) -> bool:
        """Whether any wait for one more index."""
        return any(one.index >= index for one in self._waiting)

    def ripe(self, index: int, grace: float) -> list[_Some]:
        """Those that may be deleted, by :func:`delete`."""
        now = time.monotonic()
        return [one for one in self._waiting if one.index < index and one.since + grace <= now]

    def forget(self) -> None:
        """What was deleted."""
        self._waiting = [one for one in self._waiting if one.keys]


def delete(ripe: Iterable[_Some]) -> int:
    """Delete objects; how many. Blocks. Raises ``OSError``: those that are left are tried again."""
    count = 0
    for one in ripe:
        while one.keys:
            some = one.keys[-_DELETED_AT_ONCE:]
            one.bucket.delete(some)
            del one.keys[-len(some) :]
            count += len(some)
    return count
