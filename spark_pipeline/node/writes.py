"""Exactly once for sinks: attempts of tasks write transactions of the log, and a batch of a query is decided once.

An attempt of a task gets a producer of its own (id and epoch), whose batches are part of an open transaction in every
partition they go to: nobody who reads committed data sees them. The driver commits a batch of its query by naming the
attempts that count. That is decided in the database, for the query and all attempts of the batch at once: those named
are committed, every other one is aborted; only then markers are appended, as often as it takes, also by the next start.
Who is not heard of for too long is aborted.

A batch is known by its query, by what it is written to, since one batch may be written to several topics, and by its
number; not by who runs the query, since whoever runs it next must not write it twice. What belongs to its owner alone
is an attempt. Spark repeats nothing but the last batch of a query. A repetition has the same number and digest of rows,
and is neither decided nor written again. A batch with other rows, or a lower one, comes of a checkpoint that was
cleared or is an older copy, or of a second write under one name: it is refused, unless the sink asks to leave it out.

What an attempt has open is known before its first batch is in a log (``write_tables``), and an attempt takes no batch
any more, in the very step in which its end is begun: so no batch can come behind its marker.
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
from msgspec import Struct

from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.run.turns import in_turns
from bridges.catalog.topic import ChangeKind
from bridges.cluster.alone import Alone
from bridges.errors import LogError, NotOwner
from bridges.log.transactions.ends import TransactionEnds
from bridges.log.transactions.marking import Markers
from spark_pipeline.node.write_appends import Appends
from spark_pipeline.node.write_attempts import (
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
from spark_pipeline.node.write_producers import Producers
from spark_pipeline.node.write_tables import (
    UNTOLD,
    AttemptRow,
    AttemptState,
    SinkRow,
    decide,
    forget_attempt,
    forget_sinks,
    read,
)

if TYPE_CHECKING:
    from anabranch_kit.run.rounds import Rounds
    from bridges.catalog.topic import Change
    from bridges.cluster.members import Member
    from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
    from bridges.log.transactions.open_transaction import Place
    from bridges.node.front import NodeServices
    from spark_pipeline.node.settings import PipelineSettings
    from spark_pipeline.node.write_among import Queries

log = structlog.get_logger(__name__)


_SWEEP_S = 60.0
"""How often queries are looked at for expiry: there may be many."""


class Begun(Struct, frozen=True):
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
        self._sinks: dict[Query, SinkRow] = {}
        self._left_out: dict[Query, int] = {}
        """The batch of each query that the log was told of last because it was left out."""
        self.attempts = Attempts(settings.attempt_partitions)
        self.appends = Appends(node, settings, self.attempts)
        self.among = self._among_others()
        """Where there are other nodes: which queries are this one's."""
        markers = Markers(node.logs, node.db, None) if self.among is None else self.among.markers
        self.ends: TransactionEnds[Attempt] = TransactionEnds(
            markers, node.barrier, "a sink's transaction", self._end_seen, self._ended, self._ask_to_mark
        )
        self._deciding: WeakValueDictionary[Query, asyncio.Lock] = WeakValueDictionary()
        self._producers = Producers(node.catalog)
        self._tasks = TaskSet()
        self._swept = time.monotonic()
        self._rounds: Rounds[Session] = node.rounds("expiry of sinks' transactions")
        self.expired = 0
        """Attempts that were aborted since nobody was heard of."""

    def _among_others(self) -> Queries | None:
        if isinstance(self._node.owners, Alone):
            return None
        from spark_pipeline.node.write_among import Queries  # where there are others

        among = Queries(self._node, self._node.owners, self._node.peers, self)
        self.attempts.holding = among.holding
        return among

    @property
    def open(self) -> int:
        """Attempts whose transactions have not ended everywhere."""
        return len(self.attempts)

    # --- life -------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Know what there was, and carry out what was decided. Who is open gets a whole timeout."""
        self._node.catalog.on_change.append(self._changed)
        if self.among is None:
            await self.read(lambda query: True)
        else:
            await self.among.begin()

    async def read(self, wanted: Callable[[str], bool]) -> None:
        """The same of the queries that are ``wanted``: nobody else decides of them."""
        sinks, attempts, places = await self._node.db.run(partial(read, wanted=wanted))
        for of in [of for of in self._sinks if wanted(of[0])]:
            del self._sinks[of]
        self._sinks |= {(row.query, row.target): row for row in sinks}
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
        """Queries that another node owns from now on."""
        for attempt in self.attempts.all():
            if gone(attempt.row.query):
                attempt.given_up = True
                self.attempts.remove(attempt)
        for of in [of for of in self._sinks if gone(of[0])]:
            del self._sinks[of]
            self._left_out.pop(of, None)

    def _require(self, query: str) -> None:
        """Raises NotOwner where another node decides of a query, or this one does not know all of it yet."""
        if self.among is not None and not self.among.owns(query):
            raise NotOwner(f"query {query}", -1)

    def _session(self, row: AttemptRow) -> Session:
        life = self._settings.transaction_life_ms / 1000
        name = BatchName(row.query, row.target, row.batch)
        return self.attempts.begun_session(name, row.timeout_ms / 1000, life)

    async def close(self) -> None:
        """Carry on with nothing; the next start does."""
        await self._tasks.close()
        if self.among is not None:
            await self.among.close()
        await self.ends.close()

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            self.attempts.places.topic_deleted(change.topic.name)

    async def _ask_to_mark(self, attempt: Attempt, owner: Member, places: list[Place]) -> None:
        assert self.among is not None
        await self.among.ask_to_mark(attempt, owner, places)

    async def _end_seen(self, attempt: Attempt) -> None:
        # Readers see it now: whoever waits for that need not wait until it is forgotten, too.
        attempt.ended.set()
        hold = self.attempts.holding(attempt.row.query)
        await self._node.db.run(lambda connection: forget_attempt(connection, attempt.key, hold))

    def _ended(self, attempt: Attempt) -> None:
        self.attempts.remove(attempt)
        if attempt.nonce or self.among is None:  # else another node may still use it, or give it away
            self._producers.give(*attempt.key)

    # --- for tasks --------------------------------------------------------------------------------------------------

    async def begin(
        self, owner: str, name: BatchName, task: int, nonce: str, timeout_ms: int, *, skip_lower: bool = False
    ) -> Begun:
        """Begin an attempt of a task. Who repeats the request, with the same ``nonce``, gets the same attempt.

        ``skip_lower``: leave batches out that are lower than the last one. Raises BatchGoesBack for one otherwise,
        WriteRefused, TooManyAttempts, LogError.
        """
        self._require(name.query)
        if self._is_left_out(owner, name, skip_lower):
            return Begun(None)
        known = self.attempts.of_nonce(owner, nonce)
        if known is not None:
            known.session.touch()
            return Begun(known)
        longest = self._settings.transaction_max_ms
        if not 1 <= timeout_ms <= longest:
            raise WriteRefused(f"a transaction's timeout is of 1 to {longest} ms, not of {timeout_ms}")
        if len(self.attempts) >= self._settings.transactions:
            raise TooManyAttempts(f"there are {len(self.attempts)} attempts with open transactions")
        producer_id, epoch = await self._producers.take()
        self._require(name.query)
        if self._is_left_out(owner, name, skip_lower):
            self._producers.give_unused(producer_id, epoch)
            return Begun(None)
        state = int(AttemptState.OPEN)
        row = AttemptRow(
            producer_id, epoch, owner, name.query, name.number, task, state, timeout_ms, _now_ms(), name.target
        )
        made = Attempt(row, self._session(row), nonce)
        self.attempts.add(made)
        return Begun(made)

    def _last(self, of: Query) -> SinkRow | None:
        """The last batch that a query has committed to a target."""
        rows = [row for row in (self._sinks.get(of), self._sinks.get((of[0], UNTOLD))) if row is not None]
        return max(rows, key=lambda row: row.batch, default=None)

    def is_committed(self, name: BatchName) -> bool:
        """Whether a batch of a query was committed, or a later one."""
        last = self._last(name.of)
        return last is not None and name.number <= last.batch

    def _check_repetition(self, name: BatchName, content: str) -> None:
        """Raises BatchDiffers where the last batch, which ``name`` is said to be, was committed with other rows."""
        last = self._last(name.of)
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
        """Whether a batch is not to be written, as it was committed; the log tells it once. Raises BatchGoesBack."""
        last = self._last(name.of)
        if last is None or name.number > last.batch:
            return False
        if name.number < last.batch and not skip_lower:
            raise BatchGoesBack(
                f"query {name.query} comes with batch {name.number} for {name.target or 'topics that its rows tell'}, "
                f"and has committed batch {last.batch}: its checkpoint was cleared, or is an older copy. Start it with "
                "a new checkpoint (or queryId) to write its rows, or with the option lowerBatches=skip to leave out "
                f"all batches up to {last.batch}"
            )
        if self._left_out.get(name.of) != name.number:
            self._left_out[name.of] = name.number
            log.warning(
                "a sink's batch is not written again: it was committed before",
                query=name.query,
                target=name.target,
                batch=name.number,
                last=last.batch,
                user=owner,
            )
        return True

    def find(self, owner: str, key: Key) -> Attempt:
        """An attempt that takes batches. Raises AttemptGone."""
        return self.attempts.open(owner, key)

    async def append(self, attempt: Attempt, batches: Sequence[tuple[PartitionLog, Batch]]) -> list[Appended]:
        """See :meth:`Appends.append`."""
        return await self.appends.append(attempt, batches)

    # --- for drivers ------------------------------------------------------------------------------------------------

    async def commit(
        self, owner: str, name: BatchName, keys: Sequence[Key], *, once: bool, content: str = ""
    ) -> Committed:
        """Commit a batch of a query: the attempts named are it. Returns when readers see it, or that takes long.

        ``content`` is number and digest of its rows; "" is compared with nothing. Raises AttemptGone if one of the
        attempts is not there to be committed, and nothing is decided then; BatchDiffers; LogError.
        """
        # A task of its own: a driver that goes away must not leave half a decision.
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
        async with self._deciding.setdefault(name.of, asyncio.Lock()):
            self._require(name.query)
            if self.is_committed(name):
                self._check_repetition(name, content)
                session = self.attempts.session(name)
                of_batch = [] if session is None else list(session.attempts.values())
                await self._abort_others(name)
                return True, [one for one in of_batch if one.state is AttemptState.COMMITTING]
            if name.of not in self._sinks and len(self._sinks) >= self._settings.queries:
                raise TooManyAttempts(f"there are {len(self._sinks)} queries whose last batches are remembered")
            wanted = [self.attempts.named(owner, name, key) for key in dict.fromkeys(keys)]
            await self._commit_attempts(SinkRow(*name, int(once), _now_ms(), content), wanted)
            # What has begun while it was being decided comes too late.
            await self._abort_others(name)
            return False, wanted

    async def _abort_others(self, name: BatchName) -> None:
        """The batch is committed: whatever is open of it, or of an earlier one, is not part of that."""
        await self._decided(None, [], self.attempts.undecided(name))

    async def _commit_attempts(self, sink: SinkRow, wanted: Sequence[Attempt]) -> None:
        """Decide for ``wanted`` and against all others of the batch and of earlier ones."""
        for attempt in wanted:
            attempt.closing = True
        try:
            async for attempt in in_turns(wanted):
                await self._check_whole(attempt)
            named = set(wanted)
            of_batch = BatchName(sink.query, sink.target, sink.batch)
            others = [one for one in self.attempts.undecided(of_batch) if one not in named]
            await self._decided(sink, wanted, others)
        except BaseException:
            for attempt in wanted:
                attempt.closing = attempt.state is not AttemptState.OPEN
            raise

    async def _check_whole(self, attempt: Attempt) -> None:
        """Whether everywhere its transaction is open: acknowledged batches may be lost with the power where the node
        promises no more. Raises AttemptGone, LogError."""
        await attempt.settled()
        if self.among is not None:
            for place in await self.among.missing(attempt):
                raise AttemptGone(f"what the attempt wrote to {place[0]}-{place[1]} is not there any more")
            return
        async for place in in_turns(attempt.places_in_order()):
            at = self._node.logs.get(*place)
            if at is None:
                continue  # deleted meanwhile, and all of it is
            await at.ready()
            if attempt.row.producer_id not in at.state.transactions.open and attempt.writes_to(place):
                raise AttemptGone(f"what the attempt wrote to {place[0]}-{place[1]} is not there any more")

    async def _decided(self, sink: SinkRow | None, committed: Sequence[Attempt], aborted: Sequence[Attempt]) -> None:
        """Make it durable how attempts end, and begin to end them."""
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
        if sink is not None and (self.among is None or self.among.owns(query)):
            self._sinks[sink.query, sink.target] = sink
        for attempt in committed:
            attempt.state = AttemptState.COMMITTING
        for attempt in aborted:
            attempt.state = AttemptState.ABORTING
        self.ends.begin((*committed, *aborted))

    async def abort(self, owner: str, name: BatchName, keys: Sequence[Key] | None) -> bool:
        """Abort an owner's attempts of a batch, all of them if none is named, unless the batch was committed: whether
        it was. Raises LogError.
        """
        return await self._tasks.finish(self._abort(owner, name, keys))

    async def _abort(self, owner: str, name: BatchName, keys: Sequence[Key] | None) -> bool:
        async with self._deciding.setdefault(name.of, asyncio.Lock()):
            self._require(name.query)
            session = self.attempts.session(name)
            attempts = [] if session is None else [one for one in session.attempts.values() if one.row.owner == owner]
            named = None if keys is None else set(keys)
            await self._decided(
                None,
                [],
                [one for one in attempts if one.state is AttemptState.OPEN and (named is None or one.key in named)],
            )
            return self.is_committed(name)

    # --- time -------------------------------------------------------------------------------------------------------

    async def expire(self, now_ms: int) -> None:
        """A chore: abort what nobody is heard of any more, and forget queries after a long time."""
        now = time.monotonic()
        # Each waits for what its query is doing, which may take long.
        await self._rounds.each([one for one in self.attempts.sessions if one.deadline < now], self._expire)
        if now < self._swept + _SWEEP_S:
            return
        self._swept = now
        await self.forget(now_ms)

    async def _expire(self, session: Session) -> None:
        attempts = [one for one in session.attempts.values() if one.takes_batches]
        if attempts:
            name = session.name
            log.info("a sink's batch is aborted: nothing was heard of it", query=name.query, batch=name.number)
            self.expired += len(attempts)
            for owner in {one.row.owner for one in attempts}:
                await self.abort(owner, name, [one.key for one in attempts])

    async def forget(self, now_ms: int) -> None:
        """Forget the queries that have not committed anything for long."""
        forgotten = []
        async for name, sink in in_turns(list(self._sinks.items())):
            keep = self._settings.job_ms if sink.once else self._settings.query_ms
            if sink.used_ms + keep < now_ms and not self.attempts.is_written(name):
                forgotten.append(sink)
        if forgotten:
            # Rows that are still as they were: a query may have come again meanwhile.
            await self._node.db.run(lambda connection: forget_sinks(connection, forgotten))
            for sink in forgotten:
                of = sink.query, sink.target
                if self._sinks.get(of) == sink:
                    del self._sinks[of]
                    self._left_out.pop(of, None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
