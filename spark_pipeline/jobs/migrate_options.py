"""What the commands of a migration share: options, how secrets are given, how they end and what they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

DIFFERENCES = 2
"""Exit code: it ran, and both sides are not the same."""
FAILED = 1

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Given:
    """Options of both sides, which may be secret and are kept nowhere."""

    source: Mapping[str, str]
    target: Mapping[str, str]


def side_options(function: F) -> F:
    """Options of the source's and the target's endpoints."""
    for decorate in (
        click.option(
            "--options",
            "options_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help='JSON file {"source": {...}, "target": {...}}: what should not stand on a command line.',
        ),
        click.option("--target-option", multiple=True, metavar="KEY=VALUE", help="Of the target, such as user."),
        click.option(
            "--source-option", multiple=True, metavar="KEY=VALUE", help="Of the source, such as kafka.sasl.mechanism."
        ),
    ):
        function = decorate(function)
    return function


def engine_options(function: F) -> F:
    """How it is carried out."""
    for decorate in (
        click.option("--quiet", is_flag=True, help="No progress on standard error."),
        click.option("--print-submit", is_flag=True, help="Print the spark-submit line and do nothing."),
        click.option("--master", help="Spark's master, such as local[*] or spark://host:7077 (--engine spark)."),
        click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True),
        click.option("--throttle", metavar="RATE", help="Most bytes a second, as in 200MB/s."),
        click.option(
            "--parallel", type=click.IntRange(1, 256), default=4, show_default=True, help="Partitions copied at once."
        ),
    ):
        function = decorate(function)
    return function


def plan_argument(function: F) -> F:
    """The plan's file."""
    return click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))(function)


def given(options_file: Path | None, source_option: tuple[str, ...], target_option: tuple[str, ...]) -> Given:
    """What was given for both sides. Raises click.UsageError."""
    content: dict[str, dict[str, str]] = {}
    if options_file is not None:
        try:
            content = json.loads(options_file.read_text())
            if not all(isinstance(one, dict) for one in content.values()) or content.keys() - {"source", "target"}:
                raise ValueError("it has something else than source and target")
        except (ValueError, AttributeError) as error:
            raise click.UsageError(f"{options_file}: {error}") from None
    return Given(
        {**content.get("source", {}), **_pairs(source_option, "--source-option")},
        {**content.get("target", {}), **_pairs(target_option, "--target-option")},
    )


def _pairs(given: tuple[str, ...], what: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{what} {one!r} is not KEY=VALUE")
        found[key] = value
    return found


def print_report(content: Mapping[str, Any]) -> None:
    """The report, on standard output."""
    json.dump(content, sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")


@contextmanager
def told_failures() -> Iterator[None]:
    """End with a report and an exit code instead of a traceback, for what the pipeline raises on purpose."""
    from spark_pipeline.core.errors import PipelineError
    from spark_pipeline.jobs.migrate_cutover import Differs

    try:
        yield
    except Differs as error:
        print_report({"error": str(error), "kind": "Differs", **error.content})
        raise SystemExit(DIFFERENCES) from None
    except PipelineError as error:
        print_report({"error": str(error), "kind": type(error).__name__})
        raise SystemExit(FAILED) from None
