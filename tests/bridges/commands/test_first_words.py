"""What people type first works: as other tools have it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridges.commands.test_cli import LISTEN, ok, run
from tests.node_process import NodeProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("words") / "data", listen=LISTEN).lent() as node:
        yield node


def test_topics_by_several_names_patterns_and_short_words(one: NodeProcess) -> None:
    assert ok("topic", "create", "orders", "orders-eu", "bills", node=one).count(b"created") == 3
    names = json.loads(ok("topic", "ls", "--json", node=one))
    assert {topic["name"] for topic in names} >= {"orders", "orders-eu", "bills"}
    for pattern, found in (("order", 2), ("orders*", 2), ("*eu", 1), ("none", 0)):
        assert len(json.loads(ok("topic", "list", pattern, "--json", node=one))) == found, pattern
    assert ok("topic", "delete", "orders", "orders-eu", "bills", "--yes", node=one).count(b"deleted") == 3


def test_lines_with_key_and_headers_are_printed_as_kcat_does(one: NodeProcess) -> None:
    ok("topic", "create", "things", node=one)
    ok("produce", "things", "-k", "id", "-H", "a=1", "-H", "b=x=y", "-p", "0", node=one, stdin=b"one\ntwo\n")
    told = ok("consume", "things", "-F", r"%t [%p] at %o: %k(%K) %h = %s%%(%S)\n", node=one)
    assert told == b"things [0] at 0: id(2) a=1,b=x=y = one%(3)\nthings [0] at 1: id(2) a=1,b=x=y = two%(3)\n"
    assert ok("consume", "things", "-o", "1", node=one) == b"two\n"
    assert ok("consume", "things", "-o", "-1", node=one) == b"two\n"
    for beginning in ("beginning", "start", "s@0", "@0"):
        assert ok("consume", "things", "-o", beginning, "-c", "1", node=one) == b"one\n"
    assert ok("consume", "things", "-o", "end", node=one) == b""
    assert ok("consume", "things", "--from", "2001-01-01T00:00:00Z", "-c", "1", node=one) == b"one\n"
    assert ok("consume", "things", "--from", "2099-01-01", node=one) == b""
    assert run("consume", "things", "-o", "soon", node=one).returncode == 2


def test_the_newest_of_all_partitions_come_in_order(one: NodeProcess) -> None:
    ok("topic", "create", "spread", "--partitions", "3", node=one)
    lines = [
        json.dumps({"value": str(at), "partition": at % 3, "timestamp": 1_000_000 + at}).encode() for at in range(90)
    ]
    ok("produce", "spread", "--records", node=one, stdin=b"\n".join(lines))
    assert ok("consume", "spread", "-o", "-10", node=one).split() == [b"%d" % at for at in range(80, 90)]


def test_output_that_nobody_reads_any_more_is_no_failure(one: NodeProcess) -> None:
    ok("topic", "create", "long", node=one)
    ok("produce", "long", node=one, stdin=b"some line\n" * 50_000)
    command = [sys.executable, "-m", "bridges", "tail", "long", "--node", one.console]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.stderr.read() == b""
        assert tail.wait(30) == 0


def test_following_ends_when_nobody_reads_it_any_more(one: NodeProcess) -> None:
    """Also in a background job of a shell, which ignores SIGINT."""
    ok("topic", "create", "quiet", node=one)
    ok("produce", "quiet", node=one, stdin=b"only\n")
    command = [sys.executable, "-m", "bridges", "consume", "quiet", "-f", "-o", "earliest", "--node", one.console]
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consume:
        assert consume.stdout is not None
        assert consume.stderr is not None
        try:
            assert consume.stdout.readline() == b"only\n"
            consume.stdout.close()  # and no record comes that could not be written
            assert consume.wait(30) == 0
            assert consume.stderr.read() == b""
        finally:
            consume.kill()


def test_names_of_the_node_and_of_contexts_are_completed(one: NodeProcess, tmp_path: Path) -> None:
    ok("topic", "create", "shells", "shades", node=one)
    contexts = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert run("context", "set", "here", "--node", one.console, environ=contexts).returncode == 0

    def completed(words: str) -> list[bytes]:
        asked = {"_ANABRANCH_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return run(environ=asked | contexts).stdout.split()

    assert completed("anabranch topic describe sh") == [b"plain,shades", b"plain,shells"]
    assert completed("anabranch topic ls --context he") == [b"plain,here"]
    assert completed("anabranch consume --node http://127.0.0.1:1 sh") == []


def test_status_and_version_and_completion(one: NodeProcess, tmp_path: Path) -> None:
    assert b"cluster id" in ok("status", node=one)
    assert ok("--version", node=one) == ok("version", node=one)
    for shell in ("bash", "zsh", "fish"):
        assert b"_ANABRANCH_COMPLETE" in ok("completion", shell, node=one)
        assert b"is written" in ok("completion", shell, "--install", node=one, environ={"XDG_DATA_HOME": str(tmp_path)})
    assert len([path for path in tmp_path.rglob("*anabranch*") if path.is_file()]) == 3
    told = run(environ={"_ANABRANCH_COMPLETE": "bash_complete", "COMP_WORDS": "anabranch top", "COMP_CWORD": "1"})
    assert told.stdout.split() == [b"plain,topic", b"plain,top"]


def test_lists_and_errors_have_one_shape(one: NodeProcess) -> None:
    for words in ("topic list", "group list", "quota list", "transaction list", "node users", "node jobs"):
        assert isinstance(json.loads(ok(*words.split(), "--json", node=one)), list), words
    for words, code in (("topic describe nothing", 1), ("topic describe", 2), ("acl list", 1), ("acl lisst", 2)):
        done = run(*words.split(), "--json", node=one)
        assert (done.returncode, done.stdout) == (code, b""), words
        assert isinstance(json.loads(done.stderr)["error"], str), words


def test_the_address_that_was_tried_is_told() -> None:
    done = run("topic", "ls", environ={"ANABRANCH_NODE": "http://127.0.0.1:1"})
    assert done.returncode == 3
    assert b"no node answers at http://127.0.0.1:1" in done.stderr
