"""Promises that a node or a server of the backend cannot make with its settings, in words for its log.

Facts: docs/design.md, "Backend"; docs/storage.md, "Promises"; docs/protocols/sbp.md, "Faults of elastic-stream".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bridges.backends import Limit, of_others
from bridges.node.settings.sections import SbpSettings

_OS = "durability is 'os': acknowledged data survives the end of the process, but not power loss"
_ONE_COPY = "one copy of the data: what the disk of {} loses is lost"


def tell(limits: Iterable[Limit], log: Any) -> None:
    """Log the limits: as a warning where a setting could be changed, otherwise as information."""
    for limit in limits:
        (log.warning if limit.chosen else log.info)(f"not promised: {limit.sentence}")


def of_node(sbp: SbpSettings) -> list[Limit]:
    return list(_stored(sbp, "this node") if sbp.mode == "embedded" else _external(sbp))


def of_range_server(sbp: SbpSettings) -> list[Limit]:
    return list(_stored(sbp, "this range server"))


def of_placement_driver() -> list[Limit]:
    return [
        Limit(
            "there is one placement driver: while it is down, streams and ranges are neither created nor sealed; "
            "appends to open ranges and reads go on"
        ),
        Limit("its state is in one place: without it nobody knows which ranges make up a stream; back it up"),
    ]


def _stored(sbp: SbpSettings, whose: str) -> Iterator[Limit]:
    if sbp.durability != "object":
        yield Limit(_ONE_COPY.format(whose))
    if sbp.durability == "fsync" and sbp.objects:
        yield Limit("old data is in objects only, and what finds it there is on the disk: it is no copy of the log")
    if sbp.durability != "os" and sbp.objects.startswith("file:"):
        yield Limit(f"objects are files ({sbp.objects}) that nothing flushes: for tests", chosen=True)
    if sbp.durability == "os":
        yield Limit(_OS, chosen=True)
    if sbp.retention_bytes >= 0:
        yield Limit(
            "retention by total size (sbp.retention_bytes) drops the oldest data of any topic, whatever its own "
            "retention",
            chosen=True,
        )


def _external(sbp: SbpSettings) -> Iterator[Limit]:
    yield Limit(_ONE_COPY.format("a range server"))
    kind = of_others(sbp.flavor, sbp.dialect)
    moves = kind is None or kind.appends_move
    move = "appends move to another one" if moves else "and its partitions take no appends"
    yield Limit(f"while a range server is down, what it keeps cannot be read (clients are told to try again); {move}")
    yield Limit("what an acknowledgement survives is decided by the range servers: their durability, their disks")
    if sbp.durability == "os":
        yield Limit(
            "durability is 'os': topics and positions, which this node keeps, survive its end, but not power loss",
            chosen=True,
        )
    if kind is not None:
        yield from kind.limits
