"""Damage to plant in a node, each of a kind that the matrix must not let pass.

    python -m tests.matrix.damage KIND serve ...

is `anabranch serve ...` with one mistake, made where it runs: in the node's own process. Some are of translation, in
`bridges/formats`; others of what happens to a topic, in `bridges/log` and the fronts.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests.node_process import NodeProcess

Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to every record that is read in order to be translated: changed, or left out (None), or with
    ``swap`` put behind the one that follows. ``red`` are kinds that show it."""

    change: Change = lambda record: record
    swap: bool = False
    red: tuple[str, ...] = ()
    ends: bool = True
    """All records come, so that readers who wait for them end."""


def _with(**fields: Callable[[Any], Any]) -> Change:
    def change(record: Any) -> Any:
        return msgspec.structs.replace(record, **{name: make(record) for name, make in fields.items()})

    return change


DAMAGES: dict[str, Damage] = {
    "a missing value is an empty one": Damage(_with(value=lambda r: r.value or b""), red=("no value",)),
    "an empty value is a missing one": Damage(_with(value=lambda r: r.value or None), red=("value of no bytes",)),
    "a missing key is an empty one": Damage(_with(key=lambda r: r.key or b""), red=("no key",)),
    "an empty key is a missing one": Damage(_with(key=lambda r: r.key or None), red=("key of no bytes",)),
    "the last header is dropped": Damage(_with(headers=lambda r: r.headers[:-1]), red=("headers, one repeated",)),
    "of headers of one name the last is kept": Damage(
        _with(headers=lambda r: list(dict(r.headers).items())), red=("headers, one repeated",)
    ),
    "headers are sorted": Damage(_with(headers=lambda r: sorted(r.headers)), red=("headers, one repeated",)),
    "header values are text": Damage(
        _with(headers=lambda r: [(n, v and v.decode("ascii", "replace").encode()) for n, v in r.headers]),
        red=("header that is no text",),
    ),
    "times are shifted by a millisecond": Damage(
        _with(timestamp=lambda r: r.timestamp + (r.timestamp > 0)), red=("key and value", "created in 2100")
    ),
    "times are whole seconds": Damage(_with(timestamp=lambda r: r.timestamp // 1000 * 1000), red=("key and value",)),
    "no time is before 1970": Damage(_with(timestamp=lambda r: max(-1, r.timestamp)), red=("created in 1969",)),
    "two records are swapped": Damage(swap=True, red=("key and value",)),
    "offsets are moved": Damage(_with(offset=lambda r: r.offset + 1), red=("key and value",)),
    "what is still encoded is not told": Damage(
        _with(codec=lambda r: None), red=("YDB's codec 10007", "bytes that are no event")
    ),
    "bytes end where an event does": Damage(
        _with(value=lambda r: r.value[:-2] if r.codec == "pravega.bytes" else r.value),
        red=("bytes that begin as an event",),
    ),
    "large values are cut": Damage(
        _with(value=lambda r: r.value if r.value is None else r.value[:1_000_000]), red=("2.5 MB",)
    ),
    "a record is lost": Damage(
        lambda record: None if record.key == b"" else record, red=("key of no bytes",), ends=False
    ),
}


@dataclass(frozen=True, slots=True)
class Mishap:
    """What goes wrong when something happens to a topic: done to the classes of the node. ``event`` is what happens in
    the cell that shows it, with its writer and its reader."""

    plant: Callable[[], None]
    event: str
    writer: str
    reader: str


def _trims_are_forgotten() -> None:
    for kind, read in _reading():

        def records(self: Any, batch: Any, limit: int = 1 << 27, start: int = 0, _read: Any = read) -> Iterator[Any]:
            return iter(_read(self, batch, limit))

        kind.records = records


def _what_was_aborted_is_shown() -> None:
    from bridges.log.partition.partition_log import PartitionLog

    PartitionLog.aborted = lambda self, start, end: []  # type: ignore[method-assign]


def _nothing_is_held_back() -> None:
    from bridges.log.partition.partition_log import PartitionLog

    PartitionLog.last_stable_offset = property(lambda self: self.high_watermark)  # type: ignore[assignment]
    PartitionLog.committed_limit = lambda self, offset: self.high_watermark  # type: ignore[method-assign]


def _no_key_is_the_latest() -> None:
    from bridges.log.compaction.key_offsets import KeyOffsets

    highest = KeyOffsets.highest
    changed: Any = KeyOffsets
    changed.highest = lambda self, keys: highest(self, keys) + 1


def _an_event_more_is_kept() -> None:
    from bridges.log.partition.partition_log import PartitionLog

    trim = PartitionLog.trim_bytes

    def trim_bytes(self: Any, position: int, *given: Any, **more: Any) -> Any:
        return trim(self, position - 15, *given, **more)

    PartitionLog.trim_bytes = trim_bytes  # type: ignore[method-assign]


MISHAPS: dict[str, Mishap] = {
    "trims within a batch are forgotten": Mishap(_trims_are_forgotten, "truncation", "confluent-kafka", "tail"),
    "what was aborted is shown": Mishap(_what_was_aborted_is_shown, "a_transaction_aborted", "ydb-grpc", "ydb-grpc"),
    "an open transaction holds nothing back": Mishap(
        _nothing_is_held_back, "a_transaction_open", "kafka-python", "tail"
    ),
    "compaction takes the latest of a key too": Mishap(_no_key_is_the_latest, "compaction", "ydb-grpc", "tail"),
    "Pravega's truncation is an event short": Mishap(
        _an_event_more_is_kept, "truncation_by_pravega", "produce", "kafka-python"
    ),
}


def _damaged(damage: Damage, read: Callable[..., Iterator[Any]], *given: Any, **more: Any) -> Iterator[Any]:
    """The records, as the damage leaves them."""
    held = None
    for record in read(*given, **more):
        if record is None:
            yield None
            continue
        changed = damage.change(record)
        if changed is None:
            continue
        if not damage.swap:
            yield changed
        elif held is None:
            held = changed
        else:
            # Each at the other's offset: a batch has them in order.
            first, second = held.offset, changed.offset
            yield msgspec.structs.replace(changed, offset=first)
            yield msgspec.structs.replace(held, offset=second)
            held = None
    if held is not None:
        yield held


def _reading() -> Iterator[tuple[Any, Any]]:
    """Each stored format's class, and how it reads records."""
    from bridges import formats
    from sbp_document.wire.record_batch import FORMAT_FLAG

    formats.format_of(FORMAT_FLAG)  # which loads it
    for plug in formats.FORMATS.values():
        kind: Any = type(plug)
        if not dataclasses.is_dataclass(kind) and hasattr(kind, "records"):
            yield kind, kind.records


def plant(damage: Damage) -> None:
    """Have this process translate so."""
    for kind, read in _reading():

        def records(self: Any, *given: Any, _read: Any = read, **more: Any) -> Iterator[Any]:
            return _damaged(damage, partial(_read, self), *given, **more)

        kind.records = records


class DamagedNode(NodeProcess):
    """A node with one of the ``DAMAGES`` or ``MISHAPS``."""

    def __init__(self, data: Path, damage: str, **given: Any) -> None:
        super().__init__(data, **given)
        self._damage = damage

    def command(self) -> list[str]:
        usual = super().command()
        place = usual.index("bridges")
        return [*usual[: place - 1], "-m", "tests.matrix.damage", self._damage, *usual[place + 1 :]]


if __name__ == "__main__":
    if sys.argv[1] in DAMAGES:
        plant(DAMAGES[sys.argv[1]])
    else:
        MISHAPS[sys.argv[1]].plant()
    sys.argv[1:2] = []
    from bridges.commands.cli import main

    main(prog_name="anabranch")
