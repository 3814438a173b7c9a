"""``anabranch tail`` and ``anabranch consume``: prints records of topics."""

from __future__ import annotations

import base64
import json
import os
import queue
import re
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast
from urllib.parse import quote, urlencode

import click

from bridges.commands.client import NodeClient, asks_node, complete_groups, topic_path, topics_argument
from bridges.commands.common import parse_time
from bridges.commands.failure import EXIT_USAGE, Failed, fail

Line = dict[str, Any]
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}
_PLACES = {"beginning": "earliest", "start": "earliest", "end": "latest"}
"""Other tools' words for a place."""
_MOST_LAST = 1000
_WAITING = 1000
"""Lines that wait to be printed."""
_READER_GONE = signal.SIGUSR1
"""Not SIGINT, which a shell has its background jobs ignore."""
_INTERRUPT_S = 5.0
"""Interval at which the command is interrupted until it ends."""
_COMMIT_S = 1.0
"""Interval at which the positions of a group are committed."""


@click.command("tail")
@topics_argument
@click.option("--partition", "-p", type=click.IntRange(0), help="Partition to read (default: all).")
@click.option(
    "--from",
    "--offset",
    "-o",
    "start",
    default=None,
    metavar="PLACE",
    help="First record: 'earliest' ('beginning', 'start'), 'latest' ('end'), an offset, a time such as "
    "2026-01-31T12:00:00Z (default: UTC) or @MILLISECONDS, or -N for the newest N (default: latest with --follow, "
    "else earliest). With --group: 'earliest' (the default) or 'latest', where the group has no position.",
)
@click.option(
    "--group",
    shell_complete=complete_groups,
    help="Read as the only member of this group: from its positions, committing what was printed. Refused while it "
    "has members of any protocol.",
)
@click.option("--follow", "-f", is_flag=True, help="Print new records until interrupted.")
@click.option("--limit", "-n", "-c", type=click.IntRange(0), help="Maximum number of records to print.")
@click.option("--text", help="Print only records with this text in the key, the value or a header.")
@click.option("--key", help="Print only records with this key.")
@click.option("--header", metavar="NAME[=TEXT]", help="Print only records with this header, and TEXT in its value.")
@click.option("--look", type=click.IntRange(1), help="Maximum number of records to search (default: 100000).")
@click.option("--raw", is_flag=True, help="Print bytes as they are stored, without the schema registry's schemas.")
@click.option("--keys", is_flag=True, help="Print partition, offset and key before the value.")
@click.option(
    "--format",
    "-F",
    "template",
    help=r"Print %s value, %k key, %h headers, %t topic, %p partition, %o offset, %T time in ms, %S, %K sizes; \n, \t.",
)
@asks_node
def command(
    topics: tuple[str, ...],
    partition: int | None,
    start: str | None,
    group: str | None,
    follow: bool,
    raw: bool,
    keys: bool,
    template: str | None,
    client: NodeClient,
    **filters: object,
) -> None:
    """Print records of TOPICs, one a line: values as they are, or JSON records with --json.

    Keys and values that name a schema of the node's registry are printed as JSON.
    """
    if keys:
        template = r"%p\t%o\t%k\t%s\n"
    topics = tuple(dict.fromkeys(topics))
    start = None if start is None else _PLACES.get(start, start)
    member = None
    if group is not None:
        if start not in (None, "earliest", "latest") or any(filters[name] for name in ("text", "key", "header")):
            fail("with --group, --from is 'earliest' or 'latest', and all records are read", EXIT_USAGE)
        member = _Member(client, group, topics)
    paths, newest = {}, 0
    for topic in topics:
        place = _place(start, follow) if member is None else {"at": member.places(topic, partition, start)}
        newest = int(place["limit"]) if "order" in place else 0
        query = {"partition": partition, "follow": "true" if follow else None, **filters, **place}
        query["decode"] = None if raw else "true"
        paths[topic] = topic_path(topic, "records", **query)
    if (follow and len(paths) > 1) or member is not None:
        lines = _together(client, paths, member)
    else:
        lines = ((topic, line) for topic, path in paths.items() for line in client.lines(path))
    if newest:
        lines = _newest(lines, newest)
    # Of one topic the node counts them, and its answer is read to the end.
    left = cast("int | None", filters["limit"]) if len(topics) > 1 or member is not None else None
    over = threading.Event()
    can_interrupt = threading.current_thread() is threading.main_thread()  # no other is interrupted
    if follow and can_interrupt:
        signal.signal(_READER_GONE, signal.default_int_handler)
        threading.Thread(target=_interrupt_without_reader, args=(over,), daemon=True).start()
    try:
        for topic, line in lines:
            record = json.loads(line)
            with _uninterrupted() if can_interrupt and member is not None else nullcontext():
                if not _print(client, topic, record, line if len(topics) == 1 else None, template, progress=not newest):
                    continue
                if member is not None:
                    member.printed(topic, record["partition"], record.get("end", record["offset"] + 1))
            if follow:
                sys.stdout.buffer.flush()
            if left is not None:
                left -= 1
                if left <= 0:
                    break
        sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        client.close()
    finally:
        over.set()
    if member is not None:
        member.commit(leave=True)


