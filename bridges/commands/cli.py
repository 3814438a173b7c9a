"""The command ``anabranch``."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from bridges.commands.failure import EXIT_USAGE, fail, show_json
from bridges.entry_points import entry_points
from bridges.extras import remedy
from bridges.version import version_line

_COMMANDS = {
    "serve": ("servers.serve", "Run a node."),
    "pd": ("servers.backend:pd", "Run a placement driver as a separate process."),
    "range-server": ("servers.backend:range_server", "Run a range server as a separate process."),
    "context": ("context", "Keep addresses and logins of nodes by name; choose the one to talk to."),
    "config": ("config", "Show every setting, its value and where it comes from."),
    "topic": ("topics.topic", "List, create, describe, alter and delete topics."),
    "transaction": ("topics.transaction", "List transactions; find and end those without a coordinator."),
    "connection": ("topics.connection", "List clients' connections at all nodes, and end one."),
    "group": ("topics.group", "Show consumer groups and their lag, and set their positions."),
    "acl": ("rights.acl", "Manage access rules."),
    "quota": ("rights.quota", "Manage quotas of users, clients and addresses."),
    "node": ("nodes.node", "Show a node's status, promises, users and jobs."),
    "cluster": ("nodes.cluster", "Show the nodes of a cluster, move slots, drain nodes."),
    "user": ("rights.user", "Add, remove and list users, and change passwords."),
    "produce": ("topics.produce", "Append lines to a topic."),
    "status": ("nodes.node:status", "Show the state of a node and the work of each protocol."),
    "consume": ("topics.tail", "Print records of a topic, from anywhere, in any format; as tail."),
    "tail": ("topics.tail", "Print records of a topic."),
    "bench": ("topics.bench", "Measure appends and reads of a node."),
    "accept-data-loss": ("servers.accept_data_loss", "Accept the loss of damaged data, so that a node can start."),
    "backup": ("servers.backup:backup", "Copy the data directory of a node, which may serve meanwhile."),
    "restore": ("servers.backup:restore", "Make a data directory of a backup."),
    "api": ("api", "Send a request to the node's JSON interface."),
    "top": ("nodes.top", "Show a node's activity, refreshed in place."),
    "doctor": ("nodes.doctor", "Check this installation and suggest remedies."),
    "completion": ("completion", "Print the script that completes this command in a shell."),
    "version": ("version", "Print the version."),
}
"""By command name: a module in bridges/commands with its click command (default: ``command``), and its help."""

ENTRY_POINTS = "anabranch.commands"
"""The entry-point group of commands of other packages. Each entry names a click command, whose module should import
little: help imports it.
"""


class _Lazy(click.Group):
    """A group that imports a command's module on use: the start of a node should not pay for the other commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *sorted({entry.name for entry in entry_points(ENTRY_POINTS)})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return self._installed(cmd_name)
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"bridges.commands.{module}"), name or "command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        words = [*ctx.args]
        try:
            try:
                return super().invoke(ctx)
            except ImportError as error:
                if (install := remedy(error)) is None:
                    raise
                fail(f"this needs the Python package {error.name}: {install}", EXIT_USAGE)
        except click.ClickException as error:
            if "--json" not in words:
                raise
            show_json(error)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            # Whoever reads the output has enough, as head does: click would make it a failure.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)

    @staticmethod
    def _installed(name: str) -> click.Command | None:
        for entry in entry_points(ENTRY_POINTS):
            if entry.name == name:
                command: click.Command = entry.load()
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = ((name, self._installed(name)) for name in self.list_commands(ctx) if name not in _COMMANDS)
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    *((name, text) for name, (_, text) in _COMMANDS.items()),
                    *((name, found.short_help or "") for name, found in others if found),
                ]
            )


def _print_version(ctx: click.Context, option: click.Parameter, given: bool) -> None:
    if given:
        click.echo(version_line())
        ctx.exit()


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def main() -> None:
    """One durable log, reached through the streaming protocols a team already uses."""


if __name__ == "__main__":
    main(prog_name="anabranch")
