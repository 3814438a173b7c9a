"""Records that name a schema: written by Confluent's serializers, read through the interface, page and commands."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from anabranch_kit.memory.budget import Kind
from bridges.console.schemas.decoding import Decoded, Decoder, Frame
from bridges.formats.records import Record
from bridges.node.assembly import Node
from tests.bridges.console.records.test_reading import Lab
from tests.bridges.node.test_node import settings_of
from tests.kit.waiting import until
from tests.schema_registry import FakeRegistry, registry

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "country", "type": ["null", "string"], "default": None}],
}
JSON_ORDER = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with registry() as one:
        yield one


@pytest.fixture
async def lab(tmp_path: Path, fake: FakeRegistry) -> AsyncIterator[Lab]:
    url = fake.url.replace("//", "//reader:geheim@")
    node = Node(settings_of(tmp_path, schemas__registry=url), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 1)
    yield Lab(node)
    await node.stop()


def proto_message(**fields: object) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add(name="First")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="country", number=2, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields)


def serialized(fake: FakeRegistry, kind: str, value: Any, *, header: bool = False) -> tuple[bytes, list[Any]]:
    """Return what Confluent's serializer makes of a value of topic t, and the headers that it adds."""
    client = SchemaRegistryClient({"url": fake.url})
    headers: list[Any] = []
    context = SerializationContext("t", MessageField.VALUE, headers)
    conf: dict[str, Any] = {"subject.name.strategy": topic_subject_name_strategy}
    if header:
        conf["schema.id.serializer"] = header_schema_id_serializer
    make: dict[str, Callable[[], Any]] = {
        "AVRO": lambda: AvroSerializer(client, json.dumps(ORDER), conf=conf),
        "JSON": lambda: JSONSerializer(json.dumps(JSON_ORDER), client, conf=conf),
        "PROTOBUF": lambda: ProtobufSerializer(type(value), client, {**conf, "use.deprecated.format": False}),
    }
    return make[kind]()(value, context), headers


VALUES = {"AVRO": {"id": 5, "country": "DE"}, "JSON": {"id": 5}, "PROTOBUF": proto_message(id=5, country="DE")}


@pytest.mark.parametrize("header", [False, True], ids=["prefix", "header"])
@pytest.mark.parametrize("kind", VALUES)
async def test_what_serializers_write_is_decoded_beside_its_bytes(
    lab: Lab, fake: FakeRegistry, kind: str, header: bool
) -> None:
    value, headers = await asyncio.to_thread(serialized, fake, kind, VALUES[kind], header=header)
    await lab.put(0, Record(b"k", value, headers, 7))
    (line,), _ = await lab.ask(decode=True, order="newest", limit=5)
    decoded = line["value_decoded"]
    assert {name: decoded[name] for name in decoded if name != "text"} == {
        "schema": str(UUID(int=1)) if header else 1,
        "type": kind,
    }
    assert json.loads(decoded["text"])["id"] in (5, "5")
    assert "key_decoded" not in line
    plain, _ = await lab.ask(order="newest", limit=5)
    assert {name: one for name, one in line.items() if name != "value_decoded"} == plain[0]
    url = f"http://{lab.node.addresses['console']}/api/topics/t/partitions/0/records/0"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert (await answer.json())["decoded"] == {"value": decoded}
    assert "Basic cmVhZGVyOmdlaGVpbQ==" in fake.logins


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4) + data


async def test_filters_look_into_what_is_decoded(lab: Lab, fake: FakeRegistry) -> None:
    number = fake.register("t-value", ORDER)
    for at in range(300):
        country = b"\x02\x04DE" if at % 100 == 7 else b"\0"
        other = Record(b"k", framed(number, b"\x08" + country))
        await lab.put(0, other, Record(b"k", framed(number, b"\x06" + country), timestamp=at))
    for query in ({"json": "country = DE and id = 3"}, {"text": '{"id":3,"country":"DE"}'}):
        rows, last = await lab.ask(decode=True, order="newest", limit=300, look=10_000, **query)
        assert sorted(row["timestamp"] for row in rows) == [7, 107, 207]
        assert {row["value_decoded"]["text"] for row in rows} == {'{"id":3,"country":"DE"}'}
        assert last["looked"] == 600
        assert (await lab.ask(order="newest", limit=300, **query))[0] == []
    assert fake.asked == ["/schemas/ids/1"]
    assert lab.node.budget.by_kind[Kind.READS] == 0


