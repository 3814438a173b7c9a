"""Field types of commands and their layouts in a frame (docs/protocols/pravega.md, "Frame").

All numbers are big-endian and of fixed size. Every length and count is checked against the bytes left before anything
is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, get_args, get_type_hints, overload

from msgspec import Struct

Buffer = bytes | bytearray | memoryview

NO_VERSION = -1
"""Version of a table key that must not exist or, in an answer, does not."""
ANY_VERSION = -(1 << 63)
"""Requirement of a table key that may have any version, or none."""


class WireError(Exception):
    """Invalid bytes: the connection they came on cannot be read any further."""


class TableEntry(NamedTuple):
    """Key of a table with its version and value."""

    key: bytes
    version: int
    value: bytes


class TableKey(NamedTuple):
    """Key of a table with a version."""

    key: bytes
    version: int


class AttributeUpdate(NamedTuple):
    """Update of an attribute within a merge: ``kind`` 1 replaces, 4 replaces if the value is ``old``."""

    attribute: bytes
    kind: int
    new: int
    old: int


class Merged(NamedTuple):
    """Source of a merge, and the length of the target after it."""

    source: str
    length: int


class Element(NamedTuple):
    """Functions for the elements of a list: ``read`` decodes one and returns where it ends, ``skip`` only returns that.
    Both raise WireError."""

    read: Callable[[memoryview, int], tuple[Any, int]]
    skip: Callable[[memoryview, int], int]


E = TypeVar("E")


class Packed(Sequence[E]):
    """List that stays encoded: each iteration decodes its elements anew.

    Decoded, a few bytes per element would become a hundred, for as long as the command waits. The frame, of which this
    is a view, is counted.
    """

    __slots__ = ("_at", "_count", "_data", "_element")

    def __init__(self, element: Element, data: memoryview, at: int, count: int) -> None:
        self._element = element
        self._data = data
        self._at = at
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[E]:
        data, at, read = self._data, self._at, self._element.read
        for _ in range(self._count):
            one, at = read(data, at)
            yield one

    @overload
    def __getitem__(self, place: int) -> E: ...
    @overload
    def __getitem__(self, place: slice) -> list[E]: ...
    def __getitem__(self, place: int | slice) -> E | list[E]:
        return list(self)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class Kind(Protocol):
    """Field type of variable size."""

    def read(self, data: memoryview, at: int) -> tuple[Any, int]:
        """Decode the value at ``at``; return it and where it ends. Raises WireError."""

    def write(self, value: Any, parts: list[Buffer]) -> None:
        """Append the encoded value. Raises WireError for a value that cannot be encoded."""


_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_EVENT = struct.Struct(">ii")
_UPDATE = struct.Struct(">16sbqq")


_MOST_ELEMENTS = 100_000
"""Most elements of one list: a few bytes on the wire take a hundred in memory."""


def _count(data: memoryview, at: int, least: int) -> tuple[int, int]:
    """Decode a count and check that so many elements of at least ``least`` bytes may follow; return it and where it
    ends."""
    if at + 4 > len(data):
        raise WireError("a count is cut short")
    (count,) = _I32.unpack_from(data, at)
    if not 0 <= count * least <= len(data) - at - 4:
        raise WireError(f"{count} elements do not fit into {len(data) - at - 4} bytes")
    return count, at + 4


class _String:
    """Two bytes of length, then UTF-8; invalid UTF-8 is preserved."""

    def read(self, data: memoryview, at: int) -> tuple[str, int]:
        start = at + 2
        if start > len(data):
            raise WireError("a string is cut short")
        end = start + _U16.unpack_from(data, at)[0]
        if end > len(data):
            raise WireError("a string is cut short")
        return str(data[start:end], "utf-8", "surrogateescape"), end

    def write(self, value: str, parts: list[Buffer]) -> None:
        text = value.encode("utf-8", "surrogateescape")
        if len(text) > 0xFFFF:
            raise WireError(f"a string of {len(text)} bytes is too long")
        parts += (_U16.pack(len(text)), text)


class _Blob:
    """Four bytes of length, then bytes, returned as a view of the frame."""

    def read(self, data: memoryview, at: int) -> tuple[memoryview, int]:
        size, at = _count(data, at, 1)
        return data[at : at + size], at + size

    def write(self, value: Buffer, parts: list[Buffer]) -> None:
        parts += (_I32.pack(len(value)), value)


class _Rest:
    """All bytes that are left."""

    def read(self, data: memoryview, at: int) -> tuple[memoryview, int]:
        return data[at:], len(data)

    def write(self, value: Buffer, parts: list[Buffer]) -> None:
        parts.append(value)


class _Event:
    """A whole event, head (type 0 and length) included, as it is stored in a segment."""

    def read(self, data: memoryview, at: int) -> tuple[memoryview, int]:
        if at + 8 > len(data):
            raise WireError("an event is cut short")
        kind, size = _EVENT.unpack_from(data, at)
        end = at + 8 + size
        if kind or not at + 8 <= end <= len(data):
            raise WireError(f"an event of type {kind} and {size} bytes in {len(data) - at} bytes")
        return data[at:end], end

    def write(self, value: Buffer, parts: list[Buffer]) -> None:
        parts.append(value)


class _Key:
    """Table key with a version. An empty key has no version on the wire."""

    def read(self, data: memoryview, at: int) -> tuple[TableKey, int]:
        end = self.skip(data, at)
        if end == at + 8:
            return TableKey(b"", ANY_VERSION), end
        (version,) = _I64.unpack_from(data, end - 8)
        return TableKey(bytes(data[at + 8 : end - 8]), version), end

    def skip(self, data: memoryview, at: int) -> int:
        """Return where the key at ``at`` ends. Raises WireError."""
        if at + 8 > len(data):
            raise WireError("a key is cut short")
        total, size = _EVENT.unpack_from(data, at)
        if size == 0:
            return at + 8
        if size < 0 or total != size + 12 or at + size + 16 > len(data):
            raise WireError(f"a key of {size} bytes in {total}")
        return at + int(size) + 16

    def write(self, value: TableKey, parts: list[Buffer]) -> None:
        key, version = value
        parts.append(_EVENT.pack(len(key) + 12, len(key)))
        if key:
            parts += (key, _I64.pack(version))


class _Entry:
    def read(self, data: memoryview, at: int) -> tuple[TableEntry, int]:
        (key, version), at = KEY.read(data, at)
        end = self._value_end(data, at)
        return TableEntry(key, version, bytes(data[at + 8 : end])), end

    def skip(self, data: memoryview, at: int) -> int:
        """Return where the entry at ``at`` ends. Raises WireError."""
        return self._value_end(data, KEY.skip(data, at))

    def _value_end(self, data: memoryview, at: int) -> int:
        if at + 8 > len(data):
            raise WireError("a value is cut short")
        total, size = _EVENT.unpack_from(data, at)
        end = at + 8 + int(size)
        if size < 0 or total != size + 4 or end > len(data):
            raise WireError(f"a value of {size} bytes in {total}")
        return end

    def write(self, value: TableEntry, parts: list[Buffer]) -> None:
        KEY.write(TableKey(value.key, value.version), parts)
        parts += (_EVENT.pack(len(value.value) + 4, len(value.value)), value.value)


class _Number:
    def read(self, data: memoryview, at: int) -> tuple[int, int]:
        if at + 8 > len(data):
            raise WireError("a number is cut short")
        return _I64.unpack_from(data, at)[0], at + 8

    def write(self, value: int, parts: list[Buffer]) -> None:
        parts.append(_I64.pack(value))


class _Update:
    def read(self, data: memoryview, at: int) -> tuple[AttributeUpdate, int]:
        if at + _UPDATE.size > len(data):
            raise WireError("a change of an attribute is cut short")
        return AttributeUpdate(*_UPDATE.unpack_from(data, at)), at + _UPDATE.size

    def write(self, value: AttributeUpdate, parts: list[Buffer]) -> None:
        parts.append(_UPDATE.pack(*value))


class _MergedKind:
    def read(self, data: memoryview, at: int) -> tuple[Merged, int]:
        source, at = STRING.read(data, at)
        length, at = _NUMBER.read(data, at)
        return Merged(source, length), at

    def write(self, value: Merged, parts: list[Buffer]) -> None:
        STRING.write(value.source, parts)
        _NUMBER.write(value.length, parts)


class _Many:
    """A count and that many elements, of at least ``least`` bytes each."""

    def __init__(self, kind: Kind, least: int) -> None:
        self._kind = kind
        self._least = least

    def _counted(self, data: memoryview, at: int) -> tuple[int, int]:
        count, at = _count(data, at, self._least)
        if count > _MOST_ELEMENTS:
            raise WireError(f"a list of {count} elements")
        return count, at

    def read(self, data: memoryview, at: int) -> tuple[Sequence[Any], int]:
        count, at = self._counted(data, at)
        found = []
        for _ in range(count):
            value, at = self._kind.read(data, at)
            found.append(value)
        return found, at

    def write(self, value: Sequence[Any], parts: list[Buffer]) -> None:
        parts.append(_I32.pack(len(value)))
        for one in value:
            self._kind.write(one, parts)


class _ManyPacked(_Many):
    """Like :class:`_Many`, but decodes to a :class:`Packed`, after checking that all its elements can be decoded."""

    def __init__(self, kind: _Key | _Entry, least: int) -> None:
        super().__init__(kind, least)
        self._element = Element(kind.read, kind.skip)

    def read(self, data: memoryview, at: int) -> tuple[Sequence[Any], int]:
        count, first = self._counted(data, at)
        skip, end = self._element.skip, first
        for _ in range(count):
            end = skip(data, end)
        return Packed(self._element, data, first, count), end


STRING = _String()
KEY = _Key()
_NUMBER = _Number()

I8 = Annotated[int, "b"]
I32 = Annotated[int, "i"]
I64 = Annotated[int, "q"]
Bool = Annotated[bool, "?"]
Uuid = Annotated[bytes, "16s"]
"""UUID in 16 bytes, the most significant first."""
Str = Annotated[str, STRING]
Blob = Annotated[Buffer, _Blob()]
Rest = Annotated[Buffer, _Rest()]
Event = Annotated[Buffer, _Event()]
Keys = Annotated[list[TableKey], _Many(KEY, 8)]
Entries = Annotated[list[TableEntry], _Many(_Entry(), 16)]
PackedKeys = Annotated[Sequence[TableKey], _ManyPacked(KEY, 8)]
PackedEntries = Annotated[Sequence[TableEntry], _ManyPacked(_Entry(), 16)]
"""Packed types are for lists from clients, which choose their length."""
Numbers = Annotated[list[int], _Many(_NUMBER, 8)]
Strings = Annotated[list[str], _Many(STRING, 2)]
Updates = Annotated[list[AttributeUpdate], _Many(_Update(), _UPDATE.size)]
Merges = Annotated[list[Merged], _Many(_MergedKind(), 10)]


class Layout:
    """Layout of one command's fields in its frame, decoded and encoded in as few steps as possible.

    Trailing fields with defaults may be missing, since peers of older versions do not send them. Bytes after the last
    field are ignored, since newer peers may send more. The steps are computed at the first use: there are many
    commands, and a client sends few of them.
    """

    __slots__ = ("_make", "_steps", "_write")

    def __init__(self, command: type[Struct]) -> None:
        self._make = command
        #: (kind or struct of fixed fields, whether it may be missing) for each step.
        self._steps: list[tuple[Any, bool]]
        #: (kind or struct, names of its fields) for each step.
        self._write: list[tuple[Any, tuple[str, ...]]]

    def __getattr__(self, name: str) -> Any:
        if name not in ("_steps", "_write"):
            raise AttributeError(name)
        self._steps, self._write = self._inspect()
        return getattr(self, name)

    def _inspect(self) -> tuple[list[tuple[Any, bool]], list[tuple[Any, tuple[str, ...]]]]:
        hints = get_type_hints(self._make, include_extras=True)
        steps: list[tuple[Any, bool]] = []
        write: list[tuple[Any, tuple[str, ...]]] = []
        codes: list[str] = []
        fixed: list[str] = []

        def end_fixed() -> None:
            if fixed:
                packed = struct.Struct(">" + "".join(codes))
                steps.append((packed, False))
                write.append((packed, tuple(fixed)))
                codes.clear()
                fixed.clear()

        names = self._make.__struct_fields__
        needed = len(names) - len(self._make.__struct_defaults__)
        for number, name in enumerate(names):
            kind = get_args(hints[name])[1]
            if number >= needed:
                end_fixed()
                kind = struct.Struct(">" + kind) if isinstance(kind, str) else kind
                steps.append((kind, True))
                write.append((kind, (name,)))
            elif isinstance(kind, str):
                codes.append(kind)
                fixed.append(name)
            else:
                end_fixed()
                steps.append((kind, False))
                write.append((kind, (name,)))
        end_fixed()
        return steps, write

    def read(self, data: memoryview, at: int) -> Any:
        """Decode the command whose fields begin at ``at``. Raises WireError."""
        values: list[Any] = []
        for step, optional in self._steps:
            if optional and at >= len(data):
                break
            if isinstance(step, struct.Struct):
                if at + step.size > len(data):
                    raise WireError("a command is cut short")
                values += step.unpack_from(data, at)
                at += step.size
            else:
                value, at = step.read(data, at)
                values.append(value)
        return self._make(*values)

    def write(self, command: Any, parts: list[Buffer]) -> None:
        """Append a command's encoded fields, including those with defaults. Raises WireError."""
        for step, names in self._write:
            values = _values(command, names)
            if isinstance(step, struct.Struct):
                try:
                    parts.append(step.pack(*values))
                except struct.error as error:
                    raise WireError(f"{type(command).__name__}: {error}") from error
            else:
                step.write(next(values), parts)


def _values(command: Any, names: tuple[str, ...]) -> Iterator[Any]:
    return (getattr(command, name) for name in names)
