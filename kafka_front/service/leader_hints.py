"""Who leads a partition, told with the very answer that refuses a request for it (KIP-951).

A client that is told NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH asks for metadata before it goes on; with the leader
and its epoch beside the error it goes on at once. The leader is always this node, at the address of the listener.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchResponse, ProduceResponse

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_PRODUCE_SINCE = 10
_FETCH_SINCE = 16
_NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_OF_FETCH = (_NOT_LEADER, int(ErrorCode.FENCED_LEADER_EPOCH))


class LeaderHints:
    """Puts the leader into answers that a broker puts it into."""

    def __init__(self, service: KafkaService) -> None:
        self._node_id = service.node_id
        self._rack = service.rack
        self._epoch = service.logs.leader_epoch

    def produce(self, ctx: Context, response: ProduceResponse, names: list[str]) -> None:
        """Complete an answer in which a partition is refused; ``names`` are those of its topics."""
        if ctx.version < _PRODUCE_SINCE:
            return
        told = False
        for name, topic in zip(names, response.responses, strict=True):
            for data in topic.partition_responses:
                if data.error_code == _NOT_LEADER:
                    epoch = self._epoch(name, data.index)
                    data.current_leader = ProduceResponse.LeaderIdAndEpoch(self._node_id, epoch)
                    told = True
        if told:
            host, port = ctx.connection.advertised
            response.node_endpoints = [ProduceResponse.NodeEndpoint(self._node_id, host, port, self._rack)]

    def fetch(self, ctx: Context, topic: str, data: FetchResponse.PartitionData) -> bool:
        """Complete what is told of a partition that is refused; whether that needs :meth:`fetch_endpoint`."""
        if ctx.version < _FETCH_SINCE or data.error_code not in _OF_FETCH:
            return False
        data.current_leader = FetchResponse.LeaderIdAndEpoch(self._node_id, self._epoch(topic, data.partition_index))
        return True

    def fetch_endpoint(self, ctx: Context) -> FetchResponse.NodeEndpoint:
        """Where the leader is."""
        host, port = ctx.connection.advertised
        return FetchResponse.NodeEndpoint(self._node_id, host, port, self._rack)
