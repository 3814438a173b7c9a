"""The metrics of all workers of a node, served by the first worker at one address; each sample has the label
``worker``.

At every scrape the first worker asks each other one over a stream. The other sends its text in slices, so that no event
loop is held up. Samples that name topics, groups and the like come with their labels, because the first worker decides
who may see them. The received text counts in the memory budget until it is written, and is bounded per worker. A worker
that does not answer in time has only the sample ``anabranch_worker_up`` 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec import Struct

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import in_turns
from bridges.errors import LogError, PeerUnreachable

# Import it when a worker starts. The console imports it in a thread, and two threads that import prometheus_client at
# the same time may find it half initialized.
from bridges.metric_text import Gathered, Piece, pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Others, Ownership
    from bridges.cluster.peers.stream import PeerStream
    from bridges.metric_text import Shows
    from bridges.metrics import Metrics

_log = structlog.get_logger("anabranch.metrics")

STREAM = "metrics"
PATIENCE_S = 5.0
"""Seconds to wait for a worker: half of Prometheus' default timeout."""
MOST = 64 * 1024 * 1024
"""Most bytes of a worker's text."""
_HEAD = b"# HELP anabranch_worker_up 1 if the worker reported its metrics, else 0.\n# TYPE anabranch_worker_up gauge\n"


class Opening(Struct, array_like=True):
    """The opening message, which is empty."""


class WorkerMetrics:
    """The metrics of worker ``number`` (the node ``workers[number]``), and access to those of the others."""

    def __init__(
        self, peers: Others, cluster: Ownership, metrics: Metrics, number: int, workers: Sequence[int]
    ) -> None:
        self._peers = peers
        self._cluster = cluster
        self._metrics = metrics
        self._number = number
        self._workers = workers

    async def serve(self, opening: Opening, stream: PeerStream) -> None:
        """Send this worker's metrics to another worker."""
        async for piece in pieces(self._metrics, worker=f"{self._number}"):
            await stream.write(msgspec.msgpack.encode(piece))
        await stream.done_writing()

    async def rendered(self, shows: Shows) -> AsyncGenerator[bytes, None]:
        """Yield the text of a scrape, in parts."""
        gathered = Gathered(shows)
        asked = [
            asyncio.create_task(self._ask(number, node_id))
            for number, node_id in enumerate(self._workers)
            if number != self._number
        ]
        try:
            async for piece in pieces(self._metrics, worker=f"{self._number}"):
                gathered.add(piece)
            up = {self._number: True}
            for number, told in zip(
                (one for one in range(len(self._workers)) if one != self._number),
                await asyncio.gather(*asked),
                strict=True,
            ):
                up[number] = told is not None
                if told is not None:
                    async for piece in in_turns(told.pieces):
                        gathered.add(piece)
            yield _HEAD
            for number in sorted(up):
                yield b'anabranch_worker_up{worker="%d"} %d.0\n' % (number, up[number])
            for part in gathered.parts():
                yield part
        finally:
            for task in asked:
                task.cancel()
            for ended in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(ended, _Told):
                    ended.let_go()

    async def _ask(self, number: int, node_id: int) -> _Told | None:
        """Return a worker's metrics, None if it does not answer."""
        member = next((one for one in self._cluster.nodes if one.node_id == node_id), None)
        try:
            if member is None:
                raise PeerUnreachable("it does not serve")
            async with asyncio.timeout(PATIENCE_S):
                return await self._read(member)
        except (LogError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            reason = str(error) or type(error).__name__
            _log.warning("a worker does not tell what it counts", asked=number, error=reason)
            return None

    async def _read(self, member: Member) -> _Told:
        stream = await self._peers.stream(member, STREAM, Opening())
        told = _Told(stream)
        try:
            while (raw := await stream.read()) is not None:
                told.size += len(raw)
                if told.size > MOST:
                    raise PeerUnreachable(f"it tells more than {MOST} bytes")
                told.pieces.append(msgspec.msgpack.decode(raw, type=Piece))
            return told
        except BaseException:
            told.let_go()
            raise
        finally:
            self._peers.close_stream(member, stream)


class _Told:
    """The metrics received from a worker, counted in its stream's account until :meth:`let_go`."""

    __slots__ = ("_stream", "pieces", "size")

    def __init__(self, stream: PeerStream) -> None:
        self._stream = stream
        self.pieces: list[Piece] = []
        self.size = 0

    def let_go(self) -> None:
        size, self.size = self.size, 0
        self.pieces = []
        self._stream.account.give(Kind.REQUESTS, size)
