"""A lane: many questions to another node over one stream (:mod:`bridges.cluster.peers.stream`), answered in any order.

A question has a number, which its answer repeats; the bytes around the number are up to the kind of the lane. When the
stream breaks, the outcome of each question without an answer is unknown.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from anabranch_kit.memory.budget import Kind
from bridges.errors import PeerUnreachable

if TYPE_CHECKING:
    from bridges.cluster.peers.stream import PeerStream

_UNDER_WAY = 16 * 1024 * 1024
"""Most bytes of unanswered questions on a lane; a single question may be larger."""


class Numbered(Protocol):
    """An answer with the number of its question."""

    @property
    def number(self) -> int: ...


A = TypeVar("A", bound=Numbered)


class Lane(Generic[A]):
    """The asking side of a lane. ``connect`` opens its stream, and ``close`` closes it."""

    def __init__(
        self,
        node_id: int,
        connect: Callable[[], Awaitable[PeerStream]],
        close: Callable[[PeerStream], None],
        decode: Callable[[bytes], A],
    ) -> None:
        self._node_id = node_id
        self._connect = connect
        self._close = close
        self._decode = decode
        self._number = 0
        # The size of each unanswered question, and the callback for its answer.
        self._asked: dict[int, tuple[int, Callable[[A | None], None]]] = {}
        self._bytes = 0
        self._room = asyncio.Event()
        self._sending = asyncio.Lock()
        self._stream: PeerStream | None = None
        self._opened = asyncio.Event()
        self._lost: PeerUnreachable | None = None
        self.task = asyncio.create_task(self._run(), name=f"answers of node {node_id}")

    @property
    def is_over(self) -> bool:
        """Return whether the lane takes no more questions."""
        return self._lost is not None

    async def open(self) -> None:
        """Wait until the stream is open. Raises PeerUnreachable."""
        await self._opened.wait()
        if self._lost is not None:
            raise self._lost

    async def send(self, encode: Callable[[int], bytes], answered: Callable[[A | None], None]) -> None:
        """Send a question after those before it; return when there is room for the next one.

        ``encode`` makes its bytes with its number. ``answered`` is called once: with the answer, or with None if none
        will come. Raises PeerUnreachable, and errors of ``encode``, if nothing was sent.
        """
        await self._send(self._next(), encode, answered)

    async def ask(self, encode: Callable[[int], bytes], patience_s: float) -> A:
        """Return the answer to a question. Raises PeerUnreachable, and errors of ``encode``."""
        future: asyncio.Future[A | None] = asyncio.get_running_loop().create_future()
        number = self._next()
        try:
            async with asyncio.timeout(patience_s):
                await self._send(number, encode, lambda found: None if future.done() else future.set_result(found))
                answer = await future
        except TimeoutError:
            raise PeerUnreachable(f"node {self._node_id} has not answered for {patience_s:g} s") from None
        finally:
            self._settle(number, None)
        if answer is None:
            assert self._lost is not None
            raise self._lost
        return answer

    def end(self, reason: str) -> None:
        """Close the stream: nothing more is answered."""
        if self._lost is not None:
            return
        self._lost = PeerUnreachable(f"node {self._node_id} cannot be asked: {reason}")
        self.task.cancel()
        self._opened.set()
        self._room.set()
        if self._stream is not None:
            self._stream.lose(reason)
            self._close(self._stream)
        for number in list(self._asked):
            self._settle(number, None)

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _send(self, number: int, encode: Callable[[int], bytes], answered: Callable[[A | None], None]) -> None:
        async with self._sending:  # first come, first served
            await self.open()
            while self._bytes >= _UNDER_WAY and self._lost is None:
                self._room.clear()
                await self._room.wait()
            if self._lost is not None:
                raise self._lost
            raw = encode(number)
            self._asked[number] = len(raw), answered
            self._bytes += len(raw)
            assert self._stream is not None
            try:
                await self._stream.write(raw)
            except PeerUnreachable as error:
                self.end(str(error))

    def _settle(self, number: int, answer: A | None) -> None:
        found = self._asked.pop(number, None)
        if found is not None:
            size, answered = found
            self._bytes -= size
            self._room.set()
            answered(answer)

    async def _run(self) -> None:
        reason = "it has closed the connection"
        try:
            stream = self._stream = await self._connect()
            self._opened.set()
            while (raw := await stream.read()) is not None:
                stream.account.give(Kind.REQUESTS, len(raw))
                answer = self._decode(raw)
                self._settle(answer.number, answer)
        except (PeerUnreachable, msgspec.DecodeError, struct.error) as error:
            reason = str(error)
        finally:
            self.end(reason)


class Answers:
    """The answering side of a lane.

    ``answer`` is called with the questions in the order of their arrival, and its results are sent in any order. An
    exception of it ends the stream. At ``at_once`` questions or ``bytes_at_once`` in work, reading pauses.
    """

    def __init__(
        self, stream: PeerStream, answer: Callable[[bytes], Awaitable[bytes]], at_once: int, bytes_at_once: int
    ) -> None:
        self._stream = stream
        self._answer = answer
        self._at_once = at_once
        self._bytes_at_once = bytes_at_once
        self._working: set[asyncio.Future[bytes]] = set()
        self._bytes = 0
        self._less = asyncio.Event()
        self._unsent: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._stopped = False
        self._finishes = True
        self._failed: BaseException | None = None
        self._over = False

    async def run(self, first: bytes | None = None) -> None:
        """Answer ``first``, and the questions after it, until the stream ends or :meth:`stop` is called."""
        sending = asyncio.create_task(self._send())
        self._reading = reading = asyncio.create_task(self._read(first))
        if self._stopped:
            reading.cancel()
        try:
            await asyncio.wait({reading})
            if self._failed is not None:
                raise self._failed
            if not reading.cancelled():
                reading.result()
            while self._working and self._finishes:
                await asyncio.wait(self._working, return_when=asyncio.FIRST_COMPLETED)
            while self._unsent:
                await self._stream.write(self._unsent.popleft())
        finally:
            self._over = True
            tasks = [reading, sending, *(one for one in self._working if isinstance(one, asyncio.Task))]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self, finishes: bool = True) -> None:
        """End the stream; with ``finishes``, once everything that has arrived is answered."""
        self._stopped = True
        self._finishes = finishes
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, first: bytes | None) -> None:
        raw = first
        while raw is not None or (raw := await self._stream.read()) is not None:
            try:
                working = asyncio.ensure_future(self._answer(raw))
            except BaseException:
                self._stream.account.give(Kind.REQUESTS, len(raw))
                raise
            self._working.add(working)
            self._bytes += len(raw)
            working.add_done_callback(partial(self._take, len(raw)))
            raw = None
            while len(self._working) >= self._at_once or self._bytes >= self._bytes_at_once:
                self._less.clear()
                await self._less.wait()

    def _take(self, size: int, done: asyncio.Future[bytes]) -> None:
        self._working.discard(done)
        self._bytes -= size
        self._stream.account.give(Kind.REQUESTS, size)
        self._less.set()
        if self._over or done.cancelled():
            return
        self._failed = self._failed or done.exception()
        if self._failed is not None:
            self.stop(finishes=False)
        else:
            self._unsent.append(done.result())
            self._more.set()

    async def _send(self) -> None:
        while True:
            self._more.clear()
            while self._unsent:
                await self._stream.write(self._unsent.popleft())
            await self._more.wait()
