"""The shared parts of job commands: options, engines, progress, reports, exit codes.

Everybody on a machine can read its command lines: passwords belong into a file or the environment.
Exit codes: 0 done without differences; 2 done, with differences; 1 the job failed.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bridges.commands.failure import EXIT_FAILED, Failed
from bridges.node.settings.quantities import parse_duration, parse_size
from spark_pipeline.core.errors import FoundDifferences, PipelineError

if TYPE_CHECKING:
    from spark_pipeline.core.client.job_client import JobProgress
    from spark_pipeline.jobs.engine import Engine
    from spark_pipeline.jobs.progress import Meter

F = TypeVar("F", bound=Callable[..., Any])

EXIT_DIFFERENT = 2

_SUBMITTED_WITH = ("spark.python.unix.domain.socket.enabled=true", "spark.speculation=false")
"""Settings on the spark-submit line, because Spark's JVM starts before the job makes its session."""


class Size(click.ParamType[int]):
    """A number of bytes: ``128MiB``, ``1.5GB``, ``4096``; with ``per_second``, also ``200MB/s``."""

    name = "size"

    def __init__(self, *, per_second: bool = False) -> None:
        self.per_second = per_second

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises click's error."""
        text = str(value).strip()
        try:
            size = parse_size(text.removesuffix("/s") if self.per_second else text)
        except ValueError:
            self.fail(f"{value!r} is no size: 128MiB, 1.5GB, 4096", param, ctx)
        if not 1 <= size < 1 << 62:
            self.fail(f"{value!r} is no possible size", param, ctx)
        return size


class Moment(click.ParamType[datetime]):
    """A time: ISO 8601 (UTC unless it says otherwise), milliseconds since 1970, or an age: ``30d``, ``12h``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Raises click's error."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            if text[:1].isdigit() and text[-1:] in set("smhdw"):
                return datetime.now(UTC) - timedelta(milliseconds=parse_duration(text))
            if text.isdigit() and len(text) > 8:
                return datetime.fromtimestamp(int(text) / 1000, UTC)
            moment = datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time: 2013-01-01T12:00:00Z, 1357041600000, or 30d ago", param, ctx)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def engine_options(function: F, parallel: int = 2) -> F:
    """Add ``--engine``, ``--parallel``, ``--master``, ``--print-submit``."""
    for option in (
        click.option(
            "--print-submit", is_flag=True, help="Print the spark-submit line of this job, and do not run it."
        ),
        click.option("--master", metavar="URL", help="Spark master for --engine spark (default: local[*])."),
        click.option(
            "--parallel",
            type=click.IntRange(1, 256),
            default=parallel,
            show_default=True,
            help="Maximum number of pieces or partitions processed at once.",
        ),
        click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True),
    ):
        function = option(function)
    return function


def throttle_option(function: F) -> F:
    """Add ``--throttle``."""
    return click.option(
        "--throttle", type=Size(per_second=True), metavar="RATE", help="Maximum bytes per second, for example 200MB/s."
    )(function)


def report_option(function: F) -> F:
    """Add ``--report``, and ``--json``."""
    return click.option(
        "--report",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File for the JSON report (default: standard output).",
    )(errors_as_json(function))


def errors_as_json(function: F) -> F:
    """Add ``--json`` to a command whose output is JSON in any case."""
    return click.option("--json", is_flag=True, expose_value=False, help="Print errors as JSON, as the report is.")(
        function
    )


def topics_option(function: F) -> F:
    """Add ``--topics``."""
    return click.option(
        "--topics",
        multiple=True,
        required=True,
        metavar="NAME",
        help="Names of topics, or patterns that match whole names.",
    )(function)


def job_options(function: F) -> F:
    """Add the options of the systems, of the engine, and of the report."""
    return side_options(engine_options(report_option(function)))


@contextmanager
def job(given: Mapping[str, Any], unit: str = "offsets") -> Iterator[tuple[Engine, Meter]]:
    """Open the engine that a command's options name, and a meter of ``unit`` that is shown on standard error.

    A PipelineError ends the command with a sentence. With ``--print-submit`` the command prints the line and ends.
    """
    printed_submit(given)
    from spark_pipeline.jobs.engine import open_engine
    from spark_pipeline.jobs.progress import Meter, show_progress

    meter = Meter(unit)
    with (
        failures(),
        closing(open_engine(given["engine"], given["parallel"], given["master"])) as opened,
        show_progress(meter.line),
    ):
        yield opened, meter


@contextmanager
def failures() -> Iterator[None]:
    """End the command with a sentence, and the exit code of a PipelineError or OSError."""
    try:
        yield
    except (PipelineError, OSError) as error:
        code = EXIT_DIFFERENT if isinstance(error, FoundDifferences) else EXIT_FAILED
        raise Failed(str(error), code, kind=type(error).__name__) from error


def tell(report: Mapping[str, Any], path: Path | None = None) -> None:
    """Write the report to a file or to standard output."""
    text = json.dumps(report, ensure_ascii=False, indent=1, default=str)
    if path is None:
        click.echo(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")


@contextmanager
def interruptible(over: Event | None = None) -> Iterator[Callable[[], bool]]:
    """Let the first interruption set ``over``, for an end in order; the second has Python's own effect."""
    over = over or Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        over.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, stop)
    try:
        yield over.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def printed_submit(given: Mapping[str, Any]) -> None:
    """With ``--print-submit``, print the line that runs this command on Spark, and end."""
    if given["print_submit"]:
        from spark_pipeline.jobs import submit

        words = [one for one in sys.argv[1:] if one != "--print-submit"]
        if not any(one == "--engine" or one.startswith("--engine=") for one in words):
            words += ["--engine", "spark"]
        settings = [word for one in _SUBMITTED_WITH for word in ("--conf", one)]
        master = given["master"] or "local[*]"
        click.echo(shlex.join(["spark-submit", "--master", master, *settings, submit.__file__, *words]))
        raise SystemExit(0)


