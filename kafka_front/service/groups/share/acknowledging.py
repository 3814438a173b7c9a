"""Acknowledgements of ShareFetch and ShareAcknowledge: checked, applied, durable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from anabranch_kit.run.turns import Turns, gathered
from bridges.errors import LogError
from kafka_front.service.groups.share.partition import Ack, AckType, InvalidState
from kafka_front.service.groups.share.sessions import Place
from kafka_front.service.log_errors import failure_of
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.service.groups.share.service import LivePartition, ShareService

_INVALID = ErrorCode.INVALID_REQUEST

Outcome = tuple[int, str | None]
"""Error code and sentence; code 0: the acknowledgements are durable."""


class Said(Protocol):
    """An acknowledgement batch of either request."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


def acks_of(batches: Sequence[Said], most: int, *, renews: bool) -> list[Ack]:
    """Return a partition's acknowledgements, equal neighbours joined. Raises KafkaError for invalid ones.

    A member has at most ``most`` records of a partition, so it cannot acknowledge more.
    """
    if len(batches) > most:
        raise KafkaError(_INVALID, "more batches are acknowledged than a member can have")
    acks: list[Ack] = []
    end = -1
    for batch in batches:
        first, last, kinds = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if not end < first <= last:
            raise KafkaError(_INVALID, f"offsets {first}-{last} are not a batch, or not behind those before them")
        end = last
        if len(kinds) > most or (len(kinds) != 1 and len(kinds) != last - first + 1):
            raise KafkaError(_INVALID, f"{len(kinds)} acknowledgements for offsets {first}-{last}")
        begun = 0
        for number, kind in enumerate(kinds):
            if not 0 <= kind <= AckType.RENEW or (kind == AckType.RENEW and not renews):
                raise KafkaError(_INVALID, f"acknowledgements are not of type {kind}")
            if number + 1 == len(kinds) or kinds[number + 1] != kind:
                until = last if number + 1 == len(kinds) else first + number
                acks.append(Ack(first + begun, until, AckType(kind)))
                begun = number + 1
    return acks


class Acknowledging:
    """The acknowledgements of one request, applied partition after partition."""

    def __init__(self, service: ShareService, group_id: str, member_id: str, *, renews: bool) -> None:
        self._service = service
        self._group_id = group_id
        self._member_id = member_id
        self._renews = renews

    async def take(self, said: Iterable[tuple[Place, Sequence[Said], Outcome | None]]) -> dict[Place, Outcome]:
        """Apply the acknowledgements of each place, except where an outcome is given; return the outcomes when they are
        durable."""
        outcomes: dict[Place, Outcome] = {}
        changed: dict[Place, LivePartition] = {}
        turns = Turns()
        for place, batches, known in said:
            await turns.rest()
            if known is not None:
                outcomes[place] = known
                continue
            try:
                changed[place] = await self._take(place, batches)
            except (KafkaError, LogError) as error:
                outcomes[place] = failure_of(ApiKey.SHARE_ACKNOWLEDGE, error)
        saved = await gathered(_saved(live) for live in changed.values())
        outcomes.update(zip(changed, saved, strict=True))
        return outcomes

    async def _take(self, place: Place, batches: Sequence[Said]) -> LivePartition:
        acks = acks_of(batches, self._service.most_in_flight(self._group_id), renews=self._renews)
        if any(ack.kind is AckType.RENEW for ack in acks) and not self._service.may_renew(self._group_id):
            text = f"share.renew.acknowledge.enable of group {self._group_id!r} is false"
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
        live = await self._service.partition(self._group_id, *place)
        live.check()
        lock_ms = self._service.lock_ms(self._group_id)
        try:
            live.state.acknowledge(live.now(), self._member_id, acks, lock_ms)
        except InvalidState as error:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, str(error)) from error
        live.wake()
        return live


async def _saved(live: LivePartition) -> Outcome:
    try:
        await live.save()
    except KafkaError as error:
        return error.code, error.message
    return 0, None
