"""Fetches at a node of the client's rack, of partitions that other nodes own (KIP-392).

A consumer with ``client.rack`` asks a partition's owner first, which names a node of that rack if it is in another one
itself. That node answers here: it asks the owner for the log's state and its batches, as readers of the other protocols
do. On any error the client goes back to the owner. So a position above the end that is known here is
OFFSET_NOT_AVAILABLE: only the owner can say that it is out of range.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import Turns, gathered
from bridges.errors import BatchInvalid, LogError
from bridges.formats import FORMAT_MASK, FormatId
from kafka_front.service.fetch.partitions import KAFKA, Slot
from kafka_front.service.log_errors import code_of
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridges.formats.records import Buffer, StoredBatch
    from bridges.log.remote.readable import ReadableLog
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService
    from kafka_front.service.fetch.partitions import Partitions
    from kafka_front.service.fetch.places import Key
    from kafka_front.service.fetch.sessions import FetchedPartition, FetchSession
    from kafka_front.wire.messages import FetchRequest


class Nearby:
    """The answers to fetches of which another node owns a partition."""

    def __init__(self, service: KafkaService, partitions: Partitions) -> None:
        self._logs = service.logs
        self._translator = service.translator
        self._rack = service.rack
        self._loop = service.loop
        self._partitions = partitions

    def takes(self, request: FetchRequest, partitions: Iterable[FetchedPartition]) -> bool:
        """Return whether a client of this node's rack asks for partitions of other nodes."""
        if self._rack is None or request.rack_id != self._rack:
            return False
        by_id = self._partitions.by_id
        for asked in partitions:
            topic = by_id.get(asked.topic_id)
            if self._logs.find_elsewhere(asked.topic if topic is None else topic.name, asked.partition) is not None:
                return True
        return False

    async def fetch(
        self,
        ctx: Context,
        request: FetchRequest,
        session: FetchSession | None,
        partitions: dict[Key, FetchedPartition],
    ) -> FetchResponse:
        """Answer a fetch; it is cancelled when the connection ends."""
        with ctx.connection.awaited():
            slots = [Slot(key, asked) for key, asked in partitions.items()]
            served = await _Reading(self, ctx, request, slots).run()
        told: list[FetchResponse.FetchableTopicResponse] = []
        before: object = None
        for slot in slots:
            news = session is None or slot.asked.news(slot.data)
            if session is not None and request.session_epoch > 0 and not news:
                continue
            if slot.key[0] != before:
                before = slot.key[0]
                told.append(FetchResponse.FetchableTopicResponse(topic=slot.asked.topic, topic_id=slot.asked.topic_id))
            told[-1].partitions.append(slot.data)
        if session is not None:
            session.served(served)
        return FetchResponse(session_id=0 if session is None else session.id, responses=told)


