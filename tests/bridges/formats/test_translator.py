"""Batches for readers of another protocol: short ones at once, long ones off the event loop, each once."""

from __future__ import annotations

import asyncio

import pytest

from bridges.errors import BatchInvalid
from bridges.formats import FormatId, Translator
from bridges.formats.kafka import check_batch, iterate
from bridges.formats.records import StoredBatch
from bridges.sliced import SlicedWorks
from sbp_back.document.batch import DocumentRecord, encode_batch


def document(count: int, base: int = 0) -> StoredBatch:
    batch = encode_batch([DocumentRecord(b"%d" % number, timestamp=1000) for number in range(count)])
    return StoredBatch(base, base + count, int(FormatId.SBP_V01), bytes(batch))


async def test_a_long_batch_is_translated_in_slices_and_once_for_all_who_ask() -> None:
    works = SlicedWorks()
    translator = Translator(1 << 20, works)
    batch = document(1000, base=50)
    assert translator.payload(1, batch, FormatId.KAFKA) is None
    assert translator.spent == 0
    first, second = await asyncio.gather(
        translator.translate(1, batch, FormatId.KAFKA), translator.translate(1, batch, FormatId.KAFKA)
    )
    assert first is second
    assert 10 <= works.steps <= 30, "one work of slices of a hundred records"
    assert check_batch(memoryview(first)).record_count == 1000
    found = [(record.offset, record.value) for record in iterate(first)]
    assert found == [(50 + number, b"%d" % number) for number in range(1000)]
    assert translator.payload(1, batch, FormatId.KAFKA) is first
    works.close()


async def test_a_short_batch_is_translated_at_once() -> None:
    translator = Translator(1 << 20)
    payload = translator.payload(1, document(100), FormatId.KAFKA)
    assert payload is not None
    assert translator.spent == 100 + len(document(100).payload) // 1024
    assert await translator.translate(1, document(100), FormatId.KAFKA) is payload


async def test_a_bad_batch_is_bad_for_all_who_ask_and_forgotten() -> None:
    works = SlicedWorks()
    translator = Translator(1 << 20, works)
    batch = document(1000)._replace(end_offset=999)
    results = await asyncio.gather(
        *(translator.translate(1, batch, FormatId.KAFKA) for _ in range(2)), return_exceptions=True
    )
    assert all(isinstance(result, BatchInvalid) for result in results)
    with pytest.raises(BatchInvalid):
        await translator.translate(1, batch, FormatId.KAFKA)
    works.close()


async def test_one_who_gives_up_takes_it_from_nobody_else() -> None:
    works = SlicedWorks()
    translator = Translator(1 << 20, works)
    batch = document(1000)
    impatient = asyncio.create_task(translator.translate(1, batch, FormatId.KAFKA))
    patient = asyncio.create_task(translator.translate(1, batch, FormatId.KAFKA))
    await asyncio.sleep(0)
    impatient.cancel()
    assert len(list(iterate(await patient))) == 1000
    works.close()
