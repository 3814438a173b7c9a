"""Who leads a partition, told with the very answer that refuses a request for it (KIP-951).

A client that is told NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH asks for metadata before it goes on; with the leader
and its epoch beside the error it goes on at once, at the leader's address of the same listener.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchResponse, ProduceResponse

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.brokers import Broker
    from kafka_front.service.core import KafkaService

_PRODUCE_SINCE = 10
_FETCH_SINCE = 16
_NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_OF_FETCH = (_NOT_LEADER, int(ErrorCode.FENCED_LEADER_EPOCH))


class LeaderHints:
    """Puts the leader into answers that a broker puts it into."""

    def __init__(self, service: KafkaService) -> None:
        self._brokers = service.brokers
        self._epoch = service.logs.leader_epoch

    def produce(self, ctx: Context, topic: str, data: ProduceResponse.PartitionProduceResponse) -> int:
        """Complete what is told of a partition that is refused; gives the leader whose endpoint that needs, or -1."""
        if ctx.version < _PRODUCE_SINCE or data.error_code != _NOT_LEADER:
            return -1
        leader = self._brokers.leader(topic, data.index)
        if leader >= 0:
            data.current_leader = ProduceResponse.LeaderIdAndEpoch(leader, self._epoch(topic, data.index))
        return leader

    def fetch(self, ctx: Context, topic: str, data: FetchResponse.PartitionData) -> int:
        """The same of Fetch."""
        if ctx.version < _FETCH_SINCE or data.error_code not in _OF_FETCH:
            return -1
        leader = self._brokers.leader(topic, data.partition_index)
        if leader >= 0:
            data.current_leader = FetchResponse.LeaderIdAndEpoch(leader, self._epoch(topic, data.partition_index))
        return leader

    def produce_endpoints(self, ctx: Context, leaders: Iterable[int]) -> list[ProduceResponse.NodeEndpoint]:
        """Where they are."""
        return [ProduceResponse.NodeEndpoint(*broker) for broker in self._find(ctx, leaders)]

    def fetch_endpoints(self, ctx: Context, leaders: Iterable[int]) -> list[FetchResponse.NodeEndpoint]:
        """Where they are."""
        return [FetchResponse.NodeEndpoint(*broker) for broker in self._find(ctx, leaders)]

    def _find(self, ctx: Context, leaders: Iterable[int]) -> list[Broker]:
        found = (self._brokers.find(leader, ctx.connection) for leader in sorted(leaders))
        return [broker for broker in found if broker is not None]
