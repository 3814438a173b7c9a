"""``anabranch quota``: list, set, remove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from bridges.commands.client import NodeClient, asks_node
from bridges.commands.common import print_table

F = TypeVar("F", bound=Callable[..., object])

_KINDS = ("user", "client-id", "ip")


@click.group("quota")
def command() -> None:
    """Manage quotas of users, clients and addresses.

    Quotas are producer_byte_rate and consumer_byte_rate (bytes a second), request_percentage (of the event loop),
    controller_mutation_rate (partitions created and deleted a second) and, of addresses, connection_creation_rate (a
    second).
    """


def _whom(function: F) -> F:
    for kind in _KINDS:
        option = click.option(
            f"--{kind}",
            metavar="NAME",
            help=f"Name of a {kind}; * is the default for every {kind} without a quota of its own.",
        )
        function = option(function)
    return function


def _entity(options: dict[str, Any]) -> dict[str, Any]:
    given = {kind: options[kind.replace("-", "_")] for kind in _KINDS}
    return {kind: None if name == "*" else name for kind, name in given.items() if name is not None}


def _cell(entity: dict[str, Any], kind: str) -> str:
    return str(entity[kind] or "*") if kind in entity else "-"


def _print(quotas: list[dict[str, Any]]) -> None:
    print_table(
        ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"],
        (
            [*(_cell(one["entity"], kind) for kind in _KINDS), key, f"{value:.12g}"]
            for one in quotas
            for key, value in one["values"].items()
        ),
    )


@command.command("list")
@asks_node
def list_quotas(client: NodeClient) -> None:
    """Show all quotas."""
    _print(client.show("GET", "/api/quotas", part="quotas"))


@command.command("set")
@_whom
@click.argument("quotas", nargs=-1, required=True, metavar="QUOTA=VALUE...")
@asks_node
def set_quotas(quotas: tuple[str, ...], client: NodeClient, **options: Any) -> None:
    """Set quotas, as in --user alice producer_byte_rate=1000000."""
    values: dict[str, float] = {}
    for one in quotas:
        key, _, value = one.partition("=")
        try:
            values[key] = float(value)
        except ValueError:
            raise click.UsageError(f"{one!r} is to be QUOTA=NUMBER") from None
    body = {"entity": _entity(options), "values": values}
    _print(client.show("POST", "/api/quotas", body, part="quotas"))


@command.command("remove")
@_whom
@click.argument("quotas", nargs=-1, metavar="[QUOTA]...")
@asks_node
def remove(quotas: tuple[str, ...], client: NodeClient, **options: Any) -> None:
    """Remove the named quotas of a user, client or address, or all of them; show which are left."""
    body = {"entity": _entity(options), "keys": list(quotas)}
    _print(client.show("POST", "/api/quotas/remove", body, part="quotas"))
