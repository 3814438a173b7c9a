"""FlatBuffers by declaration: a table is a list of fields, and this module reads and writes it.

A :class:`Table` names a class and, in slot order, the attributes its slots hold. ``table.read(buffer)`` gives an
instance of the class, ``table.write(instance)`` the bytes. There is no generated code.

The format in one paragraph (all little-endian): the buffer starts with the u32 offset of the root table. A table starts
with an i32: its own position minus that of its *vtable*. The vtable is u16s: its size, the table's size, then for each
slot the position of the field relative to the table, 0 when absent (the reader then takes the default). Strings,
vectors and sub-tables are u32 offsets relative to where the offset stands, always forward. A string or vector is a
u32 count and its elements; strings also end with a zero byte that is not counted.

Reading is for untrusted bytes: every position is checked against the buffer, and what is built is bounded by a small
multiple of the buffer's length (offsets may share targets, so a small buffer could otherwise describe a huge tree).
``DecodeError`` is the only exception of ``read``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any

from sbp_back.errors import DecodeError

_U16 = Struct("<H")
_U32 = Struct("<I")
_I32 = Struct("<i")
_VTABLE_HEAD = Struct("<HH")
_PLACE = Struct("<qiq")

_TABLE_COST = 16
_BASE_BUDGET = 4096
_BUDGET_FACTOR = 2


class Reader:
    """A buffer being read, and the budget of what may still be built from it (in bytes; a table counts as 16)."""

    __slots__ = ("budget", "data", "size")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.budget = _BASE_BUDGET + _BUDGET_FACTOR * self.size

    def spend(self, cost: int) -> None:
        self.budget -= cost
        if self.budget < 0:
            raise DecodeError("table refers to the same bytes too often")

    def follow(self, at: int) -> int:
        """Return the target of the offset stored at ``at``, which the caller has checked to be inside the buffer."""
        target = at + int(_U32.unpack_from(self.data, at)[0])
        if target + 4 > self.size:
            raise DecodeError("offset points outside the buffer")
        return target

    def vector(self, at: int, width: int) -> tuple[int, int]:
        """Return (position, number of elements of ``width`` bytes) of the vector whose offset is stored at ``at``."""
        start = self.follow(at)
        count = int(_U32.unpack_from(self.data, start)[0])
        if count > (self.size - start - 4) // width:
            raise DecodeError("string or vector is longer than the buffer")
        return start + 4, count

    def blob(self, at: int) -> bytes:
        """Return the bytes of the string or byte vector whose offset is stored at ``at``."""
        start, count = self.vector(at, 1)
        self.spend(count)
        return self.data[start : start + count]


class Writer:
    """A buffer being written, front to back: parents first, so that all offsets point forward."""

    __slots__ = ("out",)

    def __init__(self) -> None:
        self.out = bytearray(4)

    def align(self, multiple: int, ahead: int = 0) -> None:
        """Pad so that the position ``ahead`` bytes from here is a multiple."""
        self.out += bytes(-(len(self.out) + ahead) % multiple)

    def point(self, at: int) -> None:
        """Make the offset field at ``at`` refer to the end of the written bytes."""
        _U32.pack_into(self.out, at, len(self.out) - at)

    def blob(self, at: int, data: bytes, tail: bytes = b"") -> None:
        """Write a byte vector (or a string with its zero byte as ``tail``) for the offset field at ``at``."""
        self.align(4)
        self.point(at)
        self.out += _U32.pack(len(data))
        self.out += data
        self.out += tail


class Field(ABC):
    """One slot. ``width`` is its size inside the table in bytes, which is its alignment too.

    ``required``: always written, and its absence is an error. ``always``: always written, its absence is tolerated.
    """

    __slots__ = ("always", "name", "required", "width")

    def __init__(self, name: str, width: int = 4, *, required: bool = False, always: bool = False) -> None:
        self.name = name
        self.width = width
        self.required = required
        self.always = always or required

    def present(self, owner: Any) -> bool:
        """Return whether ``owner``, the object being written, needs this slot."""
        return self.always or bool(getattr(owner, self.name))

    @abstractmethod
    def absent(self, values: dict[str, Any]) -> None:
        """Put the default into ``values``."""

    @abstractmethod
    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        """Read the slot found at ``at`` into ``values``."""

    @abstractmethod
    def write(self, writer: Writer, at: int, owner: Any) -> None:
        """Fill the slot at ``at``, and append the bytes that it refers to."""


class Scalar(Field):
    """A number or bool stored in the table itself; left out when it has the default."""

    __slots__ = ("default", "struct")

    def __init__(self, layout: str, name: str, default: int | bool = 0) -> None:
        self.struct = Struct("<" + layout)
        super().__init__(name, self.struct.size)
        self.default = default

    def present(self, owner: Any) -> bool:
        return bool(getattr(owner, self.name) != self.default)

    def absent(self, values: dict[str, Any]) -> None:
        values[self.name] = self.default

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        (values[self.name],) = self.struct.unpack_from(reader.data, at)

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        self.struct.pack_into(writer.out, at, getattr(owner, self.name))


i8, i16, i32, i64 = (partial(Scalar, layout) for layout in "bhiq")
flag = partial(Scalar, "?", default=False)


class Text(Field):
    """A UTF-8 string; absent and empty are the same."""

    __slots__ = ()

    def absent(self, values: dict[str, Any]) -> None:
        values[self.name] = ""

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        try:
            values[self.name] = reader.blob(at).decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"{self.name} is not UTF-8") from error

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        writer.blob(at, getattr(owner, self.name).encode(), b"\0")


class Blob(Field):
    """A vector of bytes; absent and empty are the same."""

    __slots__ = ()

    def absent(self, values: dict[str, Any]) -> None:
        values[self.name] = b""

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        values[self.name] = reader.blob(at)

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        writer.blob(at, getattr(owner, self.name))


class Places(Blob):
    """(stream, range, offset) for each of some ranges, as a vector of bytes: 20 for each, little-endian."""

    __slots__ = ()

    def absent(self, values: dict[str, Any]) -> None:
        values[self.name] = ()

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        data = reader.blob(at)
        if len(data) % _PLACE.size:
            raise DecodeError(f"{len(data)} bytes of {self.name} are no whole number of ranges")
        values[self.name] = tuple(_PLACE.iter_unpack(data))

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        writer.blob(at, b"".join([_PLACE.pack(*one) for one in getattr(owner, self.name)]))


class Sub(Field):
    """A sub-table in an attribute of its own; ``default()`` makes the value of an absent one (None if not given)."""

    __slots__ = ("default", "table")

    def __init__(self, name: str, table: Table, *, default: Callable[[], Any] | None = None, **written: bool) -> None:
        super().__init__(name, **written)
        self.table = table
        self.default = default

    def present(self, owner: Any) -> bool:
        return self.always or getattr(owner, self.name) is not None

    def absent(self, values: dict[str, Any]) -> None:
        values[self.name] = None if self.default is None else self.default()

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        values[self.name] = self.table.read_at(reader, reader.follow(at))

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        self.table.write_at(writer, at, getattr(owner, self.name))


class Inner(Field):
    """A sub-table whose fields are attributes of the same object as those of the table around it."""

    __slots__ = ("fields",)

    def __init__(self, name: str, *fields: Field, **written: bool) -> None:
        super().__init__(name, **written)
        self.fields = fields

    def present(self, owner: Any) -> bool:
        return self.always or any(inner.present(owner) for inner in self.fields)

    def absent(self, values: dict[str, Any]) -> None:
        for inner in self.fields:
            inner.absent(values)

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        _read_fields(self.name, self.fields, reader, reader.follow(at), values)

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        _write_fields(self.fields, writer, at, owner)


class Tables(Field):
    """A vector of tables, as a list."""

    __slots__ = ("table",)

    def __init__(self, name: str, table: Table, **written: bool) -> None:
        super().__init__(name, **written)
        self.table = table

    def absent(self, values: dict[str, Any]) -> None:
        values[self.name] = []

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        start, count = reader.vector(at, 4)
        read_at, follow = self.table.read_at, reader.follow
        values[self.name] = [read_at(reader, follow(start + 4 * k)) for k in range(count)]

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        items: Sequence[Any] = getattr(owner, self.name)
        writer.align(4)
        writer.point(at)
        first = len(writer.out) + 4
        writer.out += _U32.pack(len(items))
        writer.out += bytes(4 * len(items))
        for k, item in enumerate(items):
            self.table.write_at(writer, first + 4 * k, item)


class Unused(Field):
    """A slot that is known and not used: skipped when read; written, if ``always``, as an empty vector."""

    __slots__ = ()

    def present(self, owner: Any) -> bool:
        return self.always

    def absent(self, values: dict[str, Any]) -> None:
        pass

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        pass

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        writer.blob(at, b"")


class Table:
    """A declared table: the class of its objects and its fields, one for each slot from 0. ``closed``: a table with
    more slots is malformed, and no later version of this one.
    """

    __slots__ = ("closed", "fields", "make")

    def __init__(self, make: Callable[..., Any], *fields: Field, closed: bool = False) -> None:
        self.make = make
        self.fields = fields
        self.closed = closed

    def read(self, data: bytes) -> Any:
        """Read the root table of ``data`` as an object. Raises ``DecodeError``."""
        if len(data) < 8:
            raise DecodeError("buffer is too short for a table")
        reader = Reader(data)
        return self.read_at(reader, reader.follow(0))

    def write(self, value: Any) -> bytes:
        """Return ``value`` as a buffer with one root table. Raises ``struct.error`` for a number too large for its
        slot.
        """
        writer = Writer()
        self.write_at(writer, 0, value)
        return bytes(writer.out)

    def read_at(self, reader: Reader, at: int) -> Any:
        values: dict[str, Any] = {}
        name = getattr(self.make, "__name__", "table")
        _read_fields(name, self.fields, reader, at, values)
        if self.closed and _vtable_size(reader, at) > 4 + 2 * len(self.fields):
            raise DecodeError(f"{name} has fields it cannot have")
        return self.make(**values)

    def write_at(self, writer: Writer, at: int, value: Any) -> None:
        _write_fields(self.fields, writer, at, value)


def _read_fields(name: str, fields: Sequence[Field], reader: Reader, at: int, values: dict[str, Any]) -> None:
    """Read the table at ``at``; at least 4 bytes are known to be there."""
    reader.spend(_TABLE_COST)
    data, size = reader.data, reader.size
    vtable = at - int(_I32.unpack_from(data, at)[0])
    if not 0 <= vtable <= size - 4:
        raise DecodeError(f"vtable of {name} is outside the buffer")
    vtable_size, table_size = _VTABLE_HEAD.unpack_from(data, vtable)
    if vtable_size < 4 or vtable_size & 1 or vtable + vtable_size > size:
        raise DecodeError(f"vtable of {name} has an impossible size")
    if table_size < 4 or at + table_size > size:
        raise DecodeError(f"{name} has an impossible size")
    slot = 4
    used = 4
    for item in fields:
        position = int(_U16.unpack_from(data, vtable + slot)[0]) if slot < vtable_size else 0
        slot += 2
        if not position:
            if item.required:
                raise DecodeError(f"{name} lacks {item.name}")
            item.absent(values)
        elif position < 4 or position + item.width > table_size:
            raise DecodeError(f"{item.name} lies outside its {name}")
        else:
            # Fields do not share bytes: a table too small for its fields is of another schema.
            used += item.width
            if used > table_size:
                raise DecodeError(f"{name} has no room for its fields")
            item.read(reader, at + position, values)


def _vtable_size(reader: Reader, at: int) -> int:
    """Return the vtable's size of a table that was read already."""
    vtable = at - int(_I32.unpack_from(reader.data, at)[0])
    return int(_U16.unpack_from(reader.data, vtable)[0])


def _write_fields(fields: Sequence[Field], writer: Writer, at: int, owner: Any) -> None:
    """Append the table of ``owner`` for the offset field at ``at``."""
    slots = [slot for slot, item in enumerate(fields) if item.present(owner)]
    vtable_size = 4 + 2 * (slots[-1] + 1 if slots else 0)
    # Widest first after the 4-byte vtable offset: no holes, if the first field is where its alignment wants it.
    ordered = sorted(slots, key=lambda slot: -fields[slot].width)
    widest = fields[ordered[0]].width if ordered else 4
    positions = [0] * (vtable_size // 2 - 2)
    table_size = 4
    for slot in ordered:
        positions[slot] = table_size
        table_size += fields[slot].width
    if widest == 8:
        writer.align(8, vtable_size + 4)
    else:
        writer.align(4, vtable_size)
    out = writer.out
    vtable = len(out)
    start = vtable + vtable_size
    out += _VTABLE_HEAD.pack(vtable_size, table_size)
    for position in positions:
        out += _U16.pack(position)
    writer.point(at)
    out += _I32.pack(start - vtable)
    out += bytes(table_size - 4)
    for slot in slots:
        fields[slot].write(writer, start + positions[slot], owner)
