"""What ``anabranch tail`` prints of what the node sends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from bridges.commands import client
from bridges.commands.contexts import Context
from bridges.commands.topics import tail
from bridges.console.records.lines import to_line
from bridges.formats.records import Record

UNREADABLE = b'{"partition": 3, "offset": 5, "end": 8, "error": "records do not decompress"}\n'


class Client:
    def __init__(self, name: str, context: Context, *, as_json: bool) -> None:
        self.as_json = as_json

    def lines(self, path: str) -> Iterator[bytes]:
        yield to_line(Record(b"k", b"before", offset=4), 3)
        yield UNREADABLE
        yield to_line(Record(b"k", b"behind", offset=8), 3)


@pytest.mark.parametrize("options", [[], ["--keys"]])
def test_a_batch_that_cannot_be_read_is_told_apart_from_the_records(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "NodeClient", Client)
    done = CliRunner().invoke(tail.command, ["topic", *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert [line.split("\t")[-1] for line in done.stdout.splitlines()] == ["before", "behind"]
    assert done.stderr == "partition 3, offsets 5 to 7: records do not decompress\n"


def test_json_shows_it_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "NodeClient", Client)
    done = CliRunner().invoke(tail.command, ["topic", "--json"], catch_exceptions=False)
    assert done.stdout.splitlines()[1] == UNREADABLE.decode().rstrip()
