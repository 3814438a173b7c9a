"""``anabranch produce``: appends the lines of standard input or of a file."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from select import select
from typing import BinaryIO

import click

from bridges.commands.client import NodeClient, asks_node, topic_argument, topic_path
from bridges.commands.common import key_values

_BLOCK = 256 * 1024
QUIET_S = 15.0
"""Seconds between signs of life: the node gives up a body without data for ``limits.http_request_ms``."""


@click.command("produce")
@topic_argument
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True), default="-")
@click.option("--key-separator", "-K", metavar="TEXT", help="Text that separates key and value in a line.")
@click.option("--key", "-k", help="Key of all lines.")
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="Header of all lines; may be repeated."
)
@click.option("--records", "as_records", is_flag=True, help="Lines are JSON records, as 'tail --json' prints them.")
@click.option("--partition", "-p", type=click.IntRange(0), help="Partition for all lines (default: by key).")
@click.option(
    "--key-schema", metavar="SUBJECT|ID", help="Schema of the node's registry that encodes keys, given as JSON."
)
@click.option(
    "--value-schema", metavar="SUBJECT|ID", help="Schema of the node's registry that encodes values, given as JSON."
)
@asks_node
def command(
    topic: str,
    file: Path,
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    as_records: bool,
    partition: int | None,
    client: NodeClient,
    **schemas: str | None,
) -> None:
    """Append every line of FILE (default: standard input) to TOPIC as a record.

    Returns when all records are durable.
    """
    common: dict[str, object] = {} if partition is None else {"partition": partition}
    if key is not None:
        common["key"] = key
    if headers:
        common["headers"] = [[name, value] for name, value in key_values(headers, "--header").items()]
    if as_records and (key_separator is not None or common):
        raise click.UsageError("--records lines carry their own key, headers and partition")
    if key is not None and key_separator is not None:
        raise click.UsageError("either --key or --key-separator is given")
    path = topic_path(topic, "records", **schemas)
    if str(file) == "-":
        answer = client.upload(path, bodies_of(blocks_of(sys.stdin.buffer), as_records, key_separator, common))
    else:
        with file.open("rb") as source:
            blocks = blocks_of(source)
            if sys.stderr.isatty() and not client.as_json:
                blocks = _with_progress(blocks, file.stat().st_size)
            answer = client.upload(path, bodies_of(blocks, as_records, key_separator, common))
    client.end_with_json(answer)
    click.echo(f"{answer['records']} records stored", err=True)


def blocks_of(source: BinaryIO | BufferedReader) -> Iterator[bytes]:
    """Yield the input as soon as it arrives, since a user may be typing; an empty block after each quiet interval."""
    assert isinstance(source, BufferedReader)
    while True:
        while not select([source], [], [], QUIET_S)[0]:
            yield b""
        block = source.read1(_BLOCK)
        if not block:
            return
        yield block


def bodies_of(
    blocks: Iterator[bytes], as_records: bool, key_separator: str | None, common: dict[str, object]
) -> Iterator[bytes]:
    """Yield, per block, the JSON of the lines that end in it; an empty line for an empty block."""
    separator = None if key_separator is None else key_separator.encode()

    def convert(line: bytes) -> bytes:
        text = line.removesuffix(b"\r")
        if as_records:
            return text + b"\n"
        key: bytes | None = None
        if separator and separator in text:
            key, _, text = text.partition(separator)
        return _record(key, text, common)

    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        if not block:
            yield b"\n"
        elif lines:
            yield b"".join(map(convert, lines))
    if rest:
        yield convert(rest)


def _record(key: bytes | None, value: bytes, common: dict[str, object]) -> bytes:
    record = {**common}
    for name, data in (("key", key), ("value", value)):
        if data is None:
            continue
        try:
            record[name] = data.decode()
        except UnicodeDecodeError:
            record[f"{name}_base64"] = base64.b64encode(data).decode()
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _with_progress(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=size)
        for block in blocks:
            yield block
            progress.advance(task, len(block))
