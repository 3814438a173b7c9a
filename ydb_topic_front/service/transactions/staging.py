"""Staging of writes in transactions, which other nodes may coordinate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bridges.net.grpc_server import GrpcRefusal
from ydb_topic_front.service.transactions.transaction import StagedWrite
from ydb_topic_front.wire.statuses import Issue, Status, YdbError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridges.net.grpc_server import GrpcCall
    from ydb_topic_front.service.core import YdbService

_METHOD = "Stage"


class _Named(msgspec.Struct, array_like=True):
    """The first field of a :class:`StagedWrite`."""

    session: str


class _Staged(msgspec.Struct, array_like=True):
    """Answer of the coordinator: the number of messages that were staged before, or a YdbError."""

    known: int = 0
    status: int = 0
    message: str = ""
    issue: int = 0


class Staging:
    """Stages the writes of this node's sessions."""

    def __init__(self, service: YdbService) -> None:
        self._transactions = service.transactions
        self._elsewhere = service.forwarding.led_call(_METHOD, self._find)(self._answer)

    async def stage(self, write: StagedWrite, call: GrpcCall) -> int:
        """Stage messages; return how many of the first ones were staged before. Raises YdbError."""
        if self._transactions.is_here(write.session):
            return self._transactions.stage(write)
        try:
            raw = await self._elsewhere(msgspec.msgpack.encode(write), call)
        except GrpcRefusal as refusal:
            raise YdbError(Status.UNAVAILABLE, str(refusal)) from refusal
        staged = msgspec.msgpack.decode(raw, type=_Staged)
        if staged.status:
            raise YdbError(Status(staged.status), staged.message, Issue(staged.issue))
        return staged.known

    def _find(self, raw: bytes) -> Callable[[], int] | None:
        return self._transactions.finding(msgspec.msgpack.decode(raw, type=_Named).session)

    async def _answer(self, raw: bytes, call: GrpcCall) -> bytes:
        """Stage messages here."""
        try:
            staged = _Staged(self._transactions.stage(msgspec.msgpack.decode(raw, type=StagedWrite)))
        except YdbError as error:
            staged = _Staged(0, error.status, str(error), error.issue)
        return msgspec.msgpack.encode(staged)
