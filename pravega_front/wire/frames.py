"""Codec of frames: type, length, fields (docs/protocols/pravega.md, "Frame")."""

from __future__ import annotations

import struct

from pravega_front.wire.commands import LAYOUTS, Command, DataAppended, SegmentRead
from pravega_front.wire.fields import STRING, Buffer, WireError

HEAD = struct.Struct(">ii")
LENGTH = struct.Struct(">4xi")
"""Head of a frame as the connection reads it: skips the type, reads the number of bytes that follow."""
MAX_FRAME = 16 * 1024 * 1024 - 1
"""Largest frame in bytes, head included."""

_DATA_APPENDED = struct.Struct(">ii16sqqqq")
_READ_FLAGS = struct.Struct(">q??i")
_ID = struct.Struct(">q")


def code_of(frame: Buffer) -> int:
    """Return the type of a whole frame."""
    return int(HEAD.unpack_from(frame)[0])


def decode(frame: Buffer) -> Command:
    """Decode a whole frame, head included. Byte fields are views of the frame. Raises WireError."""
    if len(frame) < HEAD.size:
        raise WireError("a frame is cut short")
    code, size = HEAD.unpack_from(frame)
    if size != len(frame) - HEAD.size:
        raise WireError(f"a frame of {len(frame)} bytes says that {size} follow its head")
    layout = LAYOUTS.get(code)
    if layout is None:
        raise WireError(f"commands of type {code} are not known")
    command: Command = layout.read(memoryview(frame), HEAD.size)
    return command


def encode(command: Command) -> list[Buffer]:
    """Encode a command as the parts of a frame. Raises WireError for a command that is too large for a frame."""
    if type(command) is DataAppended:
        return [data_appended(command)]
    parts: list[Buffer] = [b""]
    LAYOUTS[command.code].write(command, parts)
    size = sum(map(len, parts))
    if size > MAX_FRAME - HEAD.size:
        raise WireError(f"{type(command).__name__} of {size} bytes fits into no frame")
    parts[0] = HEAD.pack(command.code, size)
    return parts


def data_appended(command: DataAppended) -> bytes:
    """Encode the answer to appends."""
    return _DATA_APPENDED.pack(
        DataAppended.code,
        48,
        command.writer_id,
        command.event_number,
        command.previous_event_number,
        command.request_id,
        command.current_segment_write_offset,
    )


def segment_read(command: SegmentRead, data: list[Buffer]) -> list[Buffer]:
    """Encode the answer to a read with ``data`` instead of the command's own bytes."""
    size = sum(map(len, data))
    name: list[Buffer] = []
    STRING.write(command.segment, name)
    flags = _READ_FLAGS.pack(command.offset, command.at_tail, command.end_of_segment, size)
    head = b"".join((*name, flags))
    return [HEAD.pack(SegmentRead.code, len(head) + size + 8) + head, *data, _ID.pack(command.request_id)]
