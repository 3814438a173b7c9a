"""``anabranch tail`` and ``anabranch consume``: prints records of a topic."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import click

from bridges.commands.cli import EXIT_USAGE
from bridges.commands.common import NodeClient, asks_node, parse_time, topic_path

Line = dict[str, Any]
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}
_MOST_LAST = 1000


@click.command("tail")
@click.argument("topic")
@click.option("--partition", "-p", type=click.IntRange(0), help="Partition to read (default: all).")
@click.option(
    "--from",
    "--offset",
    "-o",
    "start",
    default=None,
    metavar="PLACE",
    help="First record: 'earliest', 'latest', an offset, a time such as 2026-01-31T12:00:00Z (default: UTC), or -N "
    "for the newest N (default: latest with --follow, else earliest).",
)
@click.option("--group", help="Start at the positions of this group, which stay where they are.")
@click.option("--follow", "-f", is_flag=True, help="Print new records until interrupted.")
@click.option("--limit", "-n", "-c", type=click.IntRange(0), help="Maximum number of records to print.")
@click.option("--text", help="Print only records with this text in the key, the value or a header.")
@click.option("--key", help="Print only records with this key.")
@click.option("--header", metavar="NAME[=TEXT]", help="Print only records with this header, and TEXT in its value.")
@click.option("--look", type=click.IntRange(1), help="Maximum number of records to search (default: 100000).")
@click.option("--keys", is_flag=True, help="Print partition, offset and key before the value.")
@click.option(
    "--format",
    "-F",
    "template",
    help=r"Print %s value, %k key, %h headers, %t topic, %p partition, %o offset, %T time in ms, %S, %K sizes; \n, \t.",
)
@asks_node
def command(
    topic: str,
    partition: int | None,
    start: str | None,
    group: str | None,
    follow: bool,
    keys: bool,
    template: str | None,
    client: NodeClient,
    **filters: object,
) -> None:
    """Print records of TOPIC, one a line: values as they are, or JSON records with --json."""
    if keys:
        template = r"%p\t%o\t%k\t%s\n"
    place = _place(client, topic, start, group, follow)
    path = topic_path(topic, "records", partition=partition, follow="true" if follow else None, **{**filters, **place})
    out = sys.stdout.buffer
    lines: Iterable[bytes] = client.lines(path)
    if "order" in place:
        lines = _newest(lines, int(place["limit"]))
    try:
        for line in lines:
            record = json.loads(line)
            if "looked" in record:
                if "order" not in place:
                    click.echo(f"looked at {record['looked']} records", err=True)
                continue
            if "error" in record and "offset" not in record:
                client.fail(str(record["error"]))
            if "error" in record and not client.as_json:
                unreadable = f"partition {record['partition']}, offsets {record['offset']} to {record['end'] - 1}"
                click.echo(f"{unreadable}: {record['error']}", err=True)
                continue
            out.write(line if client.as_json else b"".join(_printed(record, topic, template or r"%s\n")))
            if follow:
                out.flush()
        out.flush()
    except KeyboardInterrupt:
        client.close()


def _place(client: NodeClient, topic: str, start: str | None, group: str | None, follow: bool) -> dict[str, str]:
    """Return the part of the query that says where to begin."""
    if group is not None:
        if start is not None:
            client.fail("either --from or --group is given", EXIT_USAGE)
        known = client.call("GET", f"/api/groups/{quote(group, safe='')}")["positions"]
        at = [f"{one['partition']}:{one['offset']}" for one in known if one["topic"] == topic]
        if not at:
            client.fail(f"group {group!r} has no position in topic {topic!r}")
        return {"at": ",".join(at)}
    offset = start or ("latest" if follow else "earliest")
    if offset in ("earliest", "latest") or offset.isdigit():
        return {"offset": offset}
    if re.fullmatch(r"-\d+", offset) and 0 < -int(offset) <= _MOST_LAST and not follow:
        return {"order": "newest", "limit": offset[1:]}
    if (moment := parse_time(offset)) is None:
        kinds = f"'earliest', 'latest', an offset, a time, or -N (at most {_MOST_LAST}, without --follow)"
        client.fail(f"--from {offset!r} is none of {kinds}", EXIT_USAGE)
    return {"since_ms": str(moment)}


def _newest(lines: Iterable[bytes], count: int) -> Iterator[bytes]:
    """Yield the newest ``count`` records in order of time, and what is not a record; a node sends a few too many."""
    records: list[tuple[int, int, int, bytes]] = []
    for line in lines:
        record = json.loads(line)
        if "offset" in record and "error" not in record:
            records.append((record.get("timestamp", -1), record["partition"], record["offset"], line))
        else:
            yield line
    yield from (line for *_, line in sorted(records)[-count:])


def _printed(record: Line, topic: str, template: str) -> Iterator[bytes]:
    for word in re.findall(r"%[a-zA-Z%]|\\.|[^%\\]+|.", template):
        match word:
            case "%s" | "%S":
                value = _field(record, "value")
                yield value if word == "%s" else b"%d" % len(value)
            case "%k" | "%K":
                key = _field(record, "key")
                yield key if word == "%k" else b"%d" % len(key)
            case "%t":
                yield topic.encode()
            case "%p" | "%o":
                yield b"%d" % record["partition" if word == "%p" else "offset"]
            case "%T":
                yield b"%d" % record.get("timestamp", -1)
            case "%h":
                yield b",".join(_header(name, value) for name, value in record.get("headers", ()))
            case "%%":
                yield b"%"
            case _:
                yield _ESCAPES.get(word[1:], word.encode()) if word.startswith("\\") else word.encode()


def _header(name: str, value: object) -> bytes:
    data = base64.b64decode(value["base64"]) if isinstance(value, dict) else str(value or "").encode()
    return name.encode() + b"=" + data


def _field(record: Line, name: str) -> bytes:
    encoded = record.get(f"{name}_base64")
    if isinstance(encoded, str):
        return base64.b64decode(encoded)
    text = record.get(name)
    return text.encode() if isinstance(text, str) else b""
