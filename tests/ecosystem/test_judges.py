"""What judges the applications finds what is wrong."""

from __future__ import annotations

import pytest

from tests.ecosystem.passage import Came, WentWrong, each_once
from tests.ecosystem.streams import counted_once
from tests.ecosystem.tools.run import Printed
from tests.ecosystem.tools.steps import Step

VALUES = [b"a", b"b", b"c"]


def came(*values: bytes, key: bytes | None = None) -> list[Came]:
    return [Came(0, offset, key, value) for offset, value in enumerate(values)]


def test_each_is_there_once() -> None:
    each_once(came(b"b", b"a", b"c"), VALUES)


@pytest.mark.parametrize(
    ("values", "wrong"),
    [((b"a", b"b"), "1 missing"), ((b"a", b"b", b"b", b"c"), "1 doubled"), ((*VALUES, b"d"), "1 that nobody wrote")],
)
def test_what_is_not_there_once(values: tuple[bytes, ...], wrong: str) -> None:
    with pytest.raises(WentWrong, match=wrong):
        each_once(came(*values), VALUES)


@pytest.mark.parametrize(
    "counts", [(b"1", b"2"), (b"1", b"2", b"2", b"3"), (b"1", b"3", b"2"), (b"1", b"2", b"3", b"4")]
)
def test_counts_that_are_wrong(counts: tuple[bytes, ...]) -> None:
    counted_once(came(b"1", b"2", b"3", key=b"w"), [b"w w", b"w"])
    with pytest.raises(WentWrong, match="w was written 3 times"):
        counted_once(came(*counts, key=b"w"), [b"w w", b"w"])


def test_what_tools_print_is_compared_without_what_any_two_servers_differ_in() -> None:
    step = Step("topics", "--describe")

    def plain(*lines: str, code: int = 0) -> object:
        return Printed(code, lines).plain(step)

    assert plain("t 127.0.0.1:9092 id 3", "u") == plain("u", "id 3 t 127.0.0.1:19092", "", "__consumer_offsets 4")
    assert plain("Error: x.FooException: one") == plain("Error: y.FooException: two")
    assert plain("Error: x.FooException: one") != plain("Error: x.BarException: one")
    assert plain("t 3") != plain("t 4")
    assert plain("t 3") != plain("t 3", "t 3")
    assert plain("t 3") != plain("t 3", code=1)
