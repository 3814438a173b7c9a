"""``anabranch quota``: list, set, remove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from bridges.commands.common import NodeClient, json_option, node_option, print_json, print_table

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


def _shown(entity: dict[str, Any], kind: str) -> str:
    return str(entity[kind] or "*") if kind in entity else "-"


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(
        ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"],
        (
            [*(_shown(one["entity"], kind) for kind in _KINDS), key, f"{value:.12g}"]
            for one in found["quotas"]
            for key, value in one["values"].items()
        ),
    )


@command.command("list")
@node_option
@json_option
def list_quotas(node: str, as_json: bool) -> None:
    """Show all quotas."""
    _print(NodeClient(node, as_json=as_json).call("GET", "/api/quotas"), as_json)


@command.command("set")
@_whom
@click.argument("quotas", nargs=-1, required=True, metavar="QUOTA=VALUE...")
@node_option
@json_option
def set_quotas(quotas: tuple[str, ...], node: str, as_json: bool, **options: Any) -> None:
    """Set quotas, as in --user alice producer_byte_rate=1000000."""
    values: dict[str, float] = {}
    for one in quotas:
        key, _, value = one.partition("=")
        try:
            values[key] = float(value)
        except ValueError:
            raise click.UsageError(f"{one!r} is to be QUOTA=NUMBER") from None
    body = {"entity": _entity(options), "values": values}
    _print(NodeClient(node, as_json=as_json).call("POST", "/api/quotas", body), as_json)


@command.command("remove")
@_whom
@click.argument("quotas", nargs=-1, metavar="[QUOTA]...")
@node_option
@json_option
def remove(quotas: tuple[str, ...], node: str, as_json: bool, **options: Any) -> None:
    """Remove the named quotas of a user, client or address, or all of them; show which are left."""
    body = {"entity": _entity(options), "keys": list(quotas)}
    _print(NodeClient(node, as_json=as_json).call("POST", "/api/quotas/remove", body), as_json)