class _Reading:
    """The reading for one fetch: what there is, or what comes while it waits."""

    def __init__(self, owner: Nearby, ctx: Context, request: FetchRequest, slots: list[Slot]) -> None:
        self._owner = owner
        self._ctx = ctx
        self._request = request
        self._slots = slots
        self._committed = request.isolation_level != 0
        self._room = min(request.max_bytes, owner._partitions.max_bytes)
        self._logs: dict[Slot, ReadableLog] = {}
        self._served: list[Key] = []
        self._moved = asyncio.Event()

    async def run(self) -> list[Key]:
        """Fill the slots; return the keys of those with records."""
        owner, allowed = self._owner, dict[str, bool]()
        wait_ms = min(max(self._request.max_wait_ms, 0), owner._partitions.max_wait_ms)
        until = owner._loop.time() + wait_ms / 1000
        for slot in self._slots:
            owner._partitions.resolve(slot, self._ctx, allowed)
            log = None if slot.log is None else owner._logs.to_read(slot.asked.topic, slot.asked.partition)
            if log is not None:
                self._logs[slot] = log
        await gathered(self._refresh(slot, log) for slot, log in list(self._logs.items()))
        for log in self._logs.values():
            log.add_waiter(self)
        try:
            while not await self._read_all() and owner._loop.time() < until and self._logs:
                try:
                    async with asyncio.timeout_at(until):
                        await self._moved.wait()
                except TimeoutError:
                    break
        finally:
            for slot in self._slots:
                if (waited := self._logs.get(slot)) is not None:
                    waited.remove_waiter(self)
        return self._served

    def log_moved(self, log: ReadableLog) -> None:
        """Look again (see :class:`bridges.log.interfaces.Waiter`)."""
        self._moved.set()

    async def _refresh(self, slot: Slot, log: ReadableLog) -> None:
        try:
            await log.ready()
            await log.refresh()
        except LogError as error:
            self._refuse(slot, code_of(error))

    def _refuse(self, slot: Slot, code: ErrorCode) -> None:
        slot.refuse(code)
        self._logs.pop(slot, None)

    async def _read_all(self) -> bool:
        """Read what there is; return whether there is anything to answer."""
        self._moved.clear()
        refused = any(slot.data.error_code and not slot.unknown for slot in self._slots)
        turns = Turns()
        for slot, log in list(self._logs.items()):
            await turns.rest()
            try:
                await self._read(slot, log)
            except LogError as error:
                log.remove_waiter(self)
                self._refuse(slot, code_of(error))
            refused |= bool(slot.data.error_code)
        return refused or bool(self._served)

    async def _read(self, slot: Slot, log: ReadableLog) -> None:
        """Put records into a slot, as far as there is room. Raises LogError."""
        asked, data = slot.asked, slot.data
        current = self._owner._logs.leader_epoch(log.topic, log.partition)
        offset, code = asked.fetch_offset, ErrorCode.NONE
        if not log.is_open:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif asked.leader_epoch >= 0 and asked.leader_epoch != current:
            fenced = asked.leader_epoch < current
            code = ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH
        elif offset < log.log_start_offset:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif offset > log.high_watermark:
            code = ErrorCode.OFFSET_NOT_AVAILABLE
        if code:
            log.remove_waiter(self)
            self._refuse(slot, code)
            return
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        if self._committed:
            data.aborted_transactions = []
        limit = log.committed_limit(offset) if self._committed else log.high_watermark
        if offset >= limit or self._room <= 0:
            return
        account = self._ctx.connection.account
        granted = account.grant(Kind.READS, min(max(asked.max_bytes, 1), self._room), 1)
        if not granted:
            return
        try:
            batches = await log.read_batches(offset, granted, limit)
            if self._committed and batches:
                reached, aborted = await log.find_aborted(offset, min(batches[-1].end_offset, limit))
                batches = [batch for batch in batches if batch.end_offset <= reached]
                data.aborted_transactions = [
                    FetchResponse.AbortedTransaction(one.producer_id, one.first_offset) for one in aborted
                ]
            if batches and (not self._served or len(batches[0].payload) <= self._room):
                await self._tell(slot, log, batches)
        finally:
            account.give(Kind.READS, granted)

    async def _tell(self, slot: Slot, log: ReadableLog, batches: list[StoredBatch]) -> None:
        owner, partitions = self._owner, self._owner._partitions
        parts: list[Buffer] = []
        translated = False
        for number, batch in enumerate(batches):
            try:
                if batch.flags & FORMAT_MASK == KAFKA:
                    parts.append(partitions.checked(batch))
                elif translated:
                    break  # the next fetch begins with it
                else:
                    translated, rest = True, batches[number + 1 :]
                    parts.append(await owner._translator.translate(log.stream_id, batch, FormatId.KAFKA, rest))
            except BatchInvalid:
                if not parts:
                    raise
                break
        told = batches[: len(parts)]
        size, records = sum(map(len, parts)), told[-1].end_offset - told[0].base_offset
        slot.data.records = parts
        self._room -= size
        self._served.append(slot.key)
        partitions.metrics.topic(log.topic).fetched(len(parts), records, size)
        self._ctx.connection.client.read(log.topic, log.partition, records, size)
        if partitions.quota.in_force:
            self._ctx.connection.charge(partitions.quota, size)
