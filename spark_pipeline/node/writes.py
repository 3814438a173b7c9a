"""Exactly once for sinks: attempts of tasks write transactions of the log, and a batch of a query is decided once.

An attempt of a task gets a producer of its own (id and epoch), whose batches are part of an open transaction in every
partition they go to: nobody who reads committed data sees them. The driver commits a batch of its query by naming the
attempts that count. That is decided in the database, for the query and all attempts of the batch at once: those named
are committed, every other one is aborted; only then markers are appended, as often as it takes, also by the next start.
A batch that was decided before is not decided again. Who is not heard of for too long is aborted.

What an attempt has open is known before its first batch is in a log (``write_tables``), and an attempt takes no batch
any more, in the very step in which its end is begun: so no batch can come behind its marker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from bridges.catalog.topics import ChangeKind
from bridges.errors import LogDeleted, LogError, PartitionSealed
from spark_pipeline.node.write_producers import Producers
from spark_pipeline.node.write_tables import (
    AttemptRow,
    AttemptState,
    SinkRow,
    add_places,
    decide,
    forget_attempt,
    forget_sinks,
    read,
)

if TYPE_CHECKING:
    from bridges.catalog.topics import Change
    from bridges.log.partition_log import Appended, Batch, PartitionLog
    from bridges.node.front import NodeServices
    from spark_pipeline.node.settings import PipelineSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")
Place = tuple[str, int]
"""Topic and number of a partition."""
Key = tuple[int, int]
"""Producer id and epoch of an attempt."""

_ENDED_AT_ONCE = 64
"""Attempts whose ends are carried out at the same time."""
_SWEEP_S = 60.0
"""How often queries are looked at for expiry: there may be many."""
_ENDED_TOGETHER = 64
"""Markers of one attempt that are under way at the same time."""
_HANDED_OVER_AT_ONCE = 100
"""Batches that are handed to their logs in one turn of the event loop."""
_AGAIN_S, _AGAIN_MOST_S = 0.1, 10.0
_LOOKED_AT = 200
"""Attempts or queries that a chore looks at in one turn."""


class WriteRefused(LogError):
    """The sink's request cannot be carried out, and never will be."""


class AttemptGone(WriteRefused):
    """The attempt is not open: it has been aborted, or was never begun here."""


class TooManyAttempts(LogError):
    """There are as many open attempts, or queries, as there may be."""

    retriable = True


@dataclass(slots=True, eq=False)
class Session:
    """One batch of one query while it is written. Times on the monotonic clock in seconds; ``timeout`` is the silence
    after which it is aborted, ``end`` when it is in any case."""

    owner: str
    query: str
    batch: int
    timeout: float
    end: float
    deadline: float = 0.0
    attempts: dict[Key, Attempt] = field(default_factory=dict)

    def touch(self) -> None:
        """Somebody has been heard of."""
        self.deadline = min(self.end, time.monotonic() + self.timeout)


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of one task. ``state`` is what was decided; ``closing``: no batch is taken any more."""

    row: AttemptRow
    session: Session
    nonce: str
    state: AttemptState = AttemptState.OPEN
    closing: bool = False
    places: set[Place] = field(default_factory=set)
    records: int = 0
    size: int = 0
    in_flight: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> Key:
        return self.row.producer_id, self.row.epoch

    @property
    def takes_batches(self) -> bool:
        return self.state is AttemptState.OPEN and not self.closing


@dataclass(frozen=True, slots=True)
class Begun:
    """How a task's attempt begins: with an attempt, or not at all since the batch is committed already."""

    attempt: Attempt | None


@dataclass(frozen=True, slots=True)
class Committed:
    """``already``: it had been before. ``visible``: every reader sees it now."""

    already: bool
    visible: bool


