"""Records in order of time over HTTP: the newest or the oldest of all partitions, and a search from the end."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest

from anabranch_kit.memory.budget import Kind
from bridges.catalog.topics.lineage import choose_partition
from bridges.console.records import rendering
from bridges.console.records.conditions import matches
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch, PartitionLog
from bridges.node.assembly import Node
from tests.bridges.node.test_node import settings_of


class Lab:
    def __init__(self, node: Node) -> None:
        self.node = node

    async def put(self, partition: int, *records: Record) -> None:
        log = self.node.logs.get("t", partition)
        assert log is not None
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        batch = Batch(encode(list(records)), len(records), int(FormatId.KAFKA), records[-1].timestamp)
        log.append(batch, lambda at, error: done.set_result(at.base) if error is None else done.set_exception(error))
        await done

    async def ask(self, **query: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        url = f"http://{self.node.addresses['console']}/api/topics/t/records?{urlencode(query)}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
            assert answer.status == 200, lines
        return [line for line in lines if "looked" not in line], lines[-1]

    def key_of(self, partition: int) -> str:
        return next(str(one) for one in range(100) if choose_partition(str(one).encode(), 3) == partition)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 3)
    yield Lab(node)
    await node.stop()


def record(at: int, value: str = "", key: str = "k") -> Record:
    return Record(key.encode(), (value or str(at)).encode(), timestamp=at)


async def fill(lab: Lab) -> None:
    """Write records at the times 1,000 to 3,999: the newest thousand into partition 2, and few into partition 1."""
    for partition, start, end in ((0, 1000, 2990), (1, 2990, 3000), (2, 3000, 4000)):
        for at in range(start, end, 500):
            await lab.put(partition, *(record(one) for one in range(at, min(at + 500, end))))


def newest(rows: list[dict[str, Any]], count: int) -> list[int]:
    return sorted((row["timestamp"] for row in rows), reverse=True)[:count]


async def test_fifty_are_the_newest_fifty_wherever_they_lie(lab: Lab) -> None:
    await fill(lab)
    rows, _ = await lab.ask(order="newest", limit=50)
    assert newest(rows, 50) == list(range(3999, 3949, -1))
    assert len(rows) < 200
    rows, _ = await lab.ask(order="newest", limit=1000)
    assert newest(rows, 1000) == list(range(3999, 2999, -1))


async def test_the_oldest_come_first_from_a_time_on(lab: Lab) -> None:
    await fill(lab)
    rows, last = await lab.ask(order="oldest", limit=30, since_ms=2980)
    assert sorted(row["timestamp"] for row in rows)[:30] == list(range(2980, 3010))
    more, _ = await lab.ask(order="oldest", limit=10, at=",".join(f"{p}:{o}" for p, o in last["next"].items()))
    assert min(row["timestamp"] for row in more) > 3009


async def test_older_ones_follow_where_the_last_line_says(lab: Lab) -> None:
    await fill(lab)
    seen: list[int] = []
    at = ""
    for _ in range(40):
        rows, last = await lab.ask(order="newest", limit=100, **({"at": at} if at else {}))
        seen += [row["timestamp"] for row in rows]
        at = ",".join(f"{partition}:{offset}" for partition, offset in last["next"].items())
        if not at:
            break
    assert sorted(seen) == list(range(1000, 4000))


async def test_a_search_begins_at_the_end(lab: Lab) -> None:
    await lab.put(0, record(1, "needle old"))
    for start in range(2, 4002, 500):
        await lab.put(0, *(record(at) for at in range(start, start + 500)))
    await lab.put(0, record(5000, "needle new"))
    await lab.put(0, *(record(at) for at in range(5001, 5101)))
    rows, last = await lab.ask(order="newest", limit=1, text="needle", look=500)
    assert [row["value"] for row in rows] == ["needle new"]
    assert last["looked"] <= 500
    rows, last = await lab.ask(order="newest", limit=5, text="needle old", look=300)
    assert (rows, last["looked"]) == ([], 300)
    rows, last = await lab.ask(order="newest", limit=5, text="needle old", look=10_000, at=f"0:{last['next']['0']}")
    assert [row["offset"] for row in rows] == [0]
    assert last["next"] == {}


@pytest.mark.parametrize("home", [0, 2])
async def test_a_key_is_looked_for_in_its_own_partition_first(lab: Lab, home: int) -> None:
    key = lab.key_of(home)
    for partition in range(3):
        await lab.put(partition, *(record(at, key=key if partition == home else "x") for at in range(10)))
    rows, last = await lab.ask(order="newest", limit=2, key=key)
    assert {row["partition"] for row in rows} == {home}
    assert last["next"].keys() == {str(one) for one in range(3)}
    assert last["looked"] == 2
    rows, last = await lab.ask(order="newest", limit=50, key=key)
    assert (len(rows), last["looked"]) == (10, 30)


async def test_a_wide_gap_is_passed_in_few_reads(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As compaction leaves them: the log is asked seldom, and no window brings very many records."""
    for start in range(0, 19_500, 500):
        await lab.put(0, *(record(at) for at in range(start, start + 500)))
    read, reads = PartitionLog.read_committed, 0

    async def with_gap(log: PartitionLog, offset: int, most: int) -> list[Any]:
        nonlocal reads
        reads += 1
        batches = await read(log, 19_000 if 5_000 <= offset < 19_000 else offset, most)
        return [one for one in batches if not 5_000 <= one.base_offset < 19_000]

    monkeypatch.setattr(PartitionLog, "read_committed", with_gap)
    rows, _ = await lab.ask(order="newest", limit=1000, partition=0)
    assert newest(rows, 1000) == [*range(19_499, 18_999, -1), *range(4_999, 4_499, -1)]
    assert reads < 60
    assert len(rows) < 4_000


