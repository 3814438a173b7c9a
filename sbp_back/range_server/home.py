"""The placement driver that the ranges of a store belong to; no other one may decide about them.

To another placement driver the same stream ids mean other streams. Obeying it would destroy data of streams that it has
deleted, and would put its ranges next to ours under the same numbers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch_kit.errors import StoreError
from sbp_back.wire.identity import Call, ask_identity

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store

logger = logging.getLogger(__name__)


class StoreHome:
    """Compares a placement driver with the one that gave the store its server id.

    A store without a server id takes the next placement driver; one with an id from before placement drivers named
    themselves takes the first that does. ``refusal``: why this store rejects the placement driver that it met last.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refusal: str | None = None

    async def introduce(self, call: Call) -> str | None:
        """Return why the placement driver that ``call`` asks is not to be used, or None; see ``carrier.Introduce``.
        Raises ``SbpError`` when it does not say who it is.
        """
        identity = await ask_identity(call)
        refusal = await self._check(identity)
        if refusal is not None and refusal != self.refusal:
            logger.error("range server %d: %s", self._store.server_id, refusal)
        self.refusal = refusal
        return refusal

    async def _check(self, identity: str) -> str | None:
        known = self._store.placement_driver
        if identity == known:
            return None
        if known and self._store.server_id >= 0:
            who = f"placement driver {identity}" if identity else "a placement driver that does not say which one it is"
            return (
                f"this is {who}, but what this range server keeps belongs to placement driver {known}: streams of the "
                "same numbers are other data there; lead it back to its own (sbp.pd), or give it an empty directory"
            )
        try:
            await asyncio.to_thread(self._store.assign_placement_driver, identity)
        except (OSError, StoreError) as error:
            return f"which placement driver the data belongs to cannot be recorded: {error}"
        return None
