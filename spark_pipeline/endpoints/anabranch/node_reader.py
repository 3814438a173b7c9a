"""Reads partitions through their node, if it does not expose its range servers.

The next request is in flight, in a thread, while the caller decodes the last answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from bridges.formats.records import StoredBatch
from bridges.log.damage.extent import end_of_damage
from spark_pipeline.core.client.node_client import NodeClient, NodeError, NodeOptions
from spark_pipeline.core.frames import unpacked
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.anabranch.sbp_reader import DamagedThere, NothingThere

OUT_OF_RANGE = 416
"""Status of the answer if an offset is below a log's start, or above its end."""
_DAMAGED = "DataCorrupt"
_NEVER = 2**63 - 1


class NodeReader:
    """A reader of one node's partitions; it belongs to one process and one thread. All methods raise NodeError."""

    def __init__(self, options: NodeOptions) -> None:
        self._client = NodeClient(options)
        self._thread = ThreadPoolExecutor(1, "node-reader")
        self._pid = os.getpid()

    def batches(self, part: TopicPartition, start: int, end: int, fetch_bytes: int) -> Iterator[StoredBatch]:
        """Yield the batches that hold offsets in ``[start, end)``, in order. All of these must be durable.

        Raises NodeError (of status 416 when ``start`` was trimmed), NothingThere and, after all batches in front of the
        damage, DamagedThere.
        """
        at = start
        ahead: Future[list[StoredBatch]] | None = self._begin(part, at, end, fetch_bytes)
        try:
            while ahead is not None:
                try:
                    found = ahead.result()
                except NodeError as error:
                    ahead = None
                    if error.kind != _DAMAGED:
                        raise
                    behind = asyncio.run(end_of_damage(at, lambda offset: self._good_from(part, offset)))
                    raise DamagedThere(at, behind, str(error)) from error
                if not found:
                    raise NothingThere(f"offset {at} of {part}")
                at = found[-1].end_offset
                ahead = self._begin(part, at, end, fetch_bytes) if at < end else None
                yield from found
        finally:
            if ahead is not None:
                ahead.exception()  # wait: the connection is in use until the answer has come

    def _begin(self, part: TopicPartition, at: int, end: int, fetch_bytes: int) -> Future[list[StoredBatch]]:
        return self._thread.submit(self._read, part, at, end, fetch_bytes)

    def _read(self, part: TopicPartition, at: int, end: int, size: int) -> list[StoredBatch]:
        asked = {"topic": part.topic, "partition": part.partition, "offset": at, "end": end, "bytes": size}
        try:
            return unpacked(self._client.post_for_bytes("/v1/read", asked))
        except ValueError as error:
            raise NodeError(f"the node's answer about {part} cannot be read: {error}") from error

    async def _good_from(self, part: TopicPartition, offset: int) -> int | None:
        """See :data:`bridges.log.damage.extent.GoodFrom`."""
        try:
            found = self._read(part, offset, _NEVER, 1)
        except NodeError as error:
            if error.kind == _DAMAGED:
                return None
            if error.status == OUT_OF_RANGE:
                return offset
            raise
        return max(offset, found[0].base_offset) if found else offset

    def close(self) -> None:
        """Close the connection; a second call has no effect."""
        if self._pid == os.getpid():
            self._thread.shutdown()
            self._client.close()
