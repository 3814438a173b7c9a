"""docs/sbp.md and docs/storage.md keep their word: the tests they name exist, frames are all there, examples run."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbp_back.wire.model import Opcode
from sbp_document.wire.v01 import DialectV01
from tests.sbp_document.document_lab import running

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "sbp.md").read_text("utf-8")


def defined_tests() -> Iterator[str]:
    tests = ROOT / "tests"
    folders = ("anabranch_kit", "sbp_back", "sbp_document", "bridges", "kafka_front", "external")
    for path in (*tests.glob("test_*.py"), *(path for name in folders for path in (tests / name).rglob("test_*.py"))):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield node.name


def test_every_test_it_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 100
    assert named - set(defined_tests()) == set()


def test_every_fault_of_the_store_has_a_test() -> None:
    text = (ROOT / "docs" / "storage.md").read_text("utf-8")
    assert set(re.findall(r"`(test_\w+)`", text)) - set(defined_tests()) == set()
    section = text[text.index("## What happens when") : text.index("## Space")]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    assert [row for row in rows if "`test_" not in row] == []


def test_tests_marked_c_are_of_the_conformance_suite() -> None:
    """C promises that a test runs in this process and over TCP; two need a connection to cut."""
    path = ROOT / "tests" / "sbp_back" / "test_sbp_conformance.py"
    takes: dict[str, str] = {
        node.name: node.args.args[0].arg
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    marked = set(re.findall(r"C `(test_\w+)`", TEXT))
    assert len(marked) > 15
    assert {name for name in marked if takes[name] != "backend"} == {
        "test_goaway_in_mid_flight",
        "test_connections_cut_in_mid_flight",
    }


def test_every_opcode_of_sbp_02_has_a_row_with_a_test() -> None:
    section = TEXT[TEXT.index("## Opcodes") : TEXT.index("## Entries")]
    rows = [line for line in section.splitlines() if line.startswith("| 0x")]
    listed = {int(opcode, 16) for row in rows for opcode in re.findall(r"0x\d{4}", row.split("|")[1])}
    assert listed == {int(opcode) for opcode in Opcode} - {Opcode.DESCRIBE_RANGE}
    for row in rows:
        assert "`test_" in row, row
        if "| nobody |" not in row:
            assert "C `test_" in row, row


def test_every_frame_of_the_document_has_a_row_with_a_test() -> None:
    """The 18 opcodes, each in a row of the table of sbp-v0.1."""
    section = TEXT[TEXT.index("## The document, frame by frame") : TEXT.index("## Record batches")]
    rows = {
        int(opcode, 16): row
        for row in section.splitlines()
        if row.startswith("| ")
        for opcode in re.findall(r"\| (0x\d{4})\b", row)[:1]
    }
    served = set(DialectV01("any").shapes.requests) | {Opcode.PING, Opcode.GOAWAY}
    assert set(rows) == {int(opcode) for opcode in served}
    assert len(rows) == 18
    for row in rows.values():
        assert "`test_document_" in row, row


EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
async def test_its_examples_run(tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    source = EXAMPLES[number].replace("asyncio.run(main())", "")
    async with running(tmp_path) as embedded:
        for name, port in (("sbp-pd", "12378"), ("sbp-v0.1", "12379")):
            source = source.replace(port, str(embedded.addresses[name][1]))
        namespace: dict[str, object] = {"asyncio": asyncio}
        exec(compile(source, "docs/sbp.md", "exec"), namespace)
        main = namespace["main"]
        assert callable(main)
        await main()
    shown = capsys.readouterr().out
    assert "offset 0" in shown
    assert "refused" not in shown
