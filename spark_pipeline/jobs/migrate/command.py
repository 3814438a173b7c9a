"""``anabranch migrate``: from Kafka clusters, YDB databases and Pravega scopes, with unchanged offsets and positions.

Reports are JSON on standard output (of ``plan`` a table, unless with ``--json``), progress goes to standard error. Exit
codes: 0 done, 2 both sides differ, 1 failed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bridges.commands.common import json_option
from spark_pipeline.jobs.command_options import (
    engine_options,
    errors_as_json,
    failures,
    interruptible,
    printed_submit,
    read_side_options,
    reported,
    side_options,
    tell,
    throttle_option,
)

if TYPE_CHECKING:
    from spark_pipeline.endpoints.importer import Importer
    from spark_pipeline.endpoints.migration import MigrationSource
    from spark_pipeline.jobs.migrate.copying import Route
    from spark_pipeline.jobs.migrate.run import Runner
    from spark_pipeline.jobs.migrate.state import MigrationState
    from spark_pipeline.jobs.progress import Meter

F = TypeVar("F", bound=Callable[..., Any])


def _quiet_option(function: F) -> F:
    return click.option("--quiet", is_flag=True, help="Show no progress on standard error.")(function)


def _copying_options(function: F) -> F:
    """Add the options of copying: engine, rate, progress."""
    return _quiet_option(throttle_option(engine_options(function, 4)))


def _plan_argument(function: F) -> F:
    """Add the argument for the plan's file."""
    return click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))(
        errors_as_json(function)
    )


@click.group("migrate", short_help="Migrate topics from Kafka, YDB or Pravega.")
def command() -> None:
    """Migrate topics from a Kafka cluster, a YDB database or a Pravega scope: plan, run, verify, cut over."""


