"""What the commands of jobs share: options, engines, progress, reports, and how they end.

Exit codes: 0 done and nothing is different; 2 done, and there are differences; 1 the job failed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from spark_pipeline.core.errors import OptionError, PipelineError

if TYPE_CHECKING:
    from spark_pipeline.core.job_client import JobProgress
    from spark_pipeline.jobs.engine import Engine

F = TypeVar("F", bound=Callable[..., Any])

EXIT_FAILED = 1
EXIT_DIFFERENT = 2

_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}
_SUBMITTED_WITH = ("spark.python.unix.domain.socket.enabled=true", "spark.speculation=false")
"""Settings that what is submitted begins with: Spark's Java is there before our session is."""
_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Size(click.ParamType[int]):
    """A number of bytes: ``128MiB``, ``1.5GB``, ``4096``; with ``per_second``, also ``200MB/s``."""

    name = "size"

    def __init__(self, *, per_second: bool = False) -> None:
        self.per_second = per_second

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises click's error."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if self.per_second:
            text = text.removesuffix("/s")
        number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        try:
            size = float(number) * _UNITS[text[len(number) :].strip().upper()]
        except (ValueError, KeyError):
            self.fail(f"{value!r} is no size: 128MiB, 1.5GB, 4096", param, ctx)
        if not 1 <= size < 1 << 62:
            self.fail(f"{value!r} is no possible size", param, ctx)
        return int(size)


class Moment(click.ParamType[datetime]):
    """A time: ISO 8601 (UTC unless it says otherwise), milliseconds since 1970, or so long ago: ``30d``, ``12h``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Raises click's error."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            if text[-1:] in _SPANS and text[:-1].replace(".", "", 1).isdigit():
                return datetime.now(UTC) - timedelta(seconds=float(text[:-1]) * _SPANS[text[-1]])
            if text.isdigit() and len(text) > 8:
                return datetime.fromtimestamp(int(text) / 1000, UTC)
            moment = datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time: 2013-01-01T12:00:00Z, 1357041600000, or 30d ago", param, ctx)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def engine_options(function: F) -> F:
    """``--engine``, ``--parallel``, ``--master``, ``--print-submit``."""
    for option in (
        click.option("--print-submit", is_flag=True, help="Print the spark-submit line for this job, and do nothing."),
        click.option("--master", metavar="URL", help="Spark's master, for --engine spark (default: local[*])."),
        click.option(
            "--parallel", type=click.IntRange(1), default=2, show_default=True, help="Pieces at a time, locally."
        ),
        click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True),
    ):
        function = option(function)
    return function


def report_option(function: F) -> F:
    """``--report``."""
    return click.option(
        "--report",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write the report, which is JSON, here instead of to standard output.",
    )(function)


def source_options(function: F) -> F:
    """``--option``."""
    return click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Options of the endpoint.")(
        function
    )


def pairs(given: tuple[str, ...], name: str) -> dict[str, str]:
    """``KEY=VALUE`` arguments. Raises click's error."""
    found = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{one!r} is not KEY=VALUE", param_hint=name)
        found[key] = value
    return found


@contextmanager
def job(engine: str, parallel: int, master: str | None) -> Iterator[Engine]:
    """The engine of a command; what the job raises on purpose ends the command with a sentence."""
    from spark_pipeline.jobs.engine import open_engine

    opened = None
    try:
        opened = open_engine(engine, parallel, master)
        yield opened
    except (PipelineError, OSError) as error:
        failed(error)
    finally:
        if opened is not None:
            opened.close()


def failed(error: Exception) -> NoReturn:
    """End the command: the job could not be done."""
    click.echo(f"anabranch: {error}", err=True)
    raise SystemExit(EXIT_FAILED) from error


def tell(report: Mapping[str, Any], path: Path | None) -> None:
    """The report, to a file or to standard output."""
    text = json.dumps(report, ensure_ascii=False, indent=1)
    if path is None:
        click.echo(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")


def keep_standard_output() -> None:
    """From now on only reports go to standard output, and what a library writes there by its number goes to standard
    error: Pravega's client logs there. For as long as the process lives, since such libraries have threads."""
    out = sys.__stdout__
    if out is None or sys.stdout is not out:
        return  # there is none, or somebody else has taken its place
    out.flush()
    alone = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(alone, "w", encoding="utf-8")


def printed_submit(print_submit: bool, master: str | None) -> bool:
    """If it was asked for, print the line that runs this very command on Spark, and tell so."""
    if print_submit:
        from spark_pipeline.jobs import submit

        words = [one for one in sys.argv[1:] if one != "--print-submit"]
        if not any(one == "--engine" or one.startswith("--engine=") for one in words):
            words += ["--engine", "spark"]
        settings = [word for one in _SUBMITTED_WITH for word in ("--conf", one)]
        click.echo(shlex.join(["spark-submit", "--master", master or "local[*]", *settings, submit.__file__, *words]))
    return print_submit


@dataclass(slots=True)
class Meter:
    """Says on standard error how far a job is, how fast, and how long it will take; every few seconds, or on a
    terminal in one line. ``unit`` names what is counted."""

    unit: str = "offsets"
    every: float = 10.0
    _began: float = field(default_factory=time.monotonic)
    _said: float = 0.0
    _done: int = 0
    _total: int = 0

    def told(self, done: int, total: int) -> None:
        """``done`` of ``total``."""
        now = time.monotonic()
        self._done, self._total = done, total
        terminal = sys.stderr.isatty()
        if now - self._said < (0.2 if terminal else self.every) and done < total:
            return
        self._said = now
        rate = done / max(now - self._began, 1e-6)
        left = f", {timedelta(seconds=round((total - done) / rate))} left" if rate and done < total else ""
        text = f"{done:,} of {total:,} {self.unit}, {rate:,.0f}/s{left}"
        ending = "\n" if done >= total or not terminal else ""
        click.echo(("\r\x1b[K" if terminal else "") + text + ending, nl=False, err=True)

    def progress(self) -> JobProgress:
        """For the node's list of jobs."""
        from spark_pipeline.core.job_client import JobProgress

        done, total = self._done, self._total
        rate = done / max(time.monotonic() - self._began, 1e-6)
        left = (total - done) / rate if rate and total else None
        return JobProgress(done, total or None, self.unit, rate, left)


@contextmanager
def reported(
    url: str, options: Mapping[str, str], kind: str, name: str, progress: Callable[[], JobProgress], job_id: str = ""
) -> Iterator[None]:
    """Tell the node at ``url``, if it is one, how far the job is: its console lists it. Nothing depends on that.

    Jobs with the same ``job_id`` are one job that goes on. Raises OptionError.
    """
    if not url.startswith(("anabranch://", "anabranch+tls://")):
        yield
        return
    from spark_pipeline.core.job_client import JobReporter
    from spark_pipeline.core.node_client import NodeClient, NodeOptions

    try:
        client = NodeClient(NodeOptions.of(url, options))
    except ValueError as error:
        raise OptionError(str(error)) from error
    with JobReporter(client, kind, name, progress, job_id=job_id):
        yield
