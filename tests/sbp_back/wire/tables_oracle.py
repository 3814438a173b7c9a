"""Tables of a schema by the ``flatbuffers`` package, which knows nothing of our declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flatbuffers
from flatbuffers import number_types as N
from flatbuffers.table import Table as FbTable
from hypothesis import strategies as st

SCALARS: dict[str, tuple[Any, int, int]] = {
    "i8": (N.Int8Flags, -(2**7), 2**7 - 1),
    "i16": (N.Int16Flags, -(2**15), 2**15 - 1),
    "i32": (N.Int32Flags, -(2**31), 2**31 - 1),
    "i64": (N.Int64Flags, -(2**63), 2**63 - 1),
    "bool": (N.BoolFlags, 0, 1),
}

Tree = dict[str, Any]


@dataclass
class Slot:
    number: int
    name: str
    kind: str  # a scalar, "str", "bytes", "[i64]", "T" (table T) or "[T]" (vector of T)
    default: int
    required: bool


def slots(text: str) -> list[Slot]:
    """``name:type=default!`` separated by blanks; ``-`` leaves a slot out."""
    result = []
    for number, word in enumerate(text.split()):
        if word == "-":
            continue
        name, kind = word.rstrip("!").split(":")
        kind, _, default = kind.partition("=")
        result.append(Slot(number, name, kind, int(default or 0), word.endswith("!")))
    return result


class TablesOracle:
    """Writes and reads tables as ``schema`` has them."""

    def __init__(self, schema: Mapping[str, list[Slot]]) -> None:
        self.schema = schema

    def needed(self, name: str, slot: Slot) -> bool:
        """Whether random values of a table always have this one."""
        return slot.required

    def values(self, name: str, slot: Slot, full: bool) -> st.SearchStrategy[Any]:
        """Random values of a field."""
        if slot.kind == "bool":
            return st.booleans()
        if slot.kind in SCALARS:
            return st.integers(SCALARS[slot.kind][1], SCALARS[slot.kind][2])
        if slot.kind == "str":
            return st.text(max_size=12)
        if slot.kind == "bytes":
            return st.binary(max_size=12)
        if slot.kind == "[i64]":
            return st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)
        inner = self.trees(slot.kind.strip("[]"), full=full)
        return st.lists(inner, max_size=3) if slot.kind.startswith("[") else inner

    def trees(self, name: str, *, full: bool = False) -> st.SearchStrategy[Tree]:
        """Random values of a table; a field that is not there is not to be written (``full``: all are there)."""
        always: dict[str, st.SearchStrategy[Any]] = {}
        maybe: dict[str, st.SearchStrategy[Any]] = {}
        for slot in self.schema[name]:
            needed = full or self.needed(name, slot)
            (always if needed else maybe)[slot.name] = self.values(name, slot, full)
        return st.fixed_dictionaries(always, optional=maybe)

    def build(self, builder: Any, name: str, tree: Tree) -> int:
        """Children first, as the package wants it."""
        children: dict[str, int] = {}
        for slot in self.schema[name]:
            value = tree.get(slot.name)
            if value is None or slot.kind in SCALARS:
                continue
            if slot.kind == "str":
                children[slot.name] = builder.CreateString(value)
            elif slot.kind == "bytes":
                children[slot.name] = builder.CreateByteVector(value)
            elif slot.kind == "[i64]":
                builder.StartVector(8, len(value), 8)
                for item in reversed(value):
                    builder.PrependInt64(item)
                children[slot.name] = builder.EndVector()
            elif slot.kind.startswith("["):
                items = [self.build(builder, slot.kind.strip("[]"), item) for item in value]
                builder.StartVector(4, len(items), 4)
                for item in reversed(items):
                    builder.PrependUOffsetTRelative(item)
                children[slot.name] = builder.EndVector()
            else:
                children[slot.name] = self.build(builder, slot.kind, value)
        builder.StartObject(max((slot.number for slot in self.schema[name]), default=-1) + 1)
        for slot in self.schema[name]:
            if slot.name in children:
                builder.PrependUOffsetTRelativeSlot(slot.number, children[slot.name], 0)
            elif slot.name in tree:
                builder.PrependSlot(SCALARS[slot.kind][0], slot.number, tree[slot.name], slot.default)
        return int(builder.EndObject())

    def write(self, name: str, tree: Tree, *, force_defaults: bool = False) -> bytes:
        builder = flatbuffers.Builder(64)
        builder.ForceDefaults(force_defaults)
        builder.Finish(self.build(builder, name, tree))
        return bytes(builder.Output())

    def read(self, name: str, data: bytes) -> Tree:
        """Every field with its default filled in; None for an absent table."""
        return self._read(name, FbTable(data, int.from_bytes(data[:4], "little")))

    def _read(self, name: str, table: Any) -> Tree:
        tree: Tree = {}
        for slot in self.schema[name]:
            offset = table.Offset(4 + 2 * slot.number)
            at = table.Pos + offset
            assert offset or not slot.required, f"{name}.{slot.name} is required and absent"
            inner = slot.kind.strip("[]")
            if slot.kind in SCALARS:
                tree[slot.name] = table.Get(SCALARS[slot.kind][0], at) if offset else slot.default
            elif slot.kind == "str":
                tree[slot.name] = table.String(at).decode() if offset else ""
            elif slot.kind == "bytes" or slot.kind.startswith("["):
                start, length = (table.Vector(offset), table.VectorLen(offset)) if offset else (0, 0)
                if slot.kind == "bytes":
                    tree[slot.name] = bytes(table.Bytes[start : start + length])
                elif slot.kind == "[i64]":
                    assert not length or start % 8 == 0, "elements are aligned"
                    tree[slot.name] = [table.Get(N.Int64Flags, start + 8 * k) for k in range(length)]
                else:
                    items = [FbTable(table.Bytes, table.Indirect(start + 4 * k)) for k in range(length)]
                    tree[slot.name] = [self._read(inner, item) for item in items]
            else:
                tree[slot.name] = self._read(slot.kind, FbTable(table.Bytes, table.Indirect(at))) if offset else None
        return tree

    def filled(self, name: str, tree: Tree | None) -> Tree | None:
        """``tree`` with defaults where fields are left out: what a reader must see."""
        if tree is None:
            return None
        result: Tree = {}
        for slot in self.schema[name]:
            value = tree.get(slot.name)
            if slot.kind in SCALARS:
                result[slot.name] = slot.default if value is None else value
            elif slot.kind == "str":
                result[slot.name] = value or ""
            elif slot.kind == "bytes":
                result[slot.name] = value or b""
            elif slot.kind == "[i64]":
                result[slot.name] = value or []
            elif slot.kind.startswith("["):
                result[slot.name] = [self.filled(slot.kind.strip("[]"), item) for item in value or []]
            else:
                result[slot.name] = self.filled(slot.kind, value)
        return result
