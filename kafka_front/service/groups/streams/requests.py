"""Requests to the coordinator of streams groups, and its answers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import force_setattr

from kafka_front.service.groups.admission import said_bytes
from kafka_front.service.groups.consumer.group import Process
from kafka_front.service.groups.consumer.requests import HeartbeatReply, HeartbeatRequest
from kafka_front.service.groups.streams.group import Endpoints
from kafka_front.service.groups.streams.topology import Topology


class StreamsHeartbeat(HeartbeatRequest, frozen=True):
    """A StreamsGroupHeartbeat. None means unchanged since the member's last request; ``owned`` are tasks by
    :func:`.group.tasks_key`."""

    topology: Topology | None = None
    process_id: str | None = None
    endpoint: tuple[str, int] | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    endpoints_epoch: int = 0
    stops_all: bool = False

    def __post_init__(self) -> None:
        process = Process(self.process_id or "", self.endpoint, self.tags or ())
        size = said_bytes((), self.member_id, self.instance_id, self.rack_id)
        force_setattr(self, "said_bytes", size + process.said_bytes)


class StreamsReply(HeartbeatReply, frozen=True):
    """The answer to a StreamsGroupHeartbeat. ``endpoints`` is None if the member knows those of ``endpoints_epoch``."""

    statuses: Sequence[tuple[int, str]] = ()
    endpoints_epoch: int = 0
    endpoints: Endpoints | None = None
