"""Members of one consumer group of KIP-848 that speak its heartbeats and read nothing: what a coordinator has of many
of them, without what a client library costs."""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from typing import Any

from kafka_front.wire import codec
from kafka_front.wire.messages import ConsumerGroupHeartbeatRequest as Request
from kafka_front.wire.messages import ConsumerGroupHeartbeatResponse as Response
from kafka_front.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

REBALANCE_MS = 60_000
PAUSE_S = 0.25
"""Between two heartbeats of a member that has nothing new to tell: a client waits for seconds, and a measurement of the
coordinator is none of that wait."""
LIMIT_S = 120.0
_COMING = (14, 15, 16)
"""Errors of a coordinator that is not there yet: COORDINATOR_LOAD_IN_PROGRESS, ..._NOT_AVAILABLE, NOT_COORDINATOR."""


VERSION = 1
_FINDS = 4
"""Versions of the requests."""


class _Member:
    """One, on a connection of its own."""

    def __init__(self, group: str, topic: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.group, self.topic = group, topic
        self.writer = writer
        self._reader = reader
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.held: dict[bytes, list[int]] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self.held.values()))

    async def _ask(self, version: int, request: Any) -> Any:
        self.writer.write(b"".join(codec.encode_request(version, 0, "bench", request)))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        _, answer = codec.decode_response(request.API_KEY, version, await self._reader.readexactly(size))
        return answer

    async def find(self) -> None:
        """Return when the group has a coordinator: a broker makes the topic of its groups for whoever asks for one."""
        while True:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
            answer: FindCoordinatorResponse = await self._ask(_FINDS, request)
            if not answer.coordinators[0].error_code:
                return
            await asyncio.sleep(PAUSE_S)

    async def beat(self) -> bool:
        """One heartbeat; whether there is something to tell at once."""
        owned = [Request.TopicPartitions(topic, numbers) for topic, numbers in self.held.items()]
        request = Request(self.group, self.id, self.epoch, None, None, REBALANCE_MS, [self.topic], None, None, owned)
        answer: Response = await self._ask(VERSION, request)
        if answer.error_code in _COMING:
            return False
        if answer.error_code:
            raise RuntimeError(f"a member was told {answer.error_code}: {answer.error_message}")
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return False
        held = {one.topic_id: one.partitions for one in answer.assignment.topic_partitions}
        changed, self.held = held != self.held, held
        return changed


def join_all(bootstrap: str, topic: str, members: int) -> float:
    """Have so many members join a new group at once; the topic has two partitions for each. Seconds from the first
    heartbeat until they have them all. Raises RuntimeError."""
    return asyncio.run(_join_all(bootstrap, topic, members))


async def _join_all(bootstrap: str, topic: str, count: int) -> float:
    host, _, port = bootstrap.rpartition(":")
    group = f"group-{topic}"
    members = [_Member(group, topic, *await asyncio.open_connection(host, int(port))) for _ in range(count)]
    over = asyncio.Event()
    async with asyncio.timeout(LIMIT_S):
        await members[0].find()

    def is_settled() -> bool:
        return len({one.epoch for one in members}) == 1 and all(one.count == 2 for one in members)

    async def live(member: _Member) -> None:
        while not over.is_set():
            if not await member.beat():
                if is_settled():
                    over.set()
                await asyncio.sleep(PAUSE_S)

    began = time.monotonic()
    lives = [asyncio.create_task(live(member)) for member in members]
    ended = asyncio.create_task(over.wait())
    try:
        await asyncio.wait((ended, *lives), timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        seconds = time.monotonic() - began
        if not over.is_set():
            over.set()
            await asyncio.gather(*lives)
            held = sum(one.count for one in members)
            raise RuntimeError(f"{count} members had {held} of {2 * count} partitions after {seconds:.0f} s")
        await asyncio.gather(*lives)
    finally:
        ended.cancel()
        for member in members:
            member.writer.close()
    return seconds
