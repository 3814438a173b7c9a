"""ListOffsets and OffsetForLeaderEpoch: the start and end of a partition, by position, time or epoch.

Any node answers where a partition begins and ends, by asking the owner: clients come to the node that owned the
partition a moment ago, and some of them never retry after the answer that another node leads.

docs/protocols/kafka.md, rules 18, 46 and 48.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import Turns
from bridges.auth import Operation
from bridges.errors import LogError, NotOwner
from bridges.log.partition.partition_log import PartitionLog
from kafka_front.dispatch import Registry
from kafka_front.service.log_errors import code_of
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6


_SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""First version that may ask for each of these positions; no other negative one exists."""
_NEVER = 1 << 15
_OWNERS_S = 2.0
"""Seconds that a request waits for other nodes' answers, all partitions together."""
_Offset = m.ListOffsetsResponse.ListOffsetsPartitionResponse
_EpochEnd = m.OffsetForLeaderEpochResponse.EpochEndOffset


_FORBIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def epoch_error(asked: int, log: PartitionLog) -> ErrorCode | None:
    """Return the error of a client's leader epoch; None if it is current, or -1, which asks for no check (rule 18)."""
    if asked < 0 or asked == log.epoch or asked == (current := log.leader_epoch):
        return None
    return ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH


class Offsets:
    """The handlers of both APIs."""

    def __init__(self, service: KafkaService) -> None:
        self._logs = service.logs
        self._elsewhere = service.logs.elsewhere
        self._loop = service.loop
        self._access = service.access

    async def list_offsets(self, ctx: Context, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        with ctx.connection.awaited():  # a search by time may have to read much
            return await self._list(ctx, request)

    async def _list(self, ctx: Context, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        response = m.ListOffsetsResponse()
        turns = Turns()
        until = self._loop.time() + _OWNERS_S
        for topic in request.topics:
            answer = m.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name)
            response.topics.append(answer)
            allowed = self._access.topic(ctx, Operation.DESCRIBE, topic.name)
            for asked in topic.partitions:
                await turns.rest()
                answer.partitions.append(
                    await self._offset(ctx.version, topic.name, asked, request.isolation_level, until)
                    if allowed
                    else _Offset(partition_index=asked.partition_index, error_code=_FORBIDDEN)
                )
        return response

    async def _offset(
        self,
        version: int,
        topic: str,
        asked: m.ListOffsetsRequest.ListOffsetsPartition,
        isolation_level: int,
        until: float,
    ) -> m.ListOffsetsResponse.ListOffsetsPartitionResponse:
        answer = _Offset(partition_index=asked.partition_index, offset=-1, timestamp=-1, leader_epoch=-1)
        if asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, _NEVER):
            answer.error_code = ErrorCode.UNSUPPORTED_VERSION
            return answer
        log = self._logs.get(topic, asked.partition_index)
        if log is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        try:
            await log.ready()
            code = epoch_error(asked.current_leader_epoch, log)
            if code is None:
                found = await self._find(log, asked.timestamp, isolation_level)
                if found is not None:
                    answer.offset, answer.timestamp = found
                    answer.leader_epoch = log.epoch_of(answer.offset)
            else:
                answer.error_code = code
        except NotOwner as error:
            end = await self._ask_owner(log, asked.timestamp, isolation_level, until)
            if end is None:
                answer.error_code = code_of(error)
            else:
                answer.offset = end
        except LogError as error:
            answer.error_code = code_of(error)
        return answer

    async def _ask_owner(self, log: PartitionLog, timestamp: int, isolation_level: int, until: float) -> int | None:
        """Ask another node, the partition's owner, for the start or end offset. Return None for other positions, or if
        the owner does not answer in time."""
        if timestamp not in (LATEST, EARLIEST):
            return None
        there = self._elsewhere.get(log.topic, log.partition, log.stream_id)
        try:
            async with asyncio.timeout_at(until):
                await there.refresh()
        except (TimeoutError, LogError):
            return None
        if timestamp == EARLIEST:
            return there.log_start_offset
        return there.last_stable_offset if isolation_level else there.high_watermark

    async def _find(self, log: PartitionLog, timestamp: int, isolation_level: int) -> tuple[int, int] | None:
        if timestamp == LATEST:
            return (log.last_stable_offset if isolation_level else log.high_watermark), -1
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return log.log_start_offset, -1
        if timestamp == MAX_TIMESTAMP:
            found = await log.find_max_timestamp()
        elif timestamp < 0:
            return None  # nothing is tiered or waits for upload
        else:
            found = await log.find_timestamp(timestamp)
        if found is not None and isolation_level and found[0] >= log.last_stable_offset:
            return None
        return found

    async def for_leader_epoch(
        self, ctx: Context, request: m.OffsetForLeaderEpochRequest
    ) -> m.OffsetForLeaderEpochResponse:
        response = m.OffsetForLeaderEpochResponse()
        follows = self._access.node(ctx, Operation.CLUSTER_ACTION)
        turns = Turns()
        for topic in request.topics:
            answer = m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(answer)
            allowed = follows or self._access.topic(ctx, Operation.DESCRIBE, topic.topic)
            for asked in topic.partitions:
                await turns.rest()
                answer.partitions.append(
                    await self._epoch_end(topic.topic, asked)
                    if allowed
                    else _EpochEnd(partition=asked.partition, error_code=_FORBIDDEN)
                )
        return response

    async def _epoch_end(
        self, topic: str, asked: m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    ) -> m.OffsetForLeaderEpochResponse.EpochEndOffset:
        answer = _EpochEnd(partition=asked.partition, leader_epoch=-1, end_offset=-1)
        log = self._logs.get(topic, asked.partition)
        if log is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        try:
            await log.ready()
        except LogError as error:
            answer.error_code = code_of(error)
            return answer
        code = epoch_error(asked.current_leader_epoch, log)
        if code is not None:
            answer.error_code = code
        else:
            found = log.epoch_end(asked.leader_epoch)
            if found is not None:
                answer.leader_epoch, answer.end_offset = found
        return answer


def register(registry: Registry, service: KafkaService) -> None:
    offsets = Offsets(service)
    registry.register(ApiKey.LIST_OFFSETS, offsets.list_offsets)
    registry.register(ApiKey.OFFSET_FOR_LEADER_EPOCH, offsets.for_leader_epoch)
