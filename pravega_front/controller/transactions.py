"""Calls about transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridges.net.grpc_server import Code, GrpcRefusal
from pravega_front.controller.streams import ranged
from pravega_front.service.transactions.transaction import Transaction
from pravega_front.service.transactions.transactions import LeaseRefused, TooManyOpen
from pravega_front.wire.controller import PingStatus, TxnState, TxnStatus, message

if TYPE_CHECKING:
    from bridges.auth import Principal
    from pravega_front.controller.core import Controller
    from pravega_front.controller.dispatch import Registry

_Status = message("Status")
_CreateTxnResponse = message("CreateTxnResponse")
_ListCompletedTxnResponse = message("ListCompletedTxnResponse")

_PINGED = {
    TxnState.COMMITTING: PingStatus.COMMITTED,
    TxnState.COMMITTED: PingStatus.COMMITTED,
    TxnState.ABORTING: PingStatus.ABORTED,
    TxnState.ABORTED: PingStatus.ABORTED,
}


def register(registry: Registry, controller: Controller) -> None:
    """Add this module's methods."""
    calls = _Calls(controller)
    registry.call("createTransaction", calls.create)
    registry.call("commitTransaction", calls.commit)
    registry.call("abortTransaction", calls.abort)
    registry.call("pingTransaction", calls.ping)
    registry.call("checkTransactionState", calls.state)
    registry.call("listCompletedTransactions", calls.completed)


class _Calls:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._streams = controller.streams
        self._transactions = controller.transactions

    async def _find(self, request: Any) -> Transaction | None:
        topic = self._streams.find(request.streamInfo.scope, request.streamInfo.stream)
        if topic is None:
            return None
        return await self._transactions.get(topic, request.txnId.highBits, request.txnId.lowBits)

    async def create(self, request: Any, caller: Principal) -> Any:
        info = request.streamInfo
        topic = self._streams.get(info)
        if not topic.active:
            raise GrpcRefusal(Code.INVALID_ARGUMENT, f"{topic.name} is sealed")
        try:
            found = await self._transactions.begin(topic, request.lease)
        except LeaseRefused as error:
            raise GrpcRefusal(Code.INVALID_ARGUMENT, str(error)) from error
        except TooManyOpen as error:
            raise GrpcRefusal(Code.RESOURCE_EXHAUSTED, str(error)) from error
        answer = _CreateTxnResponse(delegationToken=self._controller.access.token(caller, info))
        answer.txnId.highBits, answer.txnId.lowBits = found.high, found.low
        for one in ranged([topic.partitions[number] for number in found.parents]):
            answer.activeSegments.append(self._streams.range_message(info, topic, one))
        return answer

    async def commit(self, request: Any, caller: Principal) -> Any:
        found = await self._find(request)
        if found is None:
            return _Status(status=TxnStatus.TRANSACTION_NOT_FOUND)
        committed = await self._transactions.commit(found)
        return _Status(status=TxnStatus.SUCCESS if committed else TxnStatus.FAILURE)

    async def abort(self, request: Any, caller: Principal) -> Any:
        found = await self._find(request)
        if found is None:
            return _Status(status=TxnStatus.TRANSACTION_NOT_FOUND)
        aborted = await self._transactions.abort(found)
        return _Status(status=TxnStatus.SUCCESS if aborted else TxnStatus.FAILURE)

    async def ping(self, request: Any, caller: Principal) -> Any:
        found = await self._find(request)
        if found is None:
            return _Status(status=PingStatus.UNKNOWN)
        if found.state is not TxnState.OPEN:
            return _Status(status=_PINGED[found.state])
        if self._transactions.is_overdue(found):
            return _Status(status=PingStatus.MAX_EXECUTION_TIME_EXCEEDED)
        if request.lease > self._controller.settings.transaction_max_lease_ms:
            return _Status(status=PingStatus.LEASE_TOO_LARGE)
        await self._transactions.ping(found, request.lease)
        return _Status(status=PingStatus.OK)

    async def state(self, request: Any, caller: Principal) -> Any:
        found = await self._find(request)
        return _Status(status=TxnState.UNKNOWN if found is None else found.state)

    async def completed(self, request: Any, caller: Principal) -> Any:
        topic = self._streams.get(request.streamInfo)
        answer = _ListCompletedTxnResponse()
        for high, low, state in await self._transactions.ended(topic):
            found = answer.response.add(status=0 if state is TxnState.COMMITTED else 1)
            found.txnId.highBits, found.txnId.lowBits = high, low
        return answer
