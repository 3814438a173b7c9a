from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as oracle

from bridges.catalog.topics.lineage import choose_partition, murmur2
from bridges.console.records import lines as json_records
from bridges.console.records.lines import FURTHEST_MS, BadLine, line_parts, parse_line, to_line
from bridges.formats.records import Record

CONTENT = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(lambda text: text.encode("utf-8", "ignore"))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
RECORDS = st.builds(
    Record,
    CONTENT,
    CONTENT,
    st.lists(st.tuples(NAMES, CONTENT), max_size=3),
    st.integers(-1, 2**63 - 1),
    st.integers(0, 2**62),
)


@given(RECORDS, st.integers(0, 2**31 - 1))
def test_what_is_read_can_be_written_again(record: Record, partition: int) -> None:
    line = to_line(record, partition)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    again, wanted = parse_line(line)
    assert wanted == partition
    assert (again.key, again.value, again.headers, again.timestamp) == (
        record.key,
        record.value,
        record.headers,
        record.timestamp,
    )


@given(RECORDS, st.integers(3, 8))
def test_a_long_line_in_pieces_is_the_same_line(record: Record, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_records, "PIECE", piece)
        patch.setattr(json_records._pieces, "__defaults__", (piece,))
        parts = list(line_parts(record, 7))
    assert b"".join(parts) == to_line(record, 7)


@pytest.mark.parametrize("value", [b"x" * 1_000_000, "\u20ac".encode() * 300_000, b"\xff" * 1_000_000, b'"' * 500_000])
def test_the_pieces_of_a_long_line_are_small(value: bytes) -> None:
    parts = list(line_parts(Record(b"k", value, [("h", value)], 5, 9), 0))
    assert max(map(len, parts)) <= 3 * 64 * 1024
    assert b"".join(parts) == to_line(Record(b"k", value, [("h", value)], 5, 9), 0)


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_line_is_a_record_or_refused(line: bytes) -> None:
    try:
        record, _ = parse_line(line)
    except BadLine:
        return
    assert isinstance(record, Record)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(["key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp", "offset"])


@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_object_is_a_record_or_refused(document: dict[str, object]) -> None:
    try:
        record, partition = parse_line(json.dumps(document).encode())
    except BadLine:
        return
    assert partition is None or partition >= -1
    assert -FURTHEST_MS <= record.timestamp < 2**63


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"vlaue": 1}', "unknown field 'vlaue'"),
        (b'{"value": "a", "value_base64": "YQ=="}', "both value"),
        (b'{"key_base64": "?"}', "key_base64 is not base64"),
        (b'{"key_base64": 5}', "key_base64 is not text"),
        (b'{"partition": "0"}', "partition is not"),
        (b'{"timestamp": 1.5}', "timestamp is not"),
        (b'{"timestamp": true}', "timestamp is not"),
        (b'{"headers": 5}', "headers are neither"),
        (b'{"headers": [["a"]]}', "headers are neither"),
        (b'{"value": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine, match=reason):
        parse_line(line)


def test_forms_of_values() -> None:
    record, partition = parse_line(
        b'{"key": 5, "value": {"a": [1, "\\u00fc"]}, "headers": {"h": "x", "n": null, "b": {"base64": "/w=="}}}'
    )
    assert partition is None
    assert record.key == b"5"
    assert record.value == '{"a":[1,"ü"]}'.encode()
    assert record.headers == [("h", b"x"), ("n", None), ("b", b"\xff")]
    assert record.timestamp == -1


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_keys_go_where_kafkas_own_client_sends_them(key: bytes, partitions: int) -> None:
    assert murmur2(key) == oracle(key) & 0xFFFFFFFF
    assert choose_partition(key, partitions) == (oracle(key) & 0x7FFFFFFF) % partitions
