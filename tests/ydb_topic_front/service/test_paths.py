"""Where a client's path leads."""

from __future__ import annotations

import pytest

from ydb_topic_front.service import paths
from ydb_topic_front.wire.statuses import Status, YdbError


@pytest.mark.parametrize(
    ("path", "database", "expected"),
    [
        ("/local/t", "/local", "t"),
        ("t", "/local", "t"),
        ("a/b/c.d", "/local", "a/b/c.d"),
        ("//local//a///b/", "/local", "a/b"),
        ("/ru/b1/x/a/b", "/ru/b1/x", "a/b"),
        ("/local", "/local", ""),
        ("/local/", "/local/", ""),
        ("local/t", "/local", "local/t"),  # relative: it does not begin at the root
    ],
)
def test_a_path_leads_below_the_database(path: str, database: str, expected: str) -> None:
    assert paths.below(path, database) == expected


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", Status.BAD_REQUEST),
        ("x" * 2000, Status.BAD_REQUEST),
        ("/other/t", Status.SCHEME_ERROR),
        ("/localt", Status.SCHEME_ERROR),
        ("/", Status.SCHEME_ERROR),
    ],
)
def test_a_path_that_leads_nowhere(path: str, status: Status) -> None:
    with pytest.raises(YdbError) as refused:
        paths.below(path, "/local")
    assert refused.value.status is status


def test_whole_paths_and_their_ends() -> None:
    assert paths.whole("a/b", "/local/") == "/local/a/b"
    assert paths.whole("", "local") == "/local"
    assert paths.last("/local/a/b") == "b"
    assert paths.last("/local/") == "local"


def test_what_topics_can_be_called() -> None:
    assert paths.new_name("a/b.c") == "a.b.c"
    for path in ("", "a/../b", ".", "a b", "ü", "a/" + "x" * 249):
        with pytest.raises(YdbError) as refused:
            paths.new_name(path)
        assert refused.value.status is Status.SCHEME_ERROR, path
