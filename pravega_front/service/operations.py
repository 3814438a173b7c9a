"""Commands about whole segments: info, creation, sealing, deletion, truncation, attributes, merges
(docs/protocols/pravega.md, "Segment operations")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch_kit.run import clock
from bridges.errors import LogDeleted, PartitionSealed
from bridges.formats.producer import LedgerKind
from pravega_front.names import parse_segment
from pravega_front.service.segment import Segment, Truncated
from pravega_front.service.segments import NotPossible, SegmentExists, SegmentMissing
from pravega_front.service.state import IF_EQUALS, ConditionFailed, TooManyAttributes
from pravega_front.service.transactions.merging import transient_name
from pravega_front.wire import commands as wire
from pravega_front.wire.fields import AttributeUpdate, Merged

if TYPE_CHECKING:
    from pravega_front.server import SegmentStore
    from pravega_front.session.connection import Connection


def register(store: SegmentStore) -> None:
    """Register the handlers of these commands."""
    operations = Operations(store)
    store.handlers.update(
        {
            wire.GetStreamSegmentInfo: operations.info,
            wire.CreateSegment: operations.create,
            wire.SealSegment: operations.seal,
            wire.DeleteSegment: operations.delete,
            wire.TruncateSegment: operations.truncate,
            wire.UpdateSegmentPolicy: operations.update_policy,
            wire.GetSegmentAttribute: operations.attribute,
            wire.UpdateSegmentAttribute: operations.update_attribute,
            wire.LocateOffset: operations.locate,
            wire.CreateTransientSegment: operations.create_transient,
            wire.MergeSegments: operations.merge,
            wire.MergeSegmentsBatch: operations.merge_batch,
        }
    )


class Operations:
    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._segments = store.segments
        self._state = store.segments.state

    async def info(self, connection: Connection, request: wire.GetStreamSegmentInfo) -> wire.Command:
        name = request.segment
        segment = self._segments.find(name)
        if segment is None:
            if self._segments.is_mark(name):
                return wire.StreamSegmentInfo(request.request_id, name, True, False, False, 0, 0, 0)
            return wire.NoSuchSegment(request.request_id, name)
        try:
            start, length = await segment.start(), await segment.length()
        except LogDeleted:
            return wire.NoSuchSegment(request.request_id, name)
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
        except SegmentExists:
            return wire.SegmentAlreadyExists(request.request_id, request.segment)
        except NotPossible as error:
            return wire.ErrorMessage(request.request_id, request.segment, str(error))
        return wire.SegmentCreated(request.request_id, request.segment)

    async def seal(self, connection: Connection, request: wire.SealSegment) -> wire.Command:
        segment = await self._segments.here(request.segment)
        if segment is None:
            return wire.NoSuchSegment(request.request_id, request.segment)
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
        except SegmentMissing:
            return wire.NoSuchSegment(request.request_id, request.segment)
        except NotPossible:
            return wire.OperationUnsupported(request.request_id, "deleteSegment")
        return wire.SegmentDeleted(request.request_id, request.segment)

    async def truncate(self, connection: Connection, request: wire.TruncateSegment) -> wire.Command:
        segment = await self._segments.here(request.segment)
        if segment is None:
            return wire.NoSuchSegment(request.request_id, request.segment)
        offset = request.truncation_offset
        try:
            await segment.truncate(offset)
        except Truncated as error:
            return wire.SegmentIsTruncated(request.request_id, request.segment, error.start, "", offset)
        except LogDeleted:
            return wire.NoSuchSegment(request.request_id, request.segment)
        return wire.SegmentTruncated(request.request_id, request.segment)

    async def update_policy(self, connection: Connection, request: wire.UpdateSegmentPolicy) -> wire.Command:
        if await self._segments.here(request.segment) is None:
            return wire.NoSuchSegment(request.request_id, request.segment)
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
            try:
                await segment.log.ready()
            except LogDeleted:
                return wire.NoSuchSegment(request.request_id, request.segment)
            last = segment.log.last(LedgerKind.EVENT_NUMBER, request.attribute)
            if last is not None and last.base_offset < segment.log.high_watermark:
                value = last.number
        return wire.SegmentAttribute(request.request_id, value)

    async def update_attribute(self, connection: Connection, request: wire.UpdateSegmentAttribute) -> wire.Command:
        segment = await self._segments.here(request.segment)
        if segment is None:
            return wire.NoSuchSegment(request.request_id, request.segment)
        update = AttributeUpdate(request.attribute, IF_EQUALS, request.new_value, request.expected_value)
        try:
            await self._state.update(segment.topic, segment.partition, [update])
        except ConditionFailed:
            return wire.SegmentAttributeUpdated(request.request_id, False)
        except TooManyAttributes as error:
            return wire.ErrorMessage(request.request_id, request.segment, str(error))
        return wire.SegmentAttributeUpdated(request.request_id, True)

    async def locate(self, connection: Connection, request: wire.LocateOffset) -> wire.Command:
        segment = await self._segments.here(request.segment)
        if segment is None:
            return wire.NoSuchSegment(request.request_id, request.segment)
        # The end, which is also Pravega's answer for a segment without an index.
        try:
            return wire.OffsetLocated(request.request_id, request.segment, await segment.length())
        except LogDeleted:
            return wire.NoSuchSegment(request.request_id, request.segment)

    # --- merging ---------------------------------------------------------------------------------------------------

    async def create_transient(self, connection: Connection, request: wire.CreateTransientSegment) -> wire.Command:
        parent = await self._segments.here(request.parent)
        if parent is None:
            return wire.NoSuchSegment(request.request_id, request.parent)
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
        target = await self._segments.here(request.target)
        if target is None:
            return wire.NoSuchSegment(request.request_id, request.target)
        try:
            answer = await self._merged(
                connection, request.request_id, target, request.target, request.source, request.updates
            )
        except ConditionFailed:
            return wire.SegmentAttributeUpdated(request.request_id, False)
        except TooManyAttributes as error:
            return wire.ErrorMessage(request.request_id, request.target, str(error))
        if isinstance(answer, wire.Command):
            return answer
        return wire.SegmentsMerged(request.request_id, request.target, request.source, answer)

    async def merge_batch(self, connection: Connection, request: wire.MergeSegmentsBatch) -> wire.Command:
        target = await self._segments.here(request.target)
        if target is None:
            return wire.NoSuchSegment(request.request_id, request.target)
        merged = []
        for source in request.sources:
            answer = await self._merged(connection, request.request_id, target, request.target, source)
            if isinstance(answer, wire.Command):
                return answer
            merged.append(Merged(source, answer))
        return wire.SegmentsBatchMerged(request.request_id, request.target, merged)

    async def _merged(
        self,
        connection: Connection,
        request_id: int,
        target: Segment,
        target_name: str,
        source_name: str,
        updates: Sequence[AttributeUpdate] = (),
    ) -> int | wire.Command:
        """Merge and return the target's new length, or the error to answer. Raises ConditionFailed,
        TooManyAttributes."""
        if target.sealed:
            return wire.SegmentIsSealed(request_id, target_name)
        try:
            length = await self._store.merges.merge(target, source_name, updates)
        except SegmentMissing:
            return wire.NoSuchSegment(request_id, source_name)
        except LogDeleted:
            return wire.NoSuchSegment(request_id, target_name)
        except PartitionSealed:
            return wire.SegmentIsSealed(request_id, target_name)
        except NotPossible:
            return wire.OperationUnsupported(request_id, "mergeSegments")
        connection.transient.discard(source_name)
        return length
