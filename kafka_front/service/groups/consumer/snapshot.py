"""The snapshot of a KIP-848 group, which survives a restart, and its stored form.

Stored form: a line that names the kind of group, then a line of JSON for the group and one for each member. So a change
of one member is cheap in a group of thousands: the other members' lines are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from bridges.auth import Principal
from kafka_front.service.groups.classic.snapshot import SnapshotError
from kafka_front.service.groups.consumer.assignors import ASSIGNORS
from kafka_front.service.groups.consumer.group import (
    NO_PROCESS,
    NOTHING,
    ClassicPart,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
    Process,
    View,
)

G = TypeVar("G", bound=ConsumerGroup)

_MARK = b"kafka consumer group\n"
_VERSION = 1

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode_group(
    group: ConsumerGroup, to_unix: Callable[[int], int], mark: bytes = _MARK, more: Mapping[str, object] = {}
) -> bytes:
    """Return the stored form of a group; ``to_unix`` converts times of the coordinator's clock. ``mark`` is the first
    line of the group's kind, ``more`` what its head has besides."""
    head = {
        "version": _VERSION,
        "epoch": group.epoch,
        "target_epoch": group.target_epoch,
        "assignor": group.assignor,
        "since_ms": to_unix(group.since_ms),
        "topics": group.topics_hash,
        **more,
    }
    return b"\n".join([mark[:-1], _encoder.encode(head), *(_line(member) for member in group.members.values())])


def _line(member: ConsumerMember) -> bytes:
    if member.stored is None:
        classic, view = member.classic, member.view
        member.stored = _encoder.encode(
            {
                "id": member.member_id,
                "instance_id": member.instance_id,
                "rack": member.rack_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "rebalance_timeout_ms": member.rebalance_timeout_ms,
                "assignor": member.assignor,
                "topics": list(member.topics),  # in any order: there may be very many
                "pattern": None if view is None else view.pattern,
                "viewer": None if view is None or view.viewer is None else msgspec.structs.astuple(view.viewer),
                "epoch": member.epoch,
                "previous_epoch": member.previous_epoch,
                "state": member.state.value,
                "assigned": _plain(member.assigned),
                "revoking": _plain(member.revoking),
                "target": None if member.target == member.assigned else _plain(member.target),
                "process": None if member.process is NO_PROCESS else member.process,
                "classic": None
                if classic is None
                else {"session_timeout_ms": classic.session_timeout_ms, "protocols": classic.protocols},
            }
        )
    return member.stored


def decode_group(group_id: str, blob: bytes, from_unix: Callable[[int], int]) -> ConsumerGroup | None:
    """Read a stored group; None if it is of another kind. Raises SnapshotError."""
    return decode_lines(group_id, blob, from_unix, _MARK, ConsumerGroup, lambda group, head: None)


def decode_lines(
    group_id: str,
    blob: bytes,
    from_unix: Callable[[int], int],
    mark: bytes,
    kind: type[G],
    more: Callable[[G, dict[str, Any]], None],
) -> G | None:
    """Read what :func:`encode_group` has made; None if its first line is not ``mark``. ``more`` takes over from the
    head what only groups of this kind have. Raises SnapshotError."""
    if not blob.startswith(mark):
        return None
    try:
        first, *rest = blob[len(mark) :].split(b"\n")
        head = _decoder.decode(first)
        if head["version"] != _VERSION:
            raise SnapshotError(f"consumer group of version {head['version']!r}; this program reads {_VERSION}")
        group = kind(
            group_id,
            from_unix(head["since_ms"]),
            head["epoch"],
            head["target_epoch"],
            head["assignor"],
            topics_hash=head["topics"],
        )
        more(group, head)
        for line in rest:
            group.add(_member(_decoder.decode(line)))
    except (msgspec.DecodeError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise SnapshotError(f"unreadable consumer group: {error!r}") from error
    group.version = group.saved_version = 0
    return group


def _member(data: dict[str, Any]) -> ConsumerMember:
    assigned = _partitions(data["assigned"])
    classic = data["classic"]
    return ConsumerMember(
        data["id"],
        data["instance_id"],
        data["rack"],
        data["client_id"],
        data["client_host"],
        data["rebalance_timeout_ms"],
        data["assignor"] if data["assignor"] in ASSIGNORS else None,
        frozenset(data["topics"]),
        _view(data["pattern"], data.get("viewer")),
        None
        if classic is None
        else ClassicPart(
            classic["session_timeout_ms"],
            tuple((name, msgspec.convert(blob, bytes)) for name, blob in classic["protocols"]),
        ),
        data["epoch"],
        data["previous_epoch"],
        MemberState(data["state"]),
        assigned,
        _partitions(data["revoking"]),
        assigned if data["target"] is None else _partitions(data["target"]),
        NO_PROCESS if data.get("process") is None else msgspec.convert(data["process"], Process),
    )


def _view(pattern: str | None, viewer: list[str] | None) -> View | None:
    return None if pattern is None else View(pattern, None if viewer is None else Principal(*viewer))


def _plain(partitions: Partitions) -> dict[str, list[int]]:
    return {topic_id.hex(): sorted(numbers) for topic_id, numbers in partitions.items()}


def _partitions(plain: dict[str, list[int]]) -> Partitions:
    return {bytes.fromhex(topic): frozenset(numbers) for topic, numbers in plain.items()} if plain else NOTHING
