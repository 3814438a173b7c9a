"""Parser of appends out of AppendBlock and AppendBlockEnd (docs/protocols/pravega.md, "Appends").

Most frames are of these two types, so each is parsed here in one go, with the layout of its command.
"""

from __future__ import annotations

import struct

from pravega_front.wire.commands import NO_ID, AppendBlockEnd, Padding, PartialEvent
from pravega_front.wire.fields import Buffer, WireError

_INNER = struct.Struct(">ii")
_BLOCK = struct.Struct(">8x16s")
"""Head of the frame, and the block's writer; the rest is data."""
_END = struct.Struct(">8x16sii")
"""Head of the frame, the block end's writer, the size of the whole events, and the size of its data, which follows."""
_TAIL = struct.Struct(">iq")
"""Fields after the data: number of events, and number of the last one."""
_ID = struct.Struct(">q")


def parse_block(frame: Buffer) -> tuple[bytes, memoryview]:
    """Return the writer and the data of an AppendBlock from its whole frame. Raises WireError."""
    if len(frame) < _BLOCK.size:
        raise WireError("a command is cut short")
    (writer_id,) = _BLOCK.unpack_from(frame)
    return writer_id, memoryview(frame)[_BLOCK.size :]


def parse_block_end(frame: Buffer) -> AppendBlockEnd:
    """Decode the whole frame of an AppendBlockEnd. Raises WireError."""
    if len(frame) < _END.size:
        raise WireError("a command is cut short")
    writer_id, whole, size = _END.unpack_from(frame)
    tail = _END.size + size
    id_at = tail + _TAIL.size
    left = len(frame) - id_at
    if size < 0 or left < 0 or 0 < left < _ID.size:
        raise WireError("a command is cut short")
    events, number = _TAIL.unpack_from(frame, tail)
    request_id = _ID.unpack_from(frame, id_at)[0] if left else NO_ID
    return AppendBlockEnd(writer_id, whole, memoryview(frame)[_END.size : tail], events, number, request_id)


def appended(block: Buffer | None, end: AppendBlockEnd) -> list[Buffer]:
    """Return the bytes that a block and its end append; ``block`` is None if the end stands alone.

    Raises WireError if they do not fit together.
    """
    if end.num_events <= 0:
        raise WireError(f"an append of {end.num_events} events")
    if block is None:
        return [end.data] if len(end.data) else []
    whole = end.size_of_whole_events
    if not 0 <= whole <= len(block):
        raise WireError(f"{whole} bytes of whole events in a block of {len(block)}")
    view = memoryview(block)
    if whole == len(block):
        return [view] if whole else []
    inner = view[whole:]
    if len(inner) < _INNER.size:
        raise WireError(f"{len(inner)} bytes behind the whole events of a block")
    kind, size = _INNER.unpack_from(inner)
    if size != len(inner) - _INNER.size:
        raise WireError(f"what follows the whole events of a block has {len(inner)} bytes and says {size}")
    parts: list[Buffer] = [view[:whole]] if whole else []
    if kind == PartialEvent.code:
        parts += [one for one in (inner[_INNER.size :], end.data) if len(one)]
    elif kind != Padding.code:
        raise WireError(f"a command of type {kind} within a block")
    elif len(end.data):
        raise WireError("a block that was filled up does not end within an event")
    return parts
