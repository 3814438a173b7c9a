"""One callback that raises costs nobody else an answer, and all parts of a backend count it in one place."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
from structlog.testing import capture_logs

from anabranch_kit.run.barrier import Barrier
from sbp_back.embedded import PD_LISTENER, RANGE_SERVER_LISTENER, EmbeddedOptions
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.tcp_carrier import TcpCarrier
from sbp_back.wire.model import DescribePdRequest, RangeServerInfo
from tests.sbp_document.document_lab import start


def raises(value: int) -> None:
    raise RuntimeError(f"broken {value}")


def test_what_a_callback_raises_is_counted_and_logged_with_its_kind_and_the_rest_goes_on() -> None:
    barrier = Barrier()
    called: list[int] = []
    with capture_logs() as lines:
        results = [barrier.call("waiter", one, n, topic="t") for n, one in enumerate([raises, called.append])]
    assert (results, called) == ([False, True], [1])
    assert barrier.failures == {"waiter": 1}
    [line] = lines
    assert (line["kind"], line["callback"], line["topic"], line["log_level"]) == ("waiter", "raises", "t", "error")
    assert str(line["exc_info"]) == "broken 0"


def test_a_storm_of_failures_writes_one_line_a_second_of_each_kind_and_is_counted_whole() -> None:
    now = 0.0
    barrier = Barrier(lambda: now)
    with capture_logs() as lines:
        for _ in range(100):
            barrier.call("append", partial(raises, 1))
        barrier.call("read", partial(raises, 1))
        now = 1.0
        barrier.call("append", partial(raises, 1))
    assert [(line["kind"], line["failures"], line["since_last_line"]) for line in lines] == [
        ("append", 1, 1),
        ("read", 1, 1),
        ("append", 101, 100),
    ]


def test_a_barrier_lets_the_end_of_a_process_through() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    barrier = Barrier()
    with pytest.raises(KeyboardInterrupt):
        barrier.call("one of these tests", interrupted)
    assert barrier.failures == {}


def barriers_below(root: object) -> list[Barrier]:
    """All barriers that can be reached from an object, but not through classes and modules."""
    seen: set[int] = set()
    left: list[object] = [root]
    found: list[Barrier] = []
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | asyncio.AbstractEventLoop | asyncio.Task):
            continue
        seen.add(id(one))
        if isinstance(one, Barrier):
            found.append(one)
        elif isinstance(one, FunctionType):
            left += [cell.cell_contents for cell in one.__closure__ or ()]
        else:
            left += gc.get_referents(one)
    return found


async def test_all_parts_of_a_backend_share_the_barrier_they_are_given(tmp_path: Path) -> None:
    barrier = Barrier()
    anywhere = ("127.0.0.1", 0)
    options = EmbeddedOptions(
        store=StoreOptions(segment_bytes=1 << 20, low_water_bytes=0),
        listen=dict.fromkeys((PD_LISTENER, RANGE_SERVER_LISTENER, "sbp-v0.1"), anywhere),
        barrier=barrier,
    )
    embedded = await start(tmp_path, options)
    try:
        client = embedded.client
        stream = await client.create_stream()
        writer = await client.open(stream.stream_id, 1)
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        writer.append(b"a", 1, 0, 5, told.set_result)
        assert await told is None
        client.channel(RangeServerInfo(99, "127.0.0.1:1"))  # one elsewhere, over TCP
        over_tcp = TcpCarrier(*embedded.addresses[PD_LISTENER])
        await over_tcp.call(DescribePdRequest())  # there is a connection
        assert barriers_below(embedded) == [barrier]
        await over_tcp.close()

        def broken(_: object) -> None:
            raise RuntimeError("broken")

        client.fetch(stream.stream_id, 0, 1024, broken)
        writer.append(b"b", 1, 0, 5, broken)
        await writer.close()
    finally:
        await embedded.close()
    assert barrier.failures == {"fetch answer": 1, "append answer": 1}
