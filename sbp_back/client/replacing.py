"""Replacing entries by others, in the store of a range server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from anabranch_kit.errors import DiskFull, StoreError
from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.run.awaited import awaited
from sbp_back.client.gathering import LocalStore
from sbp_back.errors import ErrorCode, NoSpace, SbpError
from sbp_back.wire.entry import entry_crc, pack_entry
from sbp_back.wire.model import Entry

_LONG_BYTES = 1024 * 1024
"""The checksum of an entry that is longer is made in a thread."""


class Substitute(NamedTuple):
    """A batch that replaces the entries at the offsets ``[base_offset, end_offset)``; ``timestamp`` in ms, as an
    entry's.
    """

    base_offset: int
    end_offset: int
    flags: int
    timestamp: int
    payload: Buffer


async def replaced(store: LocalStore, epoch: int, old: Sequence[Entry], new: Sequence[Substitute | Entry]) -> None:
    """Have ``new`` take the place of ``old``; entries of ``old`` that are also in ``new`` stay as they are.

    Once begun it is carried out; it returns when the outcome is decided, also after a cancellation. Raises
    ``SbpError``.
    """
    entries = substituted(old, new)
    for entry in entries:
        if entry.crc < 0 and entry.size > _LONG_BYTES:
            await asyncio.to_thread(entry_crc, entry)
    decided = awaited(partial(store.replace, epoch, old, entries))
    try:
        await asyncio.shield(decided)
    except asyncio.CancelledError:
        await asyncio.wait((decided,))
        if not decided.cancelled():
            decided.exception()
        raise
    except DiskFull as error:
        raise NoSpace(str(error)) from error
    except StoreError as error:
        raise SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, str(error)) from error


def substituted(old: Sequence[Entry], new: Sequence[Substitute | Entry]) -> list[Entry]:
    """Make entries of ``new``. They say of the range what those of ``old`` said: how far it was confirmed."""
    entries: list[Entry] = []
    confirmed = -1
    at = 0
    for one in new:
        if isinstance(one, Entry):
            entries.append(one)
            continue
        base, end, flags, timestamp, payload = one
        while at < len(old) and old[at].base_offset < end:
            confirmed = max(confirmed, old[at].confirmed)
            at += 1
        first = old[0]
        entries.append(
            pack_entry(first.stream_id, first.range_index, flags, base, end - base, timestamp, payload, confirmed)
        )
    return entries
