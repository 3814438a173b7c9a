"""Produce: check batches, hand them to the partition logs, answer when all are durable.

One operation object per request collects the answers of its partitions; there is no task. The partitions of a request
are appended in its order, and requests of a connection in theirs, so a pipelining producer keeps its order. If a
request names an unknown partition, another node may just have created it: the node asks the database first, and later
requests of the connection wait.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.turns import Turns
from bridges.auth import Operation
from bridges.errors import LogError, RecordsRefused, TimeOutOfBounds
from bridges.formats.kafka import checksum
from bridges.log.partition.partition_log import Appended, Batch
from kafka_front.context import DEFERRED, NO_RESPONSE, Outcome
from kafka_front.dispatch import Registry
from kafka_front.service.leader_hints import LeaderHints
from kafka_front.service.log_errors import code_of
from kafka_front.service.produce.batch_check import BatchLimits, Refusal, accept
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from bridges.metrics import TopicTraffic
    from kafka_front.context import Client, Context
    from kafka_front.service.core import KafkaService

_TopicResponse = ProduceResponse.TopicProduceResponse
_PartitionResponse = ProduceResponse.PartitionProduceResponse
_Refused = tuple[ErrorCode, str]
_Turns = Iterator["asyncio.Future[None] | None"]
_IDS_SINCE = 13
_OVERDUE_SCAN_S = 0.5
_TIMES_REFUSED = "One or more records have been rejected due to invalid timestamp"
"""A broker's words for the batch, which programs compare."""
LONG = 1000
"""Most partitions of a request that is handed out at once; a longer one is handed out in turns."""
LONG_BYTES = 4 * 1024 * 1024
"""Most bytes of such a request, and of a batch whose checksum is computed in one go."""


class _Operation:
    """One Produce request in flight."""

    __slots__ = (
        "acks",
        "ctx",
        "deadline",
        "expired",
        "failed",
        "leaders",
        "left",
        "long",
        "owner",
        "response",
        "transactional_id",
        "unsure",
        "whole",
    )

    def __init__(
        self, owner: Produce, ctx: Context, acks: int, deadline: float, transactional_id: str | None = None
    ) -> None:
        self.owner = owner
        self.ctx = ctx
        self.acks = acks
        self.transactional_id = transactional_id
        self.deadline = deadline
        self.failed = False
        self.expired = False
        self.unsure = False
        """Whether the database did not answer whether unknown topics exist."""
        self.whole = True
        """Whether all partitions are handed to their logs; the answer waits for that."""
        self.response = ProduceResponse()
        self.leaders: set[int] = set()
        """Leaders of refused partitions, whose addresses the answer has."""
        self.long = False
        """Whether it has so many partitions that encoding the answer would block the event loop."""
        # Partitions in flight, plus one for the loop that hands them out, so that the request cannot end before it.
        self.left = 1

    def settle(self) -> None:
        """Count a part as done. The last one sends the response, or frees the memory if the response has been sent."""
        self.left -= 1
        if self.left == 0:
            if self.expired:
                self.ctx.release()
            else:
                self.owner.finished(self)

    def refuse(self, response: _PartitionResponse, code: ErrorCode, message: str) -> None:
        self.failed = True
        response.error_code = code
        response.error_message = message
        self.owner.count_error(code.name)

    def refused_by_log(self, response: _PartitionResponse, error: LogError) -> None:
        """Answer a partition whose batch the log refuses; lists the records that caused it (KIP-467)."""
        text = str(error)
        # A client shows the batch's text for it as a whole, the log's for each record.
        self.refuse(response, code_of(error), _TIMES_REFUSED if isinstance(error, TimeOutOfBounds) else text)
        if isinstance(error, RecordsRefused):
            response.record_errors = [ProduceResponse.BatchIndexAndErrorMessage(index, text) for index in error.indexes]

    def expire(self) -> None:
        """Answer partitions that are not durable within the client's time with an error; their batches may still become
        durable (rule 28).

        The log holds the batches until then, so their memory stays counted.
        """
        self.expired = True
        self.ctx.retain()
        for topic in self.response.responses:
            for partition in topic.partition_responses:
                if partition.error_code == ErrorCode.NONE and partition.base_offset < 0:
                    self.refuse(partition, ErrorCode.REQUEST_TIMED_OUT, "the batch was not durable in time")
        self.owner.finished(self)


class _Append(Struct, eq=False):
    """The callback of a partition's log for one append of an operation."""

    operation: _Operation
    response: _PartitionResponse
    batch: Batch
    traffic: TopicTraffic
    topic: str

    def __call__(self, appended: Appended, error: LogError | None) -> None:
        operation = self.operation
        try:
            if error is None:
                count, size = self.batch.count, len(self.batch.payload)
                self.traffic.appended(1, count, size)
                operation.ctx.connection.client.wrote(self.topic, self.response.index, count, size)
            else:
                operation.owner.refusals.note(self.topic, self.response.index, self.batch.producer, error)
            if not operation.expired:
                response = self.response
                if error is None:
                    response.base_offset = appended.base
                    response.log_append_time_ms = self.batch.append_time_ms
                else:
                    operation.refused_by_log(response, error)
                    operation.owner.hint(operation, self.topic, response)
            operation.settle()
        except Exception:  # noqa: BLE001  # the log must call its other callbacks, and this request needs an answer
            operation.ctx.crashed()


