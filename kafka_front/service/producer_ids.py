"""InitProducerId for idempotent producers (reference/kafka.md, rules 12 and 29)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bridges.auth import Operation
from kafka_front.dispatch import Registry
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_BLOCK = 1000
"""Ids taken from the catalog at once. What is left of a block when the node ends is never used."""


class ProducerIds:
    """Hands out producer ids that nobody was given before, in any process or run of the node."""

    def __init__(self, service: KafkaService) -> None:
        self._access = service.access
        self._catalog = service.catalog
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def handle(self, ctx: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if request.transactional_id is None:
            if not self._access.any_topic(ctx, Operation.WRITE):  # KIP-679
                self._access.require_node(ctx, Operation.IDEMPOTENT_WRITE)
        else:
            # An empty id is never valid; others would need transactions, which this front does not offer.
            # FindCoordinator says so already, with the same error: one that no client repeats.
            refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            code = refusal if request.transactional_id else ErrorCode.INVALID_REQUEST
            return InitProducerIdResponse(error_code=int(code), producer_id=-1, producer_epoch=-1)
        if (request.producer_id == -1) != (request.producer_epoch == -1):
            return InitProducerIdResponse(error_code=int(ErrorCode.INVALID_REQUEST), producer_id=-1, producer_epoch=-1)
        return InitProducerIdResponse(producer_id=await self.take(), producer_epoch=0)

    async def take(self) -> int:
        """A new producer id. Raises an error of the database."""
        async with self._lock:
            if self._next == self._end:
                self._next = await self._catalog.allocate_producer_ids(_BLOCK)
                self._end = self._next + _BLOCK
            self._next += 1
            return self._next - 1


def register(registry: Registry, service: KafkaService) -> None:
    registry.register(ApiKey.INIT_PRODUCER_ID, ProducerIds(service).handle)
