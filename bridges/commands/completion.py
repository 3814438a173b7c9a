"""``anabranch completion``: the script with which a shell completes names of commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    For bash: anabranch completion bash > ~/.local/share/bash-completion/completions/anabranch
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, "anabranch", "_ANABRANCH_COMPLETE").source())
