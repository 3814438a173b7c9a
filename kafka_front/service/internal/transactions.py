"""``__transaction_state``: transactional ids, each with the partitions of its open transaction."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kafka_front.service.internal.fields import NO_TAGS, compact, compact_array, numbers, read_text, tags, text
from kafka_front.service.transactions import tables
from kafka_front.service.transactions.transaction import TxnState, rebuild

if TYPE_CHECKING:
    from collections.abc import Collection

    from bridges.catalog.database.sql import Connection
    from kafka_front.service.internal.topic_copy import Places


class TransactionState:
    """The source of ``__transaction_state``; names are transactional ids."""

    topic = "__transaction_state"

    def names(self, connection: Connection) -> Collection[str]:
        return tables.names(connection)

    def name_of(self, key: bytes) -> str:
        return read_text(key, 2)

    def read(self, connection: Connection, name: str, places: Places) -> dict[bytes, bytes | None]:
        found = tables.whole(connection, name)
        if found is None:
            return {}
        row = found[0]
        head = struct.pack(">hqhib", 1, row.producer_id, row.epoch, row.timeout_ms, row.state)
        if row.state == TxnState.EMPTY:
            topics = compact(None)
        else:
            parts = rebuild(*found).places
            topics = compact_array(compact(topic) + numbers(parts[topic]) + NO_TAGS for topic in sorted(parts))
        ids = {tag: struct.pack(">q", i) for tag, i in enumerate((row.previous_id, row.next_id)) if i >= 0}
        value = head + topics + struct.pack(">qq", row.updated_ms, row.started_ms) + tags(ids)
        return {b"\0\0" + text(name): value}