def _interrupt_without_reader(over: threading.Event) -> None:
    """Interrupt the command when nobody reads its output any more, as head does: a write may come only much later.

    An interrupt just before a call of the system does not end that call: it is repeated until ``over``.
    """
    if stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
        gone = select.poll()
        gone.register(sys.stdout, 0)
        gone.poll()
        os.kill(os.getpid(), _READER_GONE)
        while not over.wait(_INTERRUPT_S):
            os.kill(os.getpid(), _READER_GONE)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off an interrupt until the end, so that a record which somebody sees counts as printed; a second interrupt
    comes at once."""
    came = False

    def remember(*_: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


class _Member:
    """The membership in a group, and the positions that are due to be committed."""

    def __init__(self, client: NodeClient, group: str, topics: tuple[str, ...]) -> None:
        self._client = client.another()
        self._path = f"/api/groups/{quote(group, safe='')}"
        self._open = client.another()
        self._lines = self._open.lines(f"{self._path}/member?{urlencode({'topics': ','.join(topics)})}")
        first = json.loads(next(self._lines))
        self._id: str = first["member_id"]
        self._known: list[tuple[str, int, int | None, int]] = first["positions"]
        self._due: dict[tuple[str, int], int] = {}
        self._at = time.monotonic()

    def places(self, topic: str, partition: int | None, start: str | None) -> str:
        """Return where to begin in the partitions of a topic, as the node's interface takes it."""
        return ",".join(
            f"{number}:{offset if offset is not None else end if start == 'latest' else 0}"
            for name, number, offset, end in self._known
            if name == topic and partition in (None, number)
        )

    def membership(self) -> Iterator[bytes]:
        """Wait for the end of the membership."""
        for _ in self._lines:
            pass
        return iter(())

    def printed(self, topic: str, partition: int, following: int) -> None:
        """Remember the offset behind a record that was printed."""
        self._due[topic, partition] = following

    def commit_soon(self) -> None:
        """Commit what is due, if the last time is long enough ago."""
        if time.monotonic() - self._at >= _COMMIT_S:
            self.commit()

    def commit(self, *, leave: bool = False) -> None:
        """Commit what is due, after it has left this process; with ``leave``, leave the group."""
        sys.stdout.buffer.flush()
        self._at = time.monotonic()
        if leave:
            self._client.close()  # an interrupt may have come in the middle of a commit, which is made again
        if self._due or leave:
            positions = [(*place, offset) for place, offset in self._due.items()]
            body = {"member_id": self._id, "positions": positions, "leave": leave}
            self._client.call("POST", f"{self._path}/commit", body)
            self._due.clear()


