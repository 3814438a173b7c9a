"""Calls about a stream's segments: location, successors, scaling, truncation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anabranch_kit.run.turns import in_turns
from bridges.catalog.topics.lineage import InvalidChange, InvalidKeyRange, KeyRange, PartitionInfo
from bridges.catalog.topics.topic import InvalidPartitions, SplitNotAllowed
from bridges.errors import LogError
from bridges.net.grpc_server import Code, GrpcRefusal
from pravega_front.controller.streams import Ranged, ranged
from pravega_front.names import SegmentName, segment_of, split_id
from pravega_front.service.segment import Truncated
from pravega_front.service.segments import SegmentMissing
from pravega_front.wire.controller import ScaleProgress, ScaleStatus, UpdateStreamStatus, message

if TYPE_CHECKING:
    from bridges.auth import Principal
    from bridges.catalog.topics.topic import Topic
    from pravega_front.controller.core import Controller
    from pravega_front.controller.dispatch import Registry
    from pravega_front.service.asking import Known

_Status = message("Status")
_SegmentRanges = message("SegmentRanges")
_SegmentsAtTime = message("SegmentsAtTime")
_SuccessorResponse = message("SuccessorResponse")
_StreamCutRangeResponse = message("StreamCutRangeResponse")
_ScaleResponse = message("ScaleResponse")
_ValidityResponse = message("ValidityResponse")
_NodeUri = message("NodeUri")
_ServerResponse = message("ServerResponse")
_BucketsResponse = message("ControllerToBucketMappingResponse")


def register(registry: Registry, controller: Controller) -> None:
    """Add this module's methods."""
    calls = _Calls(controller)
    registry.place("getControllerServerList", calls.controllers)
    registry.place("getControllerToBucketMapping", calls.buckets)
    registry.place("getURI", calls.uri)
    registry.call("getCurrentSegments", calls.current)
    registry.call("getEpochSegments", calls.of_epoch)
    registry.call("getSegments", calls.head)
    registry.call("getSegmentsImmediatelyFollowing", calls.successors)
    registry.call("getSegmentsImmediatlyFollowing", calls.successors)
    registry.call("getSegmentsBetween", calls.between)
    registry.call("isSegmentValid", calls.is_open)
    registry.call("isStreamCutValid", calls.is_cut)
    registry.call("scale", calls.scale)
    registry.call("checkScale", calls.check_scale)
    registry.call("truncateStream", calls.truncate)


