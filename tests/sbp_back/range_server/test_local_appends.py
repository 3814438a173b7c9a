"""Appends of writers in the process of the range server, which go there without messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sbp_back.client.client import ClientOptions
from sbp_back.client.replica import RetryOptions
from sbp_back.client.stream_writer import StreamWriter, WriterOptions
from sbp_back.errors import ErrorCode, FencedError, SbpError
from tests.kit.waiting import until
from tests.sbp_back.test_embedded import append, read_all, running


async def opened(embedded: Any, count: int) -> list[StreamWriter]:
    """Writers of so many streams, whose ranges exist."""
    client = embedded.client
    writers = [await client.open((await client.create_stream()).stream_id, 0) for _ in range(count)]
    await asyncio.gather(*(append(writer, b"first") for writer in writers))
    return writers


async def test_what_is_appended_in_one_turn_is_one_group(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        writers = await opened(embedded, 20)
        before = embedded.store.stats.groups
        await asyncio.gather(*(append(writer, b"second") for writer in writers))
        assert embedded.store.stats.groups == before + 1


async def test_a_batch_is_shown_to_everybody_when_its_writer_hears_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        (writer,) = await opened(embedded, 1)
        shown: list[int] = []

        def done(error: SbpError | None) -> None:
            assert error is None
            state = embedded.range_server.state_of(writer.stream_id, 0)
            shown.append(state.shown_offset)

        for _ in range(3):
            writer.append(b"more", 2, 0, 5, done)
        await append(writer, b"last")
        assert shown == [8, 8, 8]  # all of a turn become durable together


async def test_what_the_store_is_slow_with_is_repeated_and_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = RetryOptions(append_timeout=0.02, delay_first=0.001, delay_limit=0.005, pending_tries=100_000)
    async with running(tmp_path, client=ClientOptions(writer=WriterOptions(retry=retry))) as embedded:
        (writer,) = await opened(embedded, 1)
        store = embedded.store
        held: list[tuple[Any, Any]] = []
        with monkeypatch.context() as slow:
            slow.setattr(store, "append_gathered", lambda entries, size, done: held.append((entries, done)))
            appending = asyncio.create_task(append(writer, b"second"))
            replica = writer.replica
            assert replica is not None
            await until(lambda: replica.uncertain)
        assert not appending.done()
        for entries, done in held:
            store.append(entries, done)
        assert await appending == 1
        assert await append(writer, b"third") == 2
        assert [bytes(entry.payload) for entry in await read_all(embedded.client, writer.stream_id)] == [
            b"first",
            b"second",
            b"third",
        ]


async def test_what_is_under_way_is_answered_though_its_range_refuses_what_comes_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = WriterOptions(retry=RetryOptions(append_timeout=2.0))  # the second append hears nothing for so long
    async with running(tmp_path, client=ClientOptions(writer=patient)) as embedded:
        other, writer = await opened(embedded, 2)
        store = embedded.store
        held: list[tuple[Any, Any, Any]] = []
        with monkeypatch.context() as slow:
            slow.setattr(store, "append_gathered", lambda *given: held.append(given))
            under_way = [asyncio.create_task(append(one, b"second")) for one in (other, writer)]
            await until(lambda: held)
            state = embedded.range_server.state_of(writer.stream_id, 0)
            assert state is not None
            state.window.start_closing(ErrorCode.RANGE_ALREADY_SEALED)
            with pytest.raises(FencedError):
                await append(writer, b"third")
        for given in held:
            store.append_gathered(*given)
        async with asyncio.timeout(30):
            assert await under_way[0] == 1
            with pytest.raises(FencedError):
                await under_way[1]
        assert state.window.committed == 1  # until it is certain that the range ends, or goes on
        assert len(state.window.parked) == 1


async def test_writers_of_a_range_server_that_ends_are_told(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        (writer,) = await opened(embedded, 1)
        writer._options.control.tries = 1
        await embedded.range_server.close()
        with pytest.raises(SbpError):
            await append(writer, b"late")
