"""ShareFetch and ShareAcknowledge (KIP-932).

Records are read and converted to Kafka's format before they are acquired, so that no lock runs while records are still
being read. Acquired records are sent in the same step; if the connection ends, they are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import Turns, gathered
from bridges.auth import Operation
from bridges.errors import BatchInvalid, LogError
from bridges.formats import FORMAT_MASK, FormatId
from bridges.log.transactions.partition_transactions import without_aborted
from kafka_front.long_requests import LONG_BYTES
from kafka_front.service.fetch.partitions import KAFKA, Partitions
from kafka_front.service.groups.share.acknowledging import Acknowledging, Outcome, Said
from kafka_front.service.groups.share.partition import Acquired
from kafka_front.service.groups.share.sessions import FINAL, Place, ShareSession
from kafka_front.service.log_errors import failure_of
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.formats.records import Buffer, StoredBatch
    from bridges.log.partition.partition_log import PartitionLog
    from kafka_front.context import Context
    from kafka_front.dispatch import Registry
    from kafka_front.service.core import KafkaService
    from kafka_front.service.groups.share.service import LivePartition, ShareService

_Data = m.ShareFetchResponse.PartitionData
_WHOLE_BATCHES = 0
_LEAST_BYTES = 1
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_NO_RECORDS: Buffer = b""


class ShareFetch:
    """Handlers of ShareFetch and ShareAcknowledge."""

    def __init__(self, service: KafkaService, share: ShareService) -> None:
        self._share = share
        self._access = service.access
        self._catalog = service.catalog
        self._by_id = service.catalog.by_id
        self._changes = service.node.db.changes
        self._translator = service.translator
        self._metrics = service.metrics
        self._loop = service.loop
        self._partitions = Partitions(service)
        self._max_wait_ms = service.fetch_max_wait_ms
        self._max_bytes = service.fetch_max_bytes

    async def fetch(self, ctx: Context, request: m.ShareFetchRequest) -> m.ShareFetchResponse:
        """Answer ShareFetch; it is cancelled when the connection ends."""
        with ctx.connection.awaited():
            return await self._fetch(ctx, request)

    async def _fetch(self, ctx: Context, request: m.ShareFetchRequest) -> m.ShareFetchResponse:
        group_id, member_id = request.group_id or "", request.member_id or ""
        self._check(ctx, group_id, member_id)
        epoch, sessions = request.share_session_epoch, self._share.sessions
        says_any = any(one.acknowledgement_batches for topic in request.topics for one in topic.partitions)
        if epoch == 0 and says_any:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a session does not begin with acknowledgements")
        if epoch == 0:
            session = await sessions.open(group_id, member_id, ctx.connection)
        else:
            session = sessions.next(group_id, member_id, epoch)
        outcomes = await self._acknowledge(ctx, session, request)
        datas: dict[Place, _Data] = {}
        if epoch == FINAL:
            sessions.close(session)
        else:
            turns = Turns()
            for forgotten in request.forgotten_topics_data:
                for number in forgotten.partitions:
                    await turns.rest()
                    sessions.remove(session, (forgotten.topic_id, number))
            datas = await self._add(session, request)
            if not request.is_renew_ack:
                datas = await _Reading(self, ctx, request, session, datas).run()
        turns = Turns()
        if epoch == 0:  # as at a broker, the first answer lists all partitions of the session
            for place in list(session.partitions):
                await turns.rest()
                datas.setdefault(place, _Data(partition_index=place[1], records=_NO_RECORDS))
        for place, (code, message) in outcomes.items():
            await turns.rest()
            data = datas.get(place)
            if data is None:
                data = datas[place] = _Data(partition_index=place[1])
            data.acknowledge_error_code, data.acknowledge_error_message = code, message
        response = m.ShareFetchResponse(acquisition_lock_timeout_ms=self._share.lock_ms(group_id))
        topics: dict[bytes, m.ShareFetchResponse.ShareFetchableTopicResponse] = {}
        for (topic_id, _), data in datas.items():
            await turns.rest()
            answer = topics.get(topic_id)
            if answer is None:
                answer = topics[topic_id] = m.ShareFetchResponse.ShareFetchableTopicResponse(topic_id)
                response.responses.append(answer)
            answer.partitions.append(data)
        return response

    async def _add(self, session: ShareSession, request: m.ShareFetchRequest) -> dict[Place, _Data]:
        """Add the request's partitions to the session. Return the errors of unknown ones, which the session does not
        keep.

        Raises KafkaError.
        """
        unknown: list[Place] = []
        turns = Turns()
        for topic in request.topics:
            for one in topic.partitions:
                await turns.rest()
                place = (topic.topic_id, one.partition_index)
                if self._is_known(place):
                    self._share.sessions.add(session, place)
                else:
                    unknown.append(place)
        if not unknown:
            return {}
        await self._changes.latest()  # members learn of topics from any node, and name them only once here
        refused: dict[Place, _Data] = {}
        for place in unknown:
            await turns.rest()
            if self._is_known(place):
                self._share.sessions.add(session, place)
            else:
                code = _UNKNOWN[place[0] in self._by_id]
                refused[place] = _Data(partition_index=place[1], error_code=code)
        return refused

    def _is_known(self, place: Place) -> bool:
        topic = self._by_id.get(place[0])
        return topic is not None and self._catalog.partition(topic.name, place[1]) is not None

    async def acknowledge(self, ctx: Context, request: m.ShareAcknowledgeRequest) -> m.ShareAcknowledgeResponse:
        """Answer ShareAcknowledge when the acknowledgements are durable."""
        group_id, member_id = request.group_id or "", request.member_id or ""
        self._check(ctx, group_id, member_id)
        epoch, sessions = request.share_session_epoch, self._share.sessions
        if epoch == 0:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a session is opened by ShareFetch")
        session = sessions.next(group_id, member_id, epoch)
        outcomes = await self._acknowledge(ctx, session, request)
        if epoch == FINAL:
            sessions.close(session)
        response = m.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=self._share.lock_ms(group_id))
        kind = m.ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse
        topics: dict[bytes, m.ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse] = {}
        turns = Turns()
        for (topic_id, number), (code, message) in outcomes.items():
            await turns.rest()
            answer = topics.get(topic_id)
            if answer is None:
                answer = topics[topic_id] = kind(topic_id)
                response.responses.append(answer)
            answer.partitions.append(m.ShareAcknowledgeResponse.PartitionData(number, code, message))
        return response

    def _check(self, ctx: Context, group_id: str, member_id: str) -> None:
        self._access.require_group(ctx, Operation.READ, group_id)
        if not member_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a member of a share group has an id")

    async def _acknowledge(
        self, ctx: Context, session: ShareSession, request: m.ShareFetchRequest | m.ShareAcknowledgeRequest
    ) -> dict[Place, Outcome]:
        allowed: dict[bytes, Outcome | None] = {}

        def permitted() -> Iterator[tuple[Place, Sequence[Said], Outcome | None]]:
            for topic in request.topics:
                topic_id = topic.topic_id
                for one in topic.partitions:
                    if not one.acknowledgement_batches:
                        continue
                    if topic_id not in allowed:
                        error = self.refusal(ctx, topic_id)
                        allowed[topic_id] = None if error is None else (error.code, error.message)
                    place, known = (topic_id, one.partition_index), allowed[topic_id]
                    if known is None and place not in session.partitions and place not in session.held:
                        message = "the share session does not read the partition"
                        known = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
                    yield place, one.acknowledgement_batches, known

        acknowledging = Acknowledging(self._share, session.group_id, session.member_id, renews=request.is_renew_ack)
        return await acknowledging.take(permitted())

    def refusal(self, ctx: Context, topic_id: bytes) -> KafkaError | None:
        """Return the error if the client may not read a topic or it does not exist, else None."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic of that id")
        if not self._access.topic(ctx, Operation.READ, topic.name):
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"you may not read topic {topic.name!r}")
        return None


