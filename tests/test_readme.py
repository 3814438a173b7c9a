"""The example of the README, run as it stands there (only the port is the test node's)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.node_process import NodeProcess

README = Path(__file__).resolve().parent.parent / "README.md"
EXAMPLE = re.compile(r"^```sh\n(?P<commands>[^`]*kcat[^`]*)^```\n\n^```\n(?P<output>[^`]*)^```$", re.MULTILINE)


@pytest.mark.kcat
def test_the_example_works(node: NodeProcess) -> None:
    example = EXAMPLE.search(README.read_text(encoding="utf-8"))
    assert example is not None
    commands = example["commands"].replace("127.0.0.1:9092", node.kafka)
    done = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, example["output"]), done.stderr


def test_the_documents_it_names_exist() -> None:
    named = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert "docs/design.md" in named
    assert [name for name in named if not (README.parent / name).exists()] == []
