"""A generator of codec functions: it writes the Python for one message layout and compiles it.

The text is flat: nested structures are inlined as loops, consecutive fixed-size fields (and the length prefix that
follows them) become one ``struct`` call. Decoders test every length against the remaining bytes before they allocate
anything; reading past the end surfaces as ``struct.error`` or ``IndexError``, which the function turns into WireError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kafka_front.wire import messages
from kafka_front.wire.message import Message
from kafka_front.wire.primitives import (
    MAX_ELEMENTS,
    MAX_STRING_BYTES,
    Buffer,
    TooManyElements,
    WireError,
    read_uvarint,
    rest_of_uvarint,
    skip_tags,
    text_length,
    uvarint,
)
from kafka_front.wire.schema import FIXED, FieldType, MessageType, StructType


class Decoder(Protocol):
    """Read a message of a buffer from a position on, with at most ``left`` array elements. Raises WireError."""

    def __call__(self, buf: bytes | bytearray, pos: int, left: int = MAX_ELEMENTS, /) -> Any: ...


Encoder = Callable[[Any, list[Buffer]], None]

_HELPERS: dict[str, Any] = {
    "TooManyElements": TooManyElements,
    "WireError": WireError,
    "read_uvarint": read_uvarint,
    "rest_of_uvarint": rest_of_uvarint,
    "skip_tags": skip_tags,
    "text_length": text_length,
    "uvarint": uvarint,
    "struct_error": struct.error,
    "unpack_from": struct.unpack_from,
    "pack": struct.pack,
    "BOOL": (False, True),
}


def decoder(message: MessageType) -> Decoder:
    """Return a function ``decode(buf, pos)`` that returns the message at ``pos``; only a request may be followed by
    more bytes."""
    return _DecoderText(message).compile()  # type: ignore[no-any-return]


def encoder(message: MessageType) -> Encoder:
    """Return a function ``encode(message, out)`` that appends the body's buffers to the list ``out``."""
    return _EncoderText(message).compile()  # type: ignore[no-any-return]


class _Text:
    """Lines under construction, and the names they need."""

    def __init__(self, message: MessageType) -> None:
        self.message = message
        self.lines: list[str] = []
        self.depth = 0
        self.names = dict(_HELPERS)
        self._numbers: dict[str, int] = {}
        self._bound: dict[tuple[str, Any], str] = {}
        self.classes: dict[str, type[Message]] = {}
        root: type[Message] = getattr(messages, message.body.name)
        self.classes[message.body.name] = root
        for name, value in vars(root).items():
            if isinstance(value, type) and issubclass(value, Message):
                self.classes[name] = value

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, text: str) -> Iterator[None]:
        self.line(text)
        self.depth += 1
        yield
        self.depth -= 1

    def fresh(self, stem: str) -> str:
        number = self._numbers.get(stem, 0)
        self._numbers[stem] = number + 1
        return f"{stem}{number}"

    def bind(self, stem: str, identity: Any, value: Any) -> str:
        """Return a global name of the generated function for ``value``; equal identities share one."""
        name = self._bound.get((stem, identity))
        if name is None:
            name = self._bound[(stem, identity)] = self.fresh(stem)
            self.names[name] = value
        return name

    def text(self) -> str:
        raise NotImplementedError

    def compile(self) -> Any:
        direction = "request" if self.message.request else "response"
        where = f"<kafka {direction} {self.message.key} v{self.message.version}>"
        exec(compile(self.text(), where, "exec"), self.names)
        return self.names["function"]


# --- decoding -------------------------------------------------------------------------------------------------------


def least_size(layout: StructType) -> int:
    """Return the bytes that the structure's smallest encoding takes."""
    total = 1 if layout.flexible else 0  # the section of tagged fields
    for field in layout.plain:
        if field.array:
            total += 1 if layout.flexible else 4
        elif field.kind == "struct":
            assert field.struct is not None
            total += 1 if field.nullable else least_size(field.struct)
        elif field.kind in FIXED:
            total += struct.calcsize(FIXED[field.kind])
        elif layout.flexible:
            total += 1
        else:
            total += 2 if field.kind == "string" else 4
    return total


