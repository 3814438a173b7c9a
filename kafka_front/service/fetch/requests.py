"""Fetch: requests, their sessions, and the operations that answer them (docs/protocols/kafka.md, rules 41-46)."""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from typing import TYPE_CHECKING, Any

from kafka_front.context import Outcome
from kafka_front.dispatch import Registry
from kafka_front.service.fetch.nearby import Nearby
from kafka_front.service.fetch.operation import FetchOperation
from kafka_front.service.fetch.partitions import Partitions, Slot
from kafka_front.service.fetch.places import Key, Places
from kafka_front.service.fetch.sessions import FetchedPartition, FetchSession, SessionError
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_IDS_SINCE = 13
_SLOT_WORTH = 16
"""Bytes of a long request that a partition of the session, not named in the request, counts for (see LongRequests)."""


class Fetch:
    """The handler of Fetch requests."""

    def __init__(self, service: KafkaService) -> None:
        self._sessions = service.fetch_sessions
        self._loop = service.loop
        self.partitions = Partitions(service)
        self._nearby = Nearby(service, self.partitions)

    def handle(
        self, ctx: Context, request: FetchRequest
    ) -> FetchResponse | Outcome | Coroutine[Any, Any, FetchResponse | Outcome]:
        uses_ids = ctx.version >= _IDS_SINCE
        topics, forgotten = request.topics, request.forgotten_topics_data
        at_once = self.partitions.at_once
        if (
            len(topics) + len(forgotten) > at_once
            or sum(len(topic.partitions) for topic in topics) > at_once
            or (forgotten and sum(len(topic.partitions) for topic in forgotten) > at_once)
        ):
            return self._read_in_turns(ctx, request, uses_ids)
        try:
            session, partitions = self._sessions.resolve(request, uses_ids, self._loop.time())
        except SessionError as error:
            return FetchResponse(error_code=error.code)
        if forgotten:
            self.partitions.let_go(ctx, request)
        if len(partitions) <= at_once and self._nearby.takes(request, partitions.values()):
            return self._nearby.fetch(ctx, request, session, partitions)
        places = _places(session)
        if places is not None:
            reader = _reader(ctx, request)
            if len(places) > at_once and places.reader != reader:
                return self._start_in_turns(ctx, request, session, partitions)
            places.belong(reader)
        keys: Collection[Key] = partitions if places is None else places.awake
        if len(keys) > at_once:
            return self._start_in_turns(ctx, request, session, partitions)
        slots = [Slot(key, partitions[key]) for key in keys]
        return FetchOperation(self.partitions, ctx, request, session, slots, places).start()

    async def _read_in_turns(self, ctx: Context, request: FetchRequest, uses_ids: bool) -> FetchResponse | Outcome:
        try:
            session, partitions = await self._sessions.resolve_in_turns(request, uses_ids, self._loop.time())
        except SessionError as error:
            return FetchResponse(error_code=error.code)
        return await self._start_in_turns(ctx, request, session, partitions)

    async def _start_in_turns(
        self,
        ctx: Context,
        request: FetchRequest,
        session: FetchSession | None,
        partitions: dict[Key, FetchedPartition],
    ) -> FetchResponse | Outcome:
        places = _places(session)
        if session is not None and places is not None and places.reader != _reader(ctx, request):
            session.busy = True
            try:
                await places.belong_in_turns(_reader(ctx, request))
            finally:
                session.busy = False
        operation = FetchOperation(self.partitions, ctx, request, session, [], places)
        try:
            async with ctx.room(len(partitions if places is None else places.awake) * _SLOT_WORTH):
                # A list, because another client that knows the session's id may change the session meanwhile.
                wanted = list(partitions.items()) if places is None else [(k, partitions[k]) for k in places.awake]
                return await operation.start_in_turns(wanted)
        except BaseException:
            operation.cancel()
            raise


def _places(session: FetchSession | None) -> Places | None:
    """Return the places of a session if this is its only request in progress."""
    return None if session is None or session.places.request is not None else session.places


def _reader(ctx: Context, request: FetchRequest) -> object:
    return ctx.connection.principal, request.isolation_level


def register(registry: Registry, service: KafkaService) -> None:
    registry.register(ApiKey.FETCH, Fetch(service).handle)
