"""``__share_group_state``: for each partition of a share group its start offset, and the records behind it that are
finished or were delivered."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING

from kafka_front.service.groups.share import tables
from kafka_front.service.groups.share.partition import RecordState
from kafka_front.service.internal.fields import NO_TAGS, compact_array, read_text, tags, text

if TYPE_CHECKING:
    from collections.abc import Collection

    from bridges.catalog.database.sql import Connection
    from kafka_front.service.internal.topic_copy import Places

_FINISHED = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


def share_name(group: str, topic_id: bytes, partition: int) -> str:
    """Return the name by which a broker coordinates a share partition."""
    return f"{group}:{urlsafe_b64encode(topic_id).decode().rstrip('=')}:{partition}"


class ShareState:
    """The source of ``__share_group_state``; names are those of share partitions (:func:`share_name`)."""

    topic = "__share_group_state"

    def names(self, connection: Connection) -> Collection[str]:
        return [share_name(*place) for place in tables.all_places(connection)]

    def name_of(self, key: bytes) -> str:
        topic_id, partition = struct.unpack(">16si", key[-20:])
        return share_name(read_text(key, 2), topic_id, partition)

    def read(self, connection: Connection, name: str, places: Places) -> dict[bytes, bytes | None]:
        group, encoded, number = name.rsplit(":", 2)
        topic_id, partition = urlsafe_b64decode(encoded + "=="), int(number)
        found = tables.find(connection, group, (topic_id, partition))
        if found is None:
            return {}
        epoch, start, spans = found
        finished = sum(last - first + 1 for first, last, state, _ in spans if state in _FINISHED)
        batches = (struct.pack(">qqbh", *span) + NO_TAGS for span in spans)
        value = struct.pack(">hiiiqqq", 0, 0, 0, epoch, start, -1, -1) + compact_array(batches)
        key = struct.pack(">h", 0) + text(group) + topic_id + struct.pack(">i", partition)
        return {key: value + tags({0: struct.pack(">i", finished)})}
