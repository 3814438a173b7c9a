"""Calls about scopes and streams: creation, deletion, configuration, listing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from anabranch_kit.run.turns import Turns, in_turns
from bridges.auth import Operation
from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.topics.names import InvalidTopicName
from bridges.catalog.topics.topic import InvalidPartitions, NameCollision, TopicExists, TopicNotFound
from pravega_front.controller.scopes import TooManyScopes
from pravega_front.names import SYSTEM_SCOPE, is_users_name
from pravega_front.wire.controller import (
    CreateScopeStatus,
    CreateStreamStatus,
    DeleteScopeStatus,
    DeleteStreamStatus,
    InScopeStatus,
    UpdateStreamStatus,
    message,
)

if TYPE_CHECKING:
    from bridges.auth import Principal
    from bridges.catalog.topics.topic import Topic
    from pravega_front.controller.core import Controller
    from pravega_front.controller.dispatch import Registry

_Status = message("Status")
_ExistsResponse = message("ExistsResponse")
_ScopesResponse = message("ScopesResponse")
_StreamsInScopeResponse = message("StreamsInScopeResponse")

_PAGE = 1000
"""Most names in one page."""


def register(registry: Registry, controller: Controller) -> None:
    """Add this module's methods."""
    calls = _Calls(controller)
    registry.call("createScope", calls.create_scope)
    registry.call("checkScopeExists", calls.check_scope)
    registry.call("listScopes", calls.list_scopes)
    registry.call("deleteScope", calls.delete_scope)
    registry.call("deleteScopeRecursive", calls.delete_scope_recursive)
    registry.call("createStream", calls.create_stream)
    registry.call("checkStreamExists", calls.check_stream)
    registry.call("listStreamsInScope", calls.list_streams)
    registry.call("listStreamsInScopeForTag", calls.list_streams)
    registry.call("getStreamConfiguration", calls.configuration)
    registry.call("updateStream", calls.update_stream)
    registry.call("sealStream", calls.seal_stream)
    registry.call("deleteStream", calls.delete_stream)


