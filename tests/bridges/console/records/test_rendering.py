"""Records over HTTP: rendered slice by slice, whatever their batches are like."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.memory.request_memory import RequestMemory
from bridges.clients import Clients, Description
from bridges.console.records import reading
from bridges.console.records.rendering import Wanted, rendered
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record, StoredBatch
from bridges.metrics import TopicTraffic

LIMIT = 1 << 20


def stored(base: int, records: list[Record], codec: int = 0) -> StoredBatch:
    return StoredBatch(base, base + len(records), int(FormatId.KAFKA), bytes(encode(records, base, codec=codec)))


def lines(batches: list[StoredBatch], wanted: Wanted) -> list[dict[str, Any]]:
    text = b"".join(piece for piece in rendered(batches, wanted, LIMIT) if isinstance(piece, bytes))
    return [json.loads(line) for line in text.splitlines()]


VALUES = [Record(None, b"%d" % number, timestamp=number) for number in range(10)]


@pytest.mark.parametrize(("start", "end", "limit"), [(0, 20, -1), (3, 17, -1), (3, 17, 5), (0, 20, 0), (9, 11, 20)])
def test_what_is_wanted_is_shown(start: int, end: int, limit: int) -> None:
    wanted = Wanted(7, start, end, limit)
    found = lines([stored(0, VALUES), stored(10, VALUES, codec=4)], wanted)
    expected = list(range(start, end))[: limit if limit >= 0 else None]
    assert [line["offset"] for line in found] == expected
    assert [line["value"] for line in found] == [str(offset % 10) for offset in expected]
    assert wanted.records == len(expected)


def test_a_batch_that_cannot_be_read_is_one_line_and_hides_no_other() -> None:
    bad = stored(10, VALUES, codec=4)
    bad = bad._replace(payload=bytes(bad.payload[:-20]) + bytes(20))
    bomb = stored(20, [Record(None, bytes(2 * LIMIT))], codec=4)
    found = lines([stored(0, VALUES), bad, bomb, stored(21, VALUES)], Wanted(7, 12, 31, -1))
    errors = [(line["partition"], line["offset"], line["end"]) for line in found if "error" in line]
    assert errors == [(7, 12, 20), (7, 20, 21)]
    assert [line["offset"] for line in found if "error" not in line] == list(range(21, 31))


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_no_slice_is_long(codec: int) -> None:
    bomb = stored(0, [Record(None, None, offset=0, timestamp=1)] * 20_000, codec)
    pieces = [piece for piece in rendered([bomb], Wanted(0, 0, 20_000, -1), LIMIT) if isinstance(piece, bytes)]
    assert sum(piece.count(b"\n") for piece in pieces) == 20_000
    assert max(piece.count(b"\n") for piece in pieces) <= 100
    many = [stored(number, [Record(None, b"x")]) for number in range(1000)]
    pieces = [piece for piece in rendered(many, Wanted(0, 0, 1000, -1), LIMIT) if isinstance(piece, bytes)]
    assert max(piece.count(b"\n") for piece in pieces) <= 100


def test_a_long_record_is_written_in_pieces() -> None:
    value = b"x" * 900_000
    pieces = list(rendered([stored(0, [Record(None, value)])], Wanted(0, 0, 1, -1), LIMIT))
    assert all(isinstance(piece, bytes) and len(piece) <= 200_000 for piece in pieces)
    assert json.loads(b"".join(pieces))["value"] == value.decode()  # type: ignore[arg-type]


async def test_a_client_that_takes_nothing_is_no_failure_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut like one that went away: nothing is logged as unexpected."""

    class Response:
        writes = 0

        async def write(self, piece: bytes) -> None:
            self.writes += 1
            if self.writes > 1:
                await asyncio.Event().wait()

    def lines() -> Any:
        for _ in range(5):
            yield b"a line\n"

    monkeypatch.setattr(reading, "STALLED_S", 0.01)
    response: Any = Response()
    budget = MemoryBudget(1000, asyncio.get_running_loop().call_soon)
    memory = RequestMemory(budget)
    client = Clients(budget).enter("http", "http", ("", 0), Description, lambda reason: None)
    answer = reading.Answer(response, memory, TopicTraffic(), client, None)
    reader = reading.Reader(LIMIT)
    with pytest.raises(ConnectionError):
        await reader._send(answer, lines(), Wanted(0, 0, 5, -1), 5)
    reader.close()
    assert response.writes == 2