class Produce:
    """The handler of Produce requests."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self._logs = service.logs
        self.refusals = service.logs.refusals
        self._transactions = service.transactions
        self._access = service.access
        self._quota = service.node.quotas.produce
        self._by_id = service.catalog.by_id
        self._stream_of = service.catalog.stream_of
        self._changes = service.node.db.changes
        self._hints = LeaderHints(service)
        self._metrics = service.metrics
        self.count_error = service.metrics.kind(APIS[ApiKey.PRODUCE].name).failed
        limits = service.node.limits
        self._limits = BatchLimits(limits.batch_records, limits.batch_inflated_bytes)
        # By connection: requests of many partitions or bytes, or with unknown topics, and the requests that followed
        # them.
        self._handing: dict[Client, deque[tuple[_Operation, _Turns]]] = {}
        self._outstanding: dict[_Operation, None] = {}
        self._scanning = False

    def handle(self, ctx: Context, request: ProduceRequest) -> ProduceResponse | Outcome:
        if self._quota.in_force:
            ctx.connection.charge(self._quota, ctx.size)
        deadline = time.monotonic() + request.timeout_ms / 1000
        operation = _Operation(self, ctx, request.acks, deadline, request.transactional_id)
        topics = request.topic_data
        parts = len(topics[0].partition_data) if len(topics) == 1 else sum(len(one.partition_data) for one in topics)
        operation.long = parts > LONG
        in_turns = operation.long or ctx.size > LONG_BYTES
        if self._changes.shared and not in_turns:
            in_turns = not all(self._knows(ctx.version, topic) for topic in topics)
        if in_turns or self._handing:
            queue = self._handing.get(ctx.connection)
            if queue is None and in_turns:
                queue = self._handing[ctx.connection] = deque()
                self._service.loop.call_soon(self._turn, ctx.connection)
            if queue is not None:
                operation.whole = False
                queue.append((operation, self._in_turns(operation, request)))
                return self._deferred_answer(operation)
        whole = self._refused_whole(ctx, request)
        for topic in topics:
            name, answers, refused = self._begin_topic(operation, topic, whole)
            for data in topic.partition_data:
                self._hand_out(operation, name, data, answers, refused)
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

    def _knows(self, version: int, topic: ProduceRequest.TopicProduceData) -> bool:
        """Return whether this node knows the partitions that a request names."""
        name = topic.name
        if version >= _IDS_SINCE:
            found = self._by_id.get(topic.topic_id)
            if found is None:
                return False
            name = found.name
        return all(self._stream_of(name, data.index) is not None for data in topic.partition_data)

    def _in_turns(self, operation: _Operation, request: ProduceRequest) -> _Turns:
        """Hand out a request of many partitions or bytes, or with unknown topics. Yields None at the end of each turn
        of the event loop, or a future to wait for."""
        whole = self._refused_whole(operation.ctx, request)
        turns = Turns()
        asked = not self._changes.shared
        for topic in request.topic_data:
            if not asked and not self._knows(operation.ctx.version, topic):
                asked = True
                caught_up = asyncio.ensure_future(self._changes.catch_up())
                yield caught_up
                error = caught_up.exception()
                operation.unsure = error is not None
                if error is not None and not isinstance(error, LogError):
                    self._service.node.barrier.caught("asking for a topic", error)
            name, answers, refused = self._begin_topic(operation, topic, whole)
            for data in topic.partition_data:
                if turns.is_over:
                    yield None
                    turns = Turns()
                crc = None
                if data.records is not None and refused is None and len(data.records) > LONG_BYTES:
                    crc = yield from checksum(data.records)
                self._hand_out(operation, name, data, answers, refused, crc)

    def _turn(self, connection: Client) -> None:
        """Continue a connection's queue of requests that are handed out in turns, in order."""
        queue = self._handing[connection]
        operation, parts = queue[0]
        ended = True
        awaited: asyncio.Future[None] | None = None
        try:
            for step in parts:
                ended, awaited = False, step
                break
            else:
                operation.whole = True
                operation.settle()
        except Exception:  # noqa: BLE001  # later requests must go on, and this one needs an answer
            self._outstanding.pop(operation, None)
            operation.ctx.crashed()
        if ended:
            queue.popleft()
        if not queue:
            del self._handing[connection]
        elif ended or awaited is None:
            self._service.loop.call_soon(self._turn, connection)
        else:
            awaited.add_done_callback(lambda _: self._turn(connection))

    def _refused_whole(self, ctx: Context, request: ProduceRequest) -> _Refused | None:
        if ctx.version < 3:
            return ErrorCode.UNSUPPORTED_VERSION, "Produce is served from version 3 on"
        if request.acks not in (-1, 0, 1):
            return ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}"
        name = request.transactional_id
        if name is not None and not self._access.transaction(ctx, Operation.WRITE, name):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, f"you may not write as transactional id {name!r}"
        return None

    def _begin_topic(
        self, operation: _Operation, topic: ProduceRequest.TopicProduceData, refused: _Refused | None
    ) -> tuple[str, list[_PartitionResponse], _Refused | None]:
        """Return a topic's name, its list of partition answers in the response, and the error that refuses all of it,
        or None."""
        name, ctx = topic.name, operation.ctx
        answers: list[_PartitionResponse] = []
        operation.response.responses.append(_TopicResponse(topic.topic_id, answers, name))
        if ctx.version >= _IDS_SINCE:
            found = self._by_id.get(topic.topic_id)
            name = "" if found is None else found.name
            if found is None and refused is None:
                text = f"there is no topic with the id {uuid.UUID(bytes=topic.topic_id)}"
                refused = _unknown(operation, ErrorCode.UNKNOWN_TOPIC_ID, text)
        if refused is None and not self._access.topic(ctx, Operation.WRITE, name):
            refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"you may not write to topic {name!r}"
        return name, answers, refused

    def _hand_out(
        self,
        operation: _Operation,
        topic: str,
        data: ProduceRequest.PartitionProduceData,
        answers: list[_PartitionResponse],
        refused: _Refused | None,
        crc: int | None = None,
    ) -> None:
        response = _PartitionResponse(index=data.index, base_offset=-1, log_append_time_ms=-1)
        answers.append(response)
        if refused is not None:
            operation.refuse(response, *refused)
            return
        log = self._logs.get(topic, response.index)
        ctx = operation.ctx
        batch: Batch | None = None
        try:
            batch = accept(data.records, ctx.version, ctx.connection, self._limits, crc)
        except Refusal as refusal:
            if log is not None:
                operation.refuse(response, refusal.code, refusal.message)
                return
        if log is None or batch is None:
            if batch is not None:
                self.refusals.note(topic, response.index, batch.producer)
            text = f"there is no partition {topic}-{response.index}"
            operation.refuse(response, *_unknown(operation, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
            self.hint(operation, topic, response)
            return
        response.log_start_offset = log.log_start_offset
        operation.left += 1
        append = _Append(operation, response, batch, self._metrics.topic(topic), topic)
        if batch.transaction is None:
            log.append(batch, append)
        elif operation.transactional_id is None:
            operation.left -= 1
            text = "a batch of a transaction came without a transactional id"
            operation.refuse(response, ErrorCode.INVALID_REQUEST, text)
        else:
            self._transactions.owned.append(operation.transactional_id, log, batch, ctx.version, append)

    def finished(self, operation: _Operation) -> None:
        """Answer a deferred operation: all its parts are done, or its time is over."""
        del self._outstanding[operation]
        answer = self._answer(operation)
        if operation.long and isinstance(answer, ProduceResponse):
            operation.ctx.respond_off_loop(answer, _nothing)
        else:
            operation.ctx.respond(answer)

    def hint(self, operation: _Operation, topic: str, response: _PartitionResponse) -> None:
        """Add the leader of a refused partition to the answer."""
        operation.leaders.add(self._hints.produce(operation.ctx, topic, response))

    def _answer(self, operation: _Operation) -> ProduceResponse | Outcome:
        if operation.leaders:
            operation.response.node_endpoints = self._hints.produce_endpoints(operation.ctx, operation.leaders)
        if operation.acks != 0:
            return operation.response
        # The client waits for no answer: only closing the connection can report a failure (rule 3).
        if operation.failed:
            operation.ctx.connection.close("a Produce with acks=0 failed")
        return NO_RESPONSE

    def _scan(self) -> None:
        now = time.monotonic()
        for operation in [one for one in self._outstanding if one.deadline <= now and one.whole]:
            try:
                operation.expire()
            except Exception:  # noqa: BLE001  # other operations have expired, too
                self._outstanding.pop(operation, None)
                operation.ctx.crashed()
        self._scanning = bool(self._outstanding)
        if self._scanning:
            self._service.loop.call_later(_OVERDUE_SCAN_S, self._scan)


def _nothing() -> None:
    """Ignore that the answer is written."""


def _unknown(operation: _Operation, code: ErrorCode, text: str) -> _Refused:
    if operation.unsure:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{text} as far as this node knows: the database does not answer"
    return code, text


def register(registry: Registry, service: KafkaService) -> None:
    registry.register(ApiKey.PRODUCE, Produce(service).handle)
