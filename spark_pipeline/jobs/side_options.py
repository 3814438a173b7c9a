"""The options of the systems that a command reads and writes: from a file, the environment and the command line.

All commands read them here. Everybody on a machine can read its command lines: passwords belong into a file or the
environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

VARIABLES = {"source": "ANABRANCH_SOURCE_OPTIONS", "target": "ANABRANCH_TARGET_OPTIONS"}
"""Environment variables with a JSON object of options for each side; a file overrides them."""
_SECRET = ("password", "token", "secret", "jaas")


@dataclass(frozen=True, slots=True)
class Given:
    """The options of both sides, which may be secret and are stored nowhere."""

    source: Mapping[str, str]
    target: Mapping[str, str]


def side_options(function: F) -> F:
    """Add the options of the source's and the target's endpoints, which :func:`given` reads."""
    for decorate in (
        click.option(
            "--options",
            "options_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help='JSON file {"source": {...}, "target": {...}} for options that should not appear on a command line.',
        ),
        click.option(
            "--target-option",
            "--right-option",
            "target_option",
            multiple=True,
            metavar="KEY=VALUE",
            help="Option of the target, or of the right side, such as user.",
        ),
        click.option(
            "--source-option",
            "--option",
            "source_option",
            multiple=True,
            metavar="KEY=VALUE",
            help="Option of the source, or of the only system, such as kafka.sasl.mechanism. KEY=@FILE reads a file.",
        ),
    ):
        function = decorate(function)
    return function


def given(options_file: Path | None, source_option: tuple[str, ...], target_option: tuple[str, ...], **_: Any) -> Given:
    """Return the options of both sides; the command line overrides the file, and the file the environment.

    Raises click.UsageError.
    """
    content: Mapping[str, Any] = {}
    if options_file is not None:
        content = _object(options_file.read_text(encoding="utf-8"), str(options_file))
        if content.keys() - VARIABLES.keys():
            raise click.UsageError(f"{options_file} has something else than source and target")
    sides = {
        side: {
            **_options(_object(os.environ.get(variable, "{}"), variable), variable),
            **_options(content.get(side, {}), f"{options_file}: {side}"),
        }
        for side, variable in VARIABLES.items()
    }
    return Given(
        {**sides["source"], **_pairs(source_option, "--source-option")},
        {**sides["target"], **_pairs(target_option, "--target-option")},
    )


def _object(text: str, where: str) -> Mapping[str, Any]:
    try:
        told = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{where}: {error}") from None
    if not isinstance(told, dict):
        raise click.UsageError(f"{where} is no JSON object")
    return told


def _options(told: Any, where: str) -> dict[str, str]:
    if not isinstance(told, dict) or not all(isinstance(one, str | int | float | bool) for one in told.values()):
        raise click.UsageError(f"{where} is no JSON object of options")
    return {name: one if isinstance(one, str) else json.dumps(one) for name, one in told.items()}


def _pairs(words: tuple[str, ...], what: str) -> dict[str, str]:
    found = pairs(words, what)
    for name, value in found.items():
        if value.startswith("@"):
            try:
                found[name] = Path(value[1:]).read_text(encoding="utf-8").strip("\r\n")
            except (OSError, ValueError) as error:
                raise click.UsageError(f"{what} {name}: {error}") from None
        elif any(word in name.lower() for word in _SECRET):
            click.echo(
                f"anabranch: {name} on a command line can be read by everybody on this machine; there are"
                f" --options FILE, {name}=@FILE, {' and '.join(VARIABLES.values())}",
                err=True,
            )
    return found


def pairs(words: tuple[str, ...], what: str) -> dict[str, str]:
    """Parse ``KEY=VALUE`` arguments. Raises click.UsageError."""
    found: dict[str, str] = {}
    for one in words:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{what} {one!r} is not KEY=VALUE")
        found[key] = value
    return found
