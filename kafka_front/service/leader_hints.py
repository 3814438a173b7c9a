"""Leader hints: the leader of a partition, named in the answer that refuses a request for it (KIP-951).

After NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH a client asks for metadata before it goes on. With the leader, its
epoch and its address of the same listener beside the error, it goes on at once.
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
_NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
_OF_FETCH = (_NOT_LEADER, ErrorCode.FENCED_LEADER_EPOCH)


class LeaderHints:
    """The writer of leader hints into answers that have them at a broker."""

    def __init__(self, service: KafkaService) -> None:
        self._brokers = service.brokers
        self._epoch = service.logs.leader_epoch

    def produce(self, ctx: Context, topic: str, data: ProduceResponse.PartitionProduceResponse) -> int:
        """Add the hint to a refused partition's answer; return the leader whose endpoint the answer needs, or -1."""
        if ctx.version < _PRODUCE_SINCE or data.error_code != _NOT_LEADER:
            return -1
        leader = self._brokers.leader(topic, data.index)
        if leader >= 0:
            data.current_leader = ProduceResponse.LeaderIdAndEpoch(leader, self._epoch(topic, data.index))
        return leader

    def fetch(self, ctx: Context, topic: str, data: FetchResponse.PartitionData) -> int:
        """Add the hint to a refused partition's answer; return the leader whose endpoint the answer needs, or -1."""
        if ctx.version < _FETCH_SINCE or data.error_code not in _OF_FETCH:
            return -1
        leader = self._brokers.leader(topic, data.partition_index)
        if leader >= 0:
            data.current_leader = FetchResponse.LeaderIdAndEpoch(leader, self._epoch(topic, data.partition_index))
        return leader

    def produce_endpoints(self, ctx: Context, leaders: Iterable[int]) -> list[ProduceResponse.NodeEndpoint]:
        """Return the leaders' addresses for a Produce answer."""
        return [ProduceResponse.NodeEndpoint(*broker) for broker in self._find(ctx, leaders)]

    def fetch_endpoints(self, ctx: Context, leaders: Iterable[int]) -> list[FetchResponse.NodeEndpoint]:
        """Return the leaders' addresses for a Fetch answer."""
        return [FetchResponse.NodeEndpoint(*broker) for broker in self._find(ctx, leaders)]

    def _find(self, ctx: Context, leaders: Iterable[int]) -> list[Broker]:
        found = (self._brokers.find(leader, ctx.connection) for leader in sorted(leaders))
        return [broker for broker in found if broker is not None]
