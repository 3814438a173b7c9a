"""Values become columns by their schema, or dead letters with a reason; never something else."""

from __future__ import annotations

import base64
import io
import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_pipeline.core.errors import OptionError
from spark_pipeline.lake.decode import decoder
from spark_pipeline.lake.decoding import Decoding

FLIGHT = {
    "type": "object",
    "properties": {
        "flight": {"type": "integer"},
        "carrier": {"type": "string"},
        "delay": {"type": ["number", "null"]},
        "late": {"type": "boolean"},
        "left": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "stops": {"type": "array", "items": {"type": "string"}},
        "plane": {"type": "object", "properties": {"seats": {"type": "integer"}}},
        "rest": {},
    },
    "required": ["flight"],
}


def decoded(decoding: Decoding, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    column, reasons = decoder(decoding).decode(pa.array(values, pa.binary()))
    return column.to_pylist(), reasons


def of_json(*values: Any, schema: Any = FLIGHT, **named: Any) -> tuple[list[Any], dict[int, str]]:
    texts = [value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return decoded(Decoding("json", json.dumps(schema), **named), *texts)


# --- JSON ----------------------------------------------------------------------------------------------------


def test_json_becomes_columns() -> None:
    whole = {
        "flight": 12,
        "carrier": "UA",
        "delay": 2,
        "late": True,
        "left": "2013-01-01T05:15:00-05:00",
        "day": "2013-01-01",
        "stops": ["EWR", "IAH"],
        "plane": {"seats": 7, "wings": 2},
        "rest": {"a": [1]},
        "unknown": 1,
    }
    rows, reasons = of_json(whole, {"flight": 1, "delay": None}, None)
    assert reasons == {}
    assert rows[0] | {"left": None, "day": None} == {
        "flight": 12,
        "carrier": "UA",
        "delay": 2.0,
        "late": True,
        "left": None,
        "day": None,
        "stops": ["EWR", "IAH"],
        "plane": {"seats": 7},
        "rest": '{"a":[1]}',
    }
    assert rows[0]["left"] == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
    assert rows[1] == dict.fromkeys(FLIGHT["properties"]) | {"flight": 1}
    assert rows[2] is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        ([1], "$ is not an object"),
        ({}, "$.flight is missing"),
        ({"flight": None}, "$.flight is not an integer"),
        ({"flight": True}, "$.flight is not an integer"),
        ({"flight": 1.5}, "$.flight is not an integer"),
        ({"flight": 1 << 63}, "$.flight does not fit in 64 bits"),
        ({"flight": 1, "carrier": 7}, "$.carrier is not a string"),
        ({"flight": 1, "delay": "7"}, "$.delay is not a number"),
        ({"flight": 1, "delay": int("1" + "0" * 400)}, "$.delay is too large"),
        ({"flight": 1, "late": 1}, "$.late is not true or false"),
        ({"flight": 1, "left": "2013-01-01T05:15:00"}, "without an offset"),
        ({"flight": 1, "left": "0001-01-01T00:00:00+10:00"}, "$.left is no date-time"),
        ({"flight": 1, "day": "noon"}, "$.day is no date"),
        ({"flight": 1, "stops": ["EWR", 3]}, "$.stops[1] is not a string"),
        ({"flight": 1, "plane": 3}, "$.plane is not an object"),
        ({"flight": 1, "carrier": "\ud800"}, "does not fit its column"),
    ],
)
def test_json_that_does_not_agree_is_told_where(value: Any, reason: str) -> None:
    rows, reasons = of_json({"flight": 1}, value, {"flight": 2})
    assert list(reasons) == [1]
    assert reason in reasons[1]
    assert [row and row["flight"] for row in rows] == [1, None, 2]


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*FLIGHT["properties"], "x"]), inner),
    )
)
def test_any_json_is_a_row_or_a_dead_letter(value: Any) -> None:
    rows, reasons = of_json(json.dumps(value).encode())
    assert (rows[0] is None) == (0 in reasons)


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": "object"}, {"type": "object", "properties": {"a": {"type": "date"}}}, 3]
)
def test_a_json_schema_without_columns_is_refused(schema: Any) -> None:
    with pytest.raises(OptionError):
        of_json({}, schema=schema)


