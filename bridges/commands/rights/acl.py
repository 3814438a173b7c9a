"""``anabranch acl``: list, add, remove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

import click

from bridges.commands.client import NodeClient, asks_node
from bridges.commands.common import confirm, print_table, yes_option

F = TypeVar("F", bound=Callable[..., object])

_RESOURCES = ("topic", "group", "node", "transactional id", "token", "user")
_FIELDS = ("resource", "pattern", "name", "principal", "host", "operation")


@click.group("acl")
def command() -> None:
    """Manage access rules: who may do what.

    Rules apply on nodes whose setting auth.rules is deny or allow. The setting auth.super_users names users who may do
    everything.
    """


def _fields(function: F) -> F:
    for option in (
        click.option(
            "--principal", metavar="TYPE:NAME", help="Principal, for example User:alice; User:* is every user."
        ),
        click.option("--host", help="Address of the client; * is any address."),
        click.option("--operation", help="Operation: read, write, create, delete, alter, describe, ..., or all."),
        click.option("--name", help="Name of the resource; * is every name. A node has no name."),
        click.option(
            "--pattern",
            type=click.Choice(["literal", "prefixed"]),
            help="Whether the name is the whole name or a prefix.",
        ),
        click.option("--resource", type=click.Choice(_RESOURCES), help="Type of the resource."),
    ):
        function = option(function)
    return function


def _set_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in _FIELDS if options[name] is not None}


def _print(rules: list[dict[str, Any]]) -> None:
    print_table(
        ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "MAY"],
        (
            [
                one["resource"],
                one["name"] or "-",
                one["pattern"],
                one["principal"],
                one["host"],
                one["operation"],
                "yes" if one["allow"] else "no",
            ]
            for one in rules
        ),
    )


@command.command("list")
@_fields
@click.option("--about", help="Show the rules that apply to the resource with this name, of either pattern.")
@asks_node
def list_rules(about: str | None, client: NodeClient, **options: Any) -> None:
    """Show all rules, or those that match the options."""
    given = _set_options(options) | ({} if about is None else {"about": about})
    _print(client.show("GET", f"/api/acls?{urlencode(given)}", part="acls"))


@command.command("add")
@_fields
@click.option("--deny", is_flag=True, help="Deny the operation, even if another rule allows it.")
@asks_node
def add(deny: bool, client: NodeClient, **options: Any) -> None:
    """Add a rule. Needs --resource, --name, --principal and --operation."""
    body = _set_options(options) | {"allow": not deny}
    _print(client.show("POST", "/api/acls", body, part="acls"))


@command.command("remove")
@_fields
@yes_option
@asks_node
def remove(yes: bool, client: NodeClient, **options: Any) -> None:
    """Remove the rules that match the options, and show them."""
    given = _set_options(options)
    if not (yes or client.as_json):
        _print(client.call("GET", f"/api/acls?{urlencode(given)}")["acls"])
    confirm("Remove these rules?", yes=yes)
    _print(client.show("POST", "/api/acls/remove", given, part="acls"))