@contextmanager
def reported(
    url: str, options: Mapping[str, str], kind: str, name: str, progress: Callable[[], JobProgress], job_id: str = ""
) -> Iterator[None]:
    """Report the job's progress to the node at ``url``, if it is one, for its console. Nothing depends on the reports.

    Jobs with the same ``job_id`` are shown as one job that goes on. Raises OptionError.
    """
    if not url.startswith(("anabranch://", "anabranch+tls://")):
        yield
        return
    from spark_pipeline.core.client.job_client import JobReporter
    from spark_pipeline.core.client.node_client import NodeClient, NodeOptions

    with JobReporter(NodeClient(NodeOptions.parse(url, options)), kind, name, progress, job_id=job_id):
        yield


VARIABLES = {"source": "ANABRANCH_SOURCE_OPTIONS", "target": "ANABRANCH_TARGET_OPTIONS"}
"""Environment variables with a JSON object of options for each side; a file overrides them."""
_SECRET = ("password", "token", "secret", "jaas")


@dataclass(frozen=True, slots=True)
class Given:
    """The options of both sides, which may be secret and are stored nowhere."""

    source: Mapping[str, str]
    target: Mapping[str, str]


def side_options(function: F) -> F:
    """Add the options of the source's and the target's endpoints, which :func:`read_side_options` reads."""
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


def read_side_options(
    options_file: Path | None, source_option: tuple[str, ...], target_option: tuple[str, ...], **_: Any
) -> Given:
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
        elif is_secret(f"{name}={value}"):
            click.echo(
                f"anabranch: {name} on a command line can be read by everybody on this machine; there are"
                f" --options FILE, {name}=@FILE, {' and '.join(VARIABLES.values())}",
                err=True,
            )
    return found


def is_secret(word: str) -> bool:
    """Return whether a KEY=VALUE has a secret in clear text, and not the name of a file that has it."""
    name, _, value = word.partition("=")
    return not value.startswith("@") and any(one in name.lower() for one in _SECRET)


def pairs(words: tuple[str, ...], what: str) -> dict[str, str]:
    """Parse ``KEY=VALUE`` arguments. Raises click.UsageError."""
    found: dict[str, str] = {}
    for one in words:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{what} {one!r} is not KEY=VALUE")
        found[key] = value
    return found
