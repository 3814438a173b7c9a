"""Commands about whole segments: info, creation, sealing, deletion, truncation, attributes, merges
(docs/protocols/pravega.md, "Segment operations")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch_kit.run import clock
from bridges.formats.producer import LedgerKind
from pravega_front.names import parse_segment
from pravega_front.service.answering import answering
from pravega_front.service.segment import Segment, Truncated
from pravega_front.service.segments import NotPossible, SegmentMissing
from pravega_front.service.state import IF_EQUALS
from pravega_front.service.transactions.merging import transient_name
from pravega_front.wire import commands as wire
from pravega_front.wire.fields import AttributeUpdate, Merged

if TYPE_CHECKING:
    from pravega_front.server import SegmentStore
    from pravega_front.service.answering import Handler
    from pravega_front.session.connection import Connection


def register(store: SegmentStore) -> None:
    """Register the handlers of these commands."""
    operations = Operations(store)
    handlers: dict[type[wire.Command], Handler] = {
        wire.GetStreamSegmentInfo: operations.info,
        wire.CreateSegment: operations.create,
        wire.SealSegment: operations.seal,
        wire.DeleteSegment: operations.delete,
        wire.TruncateSegment: operations.truncate,
        wire.UpdateSegmentPolicy: operations.update_policy,
        wire.GetSegmentAttribute: operations.attribute,
        wire.UpdateSegmentAttribute: operations.update_attribute,
        wire.LocateOffset: operations.locate,
    }
    store.handlers |= {command: answering(handler) for command, handler in handlers.items()}
    store.handlers[wire.CreateTransientSegment] = answering(operations.create_transient, "parent")
    store.handlers[wire.MergeSegments] = answering(operations.merge, "target")
    store.handlers[wire.MergeSegmentsBatch] = answering(operations.merge_batch, "target")


class Operations:
    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._segments = store.segments
        self._state = store.segments.state

    async def _here(self, name: str) -> Segment:
        """Return a segment of this node. Raises SegmentMissing, NotOwner, an error of the database."""
        segment = await self._segments.here(name)
        if segment is None:
            raise SegmentMissing(f"there is no segment {name!r}")
        return segment

    async def info(self, connection: Connection, request: wire.GetStreamSegmentInfo) -> wire.Command:
        name = request.segment
        segment = self._segments.find(name)
        if segment is None:
            if self._segments.is_mark(name):
                return wire.StreamSegmentInfo(request.request_id, name, True, False, False, 0, 0, 0)
            return wire.NoSuchSegment(request.request_id, name)
        start, length = await segment.start(), await segment.length()
        modified = segment.log.state.last[2] if segment.log.state.last is not None else -1
        if modified < 0:
            modified = clock.now_ms()
        return wire.StreamSegmentInfo(request.request_id, name, True, segment.sealed, False, modified, length, start)

    async def create(self, connection: Connection, request: wire.CreateSegment) -> wire.Command:
        parsed = parse_segment(request.segment)
        if parsed is None or parsed.suffix:
            return wire.ErrorMessage(request.request_id, request.segment, "no name of a segment", 0)
        try:
            await self._segments.create(request.segment)
        except NotPossible as error:
            return wire.ErrorMessage(request.request_id, request.segment, str(error))
        return wire.SegmentCreated(request.request_id, request.segment)

    async def seal(self, connection: Connection, request: wire.SealSegment) -> wire.Command:
        segment = await self._here(request.segment)
        if segment.sealed:
            return wire.SegmentIsSealed(request.request_id, request.segment)
        try:
            await self._segments.seal(segment)
        except NotPossible:
            return wire.OperationUnsupported(request.request_id, "sealSegment")
        return wire.SegmentSealed(request.request_id, request.segment)

    async def delete(self, connection: Connection, request: wire.DeleteSegment) -> wire.Command:
        try:
            await self._segments.here(request.segment)
            await self._segments.delete(request.segment)
        except NotPossible:
            return wire.OperationUnsupported(request.request_id, "deleteSegment")
        return wire.SegmentDeleted(request.request_id, request.segment)

    async def truncate(self, connection: Connection, request: wire.TruncateSegment) -> wire.Command:
        offset = request.truncation_offset
        try:
            await (await self._here(request.segment)).truncate(offset)
        except Truncated as error:
            return wire.SegmentIsTruncated(request.request_id, request.segment, error.start, "", offset)
        return wire.SegmentTruncated(request.request_id, request.segment)

    async def update_policy(self, connection: Connection, request: wire.UpdateSegmentPolicy) -> wire.Command:
        await self._here(request.segment)
        # The controller keeps policies per stream: a segment has none of its own.
        return wire.SegmentPolicyUpdated(request.request_id, request.segment)

    async def attribute(self, connection: Connection, request: wire.GetSegmentAttribute) -> wire.Command:
        segment = await self._segments.here(request.segment)
        if segment is None:
            if self._segments.is_mark(request.segment):
                return wire.SegmentAttribute(request.request_id, wire.NO_NUMBER)
            return wire.NoSuchSegment(request.request_id, request.segment)
        value = await self._state.attribute(segment.topic, segment.partition, request.attribute)
        if value == wire.NO_NUMBER:
            # A writer's last number is the attribute with the writer's id.
            await segment.log.ready()
            last = segment.log.last(LedgerKind.EVENT_NUMBER, request.attribute)
            if last is not None and last.base_offset < segment.log.high_watermark:
                value = last.number
        return wire.SegmentAttribute(request.request_id, value)

    async def update_attribute(self, connection: Connection, request: wire.UpdateSegmentAttribute) -> wire.Command:
        segment = await self._here(request.segment)
        update = AttributeUpdate(request.attribute, IF_EQUALS, request.new_value, request.expected_value)
        await self._state.update(segment.topic, segment.partition, [update])
        return wire.SegmentAttributeUpdated(request.request_id, True)

    async def locate(self, connection: Connection, request: wire.LocateOffset) -> wire.Command:
        # The end, which is also Pravega's answer for a segment without an index.
        length = await (await self._here(request.segment)).length()
        return wire.OffsetLocated(request.request_id, request.segment, length)

    # --- merging ---------------------------------------------------------------------------------------------------

    async def create_transient(self, connection: Connection, request: wire.CreateTransientSegment) -> wire.Command:
        parent = await self._here(request.parent)
        name = transient_name(request.parent, request.writer_id)
        try:
            await self._segments.create(name, beside=self._segments.beside(parent))
        except NotPossible as error:
            return wire.ErrorMessage(request.request_id, request.parent, str(error))
        if connection.closed:
            await self._store.forget_transient(name)
        else:
            connection.transient.add(name)
        return wire.SegmentCreated(request.request_id, name)

    async def merge(self, connection: Connection, request: wire.MergeSegments) -> wire.Command:
        answer = await self._merged(connection, request, [request.source], request.updates)
        if isinstance(answer, wire.Command):
            return answer
        return wire.SegmentsMerged(request.request_id, request.target, request.source, answer[0].length)

    async def merge_batch(self, connection: Connection, request: wire.MergeSegmentsBatch) -> wire.Command:
        answer = await self._merged(connection, request, request.sources)
        if isinstance(answer, wire.Command):
            return answer
        return wire.SegmentsBatchMerged(request.request_id, request.target, answer)

    async def _merged(
        self,
        connection: Connection,
        request: wire.MergeSegments | wire.MergeSegmentsBatch,
        sources: Sequence[str],
        updates: Sequence[AttributeUpdate] = (),
    ) -> list[Merged] | wire.Command:
        """Merge ``sources``, one after the other; return the target's length after each, or the error to answer."""
        target = await self._here(request.target)
        merged: list[Merged] = []
        for source in sources:
            if target.sealed:
                return wire.SegmentIsSealed(request.request_id, request.target)
            try:
                length = await self._store.merges.merge(target, source, updates)
            except SegmentMissing:
                return wire.NoSuchSegment(request.request_id, source)
            except NotPossible:
                return wire.OperationUnsupported(request.request_id, "mergeSegments")
            connection.transient.discard(source)
            merged.append(Merged(source, length))
        return merged
