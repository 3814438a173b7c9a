"""Calls about key-value tables. Clients read and write the entries through the segment store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridges.auth import Operation
from bridges.catalog.config_types import InvalidConfig
from bridges.net.grpc_server import Code, GrpcRefusal
from pravega_front.controller.streams import stored
from pravega_front.names import is_users_name
from pravega_front.service.tables.key_value_tables import (
    KeyValueTableExists,
    KeyValueTableMissing,
    KeyValueTableRefused,
    segments_of,
)
from pravega_front.service.tables.life import TableExists, TooManyTables
from pravega_front.wire.controller import CreateTableStatus, InScopeStatus, TableStatus, message

if TYPE_CHECKING:
    from bridges.auth import Principal
    from pravega_front.controller.core import Controller
    from pravega_front.controller.dispatch import Registry

_Status = message("Status")
_StreamInfo = message("StreamInfo")
_SegmentRanges = message("SegmentRanges")
_Config = message("KeyValueTableConfig")
_ConfigResponse = message("KeyValueTableConfigResponse")
_InScopeResponse = message("KVTablesInScopeResponse")

_PAGE = 1000
"""Most names in one page."""


def register(registry: Registry, controller: Controller) -> None:
    """Add this module's methods."""
    calls = _Calls(controller)
    registry.call("createKeyValueTable", calls.create)
    registry.call("getCurrentSegmentsKeyValueTable", calls.segments)
    registry.call("listKeyValueTablesInScope", calls.list)
    registry.call("getKeyValueTableConfiguration", calls.configuration)
    registry.call("deleteKeyValueTable", calls.delete)


class _Calls:
    def __init__(self, controller: Controller) -> None:
        self._access = controller.access
        self._scopes = controller.streams.scopes
        self._tables = controller.key_value_tables

    async def _config(self, request: Any) -> tuple[Any, int]:
        """Return a table's configuration and the number of its first segment. Raises KeyValueTableMissing."""
        raw, first = await self._tables.config(request.scope, request.kvtName)
        return _Config.FromString(raw), first

    async def create(self, request: Any, caller: Principal) -> Any:
        scope, name = request.scope, request.kvtName
        if not is_users_name(name):
            return _Status(status=CreateTableStatus.INVALID_TABLE_NAME)
        if not self._scopes.exists(scope):
            return _Status(status=CreateTableStatus.SCOPE_NOT_FOUND)
        lengths = request.primaryKeyLength, request.secondaryKeyLength
        try:
            await self._tables.create(scope, name, request.partitionCount, lengths, stored(request))
        except KeyValueTableExists:
            return _Status(status=CreateTableStatus.TABLE_EXISTS)
        except (InvalidConfig, KeyValueTableRefused, TableExists, TooManyTables):
            return _Status(status=CreateTableStatus.FAILURE)
        return _Status(status=CreateTableStatus.SUCCESS)

    async def segments(self, request: Any, caller: Principal) -> Any:
        try:
            config, first = await self._config(request)
        except KeyValueTableMissing as error:
            raise GrpcRefusal(Code.NOT_FOUND, str(error)) from error
        info = _StreamInfo(scope=request.scope, stream=request.kvtName)
        answer = _SegmentRanges(delegationToken=self._access.token(caller, info))
        count = config.partitionCount
        for at, segment in enumerate(segments_of(request.scope, request.kvtName, count, first)):
            found = answer.segmentRanges.add(minKey=at / count, maxKey=(at + 1) / count)
            found.segmentId.streamInfo.CopyFrom(info)
            found.segmentId.segmentId = segment.segment_id
        return answer

    async def list(self, request: Any, caller: Principal) -> Any:
        """List the tables that the caller may describe."""
        scope, access = request.scope.scope, self._access
        answer = _InScopeResponse()
        token = answer.continuationToken
        token.token = request.continuationToken.token
        if not self._scopes.exists(scope):
            answer.status = InScopeStatus.SCOPE_NOT_FOUND
            return answer
        while len(answer.kvtables) < _PAGE and (
            names := await self._tables.page(scope, token.token, _PAGE - len(answer.kvtables))
        ):
            for name in names:
                if access.may(caller, Operation.DESCRIBE, access.topic(scope, name)):
                    answer.kvtables.add(scope=scope, kvtName=name)
            token.token = names[-1]
        return answer

    async def configuration(self, request: Any, caller: Principal) -> Any:
        try:
            config, _ = await self._config(request)
            return _ConfigResponse(status=TableStatus.SUCCESS, config=config)
        except KeyValueTableMissing:
            return _ConfigResponse(status=TableStatus.TABLE_NOT_FOUND)

    async def delete(self, request: Any, caller: Principal) -> Any:
        try:
            config, _ = await self._config(request)
            await self._tables.delete(request.scope, request.kvtName, config.partitionCount)
        except KeyValueTableMissing:
            return _Status(status=TableStatus.TABLE_NOT_FOUND)
        return _Status(status=TableStatus.SUCCESS)