class _Calls:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._streams = controller.streams

    # --- scopes ----------------------------------------------------------------------------------------------------

    async def create_scope(self, request: Any, caller: Principal) -> Any:
        if not is_users_name(request.scope):
            return _Status(status=CreateScopeStatus.INVALID_SCOPE_NAME)
        if self._streams.scopes.exists(request.scope):
            return _Status(status=CreateScopeStatus.SCOPE_EXISTS)
        try:
            await self._streams.scopes.add(request.scope)
        except TooManyScopes:
            return _Status(status=CreateScopeStatus.FAILURE)
        return _Status(status=CreateScopeStatus.SUCCESS)

    async def check_scope(self, request: Any, caller: Principal) -> Any:
        return _ExistsResponse(exists=self._streams.scopes.exists(request.scope))

    async def list_scopes(self, request: Any, caller: Principal) -> Any:
        after = request.continuationToken.token
        names = self._streams.scopes.page(after, _PAGE)
        answer = _ScopesResponse(scopes=names)
        answer.continuationToken.token = names[-1] if names else after
        return answer

    async def delete_scope(self, request: Any, caller: Principal) -> Any:
        scope = request.scope
        if not self._streams.scopes.exists(scope):
            return _Status(status=DeleteScopeStatus.SCOPE_NOT_FOUND)
        if scope == SYSTEM_SCOPE:
            return _Status(status=DeleteScopeStatus.FAILURE)
        if not self._streams.scopes.is_empty(scope) or await self._controller.key_value_tables.any(scope):
            return _Status(status=DeleteScopeStatus.SCOPE_NOT_EMPTY)
        # Clients keep reader groups' tables without telling the controller. A later scope of this name must not inherit
        # them.
        await self._controller.key_value_tables.delete_groups(scope)
        await self._streams.scopes.remove(scope)
        return _Status(status=DeleteScopeStatus.SUCCESS)

    async def delete_scope_recursive(self, request: Any, caller: Principal) -> Any:
        scope, scopes, access = request.scope, self._streams.scopes, self._controller.access
        if not scopes.exists(scope):
            return _Status(status=DeleteScopeStatus.SUCCESS)  # as Pravega answers: nothing is left of the scope
        if scope == SYSTEM_SCOPE:
            return _Status(status=DeleteScopeStatus.FAILURE)
        async for streams in in_turns(self._all_streams(scope)):
            for stream in streams:
                access.allow(caller, Operation.DELETE, access.topic(scope, stream))
        for streams in self._all_streams(scope):
            for stream in streams:
                await self._delete(scope, stream)
        await self._controller.key_value_tables.delete_scope(scope)
        await scopes.remove(scope)
        # A topic that was created in the scope meanwhile, through any protocol, makes the scope exist again.
        return _Status(status=DeleteScopeStatus.SUCCESS)

    def _all_streams(self, scope: str) -> Iterator[list[str]]:
        """Yield pages of a scope's streams, the internal ones last."""
        last = ""
        while page := self._streams.scopes.streams(scope, last, _PAGE):
            last = page[-1]
            yield page
        yield self._streams.scopes.internal_streams(scope)

    async def _delete(self, scope: str, stream: str) -> None:
        topic = self._streams.find(scope, stream)
        if topic is not None:
            await self._controller.transactions.abort_all(topic.name)
            with suppress(TopicNotFound):
                await self._streams.delete(topic)

    # --- streams ---------------------------------------------------------------------------------------------------

    async def create_stream(self, request: Any, caller: Principal) -> Any:
        info = request.streamInfo
        if not self._streams.check_name(info.stream):
            return _Status(status=CreateStreamStatus.INVALID_STREAM_NAME)
        if not self._streams.scopes.exists(info.scope):
            return _Status(status=CreateStreamStatus.SCOPE_NOT_FOUND)
        if self._streams.find(info.scope, info.stream) is not None:
            return _Status(status=CreateStreamStatus.STREAM_EXISTS)
        try:
            await self._streams.create(request)
        except TopicExists:
            return _Status(status=CreateStreamStatus.STREAM_EXISTS)
        except (InvalidTopicName, NameCollision):
            return _Status(status=CreateStreamStatus.INVALID_STREAM_NAME)
        except (InvalidPartitions, InvalidConfig):
            return _Status(status=CreateStreamStatus.FAILURE)
        return _Status(status=CreateStreamStatus.SUCCESS)

    async def check_stream(self, request: Any, caller: Principal) -> Any:
        found = self._streams.find(request.scope, request.stream) or self._streams.marked(request)
        return _ExistsResponse(exists=found is not None)

    async def list_streams(self, request: Any, caller: Principal) -> Any:
        """List the streams that the caller may describe."""
        scope, after = request.scope.scope, request.continuationToken.token
        tag, access = getattr(request, "tag", ""), self._controller.access
        answer = _StreamsInScopeResponse()
        answer.continuationToken.token = after
        if not self._streams.scopes.exists(scope):
            answer.status = InScopeStatus.SCOPE_NOT_FOUND
            return answer
        turns = Turns()
        while len(answer.streams) < _PAGE:
            names = self._streams.scopes.streams(scope, answer.continuationToken.token, _PAGE - len(answer.streams))
            if not names:
                break
            for stream in names:
                topic = self._streams.find(scope, stream)
                if topic is None or (tag and not self._streams.has_tag(topic, tag)):
                    continue
                if access.may(caller, Operation.DESCRIBE, access.topic(scope, stream)):
                    answer.streams.add(scope=scope, stream=stream)
            answer.continuationToken.token = names[-1]
            await turns.rest()  # the search for a rare tag goes through all streams
        return answer

    async def configuration(self, request: Any, caller: Principal) -> Any:
        return self._streams.config(self._streams.get(request))

    async def update_stream(self, request: Any, caller: Principal) -> Any:
        topic = self._streams.find(request.streamInfo.scope, request.streamInfo.stream)
        if topic is None:
            return _Status(status=UpdateStreamStatus.STREAM_NOT_FOUND)
        if not topic.active:
            return _Status(status=UpdateStreamStatus.STREAM_SEALED)
        try:
            await self._streams.update(topic, request)
        except InvalidConfig:
            return _Status(status=UpdateStreamStatus.FAILURE)
        return _Status(status=UpdateStreamStatus.SUCCESS)

    async def seal_stream(self, request: Any, caller: Principal) -> Any:
        topic = self._streams.find(request.scope, request.stream)
        if topic is None:
            return _Status(status=UpdateStreamStatus.STREAM_NOT_FOUND)
        await self._controller.transactions.abort_all(topic.name)
        await self._controller.segments.end_stream(topic.name)
        return _Status(status=UpdateStreamStatus.SUCCESS)

    async def delete_stream(self, request: Any, caller: Principal) -> Any:
        topic: Topic | None = self._streams.find(request.scope, request.stream)
        if topic is None:
            return _Status(status=DeleteStreamStatus.STREAM_NOT_FOUND)
        if topic.active:
            return _Status(status=DeleteStreamStatus.STREAM_NOT_SEALED)
        try:
            await self._streams.delete(topic)
        except TopicNotFound:
            return _Status(status=DeleteStreamStatus.STREAM_NOT_FOUND)
        return _Status(status=DeleteStreamStatus.SUCCESS)
