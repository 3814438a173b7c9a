"""What the commands of a migration share: options, how they end and what they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from spark_pipeline.jobs.command_options import EXIT_DIFFERENT, EXIT_FAILED, engine_options, throttle_option

F = TypeVar("F", bound=Callable[..., Any])


def copying_options(function: F) -> F:
    """How it is carried out."""
    quiet = click.option("--quiet", is_flag=True, help="No progress on standard error.")
    return quiet(throttle_option(engine_options(function, 4)))


def plan_argument(function: F) -> F:
    """The plan's file."""
    return click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))(function)


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
        raise SystemExit(EXIT_DIFFERENT) from None
    except PipelineError as error:
        print_report({"error": str(error), "kind": type(error).__name__})
        raise SystemExit(EXIT_FAILED) from None
