"""Dialects: how messages look on the wire. A listener or carrier speaks one (docs/protocols/sbp.md, "Dialects")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sbp_back.wire.base import Dialect, Manners
from sbp_back.wire.v02 import DialectV02

__all__ = ["DIALECTS", "Dialect", "Manners"]


class _Dialects(Mapping[str, Dialect]):
    """Those of the specification document, which few processes speak, are imported when they are asked for."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: dict[str, Dialect | None] = {"sbp-0.2": DialectV02(), "sbp-v0.1": None, "sbp-v0.1-april": None}

    def __getitem__(self, name: str) -> Dialect:
        made = self._made[name]
        if made is None:
            from sbp_document.wire.v01 import DialectV01

            made = self._made[name] = DialectV01(name, april=name.endswith("-april"))
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


DIALECTS: Mapping[str, Dialect] = _Dialects()
