"""The process that decodes: what fits, what does not, and values that are there to keep it busy or to crash it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from bridges.console.schemas import decoding
from bridges.console.schemas.decoding import Work, _Worker
from bridges.console.schemas.jobs import Definition, Result
from bridges.console.schemas.registry import Schema

NUMBERS = count()
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "blob", "type": ["null", "bytes"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "who", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 3}},
        {"name": "rates", "type": {"type": "map", "values": "double"}},
        {"name": "tags", "type": {"type": "array", "items": {"type": "enum", "name": "Tag", "symbols": ["A", "B"]}}},
    ],
}
VALUE = {
    "id": 1234567890123456789,
    "note": None,
    "blob": "\u00ff\u0000",
    "price": "3.10",
    "at": "2026-01-02T03:04:05.678000+00:00",
    "day": "2026-01-02",
    "who": "12345678-1234-5678-1234-567812345678",
    "raw": "\u00fe\u0000a",
    "rates": {"x": 1.5},
    "tags": ["A", "B"],
}
COMMON = 'syntax = "proto3"; package shop; message Common { string a = 1; }'
PROTO = """syntax = "proto3"; package shop;
import "common.proto"; import "google/protobuf/timestamp.proto";
message Order { string id = 1; Common common = 2; google.protobuf.Timestamp at = 3; }
message Two { message In { int64 x = 1; } }
"""


def schema(kind: str, text: Any, references: dict[str, str] | None = None) -> Schema:
    text = text if isinstance(text, str) else json.dumps(text)
    return Schema(next(NUMBERS), 1, Definition(kind, text, references or {}))


@pytest.fixture(scope="module")
def worker() -> Iterator[_Worker]:
    one = _Worker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "PATIENCE_S", 600.0)  # only processor time is to decide
        yield one
    one.close()


async def run(worker: _Worker, works: list[Work]) -> list[Result]:
    results: list[Result] = []
    while len(results) < len(works):
        results += await worker.run(works[len(results) :])
    return results


async def decode(worker: _Worker, by: Schema, *values: bytes) -> list[Result]:
    return await run(worker, [(by, value, b"", False) for value in values])


async def encode(worker: _Worker, by: Schema, *values: object) -> list[Result]:
    texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return await run(worker, [(by, text, b"", True) for text in texts])


@pytest.mark.parametrize(
    ("by", "value"),
    [
        (schema("AVRO", ORDER), VALUE),
        (schema("AVRO", '"string"'), "text"),
        (schema("AVRO", '["null", "int", "shop.Order"]', {"shop.Order": json.dumps(ORDER)}), VALUE),
        (
            schema(
                "AVRO",
                {"type": "record", "name": "P", "fields": [{"name": "o", "type": "shop.Order"}]},
                {"x": json.dumps(ORDER)},
            ),
            {"o": VALUE},
        ),
        (schema("JSON", {"type": "object", "properties": {"a": {"type": "integer"}}}), {"a": 5}),
        (
            schema("PROTOBUF", PROTO, {"common.proto": COMMON}),
            {"id": "x", "common": {"a": "y"}, "at": "2026-01-01T00:00:00Z"},
        ),
    ],
    ids=["avro", "plain", "reference", "field", "json", "protobuf"],
)
async def test_what_is_decoded_is_encoded_again(worker: _Worker, by: Schema, value: object) -> None:
    (stored,) = await encode(worker, by, value)
    assert not stored.error
    (text,) = await decode(worker, by, stored.data)
    assert json.loads(text.data) == value
    assert await encode(worker, by, text.data) == [stored]


async def test_what_does_not_fit_is_a_sentence_and_the_next_one_is_decoded(worker: _Worker) -> None:
    by = schema("AVRO", {"type": "record", "name": "shop.O", "fields": [{"name": "a", "type": "int"}]})
    short, long, good = await decode(worker, by, b"", b"\x02\x02", b"\x02")
    assert "EOFError" in short.error
    assert long.error == "1 more bytes follow than its schema says"
    assert good == Result(b'{"a":1}', "")
    wrong, large, more, good = await encode(worker, by, {"a": "x"}, {"a": 2**40}, {"a": 1, "b": 2}, {"a": 1})
    assert "shop.O.a is <x> of type <class 'str'> expected int" in wrong.error
    assert "expected int" in large.error
    assert more.error.endswith("record contains more fields than the schema specifies: b")
    assert good.data == b"\x02"
    by = schema("JSON", {"required": ["a"]})
    assert [one.error for one in await decode(worker, by, b"{}", b"{", b'{"a":1}')] == [
        "$: 'a' is a required property",
        "it is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "",
    ]


async def test_protobuf_names_its_message_and_may_be_a_descriptor(worker: _Worker) -> None:
    by = schema("PROTOBUF", PROTO, {"common.proto": COMMON})
    inner, none, garbage = await decode(worker, by, b"\x04\x02\x00\x08\x05", b"\x02\x08", b"\0\xff\xff")
    assert json.loads(inner.data) == {"x": "5"}
    assert none.error == "its schema has no message [4]"
    assert "DecodeError" in garbage.error
    assert (await worker.run([(by, b"\x08\x05", b"\x04\x02\x00", False)]))[0].data == inner.data
    file = descriptor_pb2.FileDescriptorProto(name="m", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    message = file.message_type.add(name="M")
    message.field.add(name="at", number=1, type=11, type_name=".google.protobuf.Timestamp", label=1)
    by = schema("PROTOBUF", base64.b64encode(file.SerializeToString()).decode())
    (stored,) = await encode(worker, by, {"at": "2026-01-01T00:00:00Z"})
    assert json.loads((await decode(worker, by, stored.data))[0].data) == {"at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("AVRO", "{", "it is not JSON"),
        ("AVRO", '"nothing"', "UnknownType"),
        ("JSON", '{"$ref": "http://127.0.0.1:1/other.json"}', "Unresolvable"),
        ("PROTOBUF", "message {", "its schema is not to be compiled: schema.proto:1:9: Expected message name."),
        ("PROTOBUF", 'syntax="proto3"; import "/etc/passwd"; message A {}', 'Import "/etc/passwd" was not found'),
        ("XML", "<a/>", "schemas of the type XML are not decoded here"),
    ],
)
async def test_a_schema_that_is_none_is_a_sentence(worker: _Worker, kind: str, text: object, reason: str) -> None:
    first, second = await decode(worker, schema(kind, text), b"1", b"1")
    assert reason in first.error
    assert second.error == first.error


async def test_an_import_is_no_path(worker: _Worker) -> None:
    by = schema("PROTOBUF", PROTO, {"../outside.proto": COMMON})
    assert "which is no name of a file" in (await decode(worker, by, b"\0"))[0].error


LIST = schema("AVRO", {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]})


@pytest.mark.parametrize(
    ("by", "bomb", "reason"),
    [
        (LIST, b"\x02" * 131_000 + b"\0", "ends the process that decodes (-11)"),  # fastavro's stack overflows
        (
            schema("AVRO", {"type": "array", "items": "null"}),
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0",
            "too much memory|second",
        ),
        (schema("JSON", {"pattern": "^(a+)+$"}), json.dumps("a" * 40 + "b").encode(), "1 s of processor time"),
        (schema("JSON", {"type": "array"}), b"[" * 100_000 + b"]" * 100_000, "RecursionError"),
        (schema("JSON", {"allOf": [{"$ref": "#"}]}), b"1", "RecursionError"),
    ],
    ids=["nested", "empty", "pattern", "brackets", "endless"],
)
async def test_a_bomb_costs_its_own_record_alone(worker: _Worker, by: Schema, bomb: bytes, reason: str) -> None:
    good = schema("AVRO", '"int"')
    before, failed, after = await run(
        worker, [(good, b"\2", b"", False), (by, bomb, b"", False), (good, b"\4", b"", False)]
    )
    assert (before.data, after.data) == (b"1", b"2")
    assert any(one in failed.error for one in reason.split("|")), failed.error


async def test_what_grows_beyond_measure_is_not_shown(worker: _Worker) -> None:
    by = schema(
        "AVRO",
        {"type": "array", "items": {"type": "record", "name": "R", "fields": [{"name": "n" * 100, "type": "null"}]}},
    )
    assert "more than the 262144 that are shown" in (await decode(worker, by, b"\x80\x80\x01\0"))[0].error


async def test_a_process_gets_so_many_schemas(worker: _Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.close()
    monkeypatch.setattr(decoding, "MOST_SCHEMAS", 2)
    some = [schema("AVRO", '"int"') for _ in range(5)]
    results = [(await decode(worker, by, b"\2"))[0].data for by in [*some, *some]]
    assert results == [b"1"] * 10
    assert len(worker._known) <= 2


async def test_a_process_that_does_not_start_is_a_sentence(worker: _Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/missing")
        (result,) = await decode(worker, schema("AVRO", '"int"'), b"\2")
    assert result.error == "the process that decodes does not start"
    assert (await decode(worker, schema("AVRO", '"int"'), b"\2"))[0].data == b"1"


async def test_a_schema_that_ends_the_process_is_tried_again_after_a_pause_only(
    worker: _Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "fastavro.py").write_text("import os\nos._exit(9)")
    worker.close()
    by, starts, popen = schema("AVRO", '"int"'), [], subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        starts.append(arguments)
        return popen(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:.")
        patch.setattr(subprocess, "Popen", start)
        results = await decode(worker, by, *[b"\2"] * 5)
    assert [one.error for one in results] == ["it ends the process that decodes (9)"] * 5
    assert len(starts) == 1


async def test_what_is_not_installed_is_named_with_its_remedy(
    worker: _Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    # The process has no settings of the node, passwords among them.
    name = "os.environ.get('ANABRANCH_SCHEMAS__REGISTRY', 'fastavro')"
    (tmp_path / "fastavro.py").write_text(f"import os\nraise ModuleNotFoundError('no', name={name})")
    monkeypatch.setenv("ANABRANCH_SCHEMAS__REGISTRY", "https://me:hunter2@registry")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:.")
    worker.close()
    (result,) = await decode(worker, schema("AVRO", '"int"'), b"\2")
    worker.close()
    assert result.error == "this node lacks fastavro: pip install 'anabranch[schemas]'"
