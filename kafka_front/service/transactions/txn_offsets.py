"""TxnOffsetCommit: positions of a group that become valid with a transaction (docs/protocols/kafka.md, rule 39)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation
from bridges.errors import LogError, NotOwner
from kafka_front.dispatch import Registry
from kafka_front.service.groups.requests.offsets import Asked, topic_name
from kafka_front.service.transactions.tables import NotAsBelieved, require_group
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError
from kafka_front.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService
    from kafka_front.service.groups import GroupService

_IMPLICIT_SINCE = 5
"""First version that adds its group to the transaction itself (KIP-890)."""
_IDS_SINCE = 6
"""First version that gives ids of topics, and knows a member's epoch (KIP-1319)."""

_Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


class TransactionalOffsets:
    """The handler of TxnOffsetCommit."""

    def __init__(self, service: KafkaService, groups: GroupService) -> None:
        self._access = service.access
        self._transactions = service.transactions
        self._groups = groups
        self._progress = service.progress

    async def commit(self, ctx: Context, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        """Answer TxnOffsetCommit once the positions are durable; they are invisible before the transaction's end."""
        self._access.require_transaction(ctx, Operation.WRITE, request.transactional_id)
        self._access.require_group(ctx, Operation.READ, request.group_id)
        response = TxnOffsetCommitResponse()
        asked = Asked(self._groups, now_ms())
        async for topic in in_turns(request.topics):
            name = topic_name(self._groups, topic, by_id=ctx.version >= _IDS_SINCE)
            partitions = await asked.take(ctx, name, topic.partitions, _Partition)
            response.topics.append(_Topic(topic.topic_id, partitions, topic.name))
        if not request.topics or asked.is_known:
            try:
                await self._commit(ctx.version, request, asked)
            except KafkaError as refused:
                asked.refuse(_code_for(ctx.version, refused.code))
        return response

    async def _commit(self, version: int, request: TxnOffsetCommitRequest, asked: Asked) -> None:
        name, group = request.transactional_id, request.group_id
        producer = request.producer_id, request.producer_epoch
        if version >= _IMPLICIT_SINCE:
            await self._transactions.owned.add(name, *producer, [], [group])
        unknown = ErrorCode.GROUP_ID_NOT_FOUND if version >= _IDS_SINCE else ErrorCode.ILLEGAL_GENERATION
        self._groups.check_commit(request, asked.places, unknown_group_error=unknown, transactional=True)
        check = partial(require_group, name=name, producer_id=producer[0], epoch=producer[1], group=group)
        try:
            await self._progress.commit_with(name, group, asked.positions, check)
        except NotAsBelieved as error:
            raise KafkaError(error.code, str(error)) from error
        except NotOwner as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, str(error)) from error
        except LogError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error


def _code_for(version: int, code: int) -> int:
    """Return ``code`` as transactional clients of this version know it."""
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.STALE_MEMBER_EPOCH and version < _IDS_SINCE:
        return ErrorCode.ILLEGAL_GENERATION
    if code == ErrorCode.CONCURRENT_TRANSACTIONS and version < _IMPLICIT_SINCE:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # older clients retry on it
    return code


def register(registry: Registry, service: KafkaService, groups: GroupService) -> None:
    """Serve key 28."""
    groups.owned.guarding(registry).register(ApiKey.TXN_OFFSET_COMMIT, TransactionalOffsets(service, groups).commit)
