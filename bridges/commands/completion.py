"""``anabranch completion``: the script with which a shell completes names of commands, options, topics and groups."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from bridges.commands.failure import fail

_PLACES = {
    "bash": "bash-completion/completions/anabranch",
    "zsh": "zsh/site-functions/_anabranch",
    "fish": "fish/vendor_completions.d/anabranch.fish",
}
"""Where the shells look for scripts, below XDG_DATA_HOME; zsh only if the directory is in its fpath."""


@click.command("completion")
@click.argument("shell", type=click.Choice([*_PLACES]))
@click.option("--install", is_flag=True, help="Write the script to where the shell finds it, for you alone.")
@click.pass_context
def command(ctx: click.Context, shell: str, install: bool) -> None:
    """Print the completion script for SHELL. Names of topics and groups come from the node of the current context."""
    made = get_completion_class(shell)
    assert made is not None
    script = made(ctx.find_root().command, {}, "anabranch", "_ANABRANCH_COMPLETE").source()
    if not install:
        click.echo(script)
        return
    path = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / _PLACES[shell]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    click.echo(f"{path} is written; begin a new shell")
    if shell == "zsh":
        click.echo(f"~/.zshrc is to have, before compinit: fpath+=({path.parent})")
