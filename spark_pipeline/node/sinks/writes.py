"""Exactly-once writes for sinks: attempts of tasks write transactions, and each batch of a query is decided once.

An attempt of a task gets its own producer (id and epoch). Its batches belong to an open transaction in every partition
they go to, so readers of committed data do not see them. The driver commits a batch of its query by naming the attempts
that count. The database stores that decision, for the query and all attempts of the batch in one transaction: the named
attempts are committed, all others aborted. Only then does the node append markers, and retries until all are written,
if needed after its next start. A batch is aborted after too long a silence.

A batch is identified by its query, its target (one batch may be written to several topics) and its number. It is not
identified by the principal, because the next principal that runs the query must not write it twice. Only attempts
belong to a principal.

Spark repeats only the last batch of a query. A repetition has the same number and digest of rows, and is neither
decided nor written again. A batch with other rows, or with a lower number, comes from a checkpoint that was cleared or
is an older copy, or from a second write under the same name: it is refused, unless the sink asks to leave it out.

An attempt's partitions are stored before its first batch is in a log (``write_tables``). An attempt stops taking
batches in the same step in which its end begins, so no batch can come behind its marker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import structlog

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.run.turns import in_turns
from bridges.catalog.topics.topic import ChangeKind
from bridges.errors import LogError, LogUnavailable, NotOwner
from bridges.log.transactions.ends import TransactionEnds
from bridges.log.transactions.producers import Producers
from spark_pipeline.node.sinks.attempts import (
    Attempt,
    AttemptGone,
    Attempts,
    BatchDiffers,
    BatchGoesBack,
    BatchName,
    Key,
    Query,
    Session,
    TooManyAttempts,
    WriteRefused,
)
from spark_pipeline.node.sinks.queries import Queries
from spark_pipeline.node.sinks.tables import (
    UNTOLD,
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
    from anabranch_kit.run.rounds import Rounds
    from bridges.catalog.topics.topic import Change
    from bridges.log.interfaces import AppendDone
    from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
    from bridges.log.remote.partitions import Partitions
    from bridges.node.front import NodeServices
    from spark_pipeline.node.settings import PipelineSettings

log = structlog.get_logger(__name__)

_SWEEP_S = 60.0
"""Time between two searches for expired queries, of which there may be many."""


class _Place:
    """A partition of any owner."""

    __slots__ = ("_log", "_partitions")

    def __init__(self, partitions: Partitions, log: PartitionLog) -> None:
        self._partitions = partitions
        self._log = log

    def append(self, batch: Batch, done: AppendDone) -> None:
        self._partitions.append(self._log.topic, self._log.partition, batch, done)


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit. ``already``: the batch was committed before. ``visible``: every reader sees it now."""

    already: bool
    visible: bool


