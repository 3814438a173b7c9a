"""StreamRead, StreamDirectRead and CommitOffset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from anabranch_kit.run import clock
from bridges.auth import Operation, Resource, ResourceKind
from bridges.catalog.progress import Committed
from ydb_topic_front.service.read.coordination import Coordination
from ydb_topic_front.service.read.data_stream import encode_last, parse_message
from ydb_topic_front.service.read.direct_stream import DirectStream
from ydb_topic_front.service.read.readers import Readers
from ydb_topic_front.service.read.stream import ReadStream, node_of
from ydb_topic_front.session.read_init import no_such_consumer
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.net.grpc_server import GrpcCall, GrpcStream
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService


async def commit_offset(service: YdbService, readers: Readers, request: Any, call: GrpcCall) -> None:
    """Set a consumer's position, which may go back (docs/protocols/ydb.md, "CommitOffset").

    A session that reads the partition goes on if the request names it. Any other ends: it may have sent messages that
    are to be read again, or to be skipped. Raises GroupHeld while members of another protocol read.
    """
    topic = service.topic_at(call, request.path, Operation.READ)
    consumer = request.consumer
    service.require(call, Operation.READ, Resource(ResourceKind.GROUP, consumer))
    if consumer not in service.topics.get_settings(topic.name).consumers:
        raise no_such_consumer(consumer, request.path)
    partition, offset = request.partition_id, request.offset
    if not 0 <= partition < len(topic.partitions):
        raise bad_request(f"topic '{request.path}' has no partition {partition}")
    log = service.log_to_read(topic, partition)
    await log.refresh()
    await readers.coordination.await_known(consumer)
    service.node.progress.require_free(consumer)
    if not 0 <= offset <= log.high_watermark:
        raise bad_request(f"offset {offset} of partition {partition}, which ends at {log.high_watermark}")
    session = readers.session(request.read_session_id) if request.read_session_id else None
    if request.read_session_id and (session is None or session is not readers.owner(consumer, topic.name, partition)):
        message = f"session '{request.read_session_id}' does not read partition {partition}"
        raise YdbError(Status.SESSION_EXPIRED, message, Issue.WRONG_COOKIE)

    def end_reader() -> None:
        reader = readers.owner(consumer, topic.name, partition)
        if session is None and reader is not None:
            message = f"the position of '{consumer}' in partition {partition} was set by somebody else"
            reader.end(YdbError(Status.SESSION_EXPIRED, message, Issue.WRONG_COOKIE))

    end_reader()  # before the commit: a position that the session has yet to store must not undo it
    now = clock.now_ms()
    await service.node.progress.commit(consumer, [(topic.name, partition, Committed(offset, commit_ms=now))])
    end_reader()  # again: a session that took over meanwhile began at the old position
    if session is not None:
        session.position_moved(topic.name, partition, offset)
    readers.ended(consumer, topic.name)


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's methods."""
    readers, forwarding = service.readers, service.forwarding
    coordination = readers.coordination

    async def stream_read(stream: GrpcStream) -> None:
        await ReadStream(service, readers, stream).serve()

    async def stream_direct_read(stream: GrpcStream) -> None:
        await DirectStream(service, readers, stream).serve()

    async def commit(request: Any, call: GrpcCall) -> None:
        await commit_offset(service, readers, request, call)

    async def slot_of(raw: bytes, stream: GrpcStream) -> Callable[[], int] | None:
        init = parse_message("StreamRead", raw).init_request
        return coordination.finding(init.consumer) if init.consumer else None  # else any node serves it

    async def session_node(raw: bytes, stream: GrpcStream) -> Member | None:
        init = parse_message("StreamDirectRead", raw).init_request
        own, at = service.node.node_id, node_of(init.session_id)
        return next(
            (one for one in service.node.owners.nodes if str(one.node_id + 1) == at and one.node_id != own), None
        )

    for method, handler, find in (
        ("StreamRead", stream_read, slot_of),
        ("StreamDirectRead", stream_direct_read, session_node),
    ):
        registry.stream(method, forwarding.led(method, handler, find, partial(encode_last, method)))
    registry.call(
        "CommitOffset", commit, forwarding.led_call("CommitOffset", by_consumer(coordination, "CommitOffset"))
    )


def by_consumer(coordination: Coordination, method: str) -> Callable[[bytes], Callable[[], int] | None]:
    """Return a function that finds the slot of a call, for a method whose request names a consumer."""
    kind = messages[METHODS[method].request]

    def find(raw: bytes) -> Callable[[], int] | None:
        try:
            return coordination.finding(kind.FromString(raw).consumer)
        except DecodeError:
            return None

    return find