@command.command("plan")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="URL",
    help="Source: kafka://HOST:9092, ydb://HOST:2136/DATABASE or pravega://HOST:9090/SCOPE.",
)
@click.option(
    "--to", "target", required=True, metavar="anabranch://HOST:PORT", help="Pipeline listener of the target node."
)
@click.option(
    "--topics", multiple=True, default=(".*",), metavar="REGEX", help="Topics to copy: patterns that match whole names."
)
@click.option("--exclude", multiple=True, metavar="REGEX", help="Topics to exclude: patterns that match whole names.")
@click.option("--name", "migration", help="Name of the migration (default: generated).")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the plan; it must not exist.",
)
@side_options
@json_option
def plan_(
    source: str,
    target: str,
    topics: tuple[str, ...],
    exclude: tuple[str, ...],
    migration: str | None,
    output: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a plan, and show it: what is carried, what is other at the target, and what is left.

    The other commands take the options of both sides from here, so they need not be repeated; passwords are stored only
    where you have put them.
    """
    from spark_pipeline.jobs.migrate import shown
    from spark_pipeline.jobs.migrate.options import remember_options
    from spark_pipeline.jobs.migrate.planning import make_plan

    sides = read_side_options(**options)
    with _told_failures():
        name = migration or f"migration-{uuid.uuid4().hex[:8]}"
        made = make_plan(source, sides.source, target, topics, exclude, name, sides.target)
        made.save(output)
        remember_options(output, **options)
    if as_json:
        tell({"plan": str(output), **shown.as_json(made)})
    else:
        shown.show(made, str(output))


@command.command("run")
@_plan_argument
@click.option("--follow", is_flag=True, help="Copy new records until interrupted.")
@click.option("--dry-run", is_flag=True, help="Show what would be copied, and change nothing.")
@_copying_options
@side_options
def run(plan: Path, follow: bool, dry_run: bool, **options: Any) -> None:
    """Copy the records of the plan that the target does not have."""
    _run(plan, follow=follow, dry=dry_run, **options)


@command.command("resume")
@_plan_argument
@click.option("--follow", is_flag=True, help="Copy new records until interrupted.")
@_copying_options
@side_options
def resume(plan: Path, follow: bool, **options: Any) -> None:
    """Resume an interrupted run: the same as run, which knows what is already copied."""
    _run(plan, follow=follow, dry=False, **options)


def _run(plan: Path, *, follow: bool, dry: bool, **options: Any) -> None:
    from spark_pipeline.core.ranges import to_json
    from spark_pipeline.jobs.migrate.run import dry_run

    printed_submit(options)
    with _working(plan, options, exclusive=not dry) as (state, route):
        if dry:
            tell(dry_run(state.plan, state))
            return
        with interruptible() as stopped, _runner(state, route, options, stopped) as (runner, progress):
            runner.take()
            before = state.receipts.bytes
            progress.step = "following" if follow else "copying"
            with _ticking(progress, options), _told_to_node(route, state, progress):
                done = runner.run(follow=follow, stopped=stopped)
            content = {
                "migration": state.plan.migration,
                "bytes_copied": state.receipts.bytes - before,
                "lag": done.lag,
                "interrupted": stopped(),
                "ends": to_json(runner.ends),
                **progress.facts(),
            }
            state.report("run", content)
            state.step_done("run", lag=done.lag)
            tell(content)


@command.command("status")
@_plan_argument
@side_options
def status(plan: Path, **options: Any) -> None:
    """Show the progress of the migration: copied bytes, lag, completed steps."""
    from spark_pipeline.core.errors import Fenced, UnknownTopic

    with _working(plan, options, exclusive=False) as (state, route):
        with _opened(route) as (source, target):
            positions = source.positions(state.plan.partitions)
            topics: dict[str, Any] = {}
            for topic in state.plan.topics:
                try:
                    there = target.state(topic.name)
                except (UnknownTopic, Fenced):
                    topics[topic.name] = {"state": "not begun"}
                    continue
                over = there.handed_over_ms is not None
                lag = there.lag(positions)
                topics[topic.name] = {"state": "handed over" if over else "importing", "lag": lag}
        tell(
            {
                "migration": state.plan.migration,
                "receipts": len(state.receipts.all),
                "bytes_copied": state.receipts.bytes,
                "topics": topics,
                "lag": sum(one.get("lag", 0) for one in topics.values()),
                "steps": state.steps,
            }
        )


@command.command("verify")
@_plan_argument
@click.option(
    "--level",
    type=click.IntRange(0, 2),
    default=2,
    show_default=True,
    help="Depth of the comparison: 0 ranges, 1 batches, 2 records.",
)
@click.option(
    "--parallel", type=click.IntRange(1, 256), default=2, show_default=True, help="Partitions compared at once."
)
@_quiet_option
@side_options
def verify(plan: Path, level: int, parallel: int, **options: Any) -> None:
    """Compare the copy with the source, and show the first offset that differs."""
    from spark_pipeline.core.errors import FoundDifferences
    from spark_pipeline.jobs.migrate.verify import Verifier
    from spark_pipeline.jobs.progress import Meter

    with _working(plan, options, exclusive=False) as (state, route):
        progress = Meter()
        progress.step = f"verifying, level {level}"
        with _ticking(progress, options), _told_to_node(route, state, progress):
            content = Verifier(state.plan, route, level, parallel, progress).run()
            state.report("verify", content)
            tell(content)
            if content["differences"]:
                raise FoundDifferences(f"{len(content['differences'])} differences: the report says where they begin")


@command.command("sync-groups")
@_plan_argument
@side_options
def sync_groups_(plan: Path, **options: Any) -> None:
    """Copy the groups' positions from the source."""
    from spark_pipeline.jobs.migrate.settings import sync_groups

    with _working(plan, options, exclusive=False) as (state, route):
        with _opened(route) as (source, target):
            content = sync_groups(state.plan, source, target)
        state.report("groups", content)
        tell(content)


@command.command("cutover")
@_plan_argument
@click.option("--dry-run", is_flag=True, help="Check whether the cut-over could start, and change nothing.")
@click.option(
    "--max-lag",
    type=click.IntRange(0),
    default=100_000,
    show_default=True,
    help="Maximum number of missing offsets at the start.",
)
@click.option("--fence", metavar="COMMAND", help="Command that closes the source to writers; it must exit with 0.")
@click.option(
    "--silence",
    type=float,
    default=10.0,
    show_default=True,
    help="Seconds without a write at the source that count as drained.",
)
@click.option("--drain", type=float, default=300.0, show_default=True, help="Maximum seconds to wait for --silence.")
@click.option(
    "--level",
    type=click.IntRange(0, 2),
    default=2,
    show_default=True,
    help="Level of the final verification: 0 ranges, 1 batches, 2 records.",
)
@click.option(
    "--abort-open-transactions", is_flag=True, help="Abort transactions at the target that the source never ended."
)
@_copying_options
@side_options
def cutover(
    plan: Path,
    dry_run: bool,
    max_lag: int,
    fence: str | None,
    silence: float,
    drain: float,
    level: int,
    abort_open_transactions: bool,
    **options: Any,
) -> None:
    """Cut over: fence, drain, verify, copy groups' positions, hand the topics over. Then clients write here."""
    from spark_pipeline.jobs.migrate.cutover import Cutover, CutoverOptions

    printed_submit(options)
    wanted = CutoverOptions(max_lag, fence, silence, drain, level, options["parallel"], abort_open_transactions)
    with (
        _working(plan, options) as (state, route),
        interruptible() as stopped,
        _runner(state, route, options, stopped) as (runner, progress),
        ExitStack() as stack,
    ):

        def step(words: str) -> None:
            progress.step = f"cut-over: {words}"
            if not options["quiet"]:
                click.echo(words, err=True)

        if not dry_run:
            stack.enter_context(_told_to_node(route, state, progress))
        content = Cutover(state, route, runner, wanted, step).run(dry=dry_run)
        if not dry_run:
            state.report("report", content)
        tell(content)


@command.command("abort")
@_plan_argument
@click.option("--delete", "delete", flag_value=True, type=bool, help="Delete the copied topics.")
@click.option(
    "--leave", "delete", flag_value=False, type=bool, help="Keep the copied topics, and open them to writers."
)
@side_options
def abort(plan: Path, delete: bool | None, **options: Any) -> None:
    """Abandon the migration. Topics that were handed over stay."""
    from spark_pipeline.endpoints.importer import Importer

    if delete is None:
        raise click.UsageError("give --delete or --leave")
    with _working(plan, options) as (state, route):
        with closing(Importer(route.target, route.target_options, route.migration)) as target:
            done = target.abort([topic.name for topic in state.plan.topics], delete=delete)
        state.step_done("abort", deleted=delete, topics=done)
        tell({"migration": state.plan.migration, "deleted" if delete else "left": done})


# --- what they share ------------------------------------------------------------------------------------------------


@contextmanager
def _told_failures() -> Iterator[None]:
    """End the command as :func:`failures` does, after the report about differences, if that is the failure."""
    from spark_pipeline.jobs.migrate.cutover import Differs

    with failures():
        try:
            yield
        except Differs as error:
            tell(error.content)
            raise


@contextmanager
def _working(plan: Path, options: dict[str, Any], *, exclusive: bool = True) -> Iterator[tuple[MigrationState, Route]]:
    """Open the state of a plan, and make its route from the options of both sides."""
    from spark_pipeline.jobs.migrate.copying import Route
    from spark_pipeline.jobs.migrate.options import recall_options
    from spark_pipeline.jobs.migrate.state import MigrationState
    from spark_pipeline.jobs.migrate.terms import TARGET_YDB

    with _told_failures(), MigrationState(plan, exclusive=exclusive) as state:
        sides = read_side_options(**recall_options(plan, options))
        made = state.plan
        target = dict(sides.target)
        ydb = target.pop(TARGET_YDB, "")
        yield state, Route(made.digest, made.migration, made.source, made.target, sides.source, target, ydb)


@contextmanager
def _opened(route: Route) -> Iterator[tuple[MigrationSource, Importer]]:
    """Open both sides, until the block ends."""
    from spark_pipeline.endpoints.importer import Importer
    from spark_pipeline.endpoints.migration import migration_source

    with (
        closing(migration_source(route.source, route.source_options)) as source,
        closing(Importer(route.target, route.target_options, route.migration)) as target,
    ):
        yield source, target


@contextmanager
def _runner(
    state: MigrationState, route: Route, options: dict[str, Any], stopped: Callable[[], bool]
) -> Iterator[tuple[Runner, Meter]]:
    from bridges.node.process.memory import keep_buffers
    from spark_pipeline.jobs.engine import open_engine
    from spark_pipeline.jobs.migrate.copying import Copying
    from spark_pipeline.jobs.migrate.run import Runner
    from spark_pipeline.jobs.progress import Meter

    keep_buffers()  # fetches are large: without this each would pay for freshly zeroed pages
    progress = Meter()
    engine = open_engine(options["engine"], options["parallel"], options["master"])
    copying = Copying(engine, options["parallel"], options["throttle"], progress, stopped)
    with closing(Runner(state, route, copying, progress)) as runner:
        yield runner, progress


def _told_to_node(route: Route, state: MigrationState, progress: Meter) -> AbstractContextManager[None]:
    """Report to the target's console, where a migration is one job. While another process copies, only that reports,
    with the verdict of the last verification."""
    if state.is_busy:
        return nullcontext()
    name = f"{route.migration}: {len(state.plan.topics)} topics from {route.source}"
    told = state.with_verdict(progress.progress)
    return reported(route.target, route.target_options, "migrate", name, told, route.migration)


def _ticking(progress: Meter, options: dict[str, Any]) -> AbstractContextManager[None]:
    from spark_pipeline.jobs.progress import show_progress

    return show_progress(progress.line, quiet=options["quiet"])
