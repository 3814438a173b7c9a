"""Routes of readers: stored batches, committed positions of groups, tokens for workers.

A range server lets every client that reaches it do everything. Where clients must authenticate, range servers stay
closed, and ``/v1/read`` checks what a reader may see. A client that authenticates by password or certificate gets a
token, so that its workers need neither.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation
from bridges.catalog.topics.config import MAX_MESSAGE_BYTES
from bridges.http.access import principal_of
from bridges.http.errors import RequestError
from bridges.http.memory import memory_of
from bridges.http.visits import visit
from spark_pipeline.core.frames import MOST_BATCHES, packed
from spark_pipeline.node.core import text, whole

if TYPE_CHECKING:
    from spark_pipeline.node.core import PipelineCore


GROUPS = 500
"""Most groups on a page."""
POSITIONS = 5_000
"""Most positions on a page; a group with more continues on the next page."""
AUDIENCE = "pipeline"
"""The audience for which the tokens are valid."""
_DAY_S = 86_400


def register(app: web.Application, core: PipelineCore) -> None:
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
        memory = memory_of(request)
        await log.ready()
        held = log.measure(offset, size, end) or max(size, MAX_MESSAGE_BYTES)  # the largest possible batch
        await memory.admit(Kind.READS, held)
        batches = (await log.read_batches(offset, size, end))[:MOST_BATCHES]
        memory.give(Kind.READS, held)
        records = sum(batch.end_offset - batch.base_offset for batch in batches)
        size = sum(len(batch.payload) for batch in batches)
        core.node.metrics.topic(topic).fetched(len(batches), records, size)
        with visit(core.node.clients, core.node.metrics.name, request) as client:
            client.read(topic, partition, records, size)
        return await core.send(request, packed(batches), "application/octet-stream")

    async def groups(request: web.Request) -> web.StreamResponse:
        """Answer with groups behind the query's ``after``, by name, with [topic, partition, offset] of each position.

        A page may end within a group: ``next`` is [group, number of its positions already sent], to go on with as
        ``after`` and ``told``.
        """
        progress = core.node.progress
        after, told = request.query.get("after", ""), _count(request.query.get("told", ""))
        names = [after] if told and progress.of_group(after) else []
        async for name in in_turns(progress.names(after)):
            if progress.of_group(name):
                names.append(name)
            if len(names) > GROUPS:
                break
        found: dict[str, list[list[object]]] = {}
        room = POSITIONS
        following: list[object] | None = None
        for at, group in enumerate(names):
            skipped = told if at == 0 and group == after else 0
            if at == GROUPS or room <= 0:
                following = [names[at - 1], 0]
                break
            if not core.access.group(request, Operation.DESCRIBE, group):
                continue
            places = await asyncio.to_thread(sorted, list(progress.of_group(group).items()), key=lambda item: item[0])
            some = places[skipped : skipped + room]
            found[group] = [[topic, partition, one.offset] for (topic, partition), one in some]
            room -= len(some)
            if skipped + len(some) < len(places):
                following = [group, skipped + len(some)]
                break
        return await core.answer(request, {"groups": found, "next": following})

    async def token(request: web.Request) -> web.StreamResponse:
        """Issue a token. Body: ``seconds`` of its validity, which the node's ``auth.token_ms`` bounds."""
        body = await core.json(request, {"seconds"})
        seconds = whole(body.get("seconds", _DAY_S), "seconds", 1)
        principal = principal_of(request)
        if principal.is_anonymous:
            raise RequestError("a token needs a client that has authenticated", 403)
        if request.headers.get("Authorization", "").lower().startswith("bearer "):
            # Otherwise a stolen token could be renewed for ever.
            raise RequestError("a token is issued for a password or a certificate, not for another token", 403)
        return await core.answer(request, {"token": core.node.authenticator.issue(principal, seconds, AUDIENCE)})

    app.router.add_post("/v1/read", read)
    app.router.add_get("/v1/groups", groups)
    app.router.add_post("/v1/token", token)


def _count(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError("told is not a number of positions")
    return int(text or 0)
