"""Objects that are superfluous and wait for their deletion: until one more index exists than the first that does not
name them (in case that one is damaged), and after a time of grace for readers that were led to them before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec import Struct

from sbp_back.range_server.object_log.objects.bucket import Bucket

_KEYS_PER_REQUEST = 500


class _Some(Struct):
    """Objects that no index names from number ``index`` on; ``since``: time at which that index was written."""

    bucket: Bucket
    keys: list[str]
    index: int
    since: float


class Doomed:
    """The objects that wait for deletion. Owned by the event loop."""

    def __init__(self) -> None:
        self.waiting: list[_Some] = []

    def add(self, bucket: Bucket, keys: list[str], index: int) -> None:
        if keys:
            self.waiting.append(_Some(bucket, keys, index, time.monotonic()))

    def wait(self, index: int) -> bool:
        """Return whether any objects wait for an index after number ``index``, the newest."""
        return any(one.index >= index for one in self.waiting)

    def ripe(self, index: int, grace: float) -> list[_Some]:
        """Return the objects that :func:`delete` may delete now; ``index``: number of the newest index, ``grace`` in
        seconds.
        """
        now = time.monotonic()
        return [one for one in self.waiting if one.index < index and one.since + grace <= now]

    def forget(self) -> None:
        """Forget the objects that were deleted."""
        self.waiting = [one for one in self.waiting if one.keys]


def delete(ripe: Iterable[_Some]) -> int:
    """Delete objects; return how many. Blocks. After ``OSError`` the remaining ones are tried again."""
    count = 0
    for one in ripe:
        while one.keys:
            some = one.keys[-_KEYS_PER_REQUEST:]
            one.bucket.delete(some)
            del one.keys[-len(some) :]
            count += len(some)
    return count
