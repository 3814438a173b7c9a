"""A client that speaks single group requests, in any version, to whatever serves Kafka at an address."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from kafka_front.wire import codec
from kafka_front.wire import messages as m
from tests.kafka_front.groups.lab import subscription

SESSION_MS = 45_000
REBALANCE_MS = 60_000


@dataclass
class WireClient:
    """One connection. Requests of one client go one after the other, as Kafka handles them anyway."""

    host: str
    port: int
    client_id: str = "wire"
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    _correlation: int = 0
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        assert self.writer is not None
        self.writer.close()

    async def call(self, version: int, message: Any) -> Any:
        """Send a request and return its response."""
        assert self.reader is not None
        assert self.writer is not None
        self._correlation += 1
        parts = codec.encode_request(version, self._correlation, self.client_id, message)
        self.writer.write(b"".join(parts))
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        correlation, response = codec.decode_response(message.API_KEY, version, await self.reader.readexactly(size))
        assert correlation == self._correlation
        return response

    def begin(self, version: int, message: Any) -> asyncio.Task[Any]:
        """Send a request whose response comes later; nothing else may be sent until then."""
        task = asyncio.create_task(self.call(version, message))
        self._tasks.append(task)
        return task

    async def when_ready(self, version: int, message: Any, codes: tuple[int, ...]) -> Any:
        """Repeat a request while the server answers that its coordinator is not there yet (real brokers do)."""
        while True:
            response = await self.call(version, message)
            if getattr(response, "error_code", 0) not in codes:
                return response
            await asyncio.sleep(0.05)


def join(group: str, member_id: str = "", **fields: Any) -> m.JoinGroupRequest:
    """JoinGroup of a consumer that reads topic t."""
    given: dict[str, Any] = {
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": protocols(("range", subscription("t"))),
    }
    return m.JoinGroupRequest(group_id=group, member_id=member_id, **{**given, **fields})


def protocols(*items: tuple[str, bytes]) -> list[m.JoinGroupRequest.JoinGroupRequestProtocol]:
    return [m.JoinGroupRequest.JoinGroupRequestProtocol(name, metadata) for name, metadata in items]


def sync(
    group: str, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **fields: Any
) -> m.SyncGroupRequest:
    return m.SyncGroupRequest(
        group_id=group,
        member_id=member_id,
        generation_id=generation,
        assignments=[
            m.SyncGroupRequest.SyncGroupRequestAssignment(member, blob) for member, blob in (assignments or {}).items()
        ],
        **{"protocol_type": "consumer", "protocol_name": "range", **fields},
    )


def heartbeat(group: str, member_id: str, generation: int, instance_id: str | None = None) -> m.HeartbeatRequest:
    return m.HeartbeatRequest(group, generation, member_id, instance_id)


def leave(group: str, *members: tuple[str, str | None]) -> m.LeaveGroupRequest:
    return m.LeaveGroupRequest(
        group_id=group, members=[m.LeaveGroupRequest.MemberIdentity(member, instance) for member, instance in members]
    )


def commit(
    group: str,
    offsets: dict[tuple[str, int], int],
    member_id: str = "",
    generation: int = -1,
    *,
    metadata: str | None = "",
    leader_epoch: int = -1,
    **fields: Any,
) -> m.OffsetCommitRequest:
    topics: dict[str, list[m.OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            m.OffsetCommitRequest.OffsetCommitRequestPartition(partition, offset, leader_epoch, metadata)
        )
    return m.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[
            m.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
        **fields,
    )


def committed(response: m.OffsetCommitResponse) -> dict[tuple[str, int], int]:
    """Error codes by partition."""
    return {(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}


def fetch(version: int, group: str, places: dict[str, list[int]] | None, **fields: Any) -> m.OffsetFetchRequest:
    """OffsetFetch of one group in the form of the version."""
    request = m.OffsetFetchRequest
    if version >= 8:
        topics = (
            None
            if places is None
            else [request.OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in places.items()]
        )
        return request(groups=[request.OffsetFetchRequestGroup(group_id=group, topics=topics)], **fields)
    old = None if places is None else [request.OffsetFetchRequestTopic(t, p) for t, p in places.items()]
    return request(group_id=group, topics=old, **fields)


def fetched(version: int, response: m.OffsetFetchResponse) -> dict[tuple[str, int], tuple[int, int, str | None, int]]:
    """(offset, leader epoch, metadata, error code) by partition."""
    topics: list[Any]
    if version >= 8:
        [group] = response.groups
        assert group.error_code == 0
        topics = list(group.topics)
    else:
        assert response.error_code == 0
        topics = list(response.topics)
    return {
        (t.name, p.partition_index): (p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code)
        for t in topics
        for p in t.partitions
    }


def delete_offsets(group: str, places: dict[str, list[int]]) -> m.OffsetDeleteRequest:
    request = m.OffsetDeleteRequest
    return request(
        group_id=group,
        topics=[
            request.OffsetDeleteRequestTopic(topic, [request.OffsetDeleteRequestPartition(p) for p in partitions])
            for topic, partitions in places.items()
        ],
    )
