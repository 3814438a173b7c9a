"""Interface of an engine to the database's thread: SQLite (:mod:`anabranch_kit.sql.sqlite`) or PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from anabranch_kit.sql.connection import Connection

Closure = Callable[[Connection], Any]


class SqlFailed(Exception):
    """The database could not commit. Nothing of the closure took effect, unless the process stopped before it asked."""


class SqlFull(SqlFailed):
    """There is no room on the database's disk."""


class SqlDamaged(SqlFailed):
    """The disk failed, or what is on it is no database any more."""


Refuse = Callable[[SqlFailed], None]


class Job:
    """A closure and its outcome: ``result``, or ``error`` (its own, or a :class:`SqlFailed`).

    Each caller has a subclass of its own. With ``flush`` it survives loss of power even where the engine promises less.
    A closure that ``frees`` room on the disk, or makes data readable, may use the reserve on a full disk.
    """

    __slots__ = ("error", "flush", "fn", "frees", "result")

    def __init__(self, fn: Closure, flush: bool, frees: bool) -> None:  # one is made for every closure, without names
        self.fn = fn
        self.flush = flush
        self.frees = frees
        self.result: Any = None
        self.error: Exception | None = None

    def give(self) -> None:
        """Give the outcome to its waiter, on the loop."""
        raise NotImplementedError


class Engine(Protocol):
    """All but the constructor blocks; :meth:`open` comes first, the rest in one thread."""

    name: str
    """Name of the database and its place, for people."""
    shared: bool
    """Other processes may change the database."""
    notice: str
    """The statement, with a channel's name, by which a transaction tells listeners that it was committed; empty where
    there is none."""
    commits: int
    """Transactions committed since opening."""
    begun: int
    """Transactions begun by :meth:`execute` since opening."""

    def open(self) -> None:
        """Connect and bring the schema up to date. Raises StoreVersionError, StoreCorrupt or StoreError."""
        ...

    @property
    def connection(self) -> Connection:
        """Return the connection, for the thread; before that starts, for the opener of the engine."""
        ...

    def execute(self, group: list[Job], refuse: Refuse) -> None:
        """Run all of ``group`` in its order and commit; each has its result or error then. After an exception the state
        is unknown. While the outcome takes long to find out, ``refuse`` is called for waiting jobs.
        """
        ...

    def listen(self, channel: str) -> AsyncIterator[None]:
        """Yield an item once it listens, after each lost connection to the server, and after notices; notices during a
        loss are lost. To be iterated on the loop, where ``notice`` is set.
        """
        ...

    def stop_waiting(self) -> None:
        """Stop waiting for unknown outcomes: the process ends. From any thread."""
        ...

    def idle(self) -> None:
        """Do work between two groups, after the results of the last one were given."""
        ...

    def close(self) -> None: ...
