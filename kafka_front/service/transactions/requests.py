"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn (docs/protocols/kafka.md, rules 12, 29 and 34-36)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation
from kafka_front.dispatch import Registry
from kafka_front.service.transactions.coordinator import FENCED, WRONG_STATE
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_FENCED_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""First versions that know the error of a fenced producer (rule 12)."""
_BATCHED_SINCE = 4
_ABORTABLE_SINCE = 5
_BUMPS_SINCE = 5
"""First version of EndTxn whose clients go on with the next epoch (KIP-890)."""

_Topic = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Partition = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
_Topics = Sequence[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]


_LONGEST_ID = 1000
"""Most characters of a transactional id: limited because the node remembers so many."""


class TransactionRequests:
    """Handlers of producers' requests to the coordinator."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self._access = service.access
        self._transactions = service.transactions
        self._ids = service.producer_ids

    async def init(self, ctx: Context, request: m.InitProducerIdRequest) -> m.InitProducerIdResponse:
        """Answer InitProducerId: with a new id for idempotent producers, with the next epoch for transactional ones."""
        name = request.transactional_id
        if name is None:
            if not self._access.any_topic(ctx, Operation.WRITE):  # KIP-679
                self._access.require_node(ctx, Operation.IDEMPOTENT_WRITE)
        else:
            self._may_write(ctx, name)
        expected = None
        if (request.producer_id == -1) != (request.producer_epoch == -1):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer has an id and an epoch, or neither")
        if request.producer_id != -1:
            expected = (request.producer_id, request.producer_epoch)
        if name is None:
            return m.InitProducerIdResponse(producer_id=await self._ids.take(), producer_epoch=0)
        with _codes_for(ctx):
            producer = await self._transactions.init(name, request.transaction_timeout_ms, expected)
        return m.InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)

    async def add_partitions(self, ctx: Context, request: m.AddPartitionsToTxnRequest) -> m.AddPartitionsToTxnResponse:
        """Answer AddPartitionsToTxn: for one transaction, or for several as brokers ask each other (version 4 and
        later)."""
        if ctx.version < _BATCHED_SINCE:
            name = request.v3_and_below_transactional_id
            self._may_write(ctx, name)
            producer = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
            topics = await self._added(ctx, name, producer, request.v3_and_below_topics, verify=False)
            return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
        self._access.require_node(ctx, Operation.CLUSTER_ACTION)
        response = m.AddPartitionsToTxnResponse()
        async for one in in_turns(request.transactions):
            producer = one.producer_id, one.producer_epoch
            topics = await self._added(ctx, one.transactional_id, producer, one.topics, verify=one.verify_only)
            response.results_by_transaction.append(
                m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult(one.transactional_id, topics)
            )
        return response

    async def _added(
        self, ctx: Context, name: str, producer: tuple[int, int], topics: _Topics, *, verify: bool
    ) -> list[_Topic]:
        answers: list[_Topic] = []
        accepted: list[_Partition] = []
        places: list[tuple[str, int]] = []
        refused = False
        async for topic in in_turns(topics):
            answer = _Topic(topic.name)
            answers.append(answer)
            code = 0
            if ctx.version < _BATCHED_SINCE and not self._access.topic(ctx, Operation.WRITE, topic.name):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            async for index in in_turns(topic.partitions):
                row = _Partition(index, code)
                answer.results_by_partition.append(row)
                if not code and self._service.catalog.stream_of(topic.name, index) is None:
                    row.partition_error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if row.partition_error_code:
                    refused = True
                else:
                    accepted.append(row)
                    places.append((topic.name, index))
        if verify:
            self._transactions.owned.require(name)
            for row, place in zip(accepted, places, strict=True):
                try:
                    self._transactions.coordinator.check(name, *producer, place)
                except KafkaError as error:
                    row.partition_error_code = _code_for(ctx, error.code)
                    if error.code == WRONG_STATE and ctx.version >= _ABORTABLE_SINCE:
                        row.partition_error_code = ErrorCode.TRANSACTION_ABORTABLE
            return answers
        # All of them or none (rule 36).
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
        if not refused:
            code = 0
            try:
                await self._transactions.add(name, *producer, places, [])
            except KafkaError as error:
                code = _code_for(ctx, error.code)
        for row in accepted:
            row.partition_error_code = code
        return answers

    async def add_offsets(self, ctx: Context, request: m.AddOffsetsToTxnRequest) -> m.AddOffsetsToTxnResponse:
        """Answer AddOffsetsToTxn, which adds a group to the transaction."""
        self._may_write(ctx, request.transactional_id)
        self._access.require_group(ctx, Operation.READ, request.group_id)
        producer = request.producer_id, request.producer_epoch
        with _codes_for(ctx):
            await self._transactions.add(request.transactional_id, *producer, [], [request.group_id])
        return m.AddOffsetsToTxnResponse()

    async def end(self, ctx: Context, request: m.EndTxnRequest) -> m.EndTxnResponse:
        """Answer EndTxn once the transaction is decided, and nearly always once readers see it."""
        self._may_write(ctx, request.transactional_id)
        bumps = ctx.version >= _BUMPS_SINCE
        producer = request.producer_id, request.producer_epoch
        with _codes_for(ctx):
            after = await self._transactions.end(
                request.transactional_id, *producer, commit=request.committed, bumps=bumps
            )
        return m.EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.epoch)

    def _may_write(self, ctx: Context, name: str) -> None:
        self._access.require_transaction(ctx, Operation.WRITE, name)
        if not 0 < len(name) <= _LONGEST_ID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a transactional id has 1 to {_LONGEST_ID} characters")


@contextmanager
def _codes_for(ctx: Context) -> Iterator[None]:
    """Raise KafkaErrors of the block with codes as the request's version knows them."""
    try:
        yield
    except KafkaError as error:
        raise KafkaError(_code_for(ctx, error.code), error.message) from error


def _code_for(ctx: Context, code: int) -> int:
    """Return ``code`` as the request's version knows it."""
    if code == FENCED and ctx.version < _FENCED_SINCE[ApiKey(ctx.key)]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def register(registry: Registry, service: KafkaService) -> None:
    """Serve keys 22 and 24-26."""
    requests = TransactionRequests(service)
    registry.register(ApiKey.INIT_PRODUCER_ID, requests.init)
    registry.register(ApiKey.ADD_PARTITIONS_TO_TXN, requests.add_partitions)
    registry.register(ApiKey.ADD_OFFSETS_TO_TXN, requests.add_offsets)
    registry.register(ApiKey.END_TXN, requests.end)