class _DecoderText(_Text):
    """The text of a function of ``buf``, ``pos`` and ``left`` (elements still allowed); ``size`` is its other state."""

    def __init__(self, message: MessageType) -> None:
        super().__init__(message)
        self.run: list[tuple[str, str]] = []  # struct character, assignment target
        self.wraps: list[str] = []  # conversions to do after the run is read

    def text(self) -> str:
        with self.block(f"def function(buf, pos, left={MAX_ELEMENTS}):"):
            with self.block("try:"):
                self.line("size = len(buf)")
                if _has_records(self.message.body):
                    self.line("view = memoryview(buf)")
                root = self.structure(self.message.body)
            with self.block("except (struct_error, IndexError, UnicodeDecodeError, OverflowError) as error:"):
                self.line("raise WireError(f'malformed message: {error}') from error")
            if not self.message.request:
                # What follows a request is ignored, as Kafka's own parser does: librdkafka 2.16 leaves three bytes
                # behind its flexible Metadata request for all topics.
                with self.block("if pos != size:"):
                    self.line("raise WireError(f'{size - pos} bytes after the end of the message')")
            self.line(f"return {root}")
        return "\n".join(self.lines) + "\n"

    # runs of fixed-size fields

    def flush(self) -> None:
        """Write the ``struct`` call that reads the gathered run of fixed-size fields."""
        if not self.run:
            return
        targets = ", ".join(target for _, target in self.run)
        codes = "".join(code for code, _ in self.run)
        if codes == "B":
            self.line(f"{targets} = buf[pos]")
        elif len(self.run) == 1:
            self.line(f"{targets}, = {self.unpacker(codes)}(buf, pos)")
        else:
            self.line(f"{targets} = {self.unpacker(codes)}(buf, pos)")
        self.line(f"pos += {struct.calcsize('>' + codes)}")
        for wrap in self.wraps:
            self.line(wrap)
        self.run, self.wraps = [], []

    def unpacker(self, codes: str) -> str:
        return self.bind("u_", codes, struct.Struct(">" + codes).unpack_from)

    def prefix(self, flexible: bool, wide: str) -> str:
        """Write code that reads a length into a new variable, and return its name; -1 is null. ``wide`` is the length's
        struct character in a version that is not flexible."""
        name = self.fresh("n")
        self.run.append(("B" if flexible else wide, name))
        self.flush()
        if flexible:
            with self.block(f"if {name} >= 128:"):
                self.line(f"{name}, pos = rest_of_uvarint(buf, pos, {name})")
            self.line(f"{name} -= 1")
        return name

    # structures

    def structure(self, layout: StructType) -> str:
        """Write code that decodes into a new object, and return its variable. Leaves no run open."""
        cls = self.classes[layout.name]
        obj = self.fresh("o")
        self.line(f"{obj} = {self.bind('new', cls, cls.__new__)}({self.bind('C', cls, cls)})")
        present = {field.name for field in layout.plain}
        probe = cls()
        for slot in cls.__slots__:
            if slot not in present:
                self.line(f"{obj}.{slot} = {self.default(getattr(probe, slot))}")
        for field in layout.plain:
            self.field(field, f"{obj}.{field.name}", layout.flexible)
        if layout.flexible:
            self.tags(layout, obj)
        self.flush()
        return obj

    def default(self, value: Any) -> str:
        if isinstance(value, list):
            return "[]"
        if isinstance(value, Message):
            return f"{self.bind('C', type(value), type(value))}()"
        if value is None or isinstance(value, bool | int | str | bytes):
            return repr(value)
        return self.bind("d", id(value), value)

    def tags(self, layout: StructType, obj: str) -> None:
        count = self.fresh("t")
        self.run.append(("B", count))
        self.flush()
        if not layout.tagged:
            with self.block(f"if {count}:"):
                self.line(f"pos = skip_tags(buf, pos, {count})")
            return
        with self.block(f"if {count}:"):
            with self.block(f"if {count} >= 128:"):
                self.line(f"{count}, pos = rest_of_uvarint(buf, pos, {count})")
            tag, end = self.fresh("tag"), self.fresh("end")
            with self.block(f"for _ in range({count}):"):
                self.line(f"{tag}, pos = read_uvarint(buf, pos)")
                self.line(f"{end}, pos = read_uvarint(buf, pos)")
                self.line(f"{end} += pos")
                with self.block(f"if {end} > size:"):
                    self.line("raise WireError('tagged field exceeds the message')")
                word = "if"
                for field in layout.tagged:
                    with self.block(f"{word} {tag} == {field.tag}:"):
                        self.field(field, f"{obj}.{field.name}", flexible=True, tagged=True)
                        self.flush()
                        with self.block(f"if pos != {end}:"):
                            self.line("raise WireError('tagged field of a wrong length')")
                    word = "elif"
                with self.block("else:"):
                    self.line(f"pos = {end}")

    def field(self, field: FieldType, target: str, flexible: bool, tagged: bool = False) -> None:
        if field.array:
            self.array(field, target, flexible)
        elif field.kind in FIXED:
            self.run.append((FIXED[field.kind], target))
            if field.kind == "bool":
                self.wraps.append(f"{target} = BOOL[{target}]")
        elif field.kind == "struct":
            self.nested(field, target, tagged)
        else:
            self.text_or_bytes(field, target, flexible)

    def nested(self, field: FieldType, target: str, tagged: bool) -> None:
        assert field.struct is not None
        if not field.nullable or tagged:
            self.flush()
            self.line(f"{target} = {self.structure(field.struct)}")
            return
        marker = self.fresh("m")
        self.run.append(("b", marker))
        self.flush()
        with self.block(f"if {marker} < 0:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            self.line(f"{target} = {self.structure(field.struct)}")

    def text_or_bytes(self, field: FieldType, target: str, flexible: bool) -> None:
        length = self.prefix(flexible, "h" if field.kind == "string" else "i")
        end = self.fresh("e")
        if field.kind == "string":
            value = f"buf[pos:{end}].decode()"
        elif field.kind == "records":
            value = f"view[pos:{end}]"
        else:
            value = f"bytes(buf[pos:{end}])"
        with self.block(f"if {length} >= 0:"):
            self.line(f"{end} = pos + {length}")
            too_long = f" or {length} > {MAX_STRING_BYTES}" if field.kind == "string" and flexible else ""
            with self.block(f"if {end} > size{too_long}:"):
                self.line("raise WireError('length exceeds the message')")
            self.line(f"{target} = {value}")
            self.line(f"pos = {end}")
        self.null(field, target, length)

    def null(self, field: FieldType, target: str, length: str) -> None:
        """Write the branches of a negative length."""
        if field.nullable:
            with self.block(f"elif {length} == -1:"):
                self.line(f"{target} = None")
        with self.block("else:"):
            self.line(f"raise WireError('{field.name} may not be null')")

    def array(self, field: FieldType, target: str, flexible: bool) -> None:
        count = self.prefix(flexible, "i")
        if field.kind == "struct":
            assert field.struct is not None
            least = max(1, least_size(field.struct))
        elif field.kind in FIXED:
            least = struct.calcsize(FIXED[field.kind])
        else:
            least = 1 if flexible else 2
        with self.block(f"if {count} > 0:"):
            with self.block(f"if {count} * {least} > size - pos:" if least > 1 else f"if {count} > size - pos:"):
                self.line("raise WireError('array exceeds the message')")
            self.line(f"left -= {count}")
            with self.block("if left < 0:"):
                self.line("raise TooManyElements('too many array elements')")
            self.elements(field, target, count, flexible)
        with self.block(f"elif {count} == 0:"):
            self.line(f"{target} = []")
        self.null(field, target, count)

    def elements(self, field: FieldType, target: str, count: str, flexible: bool) -> None:
        if field.kind in FIXED:
            code = FIXED[field.kind]
            if field.kind == "uuid":
                self.line(f"{target} = [bytes(buf[i : i + 16]) for i in range(pos, pos + {count} * 16, 16)]")
            else:
                self.line(f"{target} = list(unpack_from('>%d{code}' % {count}, buf, pos))")
            if field.kind == "bool":
                self.line(f"{target} = [BOOL[b] for b in {target}]")
            self.line(f"pos += {count} * {struct.calcsize(code)}")
            return
        items, item = self.fresh("a"), self.fresh("i")
        self.line(f"{items} = {target} = []")
        with self.block(f"for _ in range({count}):"):
            if field.kind == "struct":
                assert field.struct is not None
                self.line(f"{items}.append({self.structure(field.struct)})")
            else:
                element = FieldType(field.name, field.kind, None, False, False, None, None, False)
                self.text_or_bytes(element, item, flexible)
                self.line(f"{items}.append({item})")


def _has_records(layout: StructType) -> bool:
    return any(f.kind == "records" or (f.struct is not None and _has_records(f.struct)) for f in layout.fields)


# --- encoding -------------------------------------------------------------------------------------------------------


class _EncoderText(_Text):
    """The text of a function of the message and the list of output buffers; ``put`` names the current list's append."""

    def __init__(self, message: MessageType) -> None:
        super().__init__(message)
        self.run: list[tuple[str, str]] = []  # struct character, expression ("" for a zero byte)
        self.put = "put"

    def text(self) -> str:
        with self.block("def function(message, out):"):
            with self.block("try:"):
                self.line("put = out.append")
                self.structure(self.message.body, "message")
                self.flush()
            with self.block("except (struct_error, AttributeError, TypeError, ValueError, OverflowError) as error:"):
                self.line("raise WireError(f'message cannot be written: {error}') from error")
        return "\n".join(self.lines) + "\n"

    def flush(self) -> None:
        if self.run:
            self.line(f"{self.put}({self.packed(self.run)})")
            self.run = []

    def packed(self, run: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in run)
        values = ", ".join(value for _, value in run if value)
        if not values:
            return repr(bytes(len(codes)))
        return f"{self.bind('p_', codes, struct.Struct('>' + codes).pack)}({values})"

    def prefix(self, length: str, flexible: bool, wide: str, text: bool) -> None:
        """Write code that encodes a length held by variable ``length`` (-1 for null), together with the run before
        it."""
        if not flexible:
            self.run.append((wide, length))
            self.flush()
            return
        before = self.run
        with self.block(f"if {length} < 127:"):
            self.run = [*before, ("B", f"{length} + 1")]
            self.flush()
        with self.block("else:"):
            self.run = before
            self.flush()
            self.line(f"{self.put}({'text_length' if text else 'uvarint'}({length} + 1))")
        self.run = []

    def structure(self, layout: StructType, obj: str) -> None:
        """Write code that encodes a structure; the run may stay open."""
        for field in layout.plain:
            self.field(field, f"{obj}.{field.name}", layout.flexible)
        if not layout.flexible:
            return
        if layout.tagged:
            self.tags(layout, obj)
        else:
            self.run.append(("x", ""))

    def tags(self, layout: StructType, obj: str) -> None:
        self.flush()
        absent = " and ".join(self.is_default(field, f"{obj}.{field.name}") for field in layout.tagged)
        with self.block(f"if {absent}:"):
            self.line(f"{self.put}(b'\\x00')")
        with self.block("else:"):
            found, outer = self.fresh("found"), self.put
            self.line(f"{found} = []")
            for field in layout.tagged:
                with self.block(f"if not ({self.is_default(field, f'{obj}.{field.name}')}):"):
                    value = self.fresh("w")
                    self.line(f"{value} = []")
                    self.put = f"{value}.append"
                    self.field(field, f"{obj}.{field.name}", flexible=True, tagged=True)
                    self.flush()
                    self.put = outer
                    self.line(f"{value} = b''.join({value})")
                    self.line(f"{found}.append(uvarint({field.tag}) + uvarint(len({value})) + {value})")
            self.line(f"{outer}(uvarint(len({found})) + b''.join({found}))")

    def is_default(self, field: FieldType, value: str) -> str:
        """Return an expression that is true when a tagged field need not be written."""
        if field.array:
            return f"{value} is None" if field.null_default else f"{value} == []"
        if field.kind == "struct":
            assert field.struct is not None
            if field.null_default:
                return f"{value} is None"
            same = " and ".join(f"{value}.{f.name} == {f.default!r}" for f in field.struct.fields)
            return f"({value} is None or ({same}))"
        return f"{value} is None" if field.default is None else f"{value} == {field.default!r}"

    def field(self, field: FieldType, value: str, flexible: bool, tagged: bool = False) -> None:
        if field.array:
            self.array(field, value, flexible)
        elif field.kind in FIXED:
            self.run.append((FIXED[field.kind], value))
        elif field.kind == "struct":
            self.nested(field, value, tagged)
        elif field.kind == "records":
            self.records(field, value, flexible)
        else:
            self.text_or_bytes(field, value, flexible)

    def nested(self, field: FieldType, value: str, tagged: bool) -> None:
        assert field.struct is not None
        if not field.nullable or tagged:
            inner = self.fresh("s")
            self.line(f"{inner} = {value}")
            self.structure(field.struct, inner)
            return
        self.flush()
        inner = self.fresh("s")
        self.line(f"{inner} = {value}")
        with self.block(f"if {inner} is None:"):
            self.line(f"{self.put}(b'\\xff')")
        with self.block("else:"):
            self.run.append(("b", "1"))
            self.structure(field.struct, inner)
            self.flush()

    def text_or_bytes(self, field: FieldType, value: str, flexible: bool) -> None:
        data, length = self.fresh("b"), self.fresh("n")
        text = field.kind == "string"
        if field.nullable:
            self.line(f"{data} = {value}")
            with self.block(f"if {data} is None:"):
                self.line(f"{data} = b''")
                self.line(f"{length} = -1")
            with self.block("else:"):
                if text:
                    self.line(f"{data} = {data}.encode()")
                self.line(f"{length} = len({data})")
        else:
            self.line(f"{data} = {value}.encode()" if text else f"{data} = {value}")
            self.line(f"{length} = len({data})")
        self.prefix(length, flexible, "h" if text else "i", text)
        self.line(f"{self.put}({data})")

    def records(self, field: FieldType, value: str, flexible: bool) -> None:
        data, length = self.fresh("r"), self.fresh("n")
        self.line(f"{data} = {value}")
        if field.nullable:
            with self.block(f"if {data} is None:"):
                self.line(f"{length} = -1")
            word = "elif"
        else:
            word = "if"
        with self.block(f"{word} type({data}) is list:"):
            self.line(f"{length} = sum(map(len, {data}))")
        with self.block("else:"):
            self.line(f"{length} = len({data})")
        self.prefix(length, flexible, "i", text=False)
        with self.block(f"if {length} > 0:"):
            with self.block(f"if type({data}) is list:"):
                self.line(f"out.extend({data})")
            with self.block("else:"):
                self.line(f"{self.put}({data})")

    def array(self, field: FieldType, value: str, flexible: bool) -> None:
        items, count = self.fresh("a"), self.fresh("n")
        self.line(f"{items} = {value}")
        if field.nullable:
            with self.block(f"if {items} is None:"):
                self.line(f"{items} = ()")
                self.line(f"{count} = -1")
            with self.block("else:"):
                self.line(f"{count} = len({items})")
        else:
            self.line(f"{count} = len({items})")
        self.prefix(count, flexible, "i", text=False)
        if field.kind in FIXED and field.kind != "uuid":
            with self.block(f"if {count} > 0:"):
                self.line(f"{self.put}(pack('>%d{FIXED[field.kind]}' % {count}, *{items}))")
            return
        item = self.fresh("i")
        with self.block(f"for {item} in {items}:"):
            if field.kind == "struct":
                assert field.struct is not None
                self.structure(field.struct, item)
            elif field.kind == "uuid":
                self.run.append(("16s", item))
            else:
                element = FieldType(field.name, field.kind, None, False, False, None, None, False)
                self.text_or_bytes(element, item, flexible)
            self.flush()
