"""DescribeTransactions, ListTransactions and WriteTxnMarkers: requests of tools about transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import re2

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.turns import gathered, in_turns
from bridges.auth import Operation
from bridges.errors import LogError, PartitionSealed
from kafka_front.dispatch import Registry
from kafka_front.service.log_errors import code_of
from kafka_front.service.once import Once
from kafka_front.service.transactions.transaction import Transaction, TxnState
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.log.interfaces import Appended
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_Described = m.DescribeTransactionsResponse.TransactionState
_STATES = {state.kafka_name: state for state in TxnState}


class TransactionAdmin:
    """Handlers of tools' requests."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self._access = service.access
        self._transactions = service.transactions

    async def describe(self, ctx: Context, request: m.DescribeTransactionsRequest) -> m.DescribeTransactionsResponse:
        response = m.DescribeTransactionsResponse()
        once = Once()
        async for name in in_turns(request.transactional_ids):
            try:
                found = await self._find(ctx, name)
                once.name(name)
            except KafkaError as error:
                response.transaction_states.append(_Described(error_code=error.code, transactional_id=name))
                continue
            once.rows(found.place_count)
            response.transaction_states.append(self._described(ctx, name, found))
        return response

    async def _find(self, ctx: Context, name: str) -> Transaction:
        """Return a transactional id of this node. Raises KafkaError."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id is not empty")
        self._access.require_transaction(ctx, Operation.DESCRIBE, name)
        self._transactions.owned.require(name)
        await self._transactions.know(name)
        found = self._transactions.coordinator.transactions.get(name)
        if found is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {name!r}")
        return found

    def _described(self, ctx: Context, name: str, transaction: Transaction) -> _Described:
        row = transaction.row
        return _Described(
            transactional_id=name,
            transaction_state=transaction.state.kafka_name,
            transaction_timeout_ms=row.timeout_ms,
            transaction_start_time_ms=row.started_ms,
            producer_id=row.producer_id,
            producer_epoch=row.epoch,
            topics=[
                m.DescribeTransactionsResponse.TopicData(topic, sorted(transaction.places[topic]))
                for topic in sorted(transaction.places)
                if self._access.topic(ctx, Operation.DESCRIBE, topic)
            ],
        )

    async def list(self, ctx: Context, request: m.ListTransactionsRequest) -> m.ListTransactionsResponse:
        states = {_STATES[name] for name in request.state_filters if name in _STATES}
        response = m.ListTransactionsResponse(
            unknown_state_filters=[name for name in request.state_filters if name not in _STATES]
        )
        if request.state_filters and not states:
            return response
        producers = set(request.producer_id_filters)
        pattern = None
        if request.transactional_id_pattern:
            try:
                pattern = re2.compile(request.transactional_id_pattern)
            except re2.error as error:
                raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
        now_ms = self._transactions.now().unix_ms
        async for one in self._transactions.every():
            name = one.row.transactional_id
            if states and one.state not in states:
                continue
            if producers and one.row.producer_id not in producers:
                continue
            # Keep transactions that began longer ago, also ended ones and those that have not begun, as a broker does.
            if request.duration_filter >= 0 and one.row.started_ms >= now_ms - request.duration_filter:
                continue
            if pattern is not None and pattern.fullmatch(name) is None:
                continue
            if self._access.transaction(ctx, Operation.DESCRIBE, name):
                response.transaction_states.append(
                    m.ListTransactionsResponse.TransactionState(name, one.row.producer_id, one.state.kafka_name)
                )
        return response

    async def write_markers(self, ctx: Context, request: m.WriteTxnMarkersRequest) -> m.WriteTxnMarkersResponse:
        """End a producer's open transactions in partitions, at an operator's request (WriteTxnMarkers, KIP-664)."""
        if not self._access.node(ctx, Operation.CLUSTER_ACTION):
            self._access.require_node(ctx, Operation.ALTER)
        response = m.WriteTxnMarkersResponse()
        async for marker in in_turns(request.markers):
            answer = m.WriteTxnMarkersResponse.WritableTxnMarkerResult(marker.producer_id)
            response.markers.append(answer)
            async for topic in in_turns(marker.topics):
                told = m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(topic.name)
                answer.topics.append(told)
                indexes = topic.partition_indexes
                codes = await gathered(self._marked(marker, topic.name, index) for index in indexes)
                async for index, code in in_turns(zip(indexes, codes, strict=True)):
                    told.partitions.append(m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(index, code))
        return response

    async def _marked(self, marker: m.WriteTxnMarkersRequest.WritableTxnMarker, topic: str, index: int) -> ErrorCode:
        to = self._service.logs.get(topic, index)
        if to is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if marker.producer_epoch < 0:
            # The log would take a marker without an epoch as a coordinator's, and not compare it with the producer's
            # epoch.
            return ErrorCode.INVALID_PRODUCER_EPOCH
        try:
            await to.ready()
            if marker.producer_id not in to.state.transactions.open:
                return ErrorCode.NONE  # ended already
            written: asyncio.Future[Appended] = awaited(
                lambda done: to.append_marker(
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.transaction_result,
                    done,
                    coordinator_epoch=marker.coordinator_epoch,
                )
            )
            await written
        except PartitionSealed:
            return ErrorCode.NONE  # a sealed partition has no open transaction
        except LogError as error:
            return code_of(error)
        return ErrorCode.NONE


def register(registry: Registry, service: KafkaService) -> None:
    """Serve keys 27, 65 and 66."""
    admin = TransactionAdmin(service)
    registry.register(ApiKey.WRITE_TXN_MARKERS, admin.write_markers)
    registry.register(ApiKey.DESCRIBE_TRANSACTIONS, admin.describe)
    registry.register(ApiKey.LIST_TRANSACTIONS, admin.list)