def _together(client: NodeClient, paths: dict[str, str], member: _Member | None) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of several topics as they come, and commit the positions of a member meanwhile."""
    lines: queue.Queue[tuple[str, Any]] = queue.Queue(_WAITING)

    def feed(topic: str, read: Callable[[], Iterator[bytes]]) -> None:
        end = None
        try:
            for line in read():
                lines.put((topic, line))
        except Failed as failed:
            end = failed
        lines.put((topic, end))

    sources: dict[str, Callable[[], Iterator[bytes]]] = {
        topic: partial(client.another().lines, path) for topic, path in paths.items()
    }
    if member is not None:
        sources[""] = member.membership
    for one in sources.items():
        threading.Thread(target=feed, args=one, daemon=True).start()
    left = len(paths)
    while left:
        if member is not None:
            member.commit_soon()
        try:
            topic, line = lines.get(timeout=_COMMIT_S)
        except queue.Empty:
            continue
        if isinstance(line, Failed):
            raise line
        if line is not None:
            yield topic, line
        elif topic:
            left -= 1
        else:
            fail("the group has gone to another node, and its positions are there: start again")


def _print(
    client: NodeClient, topic: str, record: Line, line: bytes | None, template: str | None, *, progress: bool
) -> bool:
    """Print what a line says; ``line`` is None if it lacks the topic. Return whether it is a record, or an unreadable
    batch."""
    if "looked" in record:
        if progress:
            click.echo(f"looked at {record['looked']} records", err=True)
        return False
    if "error" in record and "offset" not in record:
        fail(str(record["error"]))
    if client.as_json:
        printed = line or json.dumps({"topic": topic, **record}, ensure_ascii=False).encode() + b"\n"
        sys.stdout.buffer.write(printed)
    elif "error" in record:
        unreadable = f"partition {record['partition']}, offsets {record['offset']} to {record['end'] - 1}"
        click.echo(f"{unreadable}: {record['error']}", err=True)
    else:
        for name in ("key_decoded", "value_decoded"):
            if why := record.get(name, {}).get("error"):
                at = f"partition {record['partition']}, offset {record['offset']}"
                click.echo(
                    f"{at}: the {name.partition('_')[0]} is not decoded by schema {record[name]['schema']}: {why}",
                    err=True,
                )
        sys.stdout.buffer.write(b"".join(_printed(record, topic, template or r"%s\n")))
    return True


def _place(start: str | None, follow: bool) -> dict[str, str]:
    """Return the part of the query that says where to begin."""
    offset = start or ("latest" if follow else "earliest")
    if offset in ("earliest", "latest") or offset.isdigit():
        return {"offset": offset}
    if re.fullmatch(r"-\d+", offset) and 0 < -int(offset) <= _MOST_LAST and not follow:
        return {"order": "newest", "limit": offset[1:]}
    if said := re.fullmatch(r"s?@(\d+)", offset):
        return {"since_ms": said[1]}
    if (moment := parse_time(offset)) is None:
        kinds = f"'earliest', 'latest', an offset, a time, or -N (at most {_MOST_LAST}, without --follow)"
        fail(f"--from {offset!r} is none of {kinds}", EXIT_USAGE)
    return {"since_ms": str(moment)}


def _newest(lines: Iterable[tuple[str, bytes]], count: int) -> Iterator[tuple[str, bytes]]:
    """Yield the newest ``count`` records in order of time, and what is not a record; a node sends a few too many."""
    records: list[tuple[int, str, int, int, bytes]] = []
    for topic, line in lines:
        record = json.loads(line)
        if "offset" in record and "error" not in record:
            records.append((record.get("timestamp", -1), topic, record["partition"], record["offset"], line))
        else:
            yield topic, line
    yield from ((topic, line) for _, topic, _, _, line in sorted(records)[-count:])


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
    if decoded := record.get(f"{name}_decoded", {}).get("text"):
        return cast("str", decoded).encode()
    encoded = record.get(f"{name}_base64")
    if isinstance(encoded, str):
        return base64.b64decode(encoded)
    text = record.get(name)
    return text.encode() if isinstance(text, str) else b""
