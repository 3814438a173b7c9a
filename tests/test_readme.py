"""The examples of the README, run as they stand there and in their order (only the ports are the test node's)."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node_process import ANY, FRONTS, SELDOM, NodeProcess

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
KCAT = re.compile(r"^```sh\n(?P<commands>[^`]*kcat[^`]*)^```\n\n^```\n(?P<output>[^`]*)^```$", re.MULTILINE)
PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS = {"kafka": 9092, "ydb": 2136, "pravega": 9090, "sbp-pd": 12378}
"""Listener -> its usual port, which is the one in the README."""
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def every_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with all of its listeners open, as `make serve` starts it."""
    process = NodeProcess(tmp_path_factory.mktemp("readme") / "data", listen=dict.fromkeys((*FRONTS, *SELDOM), ANY))
    try:
        yield process.start()
    finally:
        process.dispose()


def addressed(text: str, node: NodeProcess) -> str:
    """``text`` with the addresses of ``node`` instead of the usual ones, however they are written."""
    told = text
    for listener, port in PORTS.items():
        host, _, real = node.addresses[listener].rpartition(":")
        told = told.replace(f"127.0.0.1:{port}", f"{host}:{real}").replace(f'"127.0.0.1", {port}', f'"{host}", {real}')
    assert told != text, "an example of a client names the node"
    return told


def python(title: str, node: NodeProcess) -> str:
    """What the one example in Python prints that imports ``title``."""
    (code,) = [
        found["code"]
        for found in PYTHON.finditer(README)
        if re.search(rf"^(import|from) {title}\b", found["code"], re.M)
    ]
    command = [sys.executable, "-c", addressed(code, node)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # See tests.foreign_crashes.WHEEL_AT_EXIT: all is said and done then, so it need not be tried again.
    crashed = title == "pravega_client" and done.returncode in (-signal.SIGABRT, -signal.SIGSEGV)
    assert done.returncode == 0 or crashed, done.stderr
    return done.stdout


def kcat(topic: str, node: NodeProcess) -> None:
    """Run the example with kcat that names ``topic``: it prints what stands below it."""
    (example,) = [found for found in KCAT.finditer(README) if f"-t {topic} " in found["commands"]]
    command = ["bash", "-ec", addressed(example["commands"], node)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, example["output"]), done.stderr


@pytest.mark.kcat
def test_kafkas_example_works(every_front: NodeProcess) -> None:
    kcat("numbers", every_front)


@pytest.mark.kcat
def test_three_protocols_write_and_read_one_topic(every_front: NodeProcess) -> None:
    assert python("ydb", every_front) == "['AA100 has landed', 'BA202 is late']\n"
    assert python("pravega_client", every_front) == "AA100 has landed\nBA202 is late\nCX300 is boarding\n"
    kcat("flights", every_front)


def test_the_example_of_sbp_works(every_front: NodeProcess) -> None:
    assert python("sbp_back", every_front) == "0 3 b'three records'\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_whole_and_name_what_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert re.findall(r"^(?:<<<<<<<|=======|>>>>>>>).*$", text, re.MULTILINE) == [], "left by a merge"
    prose = re.sub(r"`[^`\n]+`", "", text)
    named = [name for name in re.findall(r"\]\(([^)#]+)\)", prose) if "://" not in name]
    assert [name for name in named if not (document.parent / name).exists()] == []


def test_every_document_is_listed() -> None:
    assert [path.name for path in DOCUMENTS[1:] if f"](docs/{path.name})" not in README] == []
