"""The interface of a backend's client, and the batches that the node makes of what it reads.

:class:`sbp_back.client.client.Client` implements it; other backends bring their own clients (:mod:`bridges.backends`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from bridges.formats.records import StoredBatch

if TYPE_CHECKING:
    from bridges.formats.records import Buffer
    from sbp_back.client.gathering import Gathering
    from sbp_back.client.replacing import Substitute
    from sbp_back.errors import SbpError
    from sbp_back.wire.model import Entry, RangeInfo, StreamInfo


class Writer(Protocol):
    """The writer of one stream. Batches are acknowledged in the order of their offsets."""

    epoch: int
    start_offset: int
    next_offset: int
    confirm_offset: int
    failed: SbpError | None

    @property
    def servers(self) -> frozenset[int]:
        """Return the range servers that hold the stream's data, if there are several."""

    def append(
        self, payload: Buffer, count: int, flags: int, timestamp: int, done: Callable[[SbpError | None], None]
    ) -> int:
        """Append a batch and return its base offset. Raises SbpError for a batch that cannot be stored."""

    async def close(self) -> None: ...


class Streams(Protocol):
    """A client of a backend."""

    async def create_stream(self, replica: int = 1, ack_count: int = 1, retention_ms: int = 0) -> StreamInfo: ...
    async def describe_stream(self, stream_id: int) -> StreamInfo: ...
    async def delete_stream(self, stream_id: int) -> None: ...
    async def list_ranges(self, stream_id: int) -> list[RangeInfo]: ...
    async def trim(self, stream_id: int, min_offset: int) -> int: ...
    async def open(self, stream_id: int, epoch: int) -> Writer: ...

    async def seal(self, stream_id: int, epoch: int) -> int:
        """End the stream for writers of ``epoch`` and earlier ones, durably, and return its end. Repeatable."""

    def fetch(
        self,
        stream_id: int,
        offset: int,
        max_bytes: int,
        done: Callable[[list[Entry] | SbpError], None],
        *,
        limit: int = -1,
    ) -> None: ...

    def locate(self, stream_id: int, offset: int, max_bytes: int, limit: int) -> tuple[int, int, int, int] | None:
        """Return (start, end, bytes of payload, batches) of what a fetch would find; None if that needs a request."""

    def gathering(self) -> Gathering | None:
        """Return several fetches in one request; None if the backend does not support it."""

    async def fetch_entries(self, stream_id: int, offset: int, max_bytes: int, *, limit: int = -1) -> list[Entry]: ...

    @property
    def cannot_replace(self) -> str:
        """Return why entries cannot be replaced, in a sentence; empty if they can."""

    async def replace(self, epoch: int, old: Sequence[Entry], new: Sequence[Substitute | Entry]) -> None:
        """Replace ``old``, adjacent entries as they were fetched, by ``new``, durably. Raises ``SbpError``."""

    def bytes_between(self, stream_id: int, offsets: Sequence[int]) -> list[int] | None:
        """Return the bytes of payload from each of ``offsets``, ascending, up to the next one; None if unknown."""

    async def close(self) -> None: ...


def stored_batches(entries: Iterable[Entry]) -> list[StoredBatch]:
    return [StoredBatch(e.base_offset, e.end_offset, e.flags, e.payload, e.timestamp) for e in entries]
