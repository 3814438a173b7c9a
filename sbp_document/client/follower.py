"""Follower of other writers' appends to streams that are written here, while they get no appends of ours.

One FETCH asks a range server for all quiet streams and waits there: it answers for each as data arrives. Streams with
appends of ours need no watching: the offsets of our own batches show other writers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.barrier import Barrier

if TYPE_CHECKING:
    from sbp_document.client.channel import DocumentChannel
    from sbp_document.client.document_writer import DocumentWriter

_MOST_STREAMS = 4096


class FollowOptions(Struct):
    """Times in seconds. ``quiet``: since our last append, or the opening, until a stream is watched; ``wait``: of one
    request; ``pause``: until the next one.
    """

    quiet: float = 1.0
    wait: float = 5.0
    pause: float = 0.2


class Follower:
    """Watches quiet streams. ``writers`` returns all writers, ``channel_of`` the channel to the server of a stream's
    last range, if there is one.
    """

    def __init__(
        self,
        writers: Callable[[], Iterable[DocumentWriter]],
        channel_of: Callable[[int], DocumentChannel | None],
        options: FollowOptions,
        barrier: Barrier,
    ) -> None:
        self._barrier = barrier
        self._writers = writers
        self._channel_of = channel_of
        self._options = options
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._options.pause)
            await asyncio.gather(*(self._guard(channel, found) for channel, found in self._quiet().items()))

    async def _guard(self, channel: DocumentChannel, writers: list[DocumentWriter]) -> None:
        try:
            await self._watch(channel, writers)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            # An unexpected answer must not end the watch for good, nor that of other servers now.
            self._barrier.caught("following streams", error)

    def _quiet(self) -> dict[DocumentChannel, list[DocumentWriter]]:
        before = asyncio.get_running_loop().time() - self._options.quiet
        by_channel: dict[DocumentChannel, list[DocumentWriter]] = {}
        for writer in self._writers():
            if writer.is_quiet and writer.appended_at < before:
                channel = self._channel_of(writer.stream_id)
                if channel is not None and len(by_channel.setdefault(channel, [])) < _MOST_STREAMS:
                    by_channel[channel].append(writer)
        return by_channel

    async def _watch(self, channel: DocumentChannel, writers: list[DocumentWriter]) -> None:
        wanted = [(writer.stream_id, writer.confirm_offset) for writer in writers]
        async for position, entries in channel.watch(wanted, self._options.wait):
            self._barrier.call("following a stream", writers[position].note_foreign, entries)
