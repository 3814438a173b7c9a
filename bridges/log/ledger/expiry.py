"""Expiry of the producers that one node's partitions remember: by idle time, and beyond the node's limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.turns import Turns, in_turns

if TYPE_CHECKING:
    from bridges.log.logs import Logs

_log = structlog.get_logger("anabranch.logs")


async def expire_producers(logs: Logs, now_ms: int) -> int:
    """Forget producers that were idle for too long, and the longest idle of more than ``max_producers``; return how
    many.

    Reads only those that go, in turns.
    """
    expired = known = 0
    turns, options = Turns(), logs.options.ledger()
    for log in logs:
        await turns.rest()
        try:
            while log.is_open and (gone := log.state.ledger.expire(now_ms, options)):
                expired += gone
                await turns.rest()
            known += len(log.state.ledger)
        except Exception as error:  # noqa: BLE001 - logged and counted; the next partition is another matter
            logs.barrier.caught("producer expiry", error, topic=log.topic, partition=log.partition)
    if known > logs.options.max_producers:
        expired += await _make_room(logs, known)
    return expired


async def _make_room(logs: Logs, known: int) -> int:
    """Forget the longest idle producers of the partitions with most, until a sixteenth of the limit is free."""
    most = logs.options.max_producers
    ledgers = sorted((table for log in logs for table in log.state.ledger.tables.values()), key=len)
    room = most * 15 // 16
    level = 0
    for number, ledger in enumerate(ledgers):
        level = room // (len(ledgers) - number)
        if len(ledger) > level:
            break
        room -= len(ledger)
    _log.warning(
        "more producers than the node remembers: the longest idle of the partitions with most are forgotten",
        producers=known,
        limit=most,
        kept_per_partition=level,
    )
    forgotten = 0
    async for ledger in in_turns(ledgers):
        try:
            if len(ledger) > level:
                forgotten += ledger.shrink(level)
        except Exception as error:  # noqa: BLE001 - logged and counted; the next one is another matter
            logs.barrier.caught("forgetting of producers", error)
    return forgotten
