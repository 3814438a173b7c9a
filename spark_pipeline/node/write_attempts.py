"""Attempts of sinks' tasks as a node knows them, and the batches of queries that they belong to.

Everything is found by what it is asked for by: an attempt by its producer or by the topics it writes to, the batches
that are being written by their query. Nothing here waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from bridges.errors import LogError
from bridges.log.transactions.open_transaction import OpenPlaces, OpenTransaction
from spark_pipeline.node.write_tables import AttemptRow, AttemptState, Hold

if TYPE_CHECKING:
    from bridges.catalog.sql import Connection

Key = tuple[int, int]
"""Producer id and epoch of an attempt."""
Query = tuple[str, str]
"""Id of a query, and what it writes to: the name of a topic, "" where each of its rows tells one."""


class BatchName(NamedTuple):
    """A batch of a query, by which it is known over all its repetitions, whoever runs the query then."""

    query: str
    target: str
    number: int

    @property
    def of(self) -> Query:
        return self.query, self.target


class WriteRefused(LogError):
    """The sink's request cannot be carried out, and never will be."""


class BatchGoesBack(WriteRefused):
    """The query has committed a later batch: this one is not the repetition of its last."""


class BatchDiffers(WriteRefused):
    """The query has committed a batch of this number with other rows: this one is no repetition."""


class AttemptGone(WriteRefused):
    """The attempt is not open: it has been aborted, or was never begun here."""


class TooManyAttempts(LogError):
    """There are as many open attempts, partitions that they write to, or queries, as there may be."""

    retriable = True


class Session(Struct, eq=False):
    """One batch of one query while it is written, by whomever. Times on the monotonic clock in seconds; ``timeout`` is
    the silence after which it is aborted, ``end`` when it is in any case."""

    name: BatchName
    timeout: float
    end: float
    deadline: float = 0.0
    attempts: dict[Key, Attempt] = field(default_factory=dict)

    def touch(self) -> None:
        """Somebody has been heard of."""
        self.deadline = min(self.end, time.monotonic() + self.timeout)


class Attempt(OpenTransaction):
    """One attempt of one task. ``state`` is what was decided; ``closing``: no batch is taken any more."""

    fences = True

    row: AttemptRow
    session: Session
    nonce: str
    state: AttemptState = AttemptState.OPEN
    closing: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def key(self) -> Key:
        return self.row.producer_id, self.row.epoch

    @property
    def producer_id(self) -> int:
        return self.row.producer_id

    @property
    def marker_epoch(self) -> int:
        # The epoch that the producer gets next: from then on the log itself refuses what this one wrote.
        return self.row.epoch + 1

    @property
    def commits(self) -> bool:
        return self.state is AttemptState.COMMITTING

    @property
    def about(self) -> dict[str, object]:
        return {"query": self.row.query, "batch": self.row.batch}

    @property
    def takes_batches(self) -> bool:
        return self.state is AttemptState.OPEN and not self.closing

    @property
    def is_busy(self) -> bool:
        """Whether a request of it is in progress, or a batch on its way into a log."""
        return self.lock.locked() or not self.quiet.is_set()

    async def settled(self) -> None:
        async with self.lock:
            await self.quiet.wait()


class Attempts:
    """All attempts whose transactions have not ended everywhere; ``places`` is where they write, at most to
    ``most_places`` partitions."""

    def __init__(self, most_places: int) -> None:
        self._by_key: dict[Key, Attempt] = {}
        self._by_nonce: dict[tuple[str, str], Attempt] = {}
        self._sessions: dict[Query, dict[int, Session]] = {}
        self.holding: Callable[[str], Hold] = lambda query: _anybody
        """What is asked, by query, in the very transaction that changes anything: whether this node still may. Among
        several nodes each query has one."""
        self.places: OpenPlaces[Attempt] = OpenPlaces(most_places)

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def sessions(self) -> Iterator[Session]:
        """Batches that are being written."""
        return (session for batches in self._sessions.values() for session in batches.values())

    # --- found ------------------------------------------------------------------------------------------------------

    def all(self) -> list[Attempt]:
        """All of them, as they are now."""
        return list(self._by_key.values())

    def of_nonce(self, owner: str, nonce: str) -> Attempt | None:
        """The attempt that was begun with it."""
        return self._by_nonce.get((owner, nonce))

    def of_key(self, key: Key) -> Attempt | None:
        """Whoever it belongs to, and whatever was decided of it."""
        return self._by_key.get(key)

    def open(self, owner: str, key: Key) -> Attempt:
        """An attempt that takes batches. Raises AttemptGone."""
        attempt = self._by_key.get(key)
        if attempt is None or attempt.row.owner != owner or not attempt.takes_batches:
            raise AttemptGone(
                "the attempt is not open any more: its batch was decided without it, or nothing was heard of it for so "
                "long that it was aborted"
            )
        return attempt

    def named(self, owner: str, name: BatchName, key: Key) -> Attempt:
        """An attempt of that batch which takes batches. Raises AttemptGone."""
        attempt = self._by_key.get(key)
        if attempt is None or attempt.row.owner != owner or attempt.session.name != name:
            raise AttemptGone(
                f"producer {key[0]}, epoch {key[1]} is no attempt of batch {name.number} of query {name.query}"
            )
        return self.open(owner, key)

    def session(self, name: BatchName) -> Session | None:
        """A batch that is being written."""
        return self._sessions.get(name.of, {}).get(name.number)

    def is_written(self, query: Query) -> bool:
        """Whether any batch of a query is."""
        return query in self._sessions

    def undecided(self, name: BatchName) -> list[Attempt]:
        """Attempts of a query's batch, and of earlier ones, of which nothing is decided."""
        return [
            attempt
            for number, session in self._sessions.get(name.of, {}).items()
            if number <= name.number
            for attempt in session.attempts.values()
            if attempt.state is AttemptState.OPEN
        ]

    # --- changed ----------------------------------------------------------------------------------------------------

    def begun_session(self, name: BatchName, timeout: float, life: float) -> Session:
        """The batch, which somebody writes; ``timeout`` and ``life`` in seconds."""
        batches = self._sessions.setdefault(name.of, {})
        session = batches.get(name.number)
        if session is None:
            session = batches[name.number] = Session(name, timeout, time.monotonic() + life)
        session.touch()
        return session

    def add(self, attempt: Attempt) -> None:
        """From now on it is known."""
        self._by_key[attempt.key] = attempt
        attempt.session.attempts[attempt.key] = attempt
        if attempt.nonce:
            self._by_nonce[attempt.row.owner, attempt.nonce] = attempt

    def remove(self, attempt: Attempt) -> None:
        """It has ended everywhere."""
        self._by_key.pop(attempt.key, None)
        if self._by_nonce.get((attempt.row.owner, attempt.nonce)) is attempt:
            del self._by_nonce[attempt.row.owner, attempt.nonce]
        self.places.forget(attempt)
        session = attempt.session
        session.attempts.pop(attempt.key, None)
        batches = self._sessions.get(session.name.of, {})
        if not session.attempts and batches.get(session.name.number) is session:
            del batches[session.name.number]
            if not batches:
                del self._sessions[session.name.of]


def _anybody(connection: Connection) -> None:
    """Of a node by itself."""