class Writes:
    """The attempts of a node. Call :meth:`load` first, :meth:`close` at the end; belongs to the event loop."""

    def __init__(self, node: NodeServices, settings: PipelineSettings) -> None:
        self._node = node
        self._settings = settings
        self._sinks: dict[tuple[str, str], SinkRow] = {}
        self._sessions: dict[tuple[str, str, int], Session] = {}
        self._attempts: dict[Key, Attempt] = {}
        self._nonces: dict[tuple[str, str], Attempt] = {}
        self._deciding: dict[tuple[str, str], tuple[asyncio.Lock, list[None]]] = {}
        self._producers = Producers(node.catalog)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._few = asyncio.Semaphore(_ENDED_AT_ONCE)
        self._swept = time.monotonic()
        self.committed = self.aborted = self.expired = 0

    @property
    def open(self) -> int:
        """Attempts whose transactions have not ended everywhere."""
        return len(self._attempts)

    @property
    def sessions(self) -> Iterable[Session]:
        """Batches that are being written."""
        return self._sessions.values()

    # --- life -------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Know what there was, and carry out what was decided. Who is open gets a whole timeout."""
        sinks, attempts, places = await self._node.db.run(read)
        self._node.catalog.on_change.append(self._changed)
        self._sinks = {(row.owner, row.query): row for row in sinks}
        for row in attempts:
            session = self._session(row.owner, row.query, row.batch, row.timeout_ms / 1000)
            self._know(Attempt(row, session, "", AttemptState(row.state)))
        for producer_id, epoch, topic, partition in places:
            self._attempts[producer_id, epoch].places.add((topic, partition))
        for attempt in list(self._attempts.values()):
            if attempt.state is not AttemptState.OPEN:
                self._spawn(self._carry_out(attempt))

    async def close(self) -> None:
        """Carry on with nothing; the next start does."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _know(self, attempt: Attempt) -> None:
        self._attempts[attempt.key] = attempt
        attempt.session.attempts[attempt.key] = attempt
        attempt.quiet.set()
        if attempt.nonce:
            self._nonces[attempt.row.owner, attempt.nonce] = attempt

    def _session(self, owner: str, query: str, batch: int, timeout: float) -> Session:
        session = self._sessions.get((owner, query, batch))
        if session is None:
            end = time.monotonic() + self._settings.transaction_life_ms / 1000
            session = self._sessions[owner, query, batch] = Session(owner, query, batch, timeout, end)
        session.touch()
        return session

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it is told; nobody may wait any more

    def _changed(self, change: Change) -> None:
        """What was written to a topic goes with it: there is nothing to be ended there."""
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            name = change.topic.name
            for attempt in self._attempts.values():
                attempt.places = {place for place in attempt.places if place[0] != name}

    # --- for tasks --------------------------------------------------------------------------------------------------

    async def begin(self, owner: str, query: str, batch: int, task: int, nonce: str, timeout_ms: int) -> Begun:
        """Begin an attempt of a task. Who repeats the request, with the same ``nonce``, gets the same attempt.

        Raises WriteRefused, TooManyAttempts, LogError.
        """
        if self.is_committed(owner, query, batch):
            return Begun(None)
        known = self._nonces.get((owner, nonce))
        if known is not None:
            known.session.touch()
            return Begun(known)
        longest = self._settings.transaction_max_ms
        if not 1 <= timeout_ms <= longest:
            raise WriteRefused(f"a transaction's timeout is of 1 to {longest} ms, not of {timeout_ms}")
        if len(self._attempts) >= self._settings.transactions:
            raise TooManyAttempts(f"there are {len(self._attempts)} attempts with open transactions")
        producer_id, epoch = await self._producers.take()
        if self.is_committed(owner, query, batch):
            self._producers.give_unused(producer_id, epoch)
            return Begun(None)
        now_ms = time.time_ns() // 1_000_000
        row = AttemptRow(producer_id, epoch, owner, query, batch, task, int(AttemptState.OPEN), timeout_ms, now_ms)
        made = Attempt(row, self._session(owner, query, batch, timeout_ms / 1000), nonce)
        self._know(made)
        return Begun(made)

    def is_committed(self, owner: str, query: str, batch: int) -> bool:
        """Whether a batch of a query was committed, or a later one."""
        sink = self._sinks.get((owner, query))
        return sink is not None and batch <= sink.batch

    def find(self, owner: str, key: Key) -> Attempt:
        """An attempt that takes batches. Raises AttemptGone."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.row.owner != owner or not attempt.takes_batches:
            raise AttemptGone(
                "the attempt is not open any more: its batch was decided without it, or nothing was heard of it for so "
                "long that it was aborted"
            )
        return attempt

    async def append(self, attempt: Attempt, batches: Sequence[tuple[PartitionLog, Batch]]) -> list[Appended]:
        """Append to an attempt's transaction; returns when all is durable.

        Raises AttemptGone, and what the logs refuse batches with. What was appended before stays; who repeats all of
        it finds that stored.
        """
        # In the order of the requests: sequence numbers must not overtake one another.
        async with attempt.lock:
            attempt.session.touch()
            new = {(one.topic, one.partition) for one, _ in batches} - attempt.places
            if new:
                self.find(attempt.row.owner, attempt.key)
                if len(new) + len(attempt.places) > self._settings.partitions_per_attempt:
                    most = self._settings.partitions_per_attempt
                    raise WriteRefused(f"one attempt of a task may write to {most} partitions")
                await self._node.db.run(partial(add_places, attempt=attempt.row, places=new), flush=True)
            futures: list[asyncio.Future[Appended]] = []
            for start in range(0, len(batches), _HANDED_OVER_AT_ONCE):
                # In one step with the look at its state: who ends the attempt does it before or after that.
                self.find(attempt.row.owner, attempt.key)
                attempt.places |= new
                some = batches[start : start + _HANDED_OVER_AT_ONCE]
                futures += [self._hand_over(attempt, one, batch) for one, batch in some]
                if start + len(some) < len(batches):
                    await asyncio.sleep(0)
            results = await asyncio.gather(*futures, return_exceptions=True)
        attempt.session.touch()
        appended: list[Appended] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            appended.append(result)
        for (_, batch), at in zip(batches, appended, strict=True):
            if not at.duplicate:
                attempt.records += batch.count
                attempt.size += len(batch.payload)
        return appended

    def _hand_over(self, attempt: Attempt, to: PartitionLog, batch: Batch) -> asyncio.Future[Appended]:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        attempt.in_flight += 1
        attempt.quiet.clear()

        def done(appended: Appended, error: LogError | None) -> None:
            attempt.in_flight -= 1
            if not attempt.in_flight:
                attempt.quiet.set()
            if not future.done():
                future.set_result(appended) if error is None else future.set_exception(error)

        to.append(batch, done)
        return future

    # --- for drivers ------------------------------------------------------------------------------------------------

    async def commit(self, owner: str, query: str, batch: int, keys: Sequence[Key], *, once: bool) -> Committed:
        """Commit a batch of a query: the attempts named are it. Returns when readers see it, or that takes long.

        Raises AttemptGone if one of them is not there to be committed, and nothing is decided then; LogError.
        """
        # A task of its own: a driver that goes away must not leave half a decision.
        decided = self._spawn(self._commit(owner, query, batch, keys, once))
        already, attempts = await asyncio.shield(decided)
        return Committed(already, await self._await_end(attempts))

    async def _await_end(self, attempts: Sequence[Attempt]) -> bool:
        try:
            async with asyncio.timeout(self._settings.request_ms / 2000):
                for attempt in attempts:
                    await attempt.ended.wait()
        except TimeoutError:
            return False
        return True

    async def _commit(
        self, owner: str, query: str, batch: int, keys: Sequence[Key], once: bool
    ) -> tuple[bool, list[Attempt]]:
        async with self._one_at_a_time(owner, query):
            if self.is_committed(owner, query, batch):
                session = self._sessions.get((owner, query, batch))
                of_batch = [] if session is None else list(session.attempts.values())
                await self._abort_others(owner, query, batch)
                return True, [one for one in of_batch if one.state is AttemptState.COMMITTING]
            if (owner, query) not in self._sinks and len(self._sinks) >= self._settings.queries:
                raise TooManyAttempts(f"there are {len(self._sinks)} queries whose last batches are remembered")
            wanted = [self._named(owner, query, batch, key) for key in dict.fromkeys(keys)]
            await self._commit_attempts(SinkRow(owner, query, batch, int(once), _now_ms()), wanted)
            # What has begun while it was being decided comes too late.
            await self._abort_others(owner, query, batch)
            return False, wanted

    @asynccontextmanager
    async def _one_at_a_time(self, owner: str, query: str) -> AsyncIterator[None]:
        """Nothing else is decided of a query in here."""
        lock, users = self._deciding.setdefault((owner, query), (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._deciding[owner, query]

    def _open_of(self, owner: str, query: str, batch: int) -> list[Attempt]:
        """Attempts of a query's batch, and of earlier ones, of which nothing is decided."""
        return [
            attempt
            for session in self._sessions.values()
            if (session.owner, session.query) == (owner, query) and session.batch <= batch
            for attempt in session.attempts.values()
            if attempt.state is AttemptState.OPEN
        ]

    async def _abort_others(self, owner: str, query: str, batch: int) -> None:
        """The batch is committed: whatever is open of it, or of an earlier one, is not part of that."""
        await self._decided(None, [], self._open_of(owner, query, batch))

    def _named(self, owner: str, query: str, batch: int, key: Key) -> Attempt:
        attempt = self._attempts.get(key)
        if attempt is None or (attempt.row.owner, attempt.row.query, attempt.row.batch) != (owner, query, batch):
            raise AttemptGone(f"producer {key[0]}, epoch {key[1]} is no attempt of batch {batch} of query {query}")
        return self.find(owner, key)

    async def _commit_attempts(self, sink: SinkRow, wanted: Sequence[Attempt]) -> None:
        """Decide for ``wanted`` and against all others of the batch and of earlier ones."""
        for attempt in wanted:
            attempt.closing = True
        try:
            for attempt in wanted:
                await self._check_whole(attempt)
                await asyncio.sleep(0)  # there may be thousands, and nothing to be waited for
            named = set(wanted)
            others = [one for one in self._open_of(sink.owner, sink.query, sink.batch) if one not in named]
            await self._decided(sink, wanted, others)
        except BaseException:
            for attempt in wanted:
                attempt.closing = attempt.state is not AttemptState.OPEN
            raise

    async def _check_whole(self, attempt: Attempt) -> None:
        """Whether everywhere its transaction is open: acknowledged batches may be lost with the power where the node
        promises no more. Raises AttemptGone, LogError."""
        async with attempt.lock:
            await attempt.quiet.wait()
        for number, (topic, partition) in enumerate(sorted(attempt.places)):
            if number % _LOOKED_AT == _LOOKED_AT - 1:
                await asyncio.sleep(0)
            place = self._node.logs.get(topic, partition)
            if place is None:
                continue  # deleted meanwhile, and all of it is
            await place.ready()
            if attempt.row.producer_id not in place.state.transactions.open and (topic, partition) in attempt.places:
                raise AttemptGone(f"what the attempt wrote to {topic}-{partition} is not there any more")

    async def _decided(self, sink: SinkRow | None, committed: Sequence[Attempt], aborted: Sequence[Attempt]) -> None:
        """Make it durable how attempts end, and begin to end them."""
        for attempt in aborted:
            attempt.closing = True
        if sink is not None or committed or aborted:
            keys = [one.key for one in committed], [one.key for one in aborted]
            try:
                await self._node.db.run(lambda connection: decide(connection, sink, *keys), flush=True)
            except LogError:
                for attempt in aborted:
                    attempt.closing = False
                raise
        if sink is not None:
            self._sinks[sink.owner, sink.query] = sink
        for attempt in committed:
            attempt.state = AttemptState.COMMITTING
            self.committed += 1
        for attempt in aborted:
            attempt.state = AttemptState.ABORTING
            self.aborted += 1
        for attempt in (*committed, *aborted):
            self._spawn(self._carry_out(attempt))

    async def abort(self, owner: str, query: str, batch: int, keys: Sequence[Key] | None) -> bool:
        """Abort attempts of a batch, all of them if none is named, unless the batch was committed: whether it was.

        Raises LogError.
        """
        return await asyncio.shield(self._spawn(self._abort(owner, query, batch, keys)))

    async def _abort(self, owner: str, query: str, batch: int, keys: Sequence[Key] | None) -> bool:
        async with self._one_at_a_time(owner, query):
            session = self._sessions.get((owner, query, batch))
            attempts = [] if session is None else list(session.attempts.values())
            named = None if keys is None else set(keys)
            await self._decided(
                None,
                [],
                [one for one in attempts if one.state is AttemptState.OPEN and (named is None or one.key in named)],
            )
            return self.is_committed(owner, query, batch)

    def ping(self, owner: str, query: str, batch: int) -> bool:
        """The batch is still being written; whether it is known."""
        session = self._sessions.get((owner, query, batch))
        if session is not None:
            session.touch()
        return session is not None

    # --- carrying out -----------------------------------------------------------------------------------------------

    async def _carry_out(self, attempt: Attempt) -> None:
        """End an attempt's transaction in all its partitions as it was decided, again until it is done."""
        delay = _AGAIN_S
        commit = attempt.state is AttemptState.COMMITTING
        while True:
            try:
                async with attempt.lock:  # else rows of what is being begun would come behind their removal
                    await attempt.quiet.wait()
                async with self._few:
                    await self._end_everywhere(attempt, commit)
                    await self._node.db.run(lambda connection: forget_attempt(connection, attempt.key))
                break
            except LogError as error:
                log.warning("a sink's transaction is ended later", query=attempt.row.query, reason=str(error))
            except Exception as error:  # noqa: BLE001 - logged, counted and tried again
                self._node.barrier.caught("end of a sink's transaction", error, query=attempt.row.query)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _AGAIN_MOST_S)
        self._forget(attempt)
        self._producers.give(*attempt.key)
        attempt.ended.set()

    def _forget(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.key, None)
        self._nonces.pop((attempt.row.owner, attempt.nonce), None)
        session = attempt.session
        session.attempts.pop(attempt.key, None)
        name = session.owner, session.query, session.batch
        if not session.attempts and self._sessions.get(name) is session:
            del self._sessions[name]

    async def _end_everywhere(self, attempt: Attempt, commit: bool) -> None:
        places = sorted(attempt.places)
        for start in range(0, len(places), _ENDED_TOGETHER):
            some = places[start : start + _ENDED_TOGETHER]
            results = await asyncio.gather(
                *(self._end(attempt, place, commit) for place in some), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _end(self, attempt: Attempt, place: Place, commit: bool) -> None:
        to = self._node.logs.get(*place)
        if to is None:
            return  # deleted meanwhile
        try:
            await to.ready()
            if attempt.row.producer_id in to.state.transactions.open:
                await self._marked(to, attempt, commit)
        except (LogDeleted, PartitionSealed):
            return  # deleted, or sealed with nothing of it open

    async def _marked(self, to: PartitionLog, attempt: Attempt, commit: bool) -> None:
        marked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: object, error: LogError | None) -> None:
            if not marked.done():
                marked.set_result(None) if error is None else marked.set_exception(error)

        # With the epoch that the producer gets next: from now on the log itself refuses what this one wrote.
        to.append_marker(attempt.row.producer_id, attempt.row.epoch + 1, commit, done)
        await marked

    # --- time -------------------------------------------------------------------------------------------------------

    async def expire(self, now_ms: int) -> None:
        """A chore: abort what nobody is heard of any more, and forget queries after a long time."""
        now = time.monotonic()
        for session in [one for one in self._sessions.values() if one.deadline < now]:
            attempts = [one for one in session.attempts.values() if one.takes_batches]
            if not attempts:
                continue
            log.info("a sink's batch is aborted: nothing was heard of it", query=session.query, batch=session.batch)
            self.expired += len(attempts)
            await self.abort(session.owner, session.query, session.batch, [one.key for one in attempts])
        if now < self._swept + _SWEEP_S:
            return
        self._swept = now
        await self.forget(now_ms)

    async def forget(self, now_ms: int) -> None:
        """Forget the queries that have not committed anything for long."""
        forgotten = []
        for number, (name, sink) in enumerate(list(self._sinks.items())):
            if not number % _LOOKED_AT:
                await asyncio.sleep(0)
            keep = self._settings.job_ms if sink.once else self._settings.query_ms
            if sink.used_ms + keep < now_ms and not any(
                (one.owner, one.query) == name for one in self._sessions.values()
            ):
                forgotten.append(name)
        if forgotten:
            await self._node.db.run(lambda connection: forget_sinks(connection, forgotten))
            for name in forgotten:
                self._sinks.pop(name, None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
