"""The examples of the README, run as they stand there (only the ports are the test node's)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node_process import NodeProcess

README = Path(__file__).resolve().parent.parent / "README.md"
EXAMPLE = re.compile(r"^```sh\n(?P<commands>[^`]*kcat[^`]*)^```\n\n^```\n(?P<output>[^`]*)^```$", re.MULTILINE)

PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.kcat
def test_the_example_works(node: NodeProcess) -> None:
    example = EXAMPLE.search(README.read_text(encoding="utf-8"))
    assert example is not None
    commands = example["commands"].replace("127.0.0.1:9092", node.kafka)
    done = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, example["output"]), done.stderr


def test_the_example_of_sbp_works(node: NodeProcess) -> None:
    example = PYTHON.search(README.read_text(encoding="utf-8"))
    assert example is not None
    host, _, port = node.addresses["sbp-pd"].rpartition(":")
    code = example["code"].replace('"127.0.0.1", 12378', f'"{host}", {port}')
    assert code != example["code"]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "0 3 b'three records'\n"), done.stderr


def test_the_documents_it_names_exist() -> None:
    named = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert "docs/design.md" in named
    assert [name for name in named if not (README.parent / name).exists()] == []
