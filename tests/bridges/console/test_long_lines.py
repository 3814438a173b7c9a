"""Long lines of JSON: parsed like short ones, in steps that are short whatever the line is like."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import at_once
from bridges.console import long_lines
from bridges.console.json_records import BadLine, parse_line
from bridges.console.long_lines import parse_long_line
from bridges.formats.records import Record

MIB = 1024 * 1024


def long(line: bytes) -> tuple[Record, int | None]:
    return at_once(parse_long_line(line))


@pytest.mark.parametrize(
    "value",
    [
        "[" + "1," * 200_000 + "1]",
        "[" + '"",' * 200_000 + "1]",
        "[" * 200_000,
        '{"a":' * 200_000,
        "[" + "{}," * 200_000 + "1]",
    ],
    ids=["numbers", "texts", "lists", "objects", "empty-objects"],
)
def test_a_line_of_countless_values_is_refused_before_they_are_made(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_lines.json, "loads", lambda *_: pytest.fail("they were made"))
    with pytest.raises(BadLine, match="more than 100000 values"):
        long(b'{"key": "a \\"quoted\\" key\\\\", "value": ' + value.encode() + b"}")


@pytest.mark.parametrize(
    "text", ["," * 300_000, '"' * 300_000, "\\" * 300_000, '[{"a": 1}]' * 50_000, '\\",[' * 100_000]
)
def test_a_long_text_may_hold_anything(text: str) -> None:
    record, _ = long(json.dumps({"key": "[{,", "value": text}).encode())
    assert record.value == text.encode()


TEXT = st.text(st.sampled_from('ab"\\\\/\n,[{}]:ü€😀\ud83d\ude00\u0000'), max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
BASE64 = st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode()) | TEXT
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "key": JSON,
        "value": JSON,
        "value_base64": BASE64,
        "headers": st.dictionaries(TEXT, TEXT | st.fixed_dictionaries({"base64": BASE64}), max_size=3) | JSON,
        "partition": JSON,
        "other": JSON,
    },
)


@given(DOCUMENTS, st.booleans(), st.integers(16, 40), st.integers(15, 25), st.integers(0, 400))
def test_a_long_line_means_what_a_short_one_does(
    document: dict[str, object], ascii: bool, piece: int, long_text: int, cut: int
) -> None:
    line = json.dumps(document, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(long_lines, "_PIECE", piece)
        patched.setattr(long_lines, "_LONG_TEXT", long_text)
        for one in (line, line[:cut], line[:cut] + b'"' + line[cut:]):
            try:
                expected = parse_line(one)
            except BadLine:
                with pytest.raises(BadLine):
                    long(one)
            else:
                assert long(one) == expected


@pytest.mark.parametrize(
    "document",
    [
        {"value": "x" * (4 * MIB)},
        {"value": "\\" * (2 * MIB)},
        {"value": "😀" * (MIB // 3)},
        {"value_base64": base64.b64encode(bytes(3 * MIB)).decode()},
        {"headers": [["name", '"' * (2 * MIB)]]},
        {"value": {"deep": ["x" * MIB, "y" * MIB]}},
    ],
    ids=["text", "escapes", "pairs", "base64", "header", "nested"],
)
def test_no_step_parses_much_of_a_long_line(document: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps(document).encode()
    sizes: list[int] = []
    steps = [0]
    loads, dumps = json.loads, json.dumps

    def loaded(text: str) -> object:
        sizes.append(len(text))
        steps[-1] += len(text)
        return loads(text)

    def dumped(value: object, **how: object) -> str:
        text = dumps(value, **how)  # type: ignore[arg-type]
        sizes.append(len(text))
        return text

    monkeypatch.setattr(long_lines.json, "loads", loaded)
    monkeypatch.setattr(long_lines.json, "dumps", dumped)
    for _ in parse_long_line(line):
        steps.append(0)
    assert sum(sizes) > MIB
    assert max(sizes) <= 200_000
    assert max(steps) <= 200_000