class Writes:
    """The attempts of a node. Call :meth:`load` first and :meth:`close` at the end; use it on the event loop only."""

    def __init__(self, node: NodeServices, settings: PipelineSettings) -> None:
        self._node = node
        self._settings = settings
        self.sinks: dict[Query, SinkRow] = {}
        self._left_out: dict[Query, int] = {}
        """Query -> the last batch for which "left out" was logged."""
        self.queries = Queries(node, self.read, self.surrender)
        self.attempts = Attempts(settings.attempt_partitions, self.queries.holding)
        self.ends: TransactionEnds[Attempt] = TransactionEnds(
            self.queries.markers,
            node.barrier,
            "a sink's transaction",
            self._forget_attempt,
            self._end,
            self.queries.ask_to_mark,
        )
        self._deciding: WeakValueDictionary[Query, asyncio.Lock] = WeakValueDictionary()
        self._producers = Producers(node.catalog)
        self._tasks = TaskSet()
        self._swept = time.monotonic()
        self._rounds: Rounds[Session] = node.rounds("expiry of sinks' transactions")
        self.expired = 0
        """Number of attempts that were aborted after their timeout."""

    # --- life -------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all queries and carry out their decisions. Open attempts get a whole new timeout."""
        self._node.catalog.on_change.append(self._changed)
        await self.queries.begin()

    async def read(self, wanted: Callable[[str], bool]) -> None:
        """Read the queries for which ``wanted`` is true and which this node owns now; carry out their decisions."""
        sinks, attempts, places = await self._node.db.run(partial(read, wanted=wanted))
        for of in [of for of in self.sinks if wanted(of[0])]:
            del self.sinks[of]
        self.sinks |= {(row.query, row.target): row for row in sinks}
        found: dict[Key, Attempt] = {}
        for row in attempts:
            key = row.producer_id, row.epoch
            if self.attempts.of_key(key) is None:
                found[key] = Attempt(row, self._session(row), "", AttemptState(row.state))
                self.attempts.add(found[key])
        for producer_id, epoch, topic, partition in places:
            attempt = found.get((producer_id, epoch))
            if attempt is not None:
                self.attempts.places.write_to(attempt, [(topic, partition)])
        self.ends.begin(attempt for attempt in found.values() if attempt.state is not AttemptState.OPEN)

    def surrender(self, gone: Callable[[str], bool]) -> None:
        """Forget the queries for which ``gone`` is true: another node owns them from now on."""
        for attempt in self.attempts.all():
            if gone(attempt.row.query):
                attempt.given_up = True
                self.attempts.remove(attempt)
        for of in [of for of in self.sinks if gone(of[0])]:
            del self.sinks[of]
            self._left_out.pop(of, None)

    def _require(self, query: str) -> None:
        """Raise NotOwner if another node owns the query, or this node has not read its state yet."""
        if not self.queries.owns(query):
            raise NotOwner(f"query {query}", -1)

    def _session(self, row: AttemptRow) -> Session:
        life = self._settings.transaction_life_ms / 1000
        name = BatchName(row.query, row.target, row.batch)
        return self.attempts.begun_session(name, row.timeout_ms / 1000, life)

    async def close(self) -> None:
        """Stop all work; the next start continues it."""
        await self._tasks.close()
        await self.queries.close()
        await self.ends.close()

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            self.attempts.places.topic_deleted(change.topic.name)

    async def _forget_attempt(self, attempt: Attempt) -> None:
        # Readers see it now, so waiters go on without waiting for the deletion of its rows.
        attempt.ended.set()
        hold = self.attempts.holding(attempt.row.query)
        await self._node.db.run(lambda connection: forget_attempt(connection, attempt.key, hold))

    def _end(self, attempt: Attempt) -> None:
        self.attempts.remove(attempt)
        if attempt.nonce:  # else the node that began it may still use or reuse the producer
            self._producers.give(*attempt.key)

    # --- for tasks --------------------------------------------------------------------------------------------------

    async def begin(
        self, owner: str, name: BatchName, task: int, nonce: str, timeout_ms: int, *, skip_lower: bool = False
    ) -> Attempt | None:
        """Begin an attempt of a task; a repeated request with the same ``nonce`` gets the same attempt.

        Returns None if the batch is committed already.

        ``skip_lower``: leave out batches lower than the last one. Otherwise raises BatchGoesBack for them. Raises
        WriteRefused, TooManyAttempts, LogError.
        """
        self._require(name.query)
        if self._is_left_out(owner, name, skip_lower):
            return None
        known = self.attempts.of_nonce(owner, nonce)
        if known is not None:
            known.session.touch()
            return known
        longest = self._settings.transaction_max_ms
        if not 1 <= timeout_ms <= longest:
            raise WriteRefused(f"a transaction's timeout is of 1 to {longest} ms, not of {timeout_ms}")
        if len(self.attempts) >= self._settings.transactions:
            raise TooManyAttempts(f"there are {len(self.attempts)} attempts with open transactions")
        producer_id, epoch = await self._producers.take()
        self._require(name.query)
        if self._is_left_out(owner, name, skip_lower):
            self._producers.give_unused(producer_id, epoch)
            return None
        state = int(AttemptState.OPEN)
        row = AttemptRow(
            producer_id, epoch, owner, name.query, name.number, task, state, timeout_ms, now_ms(), name.target
        )
        made = Attempt(row, self._session(row), nonce)
        self.attempts.add(made)
        return made

    def _last(self, of: Query) -> SinkRow | None:
        """Return the last batch that a query has committed to a target."""
        rows = [row for row in (self.sinks.get(of), self.sinks.get((of[0], UNTOLD))) if row is not None]
        return max(rows, key=lambda row: row.batch, default=None)

    def is_committed(self, name: BatchName) -> bool:
        """Return whether the batch, or a later one of its query, was committed."""
        last = self._last(name.query_key)
        return last is not None and name.number <= last.batch

    def _check_repetition(self, name: BatchName, content: str) -> None:
        """Raise BatchDiffers if ``name`` is the last committed batch and was committed with other rows."""
        last = self._last(name.query_key)
        known = "" if last is None else last.content
        if not content or not known.startswith(f"{name.number} ") or content == known:
            return
        raise BatchDiffers(
            f"batch {name.number} of query {name.query} for {name.target or 'topics that its rows tell'} was committed "
            f"with {known.split()[1]} rows, and comes with {content.split()[1]} rows that are not the same: a second "
            "write has its name (give each a queryId of its own), the checkpoint is an older copy (start with a new "
            "one), or the rows are not computed alike twice. With the option lowerBatches=skip they are left out"
        )

    def _is_left_out(self, owner: str, name: BatchName, skip_lower: bool) -> bool:
        """Return whether a batch is left out as committed before; log that once. Raises BatchGoesBack."""
        last = self._last(name.query_key)
        if last is None or name.number > last.batch:
            return False
        if name.number < last.batch and not skip_lower:
            raise BatchGoesBack(
                f"query {name.query} comes with batch {name.number} for {name.target or 'topics that its rows tell'}, "
                f"and has committed batch {last.batch}: its checkpoint was cleared, or is an older copy. Start it with "
                "a new checkpoint (or queryId) to write its rows, or with the option lowerBatches=skip to leave out "
                f"all batches up to {last.batch}"
            )
        if self._left_out.get(name.query_key) != name.number:
            self._left_out[name.query_key] = name.number
            log.warning(
                "a sink's batch is not written again: it was committed before",
                query=name.query,
                target=name.target,
                batch=name.number,
                last=last.batch,
                user=owner,
            )
        return True

    async def append(self, attempt: Attempt, batches: Sequence[tuple[PartitionLog, Batch]]) -> list[Appended]:
        """Append batches to an attempt's transaction; return when all are durable.

        Raises AttemptGone, TooManyPlaces, and the logs' errors. Batches appended before an error stay; a repeated
        request finds them stored.
        """
        # The lock keeps the order of the requests: the log refuses sequence numbers out of order.
        async with attempt.lock:
            attempt.session.touch()
            futures: list[asyncio.Future[Appended]] = []
            partitions = self._node.partitions
            await self._store_places(attempt, batches)
            async for one, batch in in_turns(batches):
                # No await between this check and the append, so the attempt's end comes before or after both.
                self._require_open(attempt)
                futures.append(attempt.appended(_Place(partitions, one), batch))
            results = await asyncio.gather(*futures, return_exceptions=True)
        attempt.session.touch()
        appended: list[Appended] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            appended.append(result)
        return appended

    async def _store_places(self, attempt: Attempt, batches: Sequence[tuple[PartitionLog, Batch]]) -> None:
        """Store the attempt's new partitions before it writes to them. The caller holds the attempt's lock."""
        new = {place for one, _ in batches if not attempt.writes_to(place := (one.topic, one.partition))}
        if not new:
            return
        self._require_open(attempt)
        most = self._settings.partitions_per_attempt
        if len(new) + attempt.place_count > most:
            raise WriteRefused(f"one attempt of a task may write to {most} partitions")
        with self.attempts.places.promised(len(new)):
            hold = self.attempts.holding(attempt.row.query)
            add = partial(add_places, attempt=attempt.row, places=new, hold=hold)
            await self._node.db.run(add, flush=True)
            if not attempt.given_up:
                self.attempts.places.write_to(attempt, new)

    def _require_open(self, attempt: Attempt) -> None:
        """Raise AttemptGone if the attempt takes no batches, or LogUnavailable if another node owns its query now."""
        if attempt.given_up:
            raise LogUnavailable(f"query {attempt.row.query} is another node's meanwhile")
        self.attempts.open(attempt.row.owner, attempt.key)

    # --- for drivers ------------------------------------------------------------------------------------------------

    async def commit(
        self, owner: str, name: BatchName, keys: Sequence[Key], *, once: bool, content: str = ""
    ) -> Committed:
        """Commit a batch of a query, which consists of the named attempts. Returns when readers see it, or after a time
        limit.

        ``content`` is the number and digest of its rows; "" is compared with nothing. Raises AttemptGone, without a
        decision, if a named attempt is not open; BatchDiffers; LogError.
        """
        # A task of its own, so that a driver that disconnects does not interrupt the decision.
        already, attempts = await self._tasks.finish(self._commit(owner, name, keys, once, content))
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
        self, owner: str, name: BatchName, keys: Sequence[Key], once: bool, content: str
    ) -> tuple[bool, list[Attempt]]:
        content = f"{name.number} {content}" if content else ""
        async with self._deciding.setdefault(name.query_key, asyncio.Lock()):
            self._require(name.query)
            if self.is_committed(name):
                self._check_repetition(name, content)
                session = self.attempts.session(name)
                of_batch = [] if session is None else list(session.attempts.values())
                await self._abort_others(name)
                return True, [one for one in of_batch if one.state is AttemptState.COMMITTING]
            if name.query_key not in self.sinks and len(self.sinks) >= self._settings.queries:
                raise TooManyAttempts(f"there are {len(self.sinks)} queries whose last batches are remembered")
            wanted = [self.attempts.find_in_batch(owner, name, key) for key in dict.fromkeys(keys)]
            await self._commit_attempts(SinkRow(*name, int(once), now_ms(), content), wanted)
            # Attempts that began during the decision are too late.
            await self._abort_others(name)
            return False, wanted

    async def _abort_others(self, name: BatchName) -> None:
        """Abort the open attempts of a committed batch, and of earlier batches: they are not part of the commit."""
        await self._store_decision(None, [], self.attempts.undecided(name))

    async def _commit_attempts(self, sink: SinkRow, wanted: Sequence[Attempt]) -> None:
        """Commit the attempts ``wanted`` and abort all others of the batch and of earlier batches."""
        for attempt in wanted:
            attempt.closing = True
        try:
            async for attempt in in_turns(wanted):
                await attempt.await_quiet()
                # A node that acknowledges before a flush may lose acknowledged batches in a loss of power.
                for topic, partition in await self.queries.find_missing(attempt):
                    raise AttemptGone(f"what the attempt wrote to {topic}-{partition} is not there any more")
            named = set(wanted)
            of_batch = BatchName(sink.query, sink.target, sink.batch)
            others = [one for one in self.attempts.undecided(of_batch) if one not in named]
            await self._store_decision(sink, wanted, others)
        except BaseException:
            for attempt in wanted:
                attempt.closing = attempt.state is not AttemptState.OPEN
            raise

    async def _store_decision(
        self, sink: SinkRow | None, committed: Sequence[Attempt], aborted: Sequence[Attempt]
    ) -> None:
        """Store the decision about attempts durably, and begin to carry it out."""
        for attempt in aborted:
            attempt.closing = True
        if sink is not None or committed or aborted:
            keys = [one.key for one in committed], [one.key for one in aborted]
            query = sink.query if sink is not None else (*committed, *aborted)[0].row.query
            hold = self.attempts.holding(query)
            try:
                await self._node.db.run(lambda connection: decide(connection, sink, *keys, hold), flush=True)
            except LogError:
                for attempt in aborted:
                    attempt.closing = False
                raise
        if sink is not None and self.queries.owns(query):
            self.sinks[sink.query, sink.target] = sink
        for attempt in committed:
            attempt.state = AttemptState.COMMITTING
        for attempt in aborted:
            attempt.state = AttemptState.ABORTING
        self.ends.begin((*committed, *aborted))

    async def abort(self, owner: str, name: BatchName, keys: Sequence[Key] | None) -> bool:
        """Abort an owner's attempts of a batch (``keys`` None: all), unless the batch was committed; return whether it
        was.

        Raises LogError.
        """
        return await self._tasks.finish(self._abort(owner, name, keys))

    async def _abort(self, owner: str, name: BatchName, keys: Sequence[Key] | None) -> bool:
        async with self._deciding.setdefault(name.query_key, asyncio.Lock()):
            self._require(name.query)
            session = self.attempts.session(name)
            attempts = [] if session is None else [one for one in session.attempts.values() if one.row.owner == owner]
            named = None if keys is None else set(keys)
            await self._store_decision(
                None,
                [],
                [one for one in attempts if one.state is AttemptState.OPEN and (named is None or one.key in named)],
            )
            return self.is_committed(name)

    # --- time -------------------------------------------------------------------------------------------------------

    async def expire(self, now_ms: int) -> None:
        """Abort batches after their timeout, and forget old queries; a chore."""
        now = time.monotonic()
        # Each abort waits for its query's running decision, which may take long.
        await self._rounds.each([one for one in self.attempts.sessions if one.deadline < now], self._expire)
        if now < self._swept + _SWEEP_S:
            return
        self._swept = now
        await self.forget(now_ms)

    async def _expire(self, session: Session) -> None:
        attempts = [one for one in session.attempts.values() if one.takes_batches]
        if attempts:
            name = session.name
            log.info("a sink's batch is aborted after its timeout", query=name.query, batch=name.number)
            self.expired += len(attempts)
            for owner in {one.row.owner for one in attempts}:
                await self.abort(owner, name, [one.key for one in attempts])

    async def forget(self, now_ms: int) -> None:
        """Forget the queries whose last commit is too long ago."""
        forgotten = []
        async for name, sink in in_turns(list(self.sinks.items())):
            keep = self._settings.job_ms if sink.once else self._settings.query_ms
            if sink.used_ms + keep < now_ms and not self.attempts.is_written(name):
                forgotten.append(sink)
        if forgotten:
            # Only unchanged rows are deleted: a query may have committed again meanwhile.
            await self._node.db.run(lambda connection: forget_sinks(connection, forgotten))
            for sink in forgotten:
                of = sink.query, sink.target
                if self.sinks.get(of) == sink:
                    del self.sinks[of]
                    self._left_out.pop(of, None)
