"""The kit for whoever writes a front, with the front that docs/fronts.md explains; and that it finds what is wrong."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridges import front_kit
from bridges.console.clients.everywhere import Choice
from bridges.errors import BatchInvalid
from bridges.formats import FORMATS
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.records import Buffer, Record, StoredBatch
from bridges.front_kit import KitNode
from bridges.log.partition.admission import Admission
from bridges.log.partition.upkeep import Upkeep
from bridges.node.request_front import RequestFront
from tests.line_front.line_front import LineFormat, LineFront, LineStamp, payload_of


@pytest.fixture(autouse=True)
def formats() -> Iterator[None]:
    """Takes back what a test made known."""
    before = dict(FORMATS)
    yield
    FORMATS.clear()
    FORMATS.update(before)


async def ask(kit: KitNode, line: str) -> str:
    reader, writer = await asyncio.open_connection(*kit.address("line"))
    writer.write(line.encode() + b"\n")
    answer = await reader.readline()
    writer.close()
    return answer.decode().rstrip("\n")


async def put_through(kit: KitNode, topic: str, key: bytes | None, value: bytes, time_ms: int) -> str | None:
    word = f"{'*' if key is None else key.decode()}={value.decode().replace(chr(0), '0')}"
    answer = await ask(kit, f"PUT {topic} 0 @{time_ms} {word}")
    return None if answer.startswith("OK") else answer


def test_what_the_format_keeps() -> None:
    # A batch of lines has one time, no headers, and no words for what a value is encoded with.
    assert front_kit.check_format(LineFormat()) == {"key": 11, "value": 11, "headers": 10, "timestamp": 11}


class Moved(LineFormat):
    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        for record in super().records(batch, limit, start):
            if record is not None:
                record.offset += 1
            yield record


class Restless(LineFormat):
    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        return (record for record in super().records(batch, limit, start) if record is not None)


class Deaf(LineFormat):
    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        return super().records(batch, limit)


class Fragile(LineFormat):
    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        try:
            yield from super().records(batch, limit, start)
        except BatchInvalid as error:
            raise KeyError("damaged") from error


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (Moved, "a record lies outside of its batch"),
        (Restless, "come without a None"),
        (Deaf, "records from offset 5098 on begin elsewhere"),
    ],
)
def test_a_format_that_does_not_keep_the_contract(wrong: type[LineFormat], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        front_kit.check_format(wrong())


def test_a_format_that_fails_in_its_own_way_on_damaged_bytes() -> None:
    with pytest.raises(KeyError, match="damaged"):
        front_kit.check_format(Fragile())


async def test_what_topics_demand_no_front_can_break(tmp_path: Path) -> None:
    async with front_kit.serving(tmp_path, LineFront) as kit:
        met = await front_kit.check_duties(kit, lambda *sent: put_through(kit, *sent))
    assert len(met) == 9


async def test_the_kit_notices_where_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "admits", lambda *of: True)
    async with front_kit.serving(tmp_path, LineFront) as kit:
        with pytest.raises(AssertionError, match="demands keys where it is compacted, and has something else"):
            await front_kit.check_duties(kit, lambda *sent: put_through(kit, *sent))


@pytest.mark.parametrize(
    ("offset", "complaint"), [(1, "was deleted for a time that its client claims"), (None, "was kept for a time")]
)
async def test_the_kit_notices_what_is_deleted_by_a_client_s_word(
    offset: int | None, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Upkeep, "retention_offset", lambda *of: offset)
    async with front_kit.serving(tmp_path, LineFront) as kit:
        with pytest.raises(AssertionError, match=complaint):
            await front_kit.check_duties(kit, lambda *sent: put_through(kit, *sent))


class Forgetful(LineFront):
    """Says nothing beside its batches of when their records were made, and nothing of who wrote them."""

    async def _append(self, client, log, words, writer="", number=-1):  # type: ignore[no-untyped-def]
        from anabranch_kit.run.awaited import awaited
        from bridges.log.interfaces import Batch

        told = int(words[0][1:]) if words[0].startswith("@") else 0
        records = [word for word in words if not word.startswith("@")]
        payload = payload_of(told, records, writer.encode(), number)
        return (await awaited(lambda done: log.append(Batch(payload, len(records), 8), done))).base


async def test_a_front_that_says_nothing_beside_its_batches_breaks_nothing(tmp_path: Path) -> None:
    async with front_kit.serving(tmp_path, Forgetful) as kit:
        assert len(await front_kit.check_duties(kit, lambda *sent: put_through(kit, *sent))) == 9
        await kit.make("t")
        assert (await ask(kit, "ONCE me 1 t 0 a=b")).startswith("ERR the batch is of another writer")
        assert await kit.read("t", 0) == []


async def test_a_node_of_the_kit(tmp_path: Path) -> None:
    async with front_kit.serving(tmp_path, LineFront, line__max_connections="3") as kit:
        await kit.make("t", cleanup_policy="compact")
        assert await kit.write("t", 0, Record(b"k", b"v", timestamp=5), Record(b"k", b"w", timestamp=6)) == 0
        assert await ask(kit, "GET t 0 0") == "OK 2 0 k=v 1 k=w"
        assert await ask(kit, "PUT t 0 @7 a=b") == "OK 2"
        assert [(one.offset, one.key, one.timestamp) for one in await kit.read("t", 0, 1)] == [
            (1, b"k", 6),
            (2, b"a", 7),
        ]


def test_a_stamp_is_what_the_format_tells() -> None:
    payload: Buffer = payload_of(5, ["a=b", "c=d"], b"me", 7)
    assert LineFormat().describe(payload).producer == LineStamp(b"me", 7, 2)


def front_of_the_page() -> type[RequestFront]:
    page = (Path(__file__).parents[2] / "docs" / "fronts.md").read_text()
    fenced = page.split("<!-- example -->")[1].split("<!-- end of example -->")[0]
    code = textwrap.dedent(fenced).split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 50
    module: dict[str, Any] = {"__name__": "note_front"}
    exec(compile(code, "docs/fronts.md", "exec"), module)
    found: type[RequestFront] = module["NoteFront"]
    return found


async def test_the_front_of_fifty_lines_reads_and_writes_every_partition_at_every_node(tmp_path: Path) -> None:
    async with front_kit.cluster(tmp_path, front_of_the_page()) as kits:
        await kits[0].make("t", 4)
        assert all([await kit.owned("t") for kit in kits]), "each node owns some"
        clients = [await asyncio.open_connection(*kit.address("note")) for kit in kits]
        for number, (reader, writer) in enumerate(clients):
            other_reader, other_writer = clients[1 - number]
            for partition in range(4):
                other_writer.write(b"GET t %d %d\n" % (partition, number))  # it waits for the record
                writer.write(b"PUT t %d from node %d\n" % (partition, number))
                assert await reader.readline() == b"OK %d\n" % number
                assert await other_reader.readline() == b"OK from node %d\n" % number
        for kit in kits:
            found = await kit.node.floors.host.clients_everywhere.find(Choice("t"))
            assert not found.unanswered
            shown = [(one.node_id, flow.writes, flow.records) for one in found.clients for flow in one.flows]
            assert sorted(shown) == [(node, way, 4) for node in (0, 1) for way in (False, True)]
            assert {(one.front, one.address) for one in found.clients} == {
                ("note", "{}:{}".format(*writer.get_extra_info("sockname"))) for _, writer in clients
            }
        reader, writer = clients[0]
        writer.write(b"PUT t 4 nowhere\n")
        assert await reader.readline() == b"ERR there is no such partition\n"
        writer.write(b"GET\n")
        assert await reader.readline() == b"", "an unexpected request costs the connection"
        for _, writer in clients:
            writer.close()


async def test_logins_that_no_front_can_forget(tmp_path: Path) -> None:
    """A front that takes logins and has no words for them yet answers nobody."""

    class Without(LineFront):
        greet = RequestFront.greet

    async with front_kit.serving(tmp_path, Without, auth_required__line="true") as kit:
        assert await ask(kit, "GET t 0 0") == ""


async def test_the_example_reads_and_writes_every_partition_at_every_node(tmp_path: Path) -> None:
    async with front_kit.cluster(tmp_path, LineFront) as kits:
        await kits[0].make("t", 8)
        owned = [await kit.owned("t") for kit in kits]
        assert all(owned), "each node owns some"
        assert set.union(*owned) == set(range(8))
        for number, kit in enumerate(kits):
            for partition in range(8):
                assert await ask(kit, f"PUT t {partition} node={number}") == f"OK {number}"
        for kit in kits:
            for partition in range(8):
                assert await ask(kit, f"GET t {partition} 0") == "OK 2 0 node=0 1 node=1"
        assert await ask(kits[1], "MARK here t 0 1") == "OK 1"
        assert await ask(kits[0], "FIND here t 0") == "OK 1"
        assert await ask(kits[0], "MAKE just:made 2") == "OK just:made"
        assert await ask(kits[1], "PUT just:made 0 a=b") == "OK 0"
