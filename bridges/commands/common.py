"""Shared parts of commands: options, output, errors, and a client for a node's console address."""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click

from bridges.catalog.views.groups import CONSUMERS
from bridges.commands.cli import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE

if TYPE_CHECKING:
    import http.client

F = TypeVar("F", bound=Callable[..., Any])

NOTHING = "-"
"""A table's cell without a value."""
DEFAULT_NODE = "http://127.0.0.1:8080"


def json_option(function: F) -> F:
    """Add ``--json``: output for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def node_option(function: F) -> F:
    """Add ``--node``: the node to talk to."""
    return click.option(
        "--node",
        envvar="ANABRANCH_NODE",
        default=DEFAULT_NODE,
        show_default=True,
        metavar="URL",
        help="Console address of the node (or ANABRANCH_NODE). Log in with ANABRANCH_USER and ANABRANCH_PASSWORD.",
    )(function)


def asks_node(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--node`` and ``--json``; the command gets a client for them as ``client``."""

    @wraps(function)
    def ask(node: str, as_json: bool, **given: Any) -> None:
        function(client=NodeClient(node, as_json=as_json), **given)

    return node_option(json_option(ask))


def history_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--span``, and what :func:`asks_node` adds."""
    return click.option("--span", type=click.Choice(["hour", "day"]), default="hour", show_default=True)(
        asks_node(function)
    )


space_option = click.option(
    "--space",
    default=CONSUMERS,
    show_default=True,
    help="Namespace of the group's name, for protocols with groups of another kind.",
)
partition_option = click.option(
    "--partition", type=click.IntRange(0), default=0, show_default=True, help="Partition of TOPIC."
)


def print_history(client: NodeClient, path: str, **query: str) -> None:
    """Print a history of the node: a line per step, a column per series that is not empty."""
    found = client.show("GET", f"{path}?{urlencode(query)}")
    columns = {name: points for name, points in _series("", found) if any(points)}
    steps = max(map(len, columns.values()), default=0)
    step_ms = 1000 * found["step_s"]
    first = found["end_ms"] - steps * step_ms
    rows = []
    for step, values in enumerate(zip(*columns.values(), strict=True), 1):
        if any(value is not None for value in values):
            at = format_time(first + step * step_ms)
            rows.append([at, *(NOTHING if value is None else f"{value:g}" for value in values)])
    print_table(["UNTIL", *map(str.upper, columns)], rows)


def _series(name: str, value: Any) -> Iterator[tuple[str, list[float | None]]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _series(f"{name}.{key}" if name else key, one)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for one in value:
            told = ".".join(escape(str(one[key])) for key in ("group", "topic", "partition") if key in one)
            yield from _series(told, {key: points for key, points in one.items() if isinstance(points, list)})
    elif isinstance(value, list):
        yield name, value


def listen_option(function: F) -> F:
    """Add ``--listen``: addresses of listeners; see :func:`node_flags`."""
    return click.option(
        "--listen",
        multiple=True,
        metavar="NAME=HOST:PORT",
        help="Address of the listener NAME. Port 0: any free port; 'off': no such listener.",
    )(function)


def node_flags(data: Path | None, sets: Iterable[str], listen: Iterable[str]) -> dict[str, str]:
    """Return the settings given by the options ``--data``, ``--set`` and ``--listen``, by key."""
    flags = key_values(sets, "--set")
    flags.update({f"listen.{name}": address for name, address in key_values(listen, "--listen").items()})
    if data is not None:
        flags["data_dir"] = str(data)
    return flags


def yes_option(function: F) -> F:
    """Add ``--yes``: see :func:`confirm`."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask on the terminal before something that cannot be undone, unless ``yes``.

    Ends the command if there is no terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        fail(
            f"nothing was changed: give --yes, there is no terminal to ask on: {question}", EXIT_USAGE, as_json=as_json
        )
    click.confirm(question, abort=True, err=True)


def settings_options(function: F) -> F:
    """Add ``--set`` and ``--config``: where settings come from beside the environment."""
    config = click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="ANABRANCH_CONFIG",
        help="File with settings (TOML).",
    )
    sets = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Value of a setting; 'anabranch config' lists all settings.",
    )
    return sets(config(function))


def service_options(function: F) -> F:
    """Add the options of every command that runs a server: ``--set``, ``--config`` and ``--ready-file``."""
    ready_file = click.option(
        "--ready-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="JSON file with the addresses, written once all listeners are open. Removed when the process stops.",
    )
    return settings_options(ready_file(function))


def print_json(value: object) -> None:
    """Print a JSON document on standard output."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_table(heads: list[str], rows: Iterable[Iterable[object]]) -> None:
    """Print columns aligned with spaces, readable for people and for awk."""
    lines = [heads, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def lag(group: dict[str, Any]) -> list[str]:
    """Return the lag of a group in records, in seconds, and its growth in records per second.

    ``+``: the lag is larger, because the ends of some partitions are unknown. ``>=``: the seconds are a lower bound.
    """
    if group["lag"] is None:
        return [NOTHING] * 3
    seconds, trend = group.get("lag_seconds"), group.get("trend")
    exact = "" if group.get("lag_exact", True) else ">="
    return [
        f"{group['lag']}{'+' if group['unknown_lags'] else ''}",
        NOTHING if seconds is None else f"{exact}{seconds:g}",
        NOTHING if trend is None else f"{trend:+g}",
    ]


def format_time(ms: float) -> str:
    """Return a time in milliseconds since 1970 as text, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def parse_time(text: str) -> int | None:
    """Return a time such as 2026-01-31T12:00:00Z (default zone: UTC) in milliseconds since 1970; None if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def join_neighbours(numbers: Iterable[int]) -> list[str]:
    """Return numbers as text in ascending order, neighbours as a range such as ``0-3``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ["-".join(map(str, run)) for run in runs]


