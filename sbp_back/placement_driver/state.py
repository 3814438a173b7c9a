"""What a placement driver must remember, as an interface that SQLite and etcd can both give.

The rules of the placement driver (``driver.py``) are written as functions of one :class:`Transaction`; a
:class:`PdState` runs each of them atomically and serialisably. A check and the change that rests on it can
never be separated by another request (docs/protocols/sbp.md, "Placement driver").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct, field

from sbp_back.wire.model import ObjectInfo, RangeServerInfo

T = TypeVar("T")


class StateError(Exception):
    """The state could not be read or written; whether a change took effect is unknown. Message: for an operator."""


class StateVersionError(StateError):
    """The state was written by a version this one does not read."""


LAST_STREAM = (1 << 63) - 1


class StreamRow(Struct):
    """A stream. ``trim_offset``: the largest offset it was ever trimmed to. ``deleted`` rows stay for ever, so that
    a range server can learn for certain that its data of the stream may go. ``inside``: it was made from inside the
    placement driver's process (of format 4 and before nobody knows that)."""

    stream_id: int
    replica: int
    ack_count: int
    retention_ms: int
    trim_offset: int = 0
    deleted: bool = False
    inside: bool = False


class RangeRow(Struct):
    """A range; ``start`` is where it began, trimmed or not; ``end`` is -1 while it is open. ``document``: it is written
    by the server itself for clients of sbp-v0.1, and no writer of another dialect may take it for its own. ``floor``:
    everything below it was promised to readers, so the range cannot end before."""

    stream_id: int
    index: int
    epoch: int
    start: int
    end: int
    replica_count: int
    ack_count: int
    server_ids: list[int] = field(default_factory=list)
    document: bool = False
    floor: int = 0

    @property
    def is_open(self) -> bool:
        return self.end < 0


class Transaction(Protocol):
    """Reads and changes of one request. Every method may raise :class:`StateError`."""

    def next_stream_id(self) -> int:
        """A stream id never given before and never to be given again, counted from 0."""
        ...

    def next_server_id(self) -> int:
        """A range server id never given before, counted from 0."""
        ...

    def claim_server_id(self, server_id: int) -> None:
        """Make sure that ``next_server_id`` never gives ``server_id``: somebody already uses it."""
        ...

    def get_stream(self, stream_id: int) -> StreamRow | None:
        """The stream, also when it is deleted."""
        ...

    def put_stream(self, stream: StreamRow) -> None: ...

    def last_range(self, stream_id: int) -> RangeRow | None: ...

    def get_range(self, stream_id: int, index: int) -> RangeRow | None: ...

    def put_range(self, row: RangeRow) -> None:
        """Insert or replace. The servers of a range are fixed when it is inserted, but for :meth:`adopt_server`."""
        ...

    def ranges_of_stream(self, stream_id: int) -> list[RangeRow]:
        """In order of index."""
        ...

    def ranges_of_server(self, server_id: int) -> list[RangeRow]:
        """In order of stream, then index."""
        ...

    def open_ranges_of_server(self, server_id: int, first: int = 0, last: int = LAST_STREAM) -> list[RangeRow]:
        """Of streams from ``first`` to ``last``, in order of stream."""
        ...

    def end_ranges(self, rows: Sequence[RangeRow]) -> None:
        """Write the ends of these ranges, which are the last ones of their streams; a stream that was trimmed beyond is
        trimmed to there. A server may have had very many: it takes as many statements for all as for one."""
        ...

    def adopt_server(self, server_id: int, by: int) -> None:
        """All that server ``server_id`` has, and all that it still has to be told, is ``by``'s from now on; it never
        gets anything again."""
        ...

    def adopted_servers(self) -> dict[int, int]:
        """Those that :meth:`adopt_server` was called for, with the server that has adopted them now."""
        ...

    def drop_ranges(self, stream_id: int, below_index: int | None) -> None:
        """Forget the ranges with an index below ``below_index``; all of them when it is None."""
        ...

    def put_object(self, known: ObjectInfo) -> None:
        """Remember an object of a range, in the place of all that it has offsets of."""
        ...

    def objects_of_stream(self, stream_id: int) -> list[ObjectInfo]:
        """In order."""
        ...

    def drop_objects(self, stream_id: int, below: int | None) -> None:
        """Forget those that end at offset ``below`` or before; all of them when it is None."""
        ...

    def get_servers(self) -> dict[int, RangeServerInfo]: ...

    def put_server(self, server: RangeServerInfo) -> None: ...

    def add_deletion(self, server_id: int, stream_id: int) -> None:
        """Remember that ``server_id`` still has to be told that the stream is gone."""
        ...

    def deletions_of_server(self, server_id: int, most: int) -> list[int]: ...

    def drop_deletion(self, server_id: int, stream_id: int) -> None: ...

    def add_news(self, server_id: int, stream_id: int, index: int) -> None:
        """Remember that ``server_id`` still has to be told where range ``index`` of the stream ends; -1: how far the
        stream is trimmed."""
        ...

    def news_of_server(self, server_id: int, limit: int) -> list[tuple[int, int]]:
        """(stream, index) of at most ``limit`` of them."""
        ...

    def drop_news(self, server_id: int, stream_id: int, index: int) -> None: ...


class PdState(Protocol):
    """Runs transactions without blocking the event loop."""

    @property
    def identity(self) -> str:
        """22 URL-safe characters, made with the state and kept for its life (see sbp_back/wire/identity.py)."""
        ...

    def submit(
        self,
        work: Callable[[Transaction], T],
        done: Callable[[T], None],
        failed: Callable[[StateError], None],
        *,
        frees: bool = False,
    ) -> None:
        """Run ``work`` atomically; then, on the loop and durably, call ``done`` with its result or ``failed``. What
        ``frees`` room may take what is kept for that on a disk that is full.

        Submissions take effect and are answered in order. ``work`` runs off the loop and may run more than once
        (an implementation may retry it on conflict), so it must touch nothing but the transaction. An exception in
        ``work`` undoes its changes; one that is no :class:`StateError` is a defect and is wrapped into one.
        """
        ...

    async def close(self) -> None:
        """Finish what was submitted, then release everything. Idempotent."""
        ...
