"""Partition sessions of one read session: started, read, stopped, and the messages about them to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from anabranch_kit.run import clock
from anabranch_kit.run.turns import in_turns
from ydb_topic_front.service.read.chore import Chore, Work
from ydb_topic_front.service.read.commits import ReadCommits
from ydb_topic_front.service.read.pump import Credit, ReadPump
from ydb_topic_front.service.read.session_states import RANGE_BYTES, READING_BYTES
from ydb_topic_front.service.read.start import first_written
from ydb_topic_front.session.commit_ranges import CommitRanges
from ydb_topic_front.session.direct_reads import DirectReads
from ydb_topic_front.session.partition_reading import PartitionReading, ReadingState
from ydb_topic_front.session.read_data import Place
from ydb_topic_front.session.read_init import ReadInit, TopicWanted
from ydb_topic_front.wire.messages import StreamReadFromServer
from ydb_topic_front.wire.statuses import Status, bad_request

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from bridges.log.remote.readable import ReadableLog
    from bridges.net.grpc_server import GrpcStream
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.read.answers import ReadAnswers
    from ydb_topic_front.service.read.readers import Readers, ReadSession
    from ydb_topic_front.session.read_response import ResponseBuilder

_OPENED_AT_ONCE = 16


class ReadPartitions:
    """The partitions that ``session`` reads. ``over`` returns whether it has ended, so that others may have its
    partitions."""

    def __init__(
        self,
        service: YdbService,
        readers: Readers,
        session: ReadSession,
        stream: GrpcStream,
        answers: ReadAnswers,
        over: Callable[[], bool],
        wake: Callable[[], None],
        begin: Callable[[Work], None],
    ) -> None:
        self._service = service
        self._readers = readers
        self._session = session
        self._stream = stream
        self._answers = answers
        self.init = ReadInit((), "", "", False)
        """The client's request."""
        self.wanted: dict[str, TopicWanted] = {}
        self.topics: dict[str, Topic] = {}
        self._readings: dict[int, PartitionReading] = {}
        self._by_place: dict[tuple[str, int], PartitionReading] = {}
        self._numbers = 0
        self._taken_back = 0  # the highest session_id that was taken from the client
        self._held = 0  # bytes
        self._to_open: dict[PartitionReading, None] = {}
        self._opening = Chore(begin, self.open_all)
        self.credit = Credit(session.wake_senders)
        self.pump = self.new_pump(wake)
        self.commits = ReadCommits(self, readers, answers, over, wake, self._remember, begin)

    def new_pump(self, wake: Callable[[], None]) -> ReadPump:
        """Return a pump for another stream of the session's client."""
        return ReadPump(self._service.node, self.credit, self.log_of, self._read_all, wake, self._count_sent)

    # --- look-ups ---------------------------------------------------------------------------------------------------

    @property
    def consumer(self) -> str:
        """Return the name of the consumer; empty for a session without one."""
        return self.init.consumer

    @property
    def readings(self) -> Iterable[PartitionReading]:
        return self._readings.values()

    def get(self, session_id: int) -> PartitionReading | None:
        """Return the partition session of that number, None if the client has let go of it."""
        return self._readings.get(session_id)

    def has(self, reading: PartitionReading) -> bool:
        """Return whether a partition session is still one of this session's."""
        return reading.session_id in self._readings

    def at(self, topic: str, partition: int) -> PartitionReading | None:
        """Return the partition session of a partition, also when the client has let go of it and its position is yet to
        be stored."""
        return self._by_place.get((topic, partition))

    def log_of(self, reading: PartitionReading) -> ReadableLog:
        """Return the log of a partition session. Raises YdbError when the partition is no longer served."""
        return self._service.log_to_read(self.topics[reading.topic], reading.partition)

    def end_of(self, reading: PartitionReading) -> int | None:
        """Return the final end of a partition that has ended, None if it is not known. Raises as :meth:`log_of`."""
        # The partition may have another owner since: this node knows nothing of that log before it has asked.
        return self.log_of(reading).final_offset if reading.end is None else reading.end

    # --- as the balancer says (see ydb_topic_front.service.read.balancer.Member) -------------------------------------

    def start(self, topic: str, partition: int) -> None:
        """Take a partition that the balancer has assigned: open it and start a partition session at the client."""
        self._numbers += 1
        path = self._service.path_of(self._stream, self.topics[topic])
        reading = PartitionReading(self._numbers, topic, path, partition)
        self._remember(READING_BYTES)
        self._readings[reading.session_id] = self._by_place[topic, partition] = reading
        self._to_open[reading] = None
        self._session.client.read(topic, partition)
        self._opening.want()

    def let_go(self, topic: str, partition: int) -> None:
        """Ask the client to let go of a partition that another session is to read."""
        reading = self._by_place[topic, partition]
        if reading.state is ReadingState.OPENING:
            self._forget(reading)  # the client knows nothing of it
            return
        reading.state = ReadingState.STOPPING
        if reading.feed is not None:
            reading.feed.remove(reading)
        self._ask_to_stop(reading, graceful=True)
        self._readers.note_question(self._session, reading)

    def take_back(self, reading: PartitionReading) -> None:
        """Take a partition from a client that did not answer in time, and tell it so."""
        if self.has(reading):
            self._taken_back = max(self._taken_back, reading.session_id)
            self._ask_to_stop(reading, graceful=False)
            self._forget(reading)

    def _ask_to_stop(self, reading: PartitionReading, *, graceful: bool) -> None:
        message = StreamReadFromServer(status=Status.SUCCESS)
        request = message.stop_partition_session_request
        request.partition_session_id = reading.session_id
        request.graceful = graceful
        request.committed_offset = reading.stored
        if reading.direct is not None and graceful:
            request.last_direct_read_id = reading.direct.last_id
        self._answers.put(message)

    def _remember(self, size: int) -> None:
        """Count ``size`` bytes of state kept for the client. If that exceeds the limit the session ends, in the next
        turn of the event loop because the caller may be in the middle of serving others."""
        self._held += size
        self._service.states.change(size)
        refusal = self._service.states.refusal() if size > 0 else None
        if refusal is not None:
            self._service.loop.call_soon(self._session.end, refusal)

    def close(self) -> None:
        """Drop all state: the session has ended."""
        self.pump.close()
        for reading in self._readings.values():
            self._readers.note_answer(reading)
            reading.feed = None  # a StreamDirectRead may be reading it
        self._service.states.change(-self._held)
        self._held = 0
        self._readings.clear()
        self._by_place.clear()

    def untie(self) -> None:
        """Break the reference cycles between the parts of an ended session. Otherwise they would stay in memory until
        the garbage collector runs, which is rare in a node."""
        self.commits.untie()
        del self._session, self._opening, self.pump, self.commits, self.credit

    # --- their beginning --------------------------------------------------------------------------------------------

    async def open_all(self) -> None:
        """Find where newly assigned partitions begin and ask the client to start them. Runs until the session ends."""
        while True:
            await self._opening.await_work()
            while self._to_open:
                some = list(islice(self._to_open, _OPENED_AT_ONCE))
                for reading in some:
                    del self._to_open[reading]
                await asyncio.gather(*map(self._open_one, some))
                await self._answers.few()

    async def _open_one(self, reading: PartitionReading) -> None:
        service = self._service
        log = self.log_of(reading)
        await log.ready()
        wanted = self.wanted[reading.topic]
        not_before = wanted.read_from_ms
        committed = None
        if self.consumer:
            committed = service.node.progress.committed(self.consumer, reading.topic, reading.partition)
            consumer = service.topics.get_settings(reading.topic).consumers.get(self.consumer)
            if consumer is not None and consumer.HasField("read_from"):
                not_before = max(not_before, consumer.read_from.seconds * 1000 + consumer.read_from.nanos // 1_000_000)
        reading.not_before_ms = not_before
        reading.max_lag_ms = wanted.max_lag_ms
        now = clock.now_ms()
        if wanted.max_lag_ms >= 0:
            not_before = max(not_before, now - wanted.max_lag_ms)
        position = 0 if committed is None else committed.offset
        start = max(position, log.log_start_offset)
        if not_before >= 0:
            async with self._readers.searches:
                start = max(start, await first_written(log, not_before, self._stream.account))
        if self.get(reading.session_id) is not reading:
            return  # the partition was given to another session meanwhile
        reading.commits = CommitRanges(position)
        reading.stored = position
        reading.place = Place(start)
        reading.began_ms = now
        reading.state = ReadingState.STARTING
        message = StreamReadFromServer(status=Status.SUCCESS)
        request = message.start_partition_session_request
        request.partition_session.partition_session_id = reading.session_id
        request.partition_session.path = reading.path
        request.partition_session.partition_id = reading.partition
        request.committed_offset = position
        request.partition_offsets.start = max(position, log.log_start_offset)
        request.partition_offsets.end = max(request.partition_offsets.start, log.last_stable_offset)
        if self.init.is_direct:
            reading.direct = DirectReads(service.generation(reading.topic, reading.partition))
            self._fill_location(request.partition_location, reading, reading.direct)
        self._answers.put(message)
        if self.consumer:  # without a consumer no other session waits for the partition
            self._readers.note_question(self._session, reading)

    # --- messages of the client -------------------------------------------------------------------------------------

    def started(self, response: Any) -> None:
        """Handle a ``StartPartitionSessionResponse``. Raises YdbError."""
        reading = self.get(response.partition_session_id)
        if reading is None:
            return
        if reading.state is ReadingState.OPENING:
            raise bad_request(f"partition session {reading.session_id} was not started")
        commit = response.commit_offset if response.HasField("commit_offset") else None
        if commit is not None and commit > reading.commits.position:
            if not self.consumer:
                raise bad_request("a session without a consumer cannot commit: name one in the init_request")
            self.commits.add(reading, reading.commits.position, commit)
        offset = response.read_offset if response.HasField("read_offset") else None
        reading.started(offset, max(reading.place.offset, reading.commits.position))
        if reading.may_send:
            self._readers.note_answer(reading)
            feed = self.pump if reading.direct is None else reading.feed
            if feed is not None:
                feed.add(reading)

    def stopped(self, response: Any) -> None:
        """Handle a ``StopPartitionSessionResponse``. Raises YdbError."""
        if not self.consumer:
            raise bad_request("a session without a consumer has no partition sessions to stop")
        reading = self.get(response.partition_session_id)
        if reading is None and 0 < response.partition_session_id <= self._taken_back:
            return  # the answer came after take_back
        if reading is None or reading.state is not ReadingState.STOPPING:
            raise bad_request(f"partition session {response.partition_session_id} was not asked to stop")
        self._forget(reading)

    def status(self, request: Any) -> None:
        """Handle a ``PartitionSessionStatusRequest``. Raises YdbError."""
        reading = self.get(request.partition_session_id)
        if reading is None:
            return
        log = self.log_of(reading)
        message = StreamReadFromServer(status=Status.SUCCESS)
        answer = message.partition_session_status_response
        answer.partition_session_id = reading.session_id
        answer.partition_offsets.start = log.log_start_offset
        answer.partition_offsets.end = log.last_stable_offset
        answer.committed_offset = reading.stored
        answer.read_offset = reading.place.offset
        answer.write_time_high_watermark.SetInParent()
        if (last_ms := log.last_append_ms) >= 0:
            answer.write_time_high_watermark.seconds = last_ms // 1000
            answer.write_time_high_watermark.nanos = last_ms % 1000 * 1_000_000
        self._answers.put(message)

    # --- direct reading (see ydb_topic_front.service.read.direct_stream) ----------------------------------------------

    async def sole(self, session_id: int) -> PartitionReading | None:
        """Return a partition session that no stream sends data of any more, None if the client has let go of it."""
        while (reading := self.get(session_id)) is not None and (feed := reading.feed) is not None:
            feed.remove(reading)
            await feed.await_idle()
        return reading

    def feed_from(self, reading: PartitionReading, last_id: int, pump: ReadPump) -> bool:
        """Send a partition's data by ``pump``, from behind the read ``last_id`` on, the last one that the client has
        got. Return False if the client was asked to let go of the partition and lacks reads: then it is taken back.
        Raises YdbError."""
        direct = reading.direct
        assert direct is not None
        lacks = direct.last_id > last_id
        place, credit, forgotten = direct.rewind(last_id)
        self._give_back(credit, forgotten)
        if lacks and reading.state is ReadingState.STOPPING:
            self.take_back(reading)
            return False
        reading.feed = pump
        if reading.state is ReadingState.ACTIVE:
            reading.place = place
            reading.sent_end = min(reading.sent_end, place.offset)
            pump.add(reading)
        return True

    def acknowledge(self, ack: Any) -> None:
        """Handle a ``DirectReadAck``. Raises YdbError."""
        if not self.init.is_direct:
            raise bad_request("direct_read_ack in a session without direct_read")
        reading = self.get(ack.partition_session_id)
        if reading is None or reading.direct is None:
            return
        could_send = reading.may_send
        reading.direct.acknowledge(ack.direct_read_id)
        self._remember(-RANGE_BYTES)
        if reading.may_send and not could_send and reading.feed is not None:
            reading.feed.add(reading)
        if reading.end is not None and reading.place.offset >= reading.end:
            self._read_all(reading)

    async def tell_moves(self) -> None:
        """Tell the client of partitions that have another owner or generation by now: it asks the new place for their
        data."""
        service = self._service
        async for reading in in_turns(list(self._readings.values())):
            direct = reading.direct
            if direct is None or not self.has(reading) or not service.is_owned(reading.topic, reading.partition):
                continue
            generation = service.generation(reading.topic, reading.partition)
            if generation != direct.generation:
                direct.generation = generation
                if reading.feed is not None:
                    reading.feed.remove(reading)
                self.tell_move(reading, direct)

    def tell_move(self, reading: PartitionReading, direct: DirectReads) -> None:
        """Tell the client where a partition is to be read."""
        message = StreamReadFromServer(status=Status.SUCCESS)
        update = message.update_partition_session
        update.partition_session_id = reading.session_id
        self._fill_location(update.partition_location, reading, direct)
        self._answers.put(message)

    def _fill_location(self, location: Any, reading: PartitionReading, direct: DirectReads) -> None:
        location.node_id = self._service.owner_id(reading.topic, reading.partition)
        location.generation = direct.generation

    def _give_back(self, credit: int, forgotten: int) -> None:
        """Return the credit and the memory of direct reads that the client has not got."""
        self._remember(-forgotten * RANGE_BYTES)
        self.credit.add(credit)

    # --- their end --------------------------------------------------------------------------------------------------

    def _forget(self, reading: PartitionReading) -> None:
        """Remove a partition session. The partition is released as soon as its committed position is stored."""
        del self._readings[reading.session_id]
        self._session.client.let_go(reading.topic, reading.partition)
        self._readers.note_answer(reading)
        self._remember(-READING_BYTES)
        self.commits.forget(reading)
        self._to_open.pop(reading, None)
        if reading.feed is not None:
            reading.feed.remove(reading)
        if reading.direct is not None:
            self._give_back(reading.direct.credit, len(reading.direct))
        if not self.commits.is_unsettled(reading):
            self.release(reading)

    def release(self, reading: PartitionReading) -> None:
        """Release a partition that the client has let go of and whose position is stored."""
        self._by_place.pop((reading.topic, reading.partition), None)
        self._readers.released(self._session, reading.topic, reading.partition)

    def _count_sent(self, reading: PartitionReading, sent: ResponseBuilder, messages: int) -> None:
        self._session.client.read(reading.topic, reading.partition, messages, sent.size)
        if reading.direct is not None:
            self._remember(RANGE_BYTES)
        if self.consumer:
            topic, last = self.topics[reading.topic], reading.place.offset - 1
            measures = self._service.measures
            measures.read(topic, self.consumer, reading.partition, sent.size, last, sent.written_ms, sent.write_lag)

    def _read_all(self, reading: PartitionReading) -> None:
        """Handle that all of a partition that has ended was sent: tell the client once, if it supports that."""
        self.commits.pass_rest(reading)
        self._readers.ended(self.consumer, reading.topic)
        if reading.end_told or not self.init.knows_ends or (reading.direct is not None and len(reading.direct)):
            return
        reading.end_told = True
        topic = self.topics[reading.topic]
        info = topic.partitions[reading.partition]
        message = StreamReadFromServer(status=Status.SUCCESS)
        told = message.end_partition_session
        told.partition_session_id = reading.session_id
        told.child_partition_ids.extend(info.children)
        adjacent = {index for child in info.children for index in topic.partitions[child].parents}
        told.adjacent_partition_ids.extend(sorted(adjacent - {info.index}))
        self._answers.put(message)
