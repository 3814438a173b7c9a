"""``anabranch api``: sends any request to the JSON interface, for requests without a command of their own."""

from __future__ import annotations

import json

import click

from bridges.commands.client import NodeClient, asks_node
from bridges.commands.common import print_json
from bridges.commands.failure import EXIT_USAGE, fail


@click.command("api")
@click.argument("method", type=click.Choice(["GET", "POST", "PATCH", "DELETE"], case_sensitive=False))
@click.argument("path")
@click.option("--body", metavar="JSON", help="Body of the request.")
@asks_node
def command(method: str, path: str, body: str | None, client: NodeClient) -> None:
    """Send a request to the node's JSON interface and print the answer: anabranch api GET /api/history.

    /api/openapi.json describes all requests.
    """
    if not path.startswith("/"):
        fail(f"{path!r} does not begin with a slash", EXIT_USAGE)
    sent: object = None
    if body is not None:
        try:
            sent = json.loads(body)
        except ValueError as error:
            fail(f"--body is not JSON: {error}", EXIT_USAGE)
    print_json(client.call(method.upper(), path, sent))
