"""A client of a node's console address, and the options that say which node."""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import click

from bridges.commands.common import json_option, print_json
from bridges.commands.contexts import DEFAULT_NODE, Context, choose, complete_contexts
from bridges.commands.failure import EXIT_UNREACHABLE, EXIT_USAGE, Failed, fail

if TYPE_CHECKING:
    import http.client

_COMPLETION_S = 3.0
_COMPLETED = 500
"""Most names that a shell is told."""


def asks_node(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--node``, ``--context`` and ``--json``; the command gets a client for them as ``client``."""

    @wraps(function)
    def ask(node: str | None, context: str | None, as_json: bool, **given: Any) -> None:
        function(client=NodeClient(*choose(node, context), as_json=as_json), **given)

    at = click.option(
        "--node",
        metavar="URL",
        help=f"Console address of the node (default: ANABRANCH_NODE, else the context's, else {DEFAULT_NODE}). Log in "
        "with ANABRANCH_USER and ANABRANCH_PASSWORD.",
    )
    named = click.option(
        "--context",
        metavar="NAME",
        shell_complete=complete_contexts,
        help="Node and login that 'anabranch context set' keeps (default: ANABRANCH_CONTEXT, else the current one).",
    )
    return at(named(json_option(ask)))


class Unreachable(Failed):
    """No node answers, or it has stopped answering."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_UNREACHABLE)


class NodeClient:
    """A client of one node; every failure ends the command with a sentence."""

    def __init__(
        self, name: str, context: Context, *, as_json: bool = False, asks: bool = True, timeout: float | None = None
    ) -> None:
        """Create a client; with ``asks``, it may ask on the terminal for a password."""
        import http.client
        import ssl

        url = context.node
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fail(f"the node's address {url!r} is not an http or https address", EXIT_USAGE)
        try:
            port = parts.port or (80 if parts.scheme == "http" else 443)
        except ValueError as error:
            fail(f"the node's address {url!r}: {error}", EXIT_USAGE)
        self.as_json = as_json
        self._scheme, self._named = parts.scheme, f" (context {name})" if name else ""
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._login: dict[str, str] = {}
        user, password = _login(parts.username, parts.password, context)
        if user is not None:
            if password is None:
                if not (asks and sys.stdin.isatty()):
                    fail(f"the password of {user} is to be in ANABRANCH_PASSWORD", EXIT_USAGE)
                password = str(click.prompt(f"Password of {user}", hide_input=True, err=True))
            self._login["Authorization"] = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
        self._connect: Callable[..., http.client.HTTPConnection]
        if parts.scheme == "https":
            # Trusts the context's authorities, otherwise the system's, or the file that SSL_CERT_FILE names.
            try:
                trusted = ssl.create_default_context(cafile=context.ca)
            except OSError as error:
                fail(f"{context.ca} has no certificates of authorities: {error}", EXIT_USAGE)
            self._connect = partial(http.client.HTTPSConnection, timeout=timeout, context=trusted)
        else:
            self._connect = partial(http.client.HTTPConnection, timeout=timeout)
        self._connection = self._connect(parts.hostname, port)
        self._failures = (OSError, http.client.HTTPException)

    def another(self, address: str = "") -> NodeClient:
        """Return a client with a connection of its own: of the same node, or of one at ``address`` (HOST:PORT)."""
        made = copy(self)
        host, port = self._connection.host, self._connection.port
        if address:
            parts = urlsplit(f"//{address}")
            host, port = parts.hostname or "", parts.port or port
            made.url = f"{self._scheme}://{address}"
        made._connection = self._connect(host, port)
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
        self.end_with_json(found)
        return found

    def end_with_json(self, found: object) -> None:
        """With ``--json``, print a result and end the command."""
        if self.as_json:
            print_json(found)
            click.get_current_context().exit()

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
            raise Unreachable(f"the node at {self.url}{self._named} went away: {error}") from error

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
            raise Unreachable(f"no node answers at {self.url}{self._named}: {reason}") from error

    def _answer(self, response: http.client.HTTPResponse) -> Any:
        content = response.read()
        try:
            document = json.loads(content)
        except ValueError:
            fail(f"{self.url}{self._named} is not the console address of a node", EXIT_UNREACHABLE)
        if response.status >= 400:
            extra = {key: value for key, value in document.items() if key != "error"}
            message = str(document.get("error", response.reason))
            if not self.as_json and "line" in extra:
                message = f"line {extra['line']}: {message} ({extra.get('stored', 0)} records stored)"
            fail(message, **extra)
        return document


def _login(user: str | None, password: str | None, context: Context) -> tuple[str | None, str | None]:
    """Return who logs in, and the password if it is known: of the address, else of the environment, else kept."""
    if user is not None:
        return unquote(user), None if password is None else unquote(password)
    given, known = os.environ.get("ANABRANCH_USER"), os.environ.get("ANABRANCH_PASSWORD")
    if given is not None and given != context.user:
        return given, known
    return context.user, context.password if known is None else known


def names_of(kind: str, key: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a function that completes names in a shell: the node's ``/api/{kind}``, by their field ``key``."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            chosen = choose(ctx.params.get("node"), ctx.params.get("context"))
            client = NodeClient(*chosen, asks=False, timeout=_COMPLETION_S)
            rows = client.call("GET", f"/api/{kind}?{urlencode({'limit': _COMPLETED, 'search': incomplete})}")[kind]
        except Failed:
            return []  # there is nobody to tell
        return [row[key] for row in rows if row[key].startswith(incomplete)]

    return complete


complete_topics = names_of("topics", "name")
complete_groups = names_of("groups", "group")
topic_argument = click.argument("topic", shell_complete=complete_topics)
topics_argument = click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
group_argument = click.argument("group", shell_complete=complete_groups)


def topic_path(topic: str, *parts: str, **query: object) -> str:
    """Return the path of a topic in the node's HTTP interface."""
    path = "/".join(["/api/topics", quote(topic, safe=""), *parts])
    given = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path
