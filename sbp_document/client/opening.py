"""Opening of the document's batches that contain batches of other formats.

A node whose backend speaks only the document wraps its batches this way (:mod:`sbp_document.wire.wrapped`); readers get
them as they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from anabranch_kit.memory.buffers import Buffer
from bridges.errors import BatchInvalid
from bridges.formats import FORMAT_MASK, format_of
from sbp_back.client.fetch import Fetch
from sbp_back.errors import SbpError
from sbp_back.wire.model import Entry
from sbp_document.wire.record_batch import FORMAT_FLAG
from sbp_document.wire.wrapped import unwrap


def opened(entries: list[Entry], offset: int, max_bytes: int, limit: int) -> list[Entry]:
    """Return the contents of the entries that a fetch at ``offset`` of about ``max_bytes`` and below ``limit`` (-1:
    all) got.

    The base offset is written into each batch here: it was not known when the batch was stored (docs/sbp.md).
    """
    if not any(entry.flags & FORMAT_MASK == FORMAT_FLAG for entry in entries):
        return entries
    found: list[Entry] = []
    room = max_bytes
    for entry in unwrapped(entries):
        if entry.end_offset <= offset or 0 <= limit <= entry.base_offset:
            continue
        room -= len(entry.payload)
        if found and room < 0:
            break
        found.append(replace(entry, payload=_placed(entry)))
    return found


def unwrapped(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries as their writers made them."""
    return [inner for entry in entries for inner in unwrap(entry)]


def _placed(entry: Entry) -> Buffer:
    if entry.flags & FORMAT_MASK == FORMAT_FLAG:
        return entry.payload  # the server has written its offset there
    try:
        plug = format_of(entry.flags)
        placed = bytearray(entry.payload)
        plug.stamp(placed, entry.base_offset, plug.describe(placed).epoch)
    except BatchInvalid:
        return entry.payload  # its reader gets the error
    return placed


class OpeningFetch(Fetch):
    """A fetch at servers of Anabranch's that opens the document's batches."""

    __slots__ = ("_asked",)

    def __init__(self, client: Any, stream_id: int, offset: int, max_bytes: int, *rest: Any) -> None:
        super().__init__(client, stream_id, offset, max_bytes, *rest)
        self._asked = offset, max_bytes, self._limit

    def _tell(self, answer: list[Entry] | SbpError) -> None:
        super()._tell(answer if isinstance(answer, SbpError) else opened(answer, *self._asked))