class _Reading:
    """The reading of one ShareFetch: the records at hand, or those that arrive while it waits."""

    def __init__(
        self,
        owner: ShareFetch,
        ctx: Context,
        request: m.ShareFetchRequest,
        session: ShareSession,
        datas: dict[Place, _Data],
    ) -> None:
        """Prepare the reading. ``datas`` are the errors of partitions that do not exist."""
        self._owner = owner
        self._share = owner._share
        self._ctx = ctx
        self._request = request
        self._session = session
        self._committed = self._share.reads_committed(session.group_id)
        self._lock_ms = self._share.lock_ms(session.group_id)
        self._most = self._share.most_in_flight(session.group_id)
        self._records_left = max(request.max_records, 0)
        self._room = min(request.max_bytes, owner._max_bytes)  # 0 reads nothing, as at a broker
        self._datas = datas
        self._lives: dict[Place, LivePartition] = {}
        self._stirred: asyncio.Future[None] | None = None
        # Whether to answer at once. An unknown partition is no reason: a consumer of a deleted topic would ask without
        # pause.
        self._news = False

    async def run(self) -> dict[Place, _Data]:
        """Return the data of each place that has records or an error."""
        loop = self._owner._loop
        # A long request holds room that other long requests wait for: it does not wait for records.
        most_ms = self._owner._max_wait_ms if self._ctx.size <= LONG_BYTES else 0
        until = loop.time() + min(max(self._request.max_wait_ms, 0), most_ms) / 1000
        try:
            await self._open()
            while True:
                self._stirred = loop.create_future()
                moved_on = await self._read_all()
                told = self._news or (self._datas and not self._lives)
                if told or self._session.closed or loop.time() >= until:
                    return self._datas
                if not moved_on:
                    await self._wait(until)
        finally:
            for live in self._lives.values():
                live.waiters.discard(self._stir)
                live.log.remove_waiter(self)
                if self._session.closed:
                    self._share.rest(live)

    async def _open(self) -> None:
        """Open the session's share partitions, and add waiters to them."""
        refused: dict[bytes, KafkaError | None] = {}

        async def open_one(place: Place) -> None:
            topic_id = place[0]
            if topic_id not in refused:
                refused[topic_id] = self._owner.refusal(self._ctx, topic_id)
            error = refused[topic_id]
            if error is not None:
                self._refuse(place, error.code, error.message)
                return
            try:
                live = await self._share.partition(self._session.group_id, *place)
                live.check()
            except (KafkaError, LogError) as failure:
                self._refuse(place, *failure_of(ApiKey.SHARE_FETCH, failure))
            else:
                self._lives[place] = live
                self._ctx.connection.client.read(live.log.topic, live.log.partition)
                live.waiters.add(self._stir)
                live.log.add_waiter(self)

        await gathered(open_one(place) for place in list(self._session.partitions))

    def _refuse(self, place: Place, code: int, message: str | None) -> None:
        live = self._lives.pop(place, None)
        if live is not None:
            live.waiters.discard(self._stir)
            live.log.remove_waiter(self)
        if code in _UNKNOWN:
            # The topic was deleted while the session read it; the member learns that from its heartbeat. An error here
            # would make Java's consumers ask for the topic's metadata at once, and so create it anew.
            self._share.sessions.remove(self._session, place)
            return
        self._news = True
        self._datas[place] = _Data(partition_index=place[1], error_code=code, error_message=message)

    def log_moved(self, log: PartitionLog) -> None:
        """Look again when a log moves; see :class:`bridges.log.partition.partition_log.Waiter`."""
        self._stir()

    def _stir(self) -> None:
        stirred = self._stirred
        if stirred is not None and not stirred.done():
            stirred.set_result(None)

    async def _wait(self, until: float) -> None:
        """Wait until a partition moves, a lock expires, or the request's time is over."""
        deadlines = [live.state.next_deadline_ms for live in self._lives.values()]
        # A little later: the clock counts whole milliseconds, and must have reached the deadline.
        soonest = min([until, *((at + 1.5) / 1000 for at in deadlines if at is not None)])
        assert self._stirred is not None
        await asyncio.wait([self._stirred], timeout=max(soonest - self._owner._loop.time(), 0.001))

    async def _read_all(self) -> bool:
        """Read the records that can be acquired now. Return whether any share partition has changed, so that there may
        be more."""
        moved_on = False
        turns = Turns()
        for place, live in [(place, self._lives[place]) for place in self._session.partitions if place in self._lives]:
            await turns.rest()
            if self._records_left <= 0 or self._room <= 0 or self._session.closed:
                break
            try:
                live.check()
                before = live.state.version
                await self._read(place, live)
                moved_on |= live.state.version != before
            except (KafkaError, LogError) as failure:
                self._refuse(place, *failure_of(ApiKey.SHARE_FETCH, failure))
        if self._datas and len(self._session.partitions) > 1:
            # Partitions that were served move behind all others.
            for place in self._datas:
                if place in self._session.partitions:
                    del self._session.partitions[place]
                    self._session.partitions[place] = None
        return moved_on

    async def _read(self, place: Place, live: LivePartition) -> None:
        log, state = live.log, live.state
        live.now()
        offset = state.next_offset()
        if offset == state.end and state.in_flight >= self._most:
            return
        limit = log.committed_limit(offset) if self._committed else log.high_watermark
        if offset >= limit:
            return
        account = self._ctx.connection.account
        granted = account.grant(Kind.READS, self._room, _LEAST_BYTES)
        if not granted:
            return
        try:
            batches = await log.read_batches(offset, granted, limit)
            if not batches:
                return
            shown = batches
            if self._committed:
                shown = without_aborted(batches, log.aborted(offset, batches[-1].end_offset))
            wanted = [batch for batch, one in zip(batches, shown, strict=True) if batch is one]
            told = await self._translate(log, wanted)
            read = [
                (batch.base_offset, batch.end_offset - 1, batch is one)
                for batch, one in zip(batches, shown, strict=True)
            ]
            if len(told) < len(wanted):  # the next request reads the rest
                read = [one for one in read if one[0] < wanted[len(told)].base_offset]
            live.check()
            if self._session.closed:
                return
            got = state.acquire(
                live.now(),
                self._session.member_id,
                self._lock_ms,
                offset,
                read,
                self._records_left,
                whole_batches=self._request.share_acquire_mode == _WHOLE_BATCHES,
                most_in_flight=self._most,
            )
            if got:
                self._take(place, log, got, wanted, told)
        finally:
            account.give(Kind.READS, granted)

    async def _translate(self, log: PartitionLog, batches: list[StoredBatch]) -> list[Buffer]:
        """Return the leading batches in Kafka's format, as many as need no further translation. Raises LogError if not
        even the first can be translated."""
        if not batches:
            return []
        first = batches[0]
        if first.flags & FORMAT_MASK != KAFKA:
            log.reading.locatable = False
            payload = await self._owner._translator.translate(log.stream_id, first, FormatId.KAFKA, batches[1:])
            batches = [first._replace(flags=KAFKA, payload=payload), *batches[1:]]
        parts, invalid = self._owner._partitions.payloads(log, batches)
        if not parts:
            raise invalid or BatchInvalid(f"the batch at offset {first.base_offset} cannot be told")
        return parts

    def _take(
        self, place: Place, log: PartitionLog, got: list[Acquired], batches: list[StoredBatch], told: list[Buffer]
    ) -> None:
        """Put the acquired records into the answer: the batches that contain them."""
        self._session.held.add(place)
        parts: list[Any] = []
        number = size = 0
        for batch, part in zip(batches, told, strict=False):
            while number < len(got) and got[number].last < batch.base_offset:
                number += 1
            if number < len(got) and got[number].first < batch.end_offset:
                parts.append(part)
                size += len(part)
        self._news = True
        self._room -= size
        quota = self._owner._partitions.quota
        if quota.in_force:
            self._ctx.connection.charge(quota, size)
        records = sum(one.last - one.first + 1 for one in got)
        self._records_left -= records
        self._owner._metrics.topic(log.topic).fetched(len(parts), records, size)
        self._ctx.connection.client.read(log.topic, log.partition, records, size)
        self._datas[place] = _Data(
            partition_index=place[1],
            records=parts or _NO_RECORDS,
            acquired_records=_joined(got, self._request.batch_size),
        )


def _joined(got: Iterable[Acquired], enough: int) -> list[m.ShareFetchResponse.AcquiredRecords]:
    """Return ranges with neighbours joined, until they have ``enough`` records."""
    joined: list[m.ShareFetchResponse.AcquiredRecords] = []
    for one in got:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.last_offset + 1 == one.first
            and last.delivery_count == one.count
            and one.first - last.first_offset < enough
        ):
            last.last_offset = one.last
        else:
            joined.append(m.ShareFetchResponse.AcquiredRecords(one.first, one.last, one.count))
    return joined


def register(registry: Registry, service: KafkaService, share: ShareService) -> None:
    """Serve keys 78 and 79."""
    handlers = ShareFetch(service, share)
    registry.register(ApiKey.SHARE_FETCH, handlers.fetch)
    registry.register(ApiKey.SHARE_ACKNOWLEDGE, handlers.acknowledge)
