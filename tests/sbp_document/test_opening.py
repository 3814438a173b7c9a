"""Batches that were stored inside the document's, as logs and readers of other formats get them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bridges.formats import FormatId, decode
from bridges.formats.kafka import encode, parse_header
from bridges.formats.records import Record, StoredBatch
from sbp_back.errors import SbpError
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.model import Entry
from sbp_document.client.opening import opened
from sbp_document.wire.record_batch import FORMAT_FLAG, set_base_offset
from sbp_document.wire.wrapped import Payload, wrap
from tests.bridges.log.log_lab import Backend, World, batch


def opening(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the backend's client open what it reads, as those of the add-on do."""
    fetch = backend.fetch

    def fetch_opened(
        stream_id: int,
        offset: int,
        max_bytes: int,
        done: Callable[[list[Entry] | SbpError], None],
        *,
        limit: int = -1,
    ) -> None:
        def fetched(answer: list[Entry] | SbpError) -> None:
            done(answer if isinstance(answer, SbpError) else opened(answer, offset, max_bytes, limit))

        fetch(stream_id, offset, max_bytes, fetched, limit=limit)

    fetch_entries = backend.fetch_entries

    async def entries_opened(stream_id: int, offset: int, max_bytes: int, *, limit: int = -1) -> list[Entry]:
        return opened(await fetch_entries(stream_id, offset, max_bytes, limit=limit), offset, max_bytes, limit)

    monkeypatch.setattr(backend, "fetch", fetch_opened)
    monkeypatch.setattr(backend, "fetch_entries", entries_opened)


async def test_batches_that_came_through_the_document_are_read_as_they_were_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    opening(world.backend, monkeypatch)
    first, second = batch(3, sequence=0).payload, batch(2, sequence=3).payload
    wrapped = wrap(1, int(FormatId.KAFKA), [Payload(first, 3, 5), Payload(second, 2, 6)])
    set_base_offset(wrapped, 0)
    lie = wrap(1, int(FormatId.KAFKA), [Payload(b"no batch of Kafka", 2, 5)])
    set_base_offset(lie, 5)
    world.backend.entries = [
        pack_entry(1, 0, FORMAT_FLAG, 0, 5, 5, wrapped),
        pack_entry(1, 0, FORMAT_FLAG, 5, 2, 5, lie),
    ]
    world.backend.end = 7
    log = await world.boot()
    batches = await log.read_batches(0, 1 << 20)
    assert [(b.base_offset, b.end_offset, b.flags) for b in batches] == [(0, 3, 1), (3, 5, 1), (5, 7, 1)]
    assert [parse_header(b.payload).base_offset for b in batches[:2]] == [0, 3]
    assert bytes(batches[2].payload) == b"no batch of Kafka"
    assert [b.base_offset for b in await log.read_batches(4, 1 << 20)] == [3, 5]
    assert [b.base_offset for b in await log.read_batches(0, 10)] == [0]
    log.append(batch(2, sequence=3), world.done)
    assert world.answers == [3], "the producer's last batch is known"


def test_a_format_that_holds_others_shows_their_records() -> None:
    """Of what was stored at a node itself, where nobody opens what is read."""
    inner = [encode([Record(b"k", b"%d" % number, timestamp=5) for number in range(count)]) for count in (3, 2)]
    wrapped = wrap(1, int(FormatId.KAFKA), [Payload(inner[0], 3, 5), Payload(inner[1], 2, 6)])
    set_base_offset(wrapped, 100)
    found = decode(StoredBatch(100, 105, FORMAT_FLAG, wrapped))
    assert [(one.offset, one.key, one.value) for one in found] == [
        (100 + number, b"k", value) for number, value in enumerate((b"0", b"1", b"2", b"0", b"1"))
    ]


def test_pieces_outside_of_what_is_asked_for_are_left_out() -> None:
    payloads = [Payload(encode([Record(None, bytes(100))]), 1, 5) for _ in range(10)]
    wrapped = wrap(1, int(FormatId.KAFKA), payloads)
    set_base_offset(wrapped, 20)
    entry = pack_entry(1, 0, FORMAT_FLAG, 20, 10, 5, wrapped)
    assert [one.base_offset for one in opened([entry], 22, 1 << 20, 25)] == [22, 23, 24]
    assert [one.base_offset for one in opened([entry], 22, 1, -1)] == [22], "at least one"
    assert [one.base_offset for one in opened([entry], 20, 1 << 20, -1)] == list(range(20, 30))
