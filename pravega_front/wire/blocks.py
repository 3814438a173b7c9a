"""Appends out of blocks: what a writer's AppendBlock and AppendBlockEnd mean together (reference/pravega.md, 2.2)."""

from __future__ import annotations

import struct

from pravega_front.wire.commands import AppendBlockEnd, Padding, PartialEvent
from pravega_front.wire.fields import Buffer, WireError

_INNER = struct.Struct(">ii")


def appended(block: Buffer | None, end: AppendBlockEnd) -> list[Buffer]:
    """The bytes that a block and its end append; ``block`` is None where the end stands alone.

    Raises WireError where they do not go together.
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
