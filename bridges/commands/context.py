"""``anabranch context``: list, use, set, delete, current."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import asdict, replace

from bridges.commands import contexts
from bridges.commands.common import NOTHING, json_option, print_facts, print_json, print_table, read_password
from bridges.commands.contexts import Context, complete_contexts
from bridges.commands.failure import EXIT_USAGE, fail

_name_argument = click.argument("name", shell_complete=complete_contexts)


@click.group("context")
def command() -> None:
    """Keep the addresses and logins of nodes by name, and choose the one that commands talk to.

    A command takes the first of: --node or --context, ANABRANCH_NODE, ANABRANCH_CONTEXT, the current context,
    http://127.0.0.1:8080. Contexts are in ~/.config/anabranch/contexts.json (or XDG_CONFIG_HOME), which only you may
    read.
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List all contexts; the current one has a star."""
    kept = contexts.load()
    rows = [_row(name, one, name == kept.current) for name, one in sorted(kept.contexts.items())]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["CONTEXT", "NODE", "USER", "CURRENT"],
        ([one["context"], one["node"], one["user"] or NOTHING, "*" if one["current"] else ""] for one in rows),
    )


@command.command("set")
@click.argument("name")
@click.option("--node", metavar="URL", help="Console address of the node.")
@click.option("--user", help="Name to log in with; the password is ANABRANCH_PASSWORD, or asked for.")
@click.option(
    "--password", "keeps_password", is_flag=True, help="Keep a password too: asked for, or a line of standard input."
)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    help="File with the authorities that the node's certificate is checked with (default: the system's).",
)
@json_option
def set_(name: str, node: str | None, user: str | None, keeps_password: bool, ca: Path | None, as_json: bool) -> None:
    """Make the context NAME, or change what is given of it. The first context is the current one."""
    kept = contexts.load()
    before = kept.contexts.get(name)
    if node is None and before is None:
        fail(f"context {name} is new: give --node URL", EXIT_USAGE)
    if "@" in (node or ""):
        fail("the address of a context has no login in it: give --user and --password", EXIT_USAGE)
    one = before or Context("")
    if (node is not None and node != one.node) or user is not None:
        one = replace(one, password=None)  # it was for another address or user
    given = {"node": node, "user": user, "ca": None if ca is None else str(ca)}
    one = replace(one, **{key: value for key, value in given.items() if value is not None})
    if keeps_password:
        if one.user is None:
            fail("whose password is it? Give --user", EXIT_USAGE)
        one = replace(one, password=read_password(one.user, confirm=False))
    kept.contexts[name] = one
    kept.current = kept.current or name
    kept.save()
    _show(name, one, name == kept.current, as_json)


@command.command("use")
@_name_argument
@json_option
def use(name: str, as_json: bool) -> None:
    """Make NAME the current context."""
    kept = contexts.load()
    one = kept.find(name)
    kept.current = name
    kept.save()
    _show(name, one, True, as_json)


@command.command("current")
@json_option
def current(as_json: bool) -> None:
    """Show the context, or the bare address, that commands talk to now."""
    name, one = contexts.choose(None, None)
    _show(name, one, bool(name), as_json)


@command.command("delete")
@_name_argument
@json_option
def delete(name: str, as_json: bool) -> None:
    """Delete the context NAME. Without a current context commands talk to the default address."""
    kept = contexts.load()
    one = kept.find(name)
    del kept.contexts[name]
    kept.current = None if kept.current == name else kept.current
    kept.save()
    _show(name, one, False, as_json)


def _row(name: str, one: Context, is_current: bool) -> dict[str, object]:
    """Return a context without its password."""
    shown = {key: value for key, value in asdict(one).items() if key != "password"}
    return {"context": name or None, **shown, "keeps_password": one.password is not None, "current": is_current}


def _show(name: str, one: Context, is_current: bool, as_json: bool) -> None:
    row = _row(name, one, is_current)
    if as_json:
        print_json(row)
    else:
        print_facts((key.replace("_", " "), NOTHING if value is None else value) for key, value in row.items())