class _Calls:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._streams = controller.streams

    async def controllers(self, request: Any, listener: str) -> Any:
        answer = _ServerResponse()
        for host, port in self._controller.controllers(listener):
            answer.nodeURI.add(endpoint=host, port=port)
        return answer

    async def buckets(self, request: Any, listener: str) -> Any:
        # The chores for a stream run at the owner of its first segment, so each node has one bucket of streams.
        answer = _BucketsResponse()
        for number, (host, port) in enumerate(sorted(self._controller.controllers(listener))):
            answer.mapping.add(key=f"{host}:{port}").value.id.append(number)
        return answer

    async def uri(self, request: Any, listener: str) -> Any:
        # Answered for any name: clients also ask for segments unknown to the controller, such as reader groups' tables.
        number, epoch = split_id(request.segmentId)
        name = SegmentName(request.streamInfo.scope, request.streamInfo.stream, number, epoch)
        host, port = await self._controller.place_of(str(name), listener)
        return _NodeUri(endpoint=host, port=port)

    # --- which segments there are ----------------------------------------------------------------------------------

    async def current(self, request: Any, caller: Principal) -> Any:
        marked = self._streams.marked(request)
        if marked is not None:
            return self._ranges(caller, request, marked, [Ranged(PartitionInfo(0, -1), 0.0, 1.0)])
        topic = self._streams.get(request)
        return self._ranges(caller, request, topic, ranged(topic.active))

    async def of_epoch(self, request: Any, caller: Principal) -> Any:
        topic = self._streams.get(request.streamInfo)
        if not 0 <= request.epoch <= topic.epoch:
            raise GrpcRefusal(Code.NOT_FOUND, f"{topic.name} has no epoch {request.epoch}")
        return self._ranges(caller, request.streamInfo, topic, ranged(topic.partitions_of(request.epoch)))

    def _ranges(self, caller: Principal, info: Any, topic: Topic, found: list[Ranged]) -> Any:
        answer = _SegmentRanges(delegationToken=self._controller.access.token(caller, info))
        answer.segmentRanges.extend(self._streams.range_message(info, topic, one) for one in found)
        return answer

    async def head(self, request: Any, caller: Principal) -> Any:
        info = request.streamInfo
        answer = _SegmentsAtTime(delegationToken=self._controller.access.token(caller, info))
        marked = self._streams.marked(info)
        if marked is not None:
            self._location(answer, info, marked.first_number, 0)
            return answer
        topic = self._streams.get(info)
        for partition, start in await self._head(topic, request.timestamp):
            self._location(answer, info, segment_of(topic, partition).segment_id, start)
        return answer

    def _location(self, answer: Any, info: Any, number: int, offset: int) -> None:
        location = answer.segments.add(offset=offset)
        location.segmentId.streamInfo.scope, location.segmentId.streamInfo.stream = info.scope, info.stream
        location.segmentId.segmentId = number

    async def _head(self, topic: Topic, timestamp: int = 0) -> list[tuple[PartitionInfo, int]]:
        """Return the first segments that have, or may get, events of ``timestamp`` (ms) or later, each with the
        position where those begin; without a timestamp, the segments' starts. Together they cover the key range exactly
        once."""
        begin: dict[int, int] = {}
        spent: set[int] = set()
        due = [one for one in topic.partitions if not one.parents]
        while due:
            known = await self._look_up(topic, due, timestamp)
            following: dict[int, None] = {}
            for partition, one in zip(due, known, strict=True):
                begin[partition.index] = one.at
                if partition.children and one.ended and one.at >= one.length:
                    spent.add(partition.index)
                    following.update(dict.fromkeys(partition.children))
            children = [topic.partitions[index] for index in sorted(following)]
            due = [one for one in children if one.index not in begin and spent.issuperset(one.parents)]
        # A reader begins a merged segment when it has read all its parents to their ends. So a parent stays in the
        # result, with nothing left to read, while another parent of its child is not spent.
        waiting = list(topic.partitions)
        while waiting:
            partition = waiting.pop()
            if not spent.issuperset(partition.parents):
                for back in spent.intersection((partition.index, *partition.parents)):
                    spent.discard(back)
                    waiting += [topic.partitions[child] for child in topic.partitions[back].children]
        return [
            (topic.partitions[index], at)
            for index, at in sorted(begin.items())
            if index not in spent and spent.issuperset(topic.partitions[index].parents)
        ]

    async def _look_up(self, topic: Topic, partitions: list[PartitionInfo], timestamp: int) -> list[Known]:
        names = [str(segment_of(topic, one)) for one in partitions]
        try:
            found = await self._controller.anywhere.look_up(names, timestamp)
        except SegmentMissing as error:
            raise GrpcRefusal(Code.NOT_FOUND, str(error)) from error
        return [found[name] for name in names]

    async def successors(self, request: Any, caller: Principal) -> Any:
        info = request.streamInfo
        answer = _SuccessorResponse(delegationToken=self._controller.access.token(caller, info))
        if self._streams.marked(info) is not None:
            return answer
        topic = self._streams.get(info)
        partition = self._streams.partition(topic, request.segmentId)
        if partition.sealed_epoch is None:
            return answer
        following = set(partition.children)
        for one in ranged(topic.partitions_of(partition.sealed_epoch)):
            if one.partition.index in following:
                parents = [segment_of(topic, topic.partitions[n]).segment_id for n in one.partition.parents]
                entry = answer.segments.add(value=parents)
                entry.segment.CopyFrom(self._streams.range_message(info, topic, one))
        return answer

    async def between(self, request: Any, caller: Principal) -> Any:
        info = request.streamInfo
        topic = self._streams.get(info)
        first = getattr(request, "from")
        ends = {self._streams.partition(topic, number).index for number in request.to}
        if first:
            waiting = [self._streams.partition(topic, number) for number in first]
        else:
            waiting = [partition for partition, _ in await self._head(topic)]
        seen: dict[int, PartitionInfo] = {}
        while waiting:
            partition = waiting.pop()
            if partition.index in seen:
                continue
            seen[partition.index] = partition
            if partition.index not in ends:
                waiting += [topic.partitions[number] for number in partition.children]
        if ends:
            # Successors of the segments in which the range ends are not part of it.
            behind = self._descendants(topic, ends)
            seen = {index: one for index, one in seen.items() if index not in behind}
        answer = _StreamCutRangeResponse(delegationToken=self._controller.access.token(caller, info))
        for _, partition in sorted(seen.items()):
            found = answer.segments.add(segmentId=segment_of(topic, partition).segment_id)
            found.streamInfo.scope, found.streamInfo.stream = info.scope, info.stream
        return answer

    @staticmethod
    def _descendants(topic: Topic, numbers: set[int]) -> set[int]:
        found: set[int] = set()
        waiting = [child for number in numbers for child in topic.partitions[number].children]
        while waiting:
            number = waiting.pop()
            if number not in found and number not in numbers:
                found.add(number)
                waiting += topic.partitions[number].children
        return found

    async def is_open(self, request: Any, caller: Principal) -> Any:
        topic = self._streams.get(request.streamInfo)
        return _ValidityResponse(response=self._streams.partition(topic, request.segmentId).is_active)

    async def is_cut(self, request: Any, caller: Principal) -> Any:
        topic = self._streams.get(request.streamInfo)
        return _ValidityResponse(response=self._covers([self._streams.partition(topic, n) for n in request.cut]))

    @staticmethod
    def _covers(partitions: list[PartitionInfo]) -> bool:
        """Return whether the partitions cover the key range exactly once."""
        whole = ranged(partitions)
        return bool(partitions) and all((one.low, one.high) == one.partition.keys.doubles for one in whole)

    # --- changing --------------------------------------------------------------------------------------------------

    async def scale(self, request: Any, caller: Principal) -> Any:
        info = request.streamInfo
        topic = self._streams.get(info)
        epoch = topic.epoch
        sealed = [self._streams.partition(topic, number).index for number in request.sealedSegments]
        try:
            most = self._controller.catalog.options.max_partitions_per_topic
            if not 0 < len(request.newKeyRanges) <= most or len(sealed) > len(topic.partitions):
                raise InvalidChange(f"{len(sealed)} segments are to become {len(request.newKeyRanges)}, of {most}")
            ranges: list[KeyRange] = []
            async for one in in_turns(request.newKeyRanges):
                ranges.append(KeyRange.of_doubles(one.start, one.end))
            await self._controller.scale(topic, sealed, ranges)
        except (InvalidChange, InvalidKeyRange, SplitNotAllowed, InvalidPartitions):
            return _ScaleResponse(status=ScaleStatus.PRECONDITION_FAILED, epoch=epoch)
        answer = _ScaleResponse(status=ScaleStatus.STARTED, epoch=epoch)
        for one in ranged(topic.active):
            answer.segments.append(self._streams.range_message(info, topic, one))
        return answer

    async def check_scale(self, request: Any, caller: Principal) -> Any:
        topic = self._streams.find(request.streamInfo.scope, request.streamInfo.stream)
        if topic is None or not 0 <= request.epoch <= topic.epoch:
            return _Status(status=ScaleProgress.INVALID_INPUT)
        # The catalog changes partitions in one step, so an epoch has ended when there is a later one.
        return _Status(status=ScaleProgress.SUCCESS if request.epoch < topic.epoch else ScaleProgress.IN_PROGRESS)

    async def truncate(self, request: Any, caller: Principal) -> Any:
        topic = self._streams.find(request.streamInfo.scope, request.streamInfo.stream)
        if topic is None:
            return _Status(status=UpdateStreamStatus.STREAM_NOT_FOUND)
        cut = {self._streams.partition(topic, number).index: offset for number, offset in request.cut.items()}
        if not self._covers([topic.partitions[number] for number in cut]):
            return _Status(status=UpdateStreamStatus.FAILURE)
        before: set[int] = set()
        waiting = [parent for number in cut for parent in topic.partitions[number].parents]
        while waiting:
            number = waiting.pop()
            if number not in before and number not in cut:
                before.add(number)
                waiting += topic.partitions[number].parents
        try:
            for number, offset in cut.items():
                await self._controller.anywhere.truncate(str(segment_of(topic, topic.partitions[number])), offset)
            for number in before:
                await self._controller.anywhere.truncate(str(segment_of(topic, topic.partitions[number])))
        except SegmentMissing as error:
            raise GrpcRefusal(Code.NOT_FOUND, str(error)) from error
        except Truncated:
            return _Status(status=UpdateStreamStatus.FAILURE)
        except LogError as error:
            if error.retriable:
                raise
            return _Status(status=UpdateStreamStatus.FAILURE)
        return _Status(status=UpdateStreamStatus.SUCCESS)