# --- Avro ----------------------------------------------------------------------------------------------------

AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "flight", "type": "int"},
        {"name": "delay", "type": ["null", "double"], "default": None},
        {"name": "left", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["JET", "PROP"]}},
        {
            "name": "stops",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Stop", "fields": [{"name": "at", "type": "string"}]},
            },
        },
        {"name": "seats", "type": {"type": "map", "values": "long"}},
        {"name": "last", "type": ["null", "Stop"], "default": None},
    ],
}
ONE = {
    "flight": 12,
    "delay": 2.5,
    "left": datetime(2013, 1, 1, 10, 15, tzinfo=UTC),
    "fare": Decimal("123.45"),
    "id": "00000000-0000-0000-0000-000000000001",
    "kind": "JET",
    "stops": [{"at": "EWR"}],
    "seats": {"first": 8},
    "last": {"at": "IAH"},
}


def avro(schema: Any, record: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return stream.getvalue()


def test_avro_becomes_columns() -> None:
    good = avro(AVRO, ONE)
    rows, reasons = decoded(Decoding("avro", json.dumps(AVRO)), good, good[:-3], good + b"x", None, b"")
    assert rows[0] == ONE | {"seats": [("first", 8)]}
    assert rows[1:] == [None] * 4
    assert list(reasons) == [1, 2, 4]
    assert "is no Avro of the schema" in reasons[1]
    assert "1 bytes behind" in reasons[2]


def test_avro_of_a_registry_names_its_writers_schema() -> None:
    old = {"type": "record", "name": "Flight", "fields": [{"name": "flight", "type": "int"}]}
    new = {
        "type": "record",
        "name": "Flight",
        "fields": [*old["fields"], {"name": "to", "type": "string", "default": "?"}],
    }  # type: ignore[misc]
    decoding = Decoding(
        "avro", json.dumps(new), framing="registry", writers={"7": json.dumps(old), "8": json.dumps(new)}
    )

    def framed(number: int, value: bytes) -> bytes:
        return struct.pack(">bi", 0, number) + value

    rows, reasons = decoded(
        decoding,
        framed(7, avro(old, {"flight": 1})),
        framed(8, avro(new, {"flight": 2, "to": "IAH"})),
        framed(9, b"\x02"),
        b"\x00\x00",
        b"\x01abcd" + avro(old, {"flight": 1}),
    )
    assert rows == [{"flight": 1, "to": "?"}, {"flight": 2, "to": "IAH"}, None, None, None]
    assert "schema 9, which was not given" in reasons[2]
    assert "does not begin with a zero byte" in reasons[3]
    assert "does not begin with a zero byte" in reasons[4]


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_avro_or_a_dead_letter(value: bytes) -> None:
    rows, reasons = decoded(Decoding("avro", json.dumps(AVRO)), value)
    assert (rows[0] is None) == (0 in reasons)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "A", "fields": [{"name": "next", "type": ["null", "A"]}]},
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": ["int", "string"]}]},
        "string",
        {"type": "record"},
    ],
)
def test_an_avro_schema_without_columns_is_refused(schema: Any) -> None:
    with pytest.raises(OptionError):
        decoder(Decoding("avro", json.dumps(schema)))


# --- Protobuf ----------------------------------------------------------------------------------------------------

Field = descriptor_pb2.FieldDescriptorProto


def descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="JET", number=0)
    kind.value.add(name="PROP", number=1)
    stop = file.message_type.add(name="Stop")
    stop.field.add(name="at", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    flight = file.message_type.add(name="Flight")
    seats = flight.nested_type.add(name="SeatsEntry")
    seats.options.map_entry = True
    seats.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    seats.field.add(name="value", number=2, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    flight.oneof_decl.add(name="_delay")
    for number, (name, type_, label, of) in enumerate(
        [
            ("flight", Field.TYPE_INT32, Field.LABEL_OPTIONAL, ""),
            ("delay", Field.TYPE_DOUBLE, Field.LABEL_OPTIONAL, ""),
            ("big", Field.TYPE_UINT64, Field.LABEL_OPTIONAL, ""),
            ("kind", Field.TYPE_ENUM, Field.LABEL_OPTIONAL, ".air.Kind"),
            ("stops", Field.TYPE_MESSAGE, Field.LABEL_REPEATED, ".air.Stop"),
            ("seats", Field.TYPE_MESSAGE, Field.LABEL_REPEATED, ".air.Flight.SeatsEntry"),
            ("raw", Field.TYPE_BYTES, Field.LABEL_OPTIONAL, ""),
            ("last", Field.TYPE_MESSAGE, Field.LABEL_OPTIONAL, ".air.Stop"),
        ],
        start=1,
    ):
        made = flight.field.add(name=name, number=number, type=type_, label=label, type_name=of or None)
        if name == "delay":
            made.proto3_optional = True
            made.oneof_index = 0
    loop = file.message_type.add(name="Loop")
    loop.field.add(name="next", number=1, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL, type_name=".air.Loop")
    file.message_type.add(name="Empty")
    return descriptor_pb2.FileDescriptorSet(file=[file])


def of_protobuf(*values: bytes | None, message: str = "air.Flight", **named: Any) -> tuple[list[Any], dict[int, str]]:
    content = descriptor_set().SerializeToString()
    return decoded(Decoding.of_file("protobuf", content, message=message, **named), *values)


def flight(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_set().file[0])
    made: bytes = message_factory.GetMessageClass(pool.FindMessageTypeByName("air.Flight"))(
        **fields
    ).SerializeToString()
    return made


def test_protobuf_becomes_columns() -> None:
    whole = flight(
        flight=12,
        delay=2.5,
        big=(1 << 64) - 1,
        kind=1,
        stops=[{"at": "EWR"}],
        seats={"b": 2, "a": 1},
        raw=b"\xff",
        last={"at": "IAH"},
    )
    rows, reasons = of_protobuf(whole, b"", None, whole[:-1], b"\xff")
    assert rows[0] == {
        "flight": 12,
        "delay": 2.5,
        "big": Decimal((1 << 64) - 1),
        "kind": "PROP",
        "stops": [{"at": "EWR"}],
        "seats": [("a", 1), ("b", 2)],
        "raw": b"\xff",
        "last": {"at": "IAH"},
    }
    assert rows[1]["flight"] == 0
    assert rows[1]["delay"] is None
    assert rows[1]["last"] is None
    assert rows[2:] == [None, None, None]
    assert list(reasons) == [3, 4]


@pytest.mark.parametrize("indexes", [b"\x00", b"\x04\x02\x00"])
def test_protobuf_of_a_registry_names_its_place_in_the_file(indexes: bytes) -> None:
    rows, reasons = of_protobuf(
        b"\x00\x00\x00\x00\x05" + indexes + flight(flight=3), b"\x00\x00\x00\x00\x05\x7e", framing="registry"
    )
    assert rows[0]["flight"] == 3
    assert list(reasons) == [1]


def test_protobuf_without_columns_is_refused() -> None:
    for message in ("air.Loop", "air.Empty", "air.Unknown"):
        with pytest.raises(OptionError):
            of_protobuf(message=message)
    with pytest.raises(OptionError, match="cannot be read"):
        decoder(Decoding("protobuf", base64.b64encode(b"\xff\xff").decode(), message="a"))


def test_decodings_are_kept_and_checked() -> None:
    for wrong in (
        {"format": "xml"},
        {"format": "json", "framing": "lines"},
        {"format": "json", "message": "a"},
        {"format": "protobuf"},
        {"format": "json", "framing": "registry", "writers": {"1": "{}"}},
    ):
        with pytest.raises(OptionError):
            Decoding(**{"schema": "{}", **wrong})  # type: ignore[arg-type]