async def test_what_is_not_decoded_stays_as_it_is_with_the_reason(lab: Lab, fake: FakeRegistry) -> None:
    number = fake.register("t-value", ORDER)
    await lab.put(0, Record(framed(number, b"\x06\0"), framed(99, b"abc")))
    await lab.put(0, Record(None, framed(number, b"\x06"), timestamp=1), Record(None, framed(number, b"\x08\0")))
    await lab.put(0, Record(None, framed(number, bytes(200_000))), Record(b"\0\0", b"plain"))
    rows, _ = await lab.ask(decode=True)
    assert json.loads(rows[0]["key_decoded"]["text"]) == {"id": 3, "country": None}
    assert rows[0]["value_decoded"] == {"schema": 99, "error": "the schema registry has no /schemas/ids/99"}
    assert "EOFError" in rows[1]["value_decoded"]["error"]
    assert json.loads(rows[2]["value_decoded"]["text"])["id"] == 4
    assert rows[3]["value_decoded"] == {"schema": number, "error": "it is longer than 128 KiB"}
    assert "value_decoded" not in rows[4]
    assert all("value" in row or "value_base64" in row for row in rows)


async def test_what_grows_when_it_is_decoded_is_held_a_few_at_a_time(
    lab: Lab, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = {"name": "n" * 100, "type": "null"}
    items = {"type": "record", "name": "Empty", "fields": [field]}
    number = fake.register("t-value", {"type": "array", "items": items})
    await lab.put(0, *(Record(None, framed(number, b"\xd0\x0f\0"), timestamp=at) for at in range(40)))
    held: list[int] = []
    decode = Decoder.decode

    async def watched(decoder: Decoder, frames: Sequence[Frame]) -> list[Decoded]:
        told = await decode(decoder, frames)
        held.append(sum(len(one.text) for one in told))
        return told

    monkeypatch.setattr(Decoder, "decode", watched)
    rows, _ = await lab.ask(decode=True)
    assert [len(json.loads(row["value_decoded"]["text"])) for row in rows] == [1000] * 40
    assert len(held) > 10
    assert max(held) < 512 * 1024
    assert lab.node.budget.by_kind[Kind.READS] == 0


async def test_bytes_that_only_look_like_ids_are_asked_for_a_few_times(lab: Lab, fake: FakeRegistry) -> None:
    await lab.put(0, *(Record(None, framed(one, b"")) for one in range(1000, 1500)))
    rows, _ = await lab.ask(decode=True)
    assert len(rows) == 500
    assert len(fake.asked) == 20
    assert rows[-1]["value_decoded"]["error"] == "not asked for: 20 others of this answer are no schemas"


async def test_while_the_registry_hangs_what_needs_it_not_is_read(
    lab: Lab, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def fault(path: str) -> tuple[int, bytes]:
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(60)
        return 503, b""

    number = fake.register("u-value", ORDER)
    await lab.put(0, Record(None, framed(number, b"\x06\0")))
    assert "text" in (await lab.ask(decode=True))[0][0]["value_decoded"]
    asks, ask = [], Decoder.ask

    async def counted(decoder: Decoder, frames: Iterable[Frame]) -> None:
        asks.append(decoder)
        await ask(decoder, frames)

    monkeypatch.setattr(Decoder, "ask", counted)
    fake.fault = fault
    await lab.put(0, *(Record(None, framed(7, b"")) for _ in range(3)))
    waiting = [asyncio.create_task(lab.ask(decode=True, offset=1)) for _ in range(12)]
    await asked.wait()
    await until(lambda: len(asks) == 12)
    rows, _ = await lab.ask(decode=True, limit=1)
    assert "text" in rows[0]["value_decoded"]
    go_on.set()
    for rows, _ in await asyncio.gather(*waiting):
        assert all(" fails: " in row["value_decoded"]["error"] for row in rows)


async def test_a_download_in_parquet_has_what_is_decoded(lab: Lab, fake: FakeRegistry) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    await lab.put(0, Record(None, framed(fake.register("t-value", ORDER), b"\x06\0")), Record(None, framed(9, b"")))
    url = f"http://{lab.node.addresses['console']}/api/topics/t/records?format=parquet&decode=true"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        rows = parquet.read_table(io.BytesIO(await answer.read())).to_pylist()
    assert [row["value_decoded"] for row in rows] == [
        '{"id":3,"country":null}',
        "error: the schema registry has no /schemas/ids/9",
    ]


async def produce(lab: Lab, lines: str, **query: str) -> tuple[int, dict[str, Any]]:
    url = f"http://{lab.node.addresses['console']}/api/topics/t/records"
    async with aiohttp.ClientSession() as session, session.post(url, params=query, data=lines.encode()) as answer:
        return answer.status, await answer.json()


async def test_produced_by_a_schema_and_refused_if_it_does_not_fit(lab: Lab, fake: FakeRegistry) -> None:
    number = fake.register("t-value", ORDER)
    fake.register("t-key", '"string"')
    line = '{"key": "k", "value": {"id": 5, "country": "FR"}}\n{"key": "k", "value": null}\n'
    assert (await produce(lab, line, value_schema="t-value", key_schema="2"))[0] == 200
    rows, _ = await lab.ask(decode=True)
    assert json.loads(rows[0]["value_decoded"]["text"]) == {"id": 5, "country": "FR"}
    assert [row["key_decoded"]["text"] for row in rows] == ['"k"', '"k"']
    assert rows[1]["value"] is None
    value, _ = await asyncio.to_thread(serialized, fake, "AVRO", {"id": 5, "country": "FR"})
    log = lab.node.logs.get("t", 0)
    assert log is not None
    assert value in bytes((await log.read_committed(0, 1 << 20))[0].payload)
    status, told = await produce(lab, '{"value": {"id": 1}}\n{"value": {"id": "x"}}\n', value_schema=str(number))
    assert (status, told["line"], told["stored"]) == (400, 2, 0)
    assert told["error"] == (
        "value: it does not fit schema 1: [ \"Order.id is <x> of type <class 'str'> expected long\" ]"
    )
    status, told = await produce(lab, '{"value": 1}\n', value_schema="missing")
    assert (status, told["error"]) == (400, "value: the schema registry has no /subjects/missing/versions/latest")


async def test_without_a_registry_nothing_is_decoded_and_schemas_are_refused(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 1)
    lab = Lab(node)
    try:
        await lab.put(0, Record(None, framed(1, b"")))
        rows, _ = await lab.ask(decode=True)
        assert "value_decoded" not in rows[0]
        status, told = await produce(lab, '{"value": 1}\n', value_schema="t-value")
        assert (status, told["error"]) == (400, "this node has no schema registry: set schemas.registry")
    finally:
        await node.stop()


async def test_who_may_not_read_a_topic_sees_nothing_decoded(tmp_path: Path, fake: FakeRegistry) -> None:
    node = Node(settings_of(tmp_path, schemas__registry=fake.url, auth__rules="deny"), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 1)
    try:
        await Lab(node).put(0, Record(None, framed(fake.register("t-value", ORDER), b"\x06\0")))
        url = f"http://{node.addresses['console']}/api/topics/t"
        async with aiohttp.ClientSession() as session:
            for path in ("/records?decode=true", "/partitions/0/records/0"):
                async with session.get(url + path) as answer:
                    assert answer.status == 403
            async with session.post(f"{url}/records?value_schema=t-value", data=b'{"value": {"id": 1}}') as answer:
                assert answer.status == 403
        assert fake.asked == []
    finally:
        await node.stop()


async def test_commands_print_and_write_what_a_schema_says(lab: Lab, fake: FakeRegistry) -> None:
    fake.register("t-value", ORDER)

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "bridges", *arguments, "--node", f"http://{lab.node.addresses['console']}"]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=300, check=False)

    lines = b'{"id": 1}\n{"id": 2, "country": "DE"}\n'
    done = await asyncio.to_thread(run, "produce", "t", "--value-schema", "t-value", stdin=lines)
    assert done.returncode == 0, done.stderr
    await lab.put(0, Record(None, framed(99, b"x")))
    done = await asyncio.to_thread(run, "consume", "t")
    assert done.stdout == b'{"id":1,"country":null}\n{"id":2,"country":"DE"}\n\0\0\0\0\x63x\n'
    assert b"partition 0, offset 2: the value is not decoded by schema 99: the schema registry has no" in done.stderr
    done = await asyncio.to_thread(run, "tail", "t", "--raw", "--limit", "1")
    assert done.stdout == b"\0\0\0\0\1\x02\0\n"
    done = await asyncio.to_thread(run, "produce", "t", "--value-schema", "t-value", stdin=b'{"id": 1}\n{"id": "x"}\n')
    assert done.returncode == 1
    assert b"expected long" in done.stderr
