"""Produce: check batches, hand them to the partition logs, answer when all are durable.

One operation object per request collects the answers of its partitions; there is no task. The partitions of a request
are appended in its order, and requests of a connection in theirs, so a pipelining producer keeps its order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from bridges.auth import Operation
from bridges.errors import LogError
from bridges.log.partition_log import Appended, Batch
from kafka_front.context import DEFERRED, NO_RESPONSE, Outcome
from kafka_front.dispatch import Registry
from kafka_front.service.batch_check import BatchLimits, Glances, Refusal, accept
from kafka_front.service.deferred_appends import DeferredAppends
from kafka_front.service.log_errors import code_of
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from bridges.metrics import TopicTraffic
    from kafka_front.context import Client, Context
    from kafka_front.service.core import KafkaService

_TopicResponse = ProduceResponse.TopicProduceResponse
_PartitionResponse = ProduceResponse.PartitionProduceResponse
_OVERDUE_SCAN_S = 0.5
_PER_TURN = 1000
"""Partitions of one request that are handed to their logs in one turn of the event loop."""


class _Operation:
    """One Produce request in flight."""

    __slots__ = ("acks", "ctx", "deadline", "expired", "failed", "left", "owner", "response", "whole")

    def __init__(self, owner: Produce, ctx: Context, acks: int, deadline: float) -> None:
        self.owner = owner
        self.ctx = ctx
        self.acks = acks
        self.deadline = deadline
        self.failed = False
        self.expired = False
        self.whole = True
        """Whether all partitions are handed out: there is no answer before."""
        self.response = ProduceResponse()
        # Starts at one for the loop that hands the partitions out, so that it cannot end before they all are.
        self.left = 1

    def settle(self) -> None:
        """One part is done with; the last one sends the response, or gives the memory back if that has been sent."""
        self.left -= 1
        if self.left == 0:
            if self.expired:
                self.ctx.release()
            else:
                self.owner.finished(self)

    def refuse(self, response: _PartitionResponse, code: ErrorCode, message: str) -> None:
        """Answer a partition with an error."""
        self.failed = True
        response.error_code = int(code)
        response.error_message = message
        self.owner.count_error(code.name)

    def refuse_batch(self, response: _PartitionResponse, refusal: Refusal) -> None:
        """Answer a partition whose batch must not be appended."""
        self.refuse(response, refusal.code, refusal.message)
        response.record_errors = [
            ProduceResponse.BatchIndexAndErrorMessage(index, text) for index, text in refusal.records
        ]

    def expire(self) -> None:
        """Answer what is not durable in the client's time; the batch may still become so (rule 28).

        Its log holds it until then, so its memory stays counted.
        """
        self.expired = True
        self.ctx.retain()
        for topic in self.response.responses:
            for partition in topic.partition_responses:
                if partition.error_code == ErrorCode.NONE and partition.base_offset < 0:
                    self.refuse(partition, ErrorCode.REQUEST_TIMED_OUT, "the batch was not durable in time")
        self.owner.finished(self)


class _Append(Struct, eq=False):
    """The answer of one partition of an operation; called by its log."""

    operation: _Operation
    response: _PartitionResponse
    append_time: int
    batch: Batch
    traffic: TopicTraffic

    def __call__(self, appended: Appended, error: LogError | None) -> None:
        operation = self.operation
        try:
            if error is None:
                self.traffic.appended(1, self.batch.count, len(self.batch.payload))
            if not operation.expired:
                response = self.response
                if error is None:
                    response.base_offset = appended.base
                    response.log_append_time_ms = self.append_time
                else:
                    operation.refuse(response, code_of(error), str(error))
            operation.settle()
        except Exception:  # noqa: BLE001  # the log has others to tell, and this request must be answered
            operation.ctx.crashed()

    def refused(self, refusal: Refusal) -> None:
        """The batch turned out to be bad when its records were looked at."""
        operation = self.operation
        if not operation.expired:
            operation.refuse_batch(self.response, refusal)
        operation.settle()


class Produce:
    """The handler of Produce requests."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self._logs = service.logs
        self._rules = service.rules
        self._access = service.access
        self._metrics = service.metrics
        self.count_error = service.metrics.kind(APIS[ApiKey.PRODUCE].name).failed
        limits = service.node.limits
        self._limits = BatchLimits(limits.batch_records, limits.batch_inflated_bytes)
        self._glances = Glances(service.loop.call_soon)
        self._deferred = DeferredAppends(service.works, service.node.barrier)
        # By connection: requests of many partitions, and what came behind them.
        self._handing: dict[Client, deque[tuple[_Operation, Iterator[None]]]] = {}
        self._outstanding: dict[_Operation, None] = {}
        self._scanning = False

    def handle(self, ctx: Context, request: ProduceRequest) -> ProduceResponse | Outcome:
        operation = _Operation(self, ctx, request.acks, time.monotonic() + request.timeout_ms / 1000)
        topics = request.topic_data
        parts = len(topics[0].partition_data) if len(topics) == 1 else sum(len(one.partition_data) for one in topics)
        if parts > _PER_TURN or self._handing:
            queue = self._handing.get(ctx.connection)
            if queue is None and parts > _PER_TURN:
                queue = self._handing[ctx.connection] = deque()
                self._service.loop.call_soon(self._turn, ctx.connection)
            if queue is not None:
                operation.whole = False
                queue.append((operation, self._in_turns(operation, request)))
                return self._deferred_answer(operation)
        whole = self._refused_whole(ctx.version, request)
        now_ms = time.time_ns() // 1_000_000
        for topic in topics:
            answers: list[_PartitionResponse] = []
            operation.response.responses.append(_TopicResponse(name=topic.name, partition_responses=answers))
            refused = whole or self._refused_topic(ctx, topic.name)
            for data in topic.partition_data:
                self._hand_out(operation, topic.name, data, answers, refused, now_ms)
        operation.left -= 1
        if operation.left == 0:
            return self._answer(operation)
        return self._deferred_answer(operation)

    def _deferred_answer(self, operation: _Operation) -> Outcome:
        self._outstanding[operation] = None
        if not self._scanning:
            self._scanning = True
            self._service.loop.call_later(_OVERDUE_SCAN_S, self._scan)
        return DEFERRED

    def _in_turns(self, operation: _Operation, request: ProduceRequest) -> Iterator[None]:
        """Hand out a request of many partitions; yields when a turn of the event loop has had its share."""
        whole = self._refused_whole(operation.ctx.version, request)
        handed = 0
        for topic in request.topic_data:
            answers: list[_PartitionResponse] = []
            operation.response.responses.append(_TopicResponse(name=topic.name, partition_responses=answers))
            refused = whole or self._refused_topic(operation.ctx, topic.name)
            for data in topic.partition_data:
                if handed and not handed % _PER_TURN:
                    yield
                handed += 1
                self._hand_out(operation, topic.name, data, answers, refused, time.time_ns() // 1_000_000)

    def _turn(self, connection: Client) -> None:
        """Go on with what a connection sent since its request of many partitions, in order."""
        queue = self._handing[connection]
        operation, parts = queue[0]
        ended = True
        try:
            for _ in parts:
                ended = False
                break
            else:
                operation.whole = True
                operation.settle()
        except Exception:  # noqa: BLE001  # what was sent behind it must go on, and this request be answered
            self._outstanding.pop(operation, None)
            operation.ctx.crashed()
        if ended:
            queue.popleft()
        if queue:
            self._service.loop.call_soon(self._turn, connection)
        else:
            del self._handing[connection]

    def _refused_whole(self, version: int, request: ProduceRequest) -> tuple[ErrorCode, str] | None:
        if version < 3:
            return ErrorCode.UNSUPPORTED_VERSION, "Produce is served from version 3 on"
        if request.acks not in (-1, 0, 1):
            return ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}"
        return None

    def _refused_topic(self, ctx: Context, topic: str) -> tuple[ErrorCode, str] | None:
        if self._access.topic(ctx, Operation.WRITE, topic):
            return None
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"you may not write to topic {topic!r}"

    def _hand_out(
        self,
        operation: _Operation,
        topic: str,
        data: ProduceRequest.PartitionProduceData,
        answers: list[_PartitionResponse],
        refused: tuple[ErrorCode, str] | None,
        now_ms: int,
    ) -> None:
        response = _PartitionResponse(index=data.index, base_offset=-1, log_append_time_ms=-1)
        answers.append(response)
        if refused is not None:
            operation.refuse(response, *refused)
            return
        log = self._logs.get(topic, response.index)
        if log is None:
            message = f"there is no partition {topic}-{response.index}"
            operation.refuse(response, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            return
        rules = self._rules.of(topic)
        if rules.internal:
            message = f"{topic} is internal to another protocol, and only that writes to it"
            operation.refuse(response, ErrorCode.INVALID_TOPIC_EXCEPTION, message)
            return
        try:
            taken = accept(data.records, operation.ctx.version, rules, now_ms, self._limits, self._glances)
        except Refusal as refusal:
            operation.refuse_batch(response, refusal)
            return
        response.log_start_offset = log.log_start_offset
        operation.left += 1
        append_time = now_ms if rules.log_append_time else -1
        batch = taken if isinstance(taken, Batch) else taken.batch
        done = _Append(operation, response, append_time, batch, self._metrics.topic(topic))
        if taken is batch and not self._deferred.queues:
            log.append(batch, done)
        else:
            self._deferred.append(operation.ctx.connection, log, taken, done)

    def finished(self, operation: _Operation) -> None:
        """Every part of a deferred operation is answered, or its time ran out."""
        del self._outstanding[operation]
        operation.ctx.respond(self._answer(operation))

    def _answer(self, operation: _Operation) -> ProduceResponse | Outcome:
        if operation.acks != 0:
            return operation.response
        # Nobody waits for an answer: the only way to tell of a failure is to close the connection (rule 3).
        if operation.failed:
            operation.ctx.connection.close("a Produce with acks=0 failed")
        return NO_RESPONSE

    def _scan(self) -> None:
        now = time.monotonic()
        for operation in [one for one in self._outstanding if one.deadline <= now and one.whole]:
            try:
                operation.expire()
            except Exception:  # noqa: BLE001  # the others' time has run out as well
                self._outstanding.pop(operation, None)
                operation.ctx.crashed()
        self._scanning = bool(self._outstanding)
        if self._scanning:
            self._service.loop.call_later(_OVERDUE_SCAN_S, self._scan)


def register(registry: Registry, service: KafkaService) -> None:
    registry.register(ApiKey.PRODUCE, Produce(service).handle)
