"""Dialects: how messages look on the wire. A listener or carrier speaks one (reference/sbp.md, section 1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sbp_back.document.v01 import DialectV01
from sbp_back.wire.base import Dialect, Manners
from sbp_back.wire.v02 import DialectV02

__all__ = ["DIALECTS", "Dialect", "Manners"]

DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        dialect.name: dialect
        for dialect in (DialectV02(), DialectV01("sbp-v0.1"), DialectV01("sbp-v0.1-april", april=True))
    }
)
