"""``__consumer_offsets``: the positions of groups, and the groups that clients have joined.

Positions have version 3 of their record. A broker of 4.4 writes version 4 (with the topic's id), which older tools do
not read. Positions that are pending are not shown before their transaction is committed.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from kafka_front.service.groups.classic.snapshot import GroupSnapshot, decode_snapshot
from kafka_front.service.groups.consumer.group import ConsumerGroup, ConsumerMember, MemberState, Partitions
from kafka_front.service.groups.consumer.snapshot import decode_group
from kafka_front.service.internal.fields import (
    NO_TAGS,
    array,
    blob,
    compact,
    compact_array,
    numbers,
    read_text,
    tags,
    text,
)

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.catalog.progress import Committed, FrontProgress
    from bridges.catalog.views.groups import Place

_POSITION: Final = 1
_CLASSIC_GROUP: Final = 2
_GROUP: Final = 3
_MEMBER: Final = 5
_TARGET: Final = 6
_MEMBER_TARGET: Final = 7
_MEMBER_NOW: Final = 8
"""Kinds of records, by the number with which their keys begin."""
_STATES = {MemberState.STABLE: 0, MemberState.UNREVOKED: 1, MemberState.UNRELEASED: 2}


class GroupOffsets:
    """The source of ``__consumer_offsets`` (:class:`kafka_front.service.internal.topic_copy.Source`); names are those
    of groups."""

    topic = "__consumer_offsets"

    def __init__(self, progress: FrontProgress) -> None:
        self._progress = progress

    def names(self, connection: Connection) -> Collection[str]:
        return self._progress.stored_names(connection)

    def name_of(self, key: bytes) -> str:
        return read_text(key, 2)

    def read(self, connection: Connection, name: str, places: Collection[Place] | None) -> dict[bytes, bytes | None]:
        found: dict[bytes, bytes | None] = {_position_key(name, *place): None for place in places or ()}
        for place, committed in self._progress.stored(connection, name, places):
            found[_position_key(name, *place)] = _position(committed)
        if places is None and (state := self._progress.stored_state(connection, name)) is not None:
            found.update(_group(name, state))
        return found


def _key(kind: int, *names: str) -> bytes:
    return struct.pack(">h", kind) + b"".join(map(text, names))


def _position_key(group: str, topic: str, partition: int) -> bytes:
    return _key(_POSITION, group, topic) + struct.pack(">i", partition)


def _position(position: Committed) -> bytes:
    if position.expire_ms >= 0:
        head, tail = struct.pack(">hq", 1, position.offset), struct.pack(">qq", position.commit_ms, position.expire_ms)
    else:
        head = struct.pack(">hqi", 3, position.offset, position.leader_epoch)
        tail = struct.pack(">q", position.commit_ms)
    return head + text(position.metadata) + tail


def _group(name: str, state: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a group that clients have joined."""
    classic = decode_snapshot(state)
    if classic is not None:
        yield _key(_CLASSIC_GROUP, name), _classic(classic)
    group = decode_group(name, state, lambda unix_ms: unix_ms)
    if group is not None:
        yield from _consumer(name, group)


def _classic(group: GroupSnapshot) -> bytes:
    head = struct.pack(">h", 3) + text(group.protocol_type or "") + struct.pack(">i", group.generation)
    return b"".join(
        [
            head,
            text(group.protocol_name),
            text(group.leader),
            struct.pack(">q", group.since_ms),
            array(
                text(one.member_id)
                + text(one.instance_id)
                + text(one.client_id)
                + text(one.client_host)
                + struct.pack(">ii", one.rebalance_timeout_ms, one.session_timeout_ms)
                + blob(dict(one.protocols).get(group.protocol_name or "", b""))
                + blob(one.assignment)
                for one in group.members
            ),
        ]
    )


def _consumer(name: str, group: ConsumerGroup) -> Iterator[tuple[bytes, bytes]]:
    yield _key(_GROUP, name), struct.pack(">hi", 0, group.epoch) + NO_TAGS
    yield _key(_TARGET, name), struct.pack(">hi", 0, group.target_epoch) + NO_TAGS
    for member_id, member in group.members.items():
        target = struct.pack(">h", 0) + _partitions(member.target) + NO_TAGS
        now = struct.pack(">hiib", 0, member.epoch, member.previous_epoch, _STATES[member.state])
        now += _partitions(member.assigned) + _partitions(member.revoking) + NO_TAGS
        yield _key(_MEMBER, name, member_id), _member(member)
        yield _key(_MEMBER_TARGET, name, member_id), target
        yield _key(_MEMBER_NOW, name, member_id), now


def _member(member: ConsumerMember) -> bytes:
    classic = {}
    if member.classic is not None:
        protocols = (compact(name) + compact(raw) + NO_TAGS for name, raw in member.classic.protocols)
        timeout = struct.pack(">i", member.classic.session_timeout_ms)
        classic[0] = b"\1" + timeout + compact_array(protocols) + NO_TAGS
    return b"".join(
        [
            struct.pack(">h", 0),
            compact(member.instance_id),
            compact(member.rack_id),
            compact(member.client_id),
            compact(member.client_host),
            compact_array(map(compact, sorted(member.topics))),
            compact(None if member.view is None else member.view.pattern),
            struct.pack(">i", member.rebalance_timeout_ms),
            compact(member.assignor),
            tags(classic),
        ]
    )


def _partitions(partitions: Partitions) -> bytes:
    return compact_array(
        topic_id + numbers(partitions[topic_id]) + NO_TAGS for topic_id in sorted(partitions) if partitions[topic_id]
    )
