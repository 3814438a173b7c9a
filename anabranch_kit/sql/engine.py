"""What the database's thread asks of an engine: SQLite (:mod:`anabranch_kit.sql.sqlite`) or PostgreSQL."""

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
    """A closure and what became of it: ``result``, or ``error`` (its own, or a :class:`SqlFailed`).

    Whoever waits for it has a class of their own. With ``flush`` it survives loss of power even where the engine
    promises less; what ``frees`` room on the disk, or lets somebody read, may take that of the reserve, where there is
    no other.
    """

    __slots__ = ("error", "flush", "fn", "frees", "result")

    def __init__(self, fn: Closure, flush: bool, frees: bool) -> None:  # one is made for every closure, without names
        self.fn = fn
        self.flush = flush
        self.frees = frees
        self.result: Any = None
        self.error: Exception | None = None

    def give(self) -> None:
        """Tell who waits, on the loop, what became of it."""
        raise NotImplementedError


class Engine(Protocol):
    """All but the constructor blocks; :meth:`open` comes first, the rest in one thread."""

    name: str
    shared: bool
    """Other processes may change what is there."""
    notice: str
    """The statement, with a channel's name, by which a transaction tells listeners that it was committed; empty where
    there is none."""
    """For people: what it is and where."""
    commits: int
    """Transactions committed since opening."""

    def open(self) -> None:
        """Connect and bring the schema up to date. Raises StoreVersionError, StoreCorrupt or StoreError."""
        ...

    @property
    def connection(self) -> Connection:
        """For the thread; before that starts, for whoever opened it."""
        ...

    def execute(self, group: list[Job], refuse: Refuse) -> None:
        """Run all of ``group`` in its order and commit; each has its result or error then. An exception says that
        nothing is known any more. While it takes long to find out, ``refuse`` is called for what waits behind."""
        ...

    def listen(self, channel: str) -> AsyncIterator[None]:
        """To be asked on the loop, where ``notice`` is something: an item when it has begun to listen, after each time
        the connection was lost again, and after notices. What is told meanwhile is lost."""
        ...

    def stop_waiting(self) -> None:
        """From any thread: the process ends, so what cannot be found out need not be."""
        ...

    def idle(self) -> None:
        """Between two groups, when the last one's results were given away."""
        ...

    def close(self) -> None: ...
