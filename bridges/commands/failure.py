"""The one way in which commands fail: a sentence on standard error, or with ``--json`` an object, and an exit code.

Exit codes: 0 done; 1 the node refused or the operation failed; 2 wrong usage or settings; 3 no node answers at the
address; 4 the data directory cannot be used, or an address is taken; 5 the node had to stop because of a failure;
6 its event loop stood still.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import IO, Any, NoReturn

import click

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_CANNOT_START = 4
EXIT_NODE_FAILED = 5
EXIT_STALLED = 6


class Failed(click.ClickException):
    """The end of a command: a sentence, its exit code, and fields that are only in the JSON of the error."""

    def __init__(self, message: str, code: int = EXIT_FAILED, **extra: object) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click reads it of the instance as well
        self.extra = extra

    def show(self, file: IO[Any] | None = None) -> None:
        say(f"anabranch: {self.message}")


def say(text: str) -> None:
    """Print on standard error: the exit code must be right even if that is a file on a full disk."""
    with suppress(OSError):
        click.echo(text, err=True)


def show_json(error: click.ClickException) -> None:
    """Print an error as JSON on standard error."""
    say(json.dumps({"error": error.format_message(), **getattr(error, "extra", {})}, ensure_ascii=False))


def fail(message: str, code: int = EXIT_FAILED, **extra: object) -> NoReturn:
    """End the command."""
    raise Failed(message, code, **extra)
