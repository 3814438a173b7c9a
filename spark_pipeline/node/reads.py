"""The route for stored batches, for readers to whom the node does not expose its range servers.

A range server lets every client that reaches it do everything. Where clients must authenticate, range servers stay
closed, and this route checks what a reader may see. An answer is the number of batches in four bytes, a head of fixed
size for each, and their bytes; :mod:`spark_pipeline.core.stored_batches` has both sides of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from anabranch_kit.memory.budget import Kind
from bridges.auth import Operation
from bridges.catalog.topic_config import MAX_MESSAGE_BYTES
from spark_pipeline.core.stored_batches import MOST_BATCHES, packed
from spark_pipeline.node.core import text, whole

if TYPE_CHECKING:
    from spark_pipeline.node.core import PipelineCore


def register(app: web.Application, core: PipelineCore) -> None:
    """Add the route of this module."""

    async def read(request: web.Request) -> web.StreamResponse:
        """Answer with whole durable batches, from the batch that contains ``offset`` up to the last one that begins
        below ``end``.

        Body: ``topic``, ``partition``, ``offset``, ``end`` and ``bytes``. The answer has about ``bytes`` bytes, but at
        least one batch if there is any. If ``offset`` was declared lost, the answer begins behind the lost offsets.
        """
        body = await core.json(request, {"topic", "partition", "offset", "end", "bytes"})
        topic, partition = text(body.get("topic"), "topic"), whole(body.get("partition"), "partition")
        offset, end = whole(body.get("offset"), "offset"), whole(body.get("end"), "end")
        size = min(whole(body.get("bytes"), "bytes", 1), core.settings.request_bytes)
        core.access.require_topic(request, Operation.READ, topic)
        log = core.log_to_read(topic, partition)
        memory = core.memory(request)
        await log.ready()
        held = log.measure(offset, size, end) or max(size, MAX_MESSAGE_BYTES)  # the largest possible batch
        await memory.admit(Kind.READS, held)
        batches = (await log.read_batches(offset, size, end))[:MOST_BATCHES]
        memory.give(Kind.READS, held)
        records = sum(batch.end_offset - batch.base_offset for batch in batches)
        core.node.metrics.topic(topic).fetched(len(batches), records, sum(len(batch.payload) for batch in batches))
        return await core.send(request, packed(batches), "application/octet-stream")

    app.router.add_post("/v1/read", read)