def escape(text: str | None) -> str:
    """Return text that a client chose, with characters escaped that would move the cursor or break a table."""
    if not text:
        return NOTHING
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def fail(message: str, code: int = EXIT_FAILED, *, as_json: bool = False, **extra: object) -> NoReturn:
    """End the command with a sentence on standard error."""
    text = json.dumps({"error": message, **extra}, ensure_ascii=False) if as_json else f"anabranch: {message}"
    with suppress(OSError):  # the exit code must be right even if standard error is a file on a full disk
        click.echo(text, err=True)
    raise SystemExit(code)


def key_values(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Return ``KEY=VALUE`` arguments as a dictionary."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            fail(f"{option} {pair!r} is not KEY=VALUE", EXIT_USAGE)
        found[key.strip()] = value
    return found


class NodeClient:
    """A client of one node; every failure ends the command with a sentence."""

    def __init__(self, url: str, *, as_json: bool = False) -> None:
        import http.client  # imported here, because 'serve' uses this module but not these
        import ssl
        from urllib.parse import unquote

        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fail(f"--node {url!r} is not an http or https address", EXIT_USAGE, as_json=as_json)
        try:
            port = parts.port or (80 if parts.scheme == "http" else 443)
        except ValueError as error:
            fail(f"--node {url!r}: {error}", EXIT_USAGE, as_json=as_json)
        self.as_json = as_json
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        name = unquote(parts.username) if parts.username is not None else os.environ.get("ANABRANCH_USER")
        password = unquote(parts.password) if parts.password is not None else os.environ.get("ANABRANCH_PASSWORD")
        self._login: dict[str, str] = {}
        if name is not None:
            if password is None:
                if not sys.stdin.isatty():
                    self.fail(f"the password of {name} is to be in ANABRANCH_PASSWORD", EXIT_USAGE)
                password = str(click.prompt(f"Password of {name}", hide_input=True, err=True))
            self._login["Authorization"] = f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"
        self._connect: Callable[[], http.client.HTTPConnection]
        if parts.scheme == "https":
            # Trusts the system's authorities, or the file that SSL_CERT_FILE names.
            context = ssl.create_default_context()
            self._connect = partial(http.client.HTTPSConnection, parts.hostname, port, context=context)
        else:
            self._connect = partial(http.client.HTTPConnection, parts.hostname, port)
        self._connection = self._connect()
        self._failures = (OSError, http.client.HTTPException)

    def another(self) -> NodeClient:
        """Return a client of the same node with a connection of its own."""
        made = copy(self)
        made._connection = self._connect()
        return made

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON answer to a request."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        return self._answer(self._send(method, path, data, headers))

    def show(self, method: str, path: str, body: object = None, *, part: str | None = None) -> Any:
        """Return the JSON answer to a request, or its field ``part``; with ``--json``, print it and end the command."""
        answer = self.call(method, path, body)
        found = answer if part is None else answer[part]
        if self.as_json:
            print_json(found)
            click.get_current_context().exit()
        return found

    def fail(self, message: str, code: int = EXIT_FAILED, **extra: object) -> NoReturn:
        """End the command with a sentence on standard error."""
        fail(message, code, as_json=self.as_json, **extra)

    def try_get(self, path: str) -> Any:
        """Return the JSON answer to a GET, None if it is refused."""
        response = self._send("GET", path, None, {})
        content = response.read()
        return None if response.status >= 400 else json.loads(content)

    def upload(self, path: str, chunks: Iterator[bytes]) -> Any:
        """Return the JSON answer to a request with a streamed body."""
        return self._answer(self._send("POST", path, chunks, {"Content-Type": "application/x-ndjson"}))

    def lines(self, path: str) -> Iterator[bytes]:
        """Yield the lines of a streamed answer."""
        response = self._send("GET", path, None, {})
        if response.status >= 400:
            self._answer(response)
        try:
            while line := response.readline():
                yield line
        except self._failures as error:
            self.unreachable(f"the node at {self._url} went away: {error}")

    def unreachable(self, message: str) -> NoReturn:
        """End the command because no node answers, or it has stopped answering."""
        self.fail(message, EXIT_UNREACHABLE)

    def close(self) -> None:
        self._connection.close()

    def _send(
        self, method: str, path: str, body: bytes | Iterator[bytes] | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        try:
            try:
                self._connection.request(method, path, body, headers | self._login)
            except (BrokenPipeError, ConnectionResetError):
                # The node answered before it had read the whole body: the answer says why.
                if self._connection.sock is None:
                    raise
            return self._connection.getresponse()
        except self._failures as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.unreachable(f"no node answers at {self._url}: {reason}")

    def _answer(self, response: http.client.HTTPResponse) -> Any:
        content = response.read()
        try:
            document = json.loads(content)
        except ValueError:
            self.fail(f"{self._url} is not the console address of a node", EXIT_UNREACHABLE)
        if response.status >= 400:
            extra = {key: value for key, value in document.items() if key != "error"}
            message = str(document.get("error", response.reason))
            if not self.as_json and "line" in extra:
                message = f"line {extra['line']}: {message} ({extra.get('stored', 0)} records stored)"
            self.fail(message, **extra)
        return document


def topic_path(topic: str, *parts: str, **query: object) -> str:
    """Return the path of a topic in the node's HTTP interface."""
    path = "/".join(["/api/topics", quote(topic, safe=""), *parts])
    given = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path
