"""``anabranch tail``: prints records of a topic."""

from __future__ import annotations

import json
import sys

import click

from bridges.commands.cli import EXIT_USAGE
from bridges.commands.common import NodeClient, asks_node, topic_path


@click.command("tail")
@click.argument("topic")
@click.option("--partition", type=click.IntRange(0), help="Partition to read (default: all).")
@click.option(
    "--from",
    "start",
    default=None,
    metavar="OFFSET",
    help="First offset: 'earliest', 'latest' or a number (default: latest with --follow, else earliest).",
)
@click.option("--follow", "-f", is_flag=True, help="Print new records until interrupted.")
@click.option("--limit", "-n", type=click.IntRange(0), help="Maximum number of records to print.")
@click.option("--text", help="Print only records with this text in the key, the value or a header.")
@click.option("--key", help="Print only records with this key.")
@click.option("--header", metavar="NAME[=TEXT]", help="Print only records with this header, and TEXT in its value.")
@click.option("--look", type=click.IntRange(1), help="Maximum number of records to search (default: 100000).")
@click.option("--keys", is_flag=True, help="Print partition, offset and key before the value.")
@asks_node
def command(
    topic: str,
    partition: int | None,
    start: str | None,
    follow: bool,
    limit: int | None,
    text: str | None,
    key: str | None,
    header: str | None,
    look: int | None,
    keys: bool,
    client: NodeClient,
) -> None:
    """Print records of TOPIC, one a line: values as they are, or JSON records with --json."""
    offset = start or ("latest" if follow else "earliest")
    if offset not in ("earliest", "latest") and not offset.isdigit():
        client.fail(f"--from {offset!r} is neither 'earliest' nor 'latest' nor an offset", EXIT_USAGE)
    path = topic_path(
        topic,
        "records",
        partition=partition,
        offset=offset,
        limit=limit,
        follow="true" if follow else None,
        text=text,
        key=key,
        header=header,
        look=look,
    )
    out = sys.stdout.buffer
    try:
        for line in client.lines(path):
            record = json.loads(line)
            if "looked" in record:
                click.echo(f"looked at {record['looked']} records", err=True)
                continue
            if "error" in record and "offset" not in record:
                client.fail(str(record["error"]))
            if "error" in record and not client.as_json:
                unreadable = f"partition {record['partition']}, offsets {record['offset']} to {record['end'] - 1}"
                click.echo(f"{unreadable}: {record['error']}", err=True)
                continue
            out.write(line if client.as_json else _text(record, keys))
            if follow:
                out.flush()
        out.flush()
    except KeyboardInterrupt:
        client.close()


def _text(record: dict[str, object], keys: bool) -> bytes:
    value = _field(record, "value")
    if not keys:
        return value + b"\n"
    head = f"{record['partition']}\t{record['offset']}\t".encode()
    return head + _field(record, "key") + b"\t" + value + b"\n"


def _field(record: dict[str, object], name: str) -> bytes:
    import base64

    encoded = record.get(f"{name}_base64")
    if isinstance(encoded, str):
        return base64.b64decode(encoded)
    text = record.get(name)
    return text.encode() if isinstance(text, str) else b""
