"""A node's attempts of sinks' tasks, and the batches of queries that they belong to, with indexes for each lookup.

An attempt is looked up by its producer or by the topics it writes to, the batches being written by their query. Nothing
here waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec import Struct, field

from bridges.errors import LogError
from bridges.log.transactions.open_transaction import OpenPlaces, OpenTransaction
from spark_pipeline.node.sinks.tables import AttemptRow, AttemptState, Hold

Key = tuple[int, int]
"""Producer id and epoch of an attempt."""
Query = tuple[str, str]
"""Id of a query, and its target: the name of a topic, "" if each of its rows names one."""


class BatchName(NamedTuple):
    """The identity of a query's batch: the same for every repetition, by whichever principal."""

    query: str
    target: str
    number: int

    @property
    def query_key(self) -> Query:
        return self.query, self.target


class WriteRefused(LogError):
    """The sink's request cannot be carried out, and a retry will not change that."""


class BatchGoesBack(WriteRefused):
    """The query has committed a later batch: this one is not a repetition of its last."""


class BatchDiffers(WriteRefused):
    """The query has committed a batch of this number with other rows: this one is not its repetition."""


class AttemptGone(WriteRefused):
    """The attempt is not open: it has been aborted, or was never begun here."""


class TooManyAttempts(LogError):
    """The limit of open attempts, of the partitions that they write to, or of queries is reached."""

    retriable = True


class Session(Struct, eq=False):
    """One batch of one query while it is written. Times are on the monotonic clock in seconds.

    ``timeout`` is the silence after which the batch is aborted; at ``end`` it is aborted in any case.
    """

    name: BatchName
    timeout: float
    end: float
    deadline: float = 0.0
    attempts: dict[Key, Attempt] = field(default_factory=dict)

    def touch(self) -> None:
        """Put off the deadline: a request for this batch has arrived."""
        self.deadline = min(self.end, time.monotonic() + self.timeout)


class Attempt(OpenTransaction):
    """One attempt of one task. ``state`` is the decision; ``closing``: it takes no batches any more."""

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
        # The producer's next epoch: from this marker on, the log refuses batches of the attempt's own epoch.
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
        """Return whether a request of the attempt is in progress, or a batch of it is in flight."""
        return self.lock.locked() or not self.quiet.is_set()

    async def await_quiet(self) -> None:
        async with self.lock:
            await self.quiet.wait()


class Attempts:
    """All attempts whose transactions have not ended everywhere.

    ``places`` are the partitions that they write to, at most ``most_places``.
    """

    def __init__(self, most_places: int, holding: Callable[[str], Hold]) -> None:
        self._by_key: dict[Key, Attempt] = {}
        self._by_nonce: dict[tuple[str, str], Attempt] = {}
        self._sessions: dict[Query, dict[int, Session]] = {}
        self.holding = holding
        """Returns the ownership check of a query. It runs inside each database transaction that changes the query, and
        raises if this node no longer owns it."""
        self.places: OpenPlaces[Attempt] = OpenPlaces(most_places)

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def sessions(self) -> Iterator[Session]:
        """Return the batches that are being written."""
        return (session for batches in self._sessions.values() for session in batches.values())

    # --- found ------------------------------------------------------------------------------------------------------

    def all(self) -> list[Attempt]:
        """Return a list of all attempts, safe to iterate while they change."""
        return list(self._by_key.values())

    def of_nonce(self, owner: str, nonce: str) -> Attempt | None:
        """Return the attempt that was begun with ``nonce``."""
        return self._by_nonce.get((owner, nonce))

    def of_key(self, key: Key) -> Attempt | None:
        """Return an attempt of any owner and any state."""
        return self._by_key.get(key)

    def open(self, owner: str, key: Key) -> Attempt:
        """Return an attempt that takes batches. Raises AttemptGone."""
        attempt = self._by_key.get(key)
        if attempt is None or attempt.row.owner != owner or not attempt.takes_batches:
            raise AttemptGone(
                "the attempt is not open any more: its batch was decided without it, or it was aborted after its "
                "timeout"
            )
        return attempt

    def find_in_batch(self, owner: str, name: BatchName, key: Key) -> Attempt:
        """Return an attempt of the batch ``name`` that takes batches. Raises AttemptGone."""
        attempt = self._by_key.get(key)
        if attempt is None or attempt.row.owner != owner or attempt.session.name != name:
            raise AttemptGone(
                f"producer {key[0]}, epoch {key[1]} is no attempt of batch {name.number} of query {name.query}"
            )
        return self.open(owner, key)

    def session(self, name: BatchName) -> Session | None:
        """Return the batch if it is being written."""
        return self._sessions.get(name.query_key, {}).get(name.number)

    def is_written(self, query: Query) -> bool:
        """Return whether any batch of the query is being written."""
        return query in self._sessions

    def undecided(self, name: BatchName) -> list[Attempt]:
        """Return the undecided attempts of a query's batch and of its earlier batches."""
        return [
            attempt
            for number, session in self._sessions.get(name.query_key, {}).items()
            if number <= name.number
            for attempt in session.attempts.values()
            if attempt.state is AttemptState.OPEN
        ]

    # --- changed ----------------------------------------------------------------------------------------------------

    def begun_session(self, name: BatchName, timeout: float, life: float) -> Session:
        """Return the session of a batch, a new one if needed; ``timeout`` and ``life`` are in seconds."""
        batches = self._sessions.setdefault(name.query_key, {})
        session = batches.get(name.number)
        if session is None:
            session = batches[name.number] = Session(name, timeout, time.monotonic() + life)
        session.touch()
        return session

    def add(self, attempt: Attempt) -> None:
        self._by_key[attempt.key] = attempt
        attempt.session.attempts[attempt.key] = attempt
        if attempt.nonce:
            self._by_nonce[attempt.row.owner, attempt.nonce] = attempt

    def remove(self, attempt: Attempt) -> None:
        """Remove an attempt that has ended everywhere."""
        self._by_key.pop(attempt.key, None)
        if self._by_nonce.get((attempt.row.owner, attempt.nonce)) is attempt:
            del self._by_nonce[attempt.row.owner, attempt.nonce]
        self.places.forget(attempt)
        session = attempt.session
        session.attempts.pop(attempt.key, None)
        batches = self._sessions.get(session.name.query_key, {})
        if not session.attempts and batches.get(session.name.number) is session:
            del batches[session.name.number]
            if not batches:
                del self._sessions[session.name.query_key]
