"""Damage to plant in a node's translation, each of a kind that the matrix must not let pass.

    python -m tests.matrix.damage KIND serve ...

is `anabranch serve ...` with one mistake in `bridges/formats`, made where it runs: in the node's own process.
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
    "what is still encoded is not told": Damage(_with(codec=lambda r: None), red=("YDB's codec 10007",)),
    "large values are cut": Damage(
        _with(value=lambda r: r.value if r.value is None else r.value[:1_000_000]), red=("2.5 MB",)
    ),
    "a record is lost": Damage(
        lambda record: None if record.key == b"" else record, red=("key of no bytes",), ends=False
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


def plant(damage: Damage) -> None:
    """Have this process translate so."""
    from bridges import formats

    for plug in formats.FORMATS.values():
        kind: Any = type(plug)
        if dataclasses.is_dataclass(kind) or not hasattr(kind, "records"):
            continue
        read = kind.records

        def records(self: Any, *given: Any, _read: Any = read, **more: Any) -> Iterator[Any]:
            return _damaged(damage, partial(_read, self), *given, **more)

        kind.records = records


class DamagedNode(NodeProcess):
    """A node with one of the ``DAMAGES``."""

    def __init__(self, data: Path, damage: str, **given: Any) -> None:
        super().__init__(data, **given)
        self._damage = damage

    def command(self) -> list[str]:
        usual = super().command()
        place = usual.index("bridges")
        return [*usual[: place - 1], "-m", "tests.matrix.damage", self._damage, *usual[place + 1 :]]


if __name__ == "__main__":
    plant(DAMAGES[sys.argv[1]])
    sys.argv[1:2] = []
    from bridges.commands.cli import main

    main(prog_name="anabranch")
