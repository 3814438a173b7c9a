"""Enforcement of quotas: clients that have used up their quota wait, in the order in which they came; others do not.

Each user, client or pair that a quota binds has a bucket. A request may begin while the bucket is not empty, and pays
for all that it uses, so the next one waits until the bucket has refilled. The connections of a client share the wait.
Where no quota of a kind is set, the check costs one comparison (:attr:`Limiter.in_force`).

Clients choose their ids, so the number of buckets is bounded. When it is reached and none of the oldest buckets is
full, which would make it as good as new, further clients share one bucket per quota.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from anabranch_kit.run.bucket import Bucket, Speed
from anabranch_kit.run.turns import Turns
from bridges.auth.quotas import DEFAULT, LONGEST_NAME, Entity, QuotaKey, QuotaRules

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier

_PER_PERCENT = 10_000.0
"""Microseconds of the event loop in a second that make one percent."""
_LONGEST_TIMER_S = 3600.0
_SHORTEST_TIMER_S = 0.001
"""Waiting clients of a bucket that continue in one turn of the event loop."""
_LOOKED_AT = 8

Released = Callable[[], None]


class QuotaBucket:
    """The unused quota of one entity, and its queue of waiting clients. Made by a :class:`Limiter`."""

    __slots__ = ("_bucket", "_limiter", "_queue", "_timer")

    def __init__(self, limiter: Limiter, speed: Speed) -> None:
        self._limiter = limiter
        self._bucket = Bucket(speed, limiter.clock)
        # Callbacks of waiting clients, in order, and since when each waits.
        self._queue: dict[Released, float] = {}
        self._timer: asyncio.Handle | None = None

    @property
    def is_blocked(self) -> bool:
        """Return whether a client that comes now has to wait."""
        return bool(self._queue) or self._bucket.wait() > 0

    @property
    def is_idle(self) -> bool:
        """Return whether the bucket is full and has no queue, so that a new one could replace it."""
        return not self._queue and self._bucket.is_full

    @property
    def seconds(self) -> float:
        """The seconds from now until the bucket is not empty."""
        return self._bucket.wait()

    def change(self, speed: Speed) -> None:
        self._bucket.change(speed)

    def take(self, amount: float) -> None:
        """Take ``amount`` from the bucket."""
        self._bucket.take(amount)

    def join(self, released: Released) -> None:
        """Enter the queue: have ``released`` called once, when its turn comes."""
        self._queue[released] = self._limiter.clock()
        self._limiter.waiting += 1
        self._arm()

    def leave(self, released: Released) -> None:
        """Leave the queue. Does nothing if ``released`` is not in it."""
        since = self._queue.pop(released, None)
        if since is not None:
            self._limiter.count_wait(self._limiter.clock() - since)

    def release(self) -> None:
        """Have all waiting clients look again under which quota they fall."""
        if self._queue:
            self._cancel()
            self._timer = self._limiter.loop.call_soon(self._release, len(self._queue))

    def _release(self, count: int) -> None:
        self._timer = None
        turns = Turns()
        while count and self._queue and not turns.is_over:
            self._next()
            count -= 1
        if count and self._queue:
            self._cancel()
            self._timer = self._limiter.loop.call_soon(self._release, count)
        else:
            self._arm()

    def _next(self) -> None:
        released, since = next(iter(self._queue.items()))
        del self._queue[released]
        self._limiter.count_wait(self._limiter.clock() - since)
        self._limiter.barrier.call("client that waited for its quota", released)

    def _serve(self) -> None:
        self._timer = None
        turns = Turns()
        while self._queue and self._bucket.wait() <= 0 and not turns.is_over:
            self._next()
        self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._queue:
            wait = min(max(self._bucket.wait(), _SHORTEST_TIMER_S), _LONGEST_TIMER_S)
            self._timer = self._limiter.loop.call_later(wait, self._serve)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Limiter:
    """The buckets of one kind of quota."""

    def __init__(
        self, key: QuotaKey, rules: QuotaRules, most: int, barrier: Barrier, clock: Callable[[], float]
    ) -> None:
        self.key = key
        self.in_force = False
        """Whether a quota of this kind is set."""
        self.throttled = 0
        """Number of waits that have ended."""
        self.seconds = 0.0
        """Total seconds of these waits."""
        self.waiting = 0
        """Number of clients that wait now."""
        self.clock = clock
        self.barrier = barrier
        self.loop = asyncio.get_running_loop()
        self._rules = rules
        self._most = most
        self._buckets: OrderedDict[Entity, QuotaBucket] = OrderedDict()
        # Shared buckets of clients that have none of their own, by the entity whose quota binds them.
        self._shared: dict[Entity, QuotaBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets) + len(self._shared)

    def bucket(self, user: str, client_id: str | None) -> QuotaBucket | None:
        client_id = (client_id or DEFAULT)[:LONGEST_NAME]
        entity = self._rules.decides(self.key, user, client_id)
        if entity is None:
            return None
        whose = Entity(None if entity.user is None else user, None if entity.client_id is None else client_id)
        return self._find(entity, whose)

    def bucket_at(self, host: str) -> QuotaBucket | None:
        entity = self._rules.decides_at(self.key, host)
        return None if entity is None else self._find(entity, Entity(ip=host))

    def changed(self) -> None:
        """Apply changed rules: waiting clients look again under which quota they fall."""
        self.in_force = self.key in self._rules
        for bucket in (*self._buckets.values(), *self._shared.values()):
            bucket.release()
        self._shared.clear()

    def count_wait(self, seconds: float) -> None:
        """Count a wait that has ended."""
        self.waiting -= 1
        self.throttled += 1
        self.seconds += seconds

    def _find(self, entity: Entity, whose: Entity) -> QuotaBucket:
        rate = self._rules.value(self.key, entity)
        if self.key is QuotaKey.REQUEST:
            rate *= _PER_PERCENT
        speed = Speed(rate, max(1.0, rate))
        found = self._buckets.get(whose)
        if found is not None:
            self._buckets.move_to_end(whose)
        elif len(self._buckets) < self._most or self._make_room():
            found = self._buckets[whose] = QuotaBucket(self, speed)
        else:
            found = self._shared.get(entity)
            if found is None:
                found = self._shared[entity] = QuotaBucket(self, speed)
        found.change(speed)
        return found

    def _make_room(self) -> bool:
        for whose, bucket in islice(self._buckets.items(), _LOOKED_AT):
            if bucket.is_idle:
                del self._buckets[whose]
                return True
        return False


class Quotas:
    """All kinds of quotas of a node, for all its listeners. At most ``most`` own buckets of each kind are kept."""

    def __init__(
        self, rules: QuotaRules, most: int, barrier: Barrier, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rules = rules
        self.in_force = False
        """Whether any quota is set."""
        self.limiters = {key: Limiter(key, rules, most, barrier, clock) for key in QuotaKey}
        self.produce = self.limiters[QuotaKey.PRODUCE]
        self.fetch = self.limiters[QuotaKey.FETCH]
        self.request = self.limiters[QuotaKey.REQUEST]
        """In microseconds of the event loop."""
        self.mutation = self.limiters[QuotaKey.MUTATION]
        """In partitions created and deleted."""
        self.connection = self.limiters[QuotaKey.CONNECTION]
        self.changed()

    def changed(self) -> None:
        """Apply changed rules. To be called once the rules are known, and after every change."""
        self.in_force = len(self.rules) > 0
        for limiter in self.limiters.values():
            limiter.changed()


def _nobody() -> None:
    """Do nothing, as the callback of a client that has ended."""


class Throttle:
    """One client's place in the queues of its buckets; it waits in one queue at a time.

    ``released`` is called when the client need not wait any more. Within the call the client may begin to wait again.
    """

    __slots__ = ("_bucket", "_released", "_turn")

    def __init__(self, released: Released) -> None:
        self._released = released
        self._bucket: QuotaBucket | None = None
        # The bucket whose queue the client has just left at the front.
        self._turn: QuotaBucket | None = None

    @property
    def waits(self) -> bool:
        return self._bucket is not None

    @property
    def seconds(self) -> float:
        """The least seconds that the client has to wait."""
        return 0.0 if self._bucket is None else self._bucket.seconds

    def passes(self, bucket: QuotaBucket | None) -> bool:
        """Return whether the client may begin something that the bucket pays for; if not, it waits."""
        if bucket is None:
            return True
        if bucket is self._turn:
            self._turn = None
            if bucket.seconds <= 0:
                return True
        elif not bucket.is_blocked:
            return True
        self._wait(bucket)
        return False

    def charge(self, bucket: QuotaBucket | None, amount: float) -> None:
        """Take ``amount`` from the bucket; if that empties it, the client waits."""
        if bucket is not None:
            bucket.take(amount)
            if self._bucket is None and bucket.seconds > 0:
                self._wait(bucket)

    def leave(self) -> None:
        bucket, self._bucket = self._bucket, None
        if bucket is not None:
            bucket.leave(self._go)

    def end(self) -> None:
        """Stop waiting for good, and drop the reference to ``released``, so that its owner can be freed."""
        self.leave()
        self._released = _nobody

    def _wait(self, bucket: QuotaBucket) -> None:
        self._bucket = bucket
        bucket.join(self._go)

    def _go(self) -> None:
        self._bucket, self._turn = None, self._bucket
        try:
            self._released()
        finally:
            self._turn = None


async def turn(bucket: QuotaBucket | None, amount: float = 0) -> float:
    """Wait until the bucket is not empty, take ``amount`` from it, and return the seconds waited."""
    if bucket is None:
        return 0.0
    if not bucket.is_blocked:
        bucket.take(amount)
        return 0.0
    began = time.monotonic()
    ours: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def go() -> None:
        if not ours.done():
            bucket.take(amount)
            ours.set_result(None)

    bucket.join(go)
    try:
        await ours
    finally:
        bucket.leave(go)
    return time.monotonic() - began
