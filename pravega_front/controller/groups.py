"""Calls about reader groups of Java's client: each has a configuration, and a stream for the group's state."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.database.sql import Connection
from bridges.catalog.topics.topic import TopicExists, TopicKind, TopicNotFound
from pravega_front.controller.streams import group_stream, stored
from pravega_front.names import is_users_name
from pravega_front.wire.controller import GroupStatus, message

if TYPE_CHECKING:
    from bridges.auth import Principal
    from pravega_front.controller.core import Controller
    from pravega_front.controller.dispatch import Registry

_Status = message("Status")
_Configuration = message("ReaderGroupConfiguration")
_CreateReaderGroupResponse = message("CreateReaderGroupResponse")
_ReaderGroupConfigResponse = message("ReaderGroupConfigResponse")
_UpdateReaderGroupResponse = message("UpdateReaderGroupResponse")
_SubscribersResponse = message("SubscribersResponse")
_StreamConfig = message("StreamConfig")


def register(registry: Registry, controller: Controller) -> None:
    """Add this module's methods."""
    calls = _Calls(controller)
    registry.call("createReaderGroup", calls.create)
    registry.call("getReaderGroupConfig", calls.configuration)
    registry.call("updateReaderGroup", calls.update)
    registry.call("deleteReaderGroup", calls.delete)
    registry.call("listSubscribers", calls.subscribers)
    registry.call("updateSubscriberStreamCut", calls.subscribed)


class _Calls:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._streams = controller.streams
        self._db = controller.node.db

    async def _stored(self, scope: str, name: str) -> Any:
        """Return a group's configuration; None if the group does not exist."""
        query = "SELECT config FROM front_pravega_groups WHERE scope = ? AND name = ?"
        row = await self._db.run(lambda db: db.execute(query, (scope, name)).fetchone())
        return None if row is None else _Configuration.FromString(row[0])

    async def create(self, request: Any, caller: Principal) -> Any:
        scope, name = request.scope, request.readerGroupName
        if not is_users_name(name):
            return _CreateReaderGroupResponse(status=GroupStatus.INVALID)
        if not self._streams.scopes.exists(scope):
            return _CreateReaderGroupResponse(status=GroupStatus.NOT_FOUND)
        # Parse before the first await: waiting calls resume in one turn of the event loop, and would all parse there.
        try:
            made = _Configuration.FromString(stored(request))
        except InvalidConfig:
            return _CreateReaderGroupResponse(status=GroupStatus.FAILURE)
        made.generation = 0
        raw = made.SerializeToString()
        found = await self._stored(scope, name)
        if found is None:
            # Create the stream before the row, so that every stored group has one.
            await self._make_stream(scope, name)

            def insert(connection: Connection) -> bytes:
                connection.execute(
                    "INSERT INTO front_pravega_groups (scope, name, id, generation, config) "
                    "VALUES (?, ?, ?, 0, ?) ON CONFLICT (scope, name) DO NOTHING",
                    (scope, name, made.readerGroupId, raw),
                )
                query = "SELECT config FROM front_pravega_groups WHERE scope = ? AND name = ?"
                there: bytes = connection.execute(query, (scope, name)).fetchone()[0]
                return there

            found = _Configuration.FromString(await self._db.run(insert))
        return _CreateReaderGroupResponse(status=GroupStatus.SUCCESS, config=found)

    async def _make_stream(self, scope: str, group: str) -> None:
        config = _StreamConfig()
        config.streamInfo.scope, config.streamInfo.stream = scope, group_stream(group)
        config.scalingPolicy.minNumSegments = 1
        try:
            await self._streams.create(config, TopicKind.INTERNAL)
        except TopicExists:
            return  # a crash interrupted an earlier creation

    async def configuration(self, request: Any, caller: Principal) -> Any:
        found = await self._stored(request.scope, request.readerGroup)
        if found is None:
            return _ReaderGroupConfigResponse(status=GroupStatus.NOT_FOUND)
        return _ReaderGroupConfigResponse(status=GroupStatus.SUCCESS, config=found)

    async def update(self, request: Any, caller: Principal) -> Any:
        try:
            wanted = _Configuration.FromString(stored(request))
            wanted.generation = request.generation + 1
            raw = stored(wanted)
        except InvalidConfig:
            return _UpdateReaderGroupResponse(status=GroupStatus.FAILURE, generation=request.generation)

        def change(connection: Connection) -> tuple[GroupStatus, int]:
            query = "SELECT id, generation FROM front_pravega_groups WHERE scope = ? AND name = ?"
            row = connection.execute(query, (request.scope, request.readerGroupName)).fetchone()
            if row is None:
                return GroupStatus.NOT_FOUND, 0
            if row != (request.readerGroupId, request.generation):
                return GroupStatus.INVALID, row[1]
            connection.execute(
                "UPDATE front_pravega_groups SET generation = ?, config = ? WHERE scope = ? AND name = ?",
                (wanted.generation, raw, request.scope, request.readerGroupName),
            )
            return GroupStatus.SUCCESS, wanted.generation

        status, generation = await self._db.run(change)
        return _UpdateReaderGroupResponse(status=status, generation=generation)

    async def delete(self, request: Any, caller: Principal) -> Any:
        found = await self._stored(request.scope, request.readerGroup)
        if found is None or (request.readerGroupId and found.readerGroupId != request.readerGroupId):
            return _Status(status=GroupStatus.NOT_FOUND)
        topic = self._streams.find(request.scope, group_stream(request.readerGroup))
        if topic is not None:
            with suppress(TopicNotFound):
                await self._streams.delete(topic)
        query = "DELETE FROM front_pravega_groups WHERE scope = ? AND name = ?"
        await self._db.run(lambda db: db.execute(query, (request.scope, request.readerGroup)))
        return _Status(status=GroupStatus.SUCCESS)

    async def subscribers(self, request: Any, caller: Principal) -> Any:
        self._streams.get(request)
        # Streams are not truncated by the positions of groups, so there are no subscribers.
        return _SubscribersResponse()

    async def subscribed(self, request: Any, caller: Principal) -> Any:
        self._streams.get(request.streamCut.streamInfo)
        return _Status(status=0)
