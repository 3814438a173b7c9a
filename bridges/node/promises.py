"""What a node or a server of the backend cannot promise as it is set up, in words for its log.

Facts: docs/design.md, "Backend"; docs/storage.md, "Promises"; docs/protocols/sbp.md, "Faults of elastic-stream".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from bridges.node.sections import SbpSettings

_OS = "durability is 'os': acknowledged data survives the end of the process, but not power loss"
_ONE_COPY = "one copy of the data: what the disk of {} loses is lost"


class Limit(Struct, frozen=True):
    """Something that is not promised; ``chosen`` if only because a setting gives it up."""

    sentence: str
    chosen: bool = False


def tell(limits: Iterable[Limit], log: Any) -> None:
    """Have the log say it: as a warning where a setting could be changed, otherwise for information."""
    for limit in limits:
        (log.warning if limit.chosen else log.info)(f"not promised: {limit.sentence}")


def of_node(sbp: SbpSettings) -> list[Limit]:
    """About a node."""
    return list(_stored(sbp, "this node") if sbp.mode == "embedded" else _external(sbp))


def of_range_server(sbp: SbpSettings) -> list[Limit]:
    """About a range server of its own."""
    return list(_stored(sbp, "this range server"))


def of_placement_driver() -> list[Limit]:
    """About a placement driver of its own."""
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
    move = "and its partitions take no appends" if sbp.dialect == "v0.1" else "appends move to another one"
    yield Limit(f"while a range server is down, what it keeps cannot be read (clients are told to try again); {move}")
    yield Limit("what an acknowledgement survives is decided by the range servers: their durability, their disks")
    if sbp.durability == "os":
        yield Limit(
            "durability is 'os': topics and positions, which this node keeps, survive its end, but not power loss",
            chosen=True,
        )
    if sbp.dialect == "v0.1":
        for sentence in _DOCUMENT:
            yield Limit(sentence, chosen=True)
    if sbp.flavor == "elastic-stream":
        for sentence in _ELASTIC_STREAM:
            yield Limit(sentence, chosen=True)


_DOCUMENT = (
    "sbp.dialect is v0.1, which has no epochs: a second writer of a partition's stream is not fenced, whether another "
    "node or any client of the document; its records stand between ours",
    "sbp.dialect is v0.1, in which a batch sent again cannot be told from a new one: one whose request was given up "
    "before the server had read it may be stored twice",
    "sbp.dialect is v0.1: what another writer appends is seen some seconds later",
)
_ELASTIC_STREAM = (
    "elastic-stream's servers may acknowledge before the disk has the data (segments opened later lack O_DSYNC)",
    "elastic-stream's servers keep seals in memory only: a former owner of a partition may append to a range server "
    "that was restarted, until the placement driver's seal has reached it",
    "elastic-stream's servers cut their log at the first damaged record without saying so",
    "elastic-stream's servers neither trim nor delete streams: retention, DeleteRecords and the deletion of topics "
    "hide data and free nothing there",
    "elastic-stream's range servers drop the oldest data of any topic when their log is full, whatever its own "
    "retention: a topic then begins later",
    "elastic-stream's range servers may acknowledge a batch that arrives while its range is sealed for another owner, "
    "and that is no part of the stream then: run one node on them at a time",
)