async def test_a_wrong_order_or_place_is_refused(lab: Lab) -> None:
    for query in (
        "order=best",
        "order=newest&follow=true",
        "order=newest&at=x:1",
        "order=newest&at=9:1",
        "json=%3D1",
        "format=csv",
        "follow=true&format=parquet",
    ):
        url = f"http://{lab.node.addresses['console']}/api/topics/t/records?{query}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status in (400, 404), query


def order(at: int, country: str, key: str = "k") -> Record:
    return record(at, json.dumps({"at": at, "customer": {"country": country}}), key)


async def test_conditions_on_json_find_the_newest_first_and_go_on(lab: Lab) -> None:
    for start in range(0, 2_000, 500):
        await lab.put(0, *(order(at, "DE" if at % 100 == 7 else "FR") for at in range(start, start + 500)))
    rows, last = await lab.ask(order="newest", limit=3, json="customer.country = DE and at < 1900", look=500)
    assert newest(rows, 3) == [1807, 1707, 1607]
    assert last["looked"] <= 500
    rows, _ = await lab.ask(order="newest", limit=100, json="at = 7", at=f"0:{last['next']['0']}")
    assert [row["timestamp"] for row in rows] == [7]
    rows, _ = await lab.ask(json="customer.country = DE", key="k", until_ms=300)
    assert [row["timestamp"] for row in rows] == [7, 107, 207]


async def test_values_too_long_to_be_parsed_are_counted(lab: Lab) -> None:
    await lab.put(0, order(1, "DE"), record(2, json.dumps({"customer": {"country": "DE"}, "more": "x" * 200_000})))
    rows, last = await lab.ask(order="newest", json="customer.country = DE")
    assert ([row["timestamp"] for row in rows], last["too_long"]) == ([1], 1)


async def test_long_values_are_parsed_outside_of_the_event_loop(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    here, seen = threading.get_ident(), list[bool]()
    real = matches

    def spy(conditions: Any, value: bytes | None) -> bool:
        seen.append(threading.get_ident() == here)
        return real(conditions, value)

    monkeypatch.setattr(rendering, "matches", spy)
    await lab.put(0, *(record(at, json.dumps({"a": "x" * 50_000})) for at in range(20)))
    rows, _ = await lab.ask(limit=100, json="a ~ x")
    assert len(rows) == 20
    assert seen == [False] * 20


async def test_a_range_of_times_is_searched_from_its_end(lab: Lab) -> None:
    minute = 60_000
    for start in range(0, 3_000, 500):
        await lab.put(0, *(record(1 + at * minute) for at in range(start, start + 500)))
    bounds = {"since_ms": 1 + 100 * minute, "until_ms": 1 + 200 * minute}
    rows, last = await lab.ask(order="newest", limit=1000, **bounds)
    assert newest(rows, 1000) == [1 + at * minute for at in range(200, 99, -1)]
    assert last["looked"] < 200
    rows, last = await lab.ask(text="", **bounds)
    assert (len(rows), last["looked"]) == (101, 101)


async def test_records_are_downloaded_as_parquet(lab: Lab) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    await lab.put(0, Record(b"\xff", None, [("h", b"\xfe"), ("n", None)], timestamp=5), record(6, "found"))
    for start in range(0, 4_000, 500):
        await lab.put(0, *(record(at, "x" * 500) for at in range(start, start + 500)))
    url = f"http://{lab.node.addresses['console']}/api/topics/t/records?format=parquet"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            whole = parquet.ParquetFile(io.BytesIO(await answer.read()))
        async with session.get(url + "&order=newest&text=found") as answer:
            found = parquet.read_table(io.BytesIO(await answer.read())).to_pylist()
    assert whole.num_row_groups > 1
    rows = whole.read().to_pylist()
    assert [row["offset"] for row in rows] == list(range(4_002))
    assert (rows[0]["key"], rows[0]["value"]) == (b"\xff", None)
    assert rows[0]["headers"] == [{"name": "h", "value": b"\xfe"}, {"name": "n", "value": None}]
    assert [(row["offset"], row["value"]) for row in found] == [(1, b"found")]
    assert lab.node.budget.by_kind[Kind.RESPONSES] == 0


async def test_a_node_without_pyarrow_says_what_to_install(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    url = f"http://{lab.node.addresses['console']}/api/topics/t/records?format=parquet"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 501
        assert "pip install 'anabranch[spark]'" in (await answer.json())["error"]
