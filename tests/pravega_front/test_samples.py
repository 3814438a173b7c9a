"""Programs that Pravega's authors give as samples, written anew with the Java client.

`java/src/main/java/anabranch/tests/PravegaSamples.java` has the programs; `test_java.py` has the features one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.pravega_front.java_client import Java

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def run(controller_address: str) -> Iterator[Callable[[str], Any]]:
    """Run a program in a scope of its own."""
    java = Java(controller_address, "")
    try:
        yield lambda name: java("sample", name=name, scope=name.replace(" ", "-"))
    finally:
        java.close()


def test_scopes_and_streams_with_tags(run: Callable[[str], Any]) -> None:
    assert run("administration") == {
        "again": False,
        "made": True,
        "there": [True, False, True, False],
        "tags": ["red", "round"],
        "red": ["tagged"],
        "listed": True,
        "deleted": True,
        "left": False,
    }


def test_a_console_writes_and_another_shows_and_reads_again(run: Callable[[str], Any]) -> None:
    found = run("console")
    plain, told = [f"event {number}" for number in range(10)], ["told true", "without a key, told true"]
    assert found["states"] == ["OPEN", "ABORTED", "OPEN", "COMMITTED"]
    assert found["shown"] == plain + told
    assert found["from"] == told
    assert found["up to"] == plain


def test_programs_share_a_map_that_is_compacted_meanwhile(run: Callable[[str], Any]) -> None:
    done = {f"done {number}": 1 for number in range(4)}
    assert run("shared map") == {"sum": 100, "first": 1, **done}


def test_parts_of_several_streams_are_read_between_cuts(run: Callable[[str], Any]) -> None:
    found = run("stream cuts")
    between = sorted(found["between"])
    assert len(set(between)) == 21
    assert sorted(found["group"]) == between
    assert sorted(found["batch"]) == between


def test_a_chat_goes_on_where_its_table_says(run: Callable[[str], Any]) -> None:
    assert run("chat") == {"twice": True, "heard": ["Rhine", "Elbe"], "left": ["rivers"]}


def test_a_processor_that_dies_copies_exactly_once(run: Callable[[str], Any]) -> None:
    found = run("exactly once")
    assert found["states"] == ["COMMITTED", "COMMITTED"]
    assert sorted(map(int, found["copied"])) == list(range(30))
