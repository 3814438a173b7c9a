"""``anabranch archive``: run, status, compact, expire, verify."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from spark_pipeline.core.errors import FoundDifferences
from spark_pipeline.jobs.command_options import (
    Moment,
    Size,
    engine_options,
    failures,
    interruptible,
    job,
    job_options,
    read_side_options,
    report_option,
    reported,
    side_options,
    tell,
    throttle_option,
    topics_option,
)

if TYPE_CHECKING:
    from spark_pipeline.jobs.archive.run import Told


@click.group("archive", short_help="Copy topics to Parquet, Delta or Iceberg tables, and check the copy.")
def command() -> None:
    """Copy topics to tables in files, each record exactly once, and keep and check the copy.

    An archive is a directory or s3://bucket/prefix; S3's address and credentials come from AWS's usual environment
    variables.
    """


@command.command("run")
@click.option("--from", "url", required=True, metavar="URL", help="Node to archive: anabranch://host:8090.")
@click.option("--to", "place", required=True, metavar="PLACE", help="Archive: a directory or s3://bucket/prefix.")
@topics_option
@click.option("--table", type=click.Choice(["delta", "iceberg"]), default="delta", show_default=True)
@click.option("--partition-by", type=click.Choice(["day", "hour", "none"]), default="day", show_default=True)
@click.option(
    "--catalog", default="", metavar="URI", help="Iceberg catalog: sqlite:////path, or the name of a pyiceberg catalog."
)
@click.option("--name", default="anabranch.records", show_default=True, help="Name of the Iceberg table.")
@click.option(
    "--begin", default="earliest", show_default=True, help="Start of new partitions: earliest, latest or a time."
)
@click.option("--follow", is_flag=True, help="Archive new records until interrupted.")
@click.option(
    "--step-offsets",
    type=click.IntRange(1),
    default=4_000_000,
    show_default=True,
    help="Approximate number of offsets per commit.",
)
@click.option(
    "--step-seconds", type=float, default=60.0, show_default=True, help="Seconds between commits with --follow."
)
@click.option("--piece-offsets", type=click.IntRange(1), default=1_000_000, help="Maximum number of offsets per task.")
@click.option("--file-bytes", type=Size(), default="128MiB", show_default=True, help="Approximate size of a file.")
@throttle_option
@click.option("--allow-loss", is_flag=True, help="Continue even if the log was trimmed before it was archived.")
@click.option("--dry-run", is_flag=True, help="Show what would be archived, and change nothing.")
@job_options
def run(url: str, place: str, topics: tuple[str, ...], **given: Any) -> None:
    """Archive committed records that are not archived yet; with --follow, until interrupted."""
    with job(given) as (engine, meter):
        from spark_pipeline.core.ranges import Patience
        from spark_pipeline.jobs.archive.run import ArchiveRun
        from spark_pipeline.lake.archive import Description

        stop = Event()
        begin = given["begin"]
        if begin not in {"earliest", "latest"}:
            begin = str(round(Moment().convert(begin, None, None).timestamp() * 1000))

        def on_step(told: Told) -> None:
            done = sum(told.after[part] - told.before[part] for part in told.after)
            meter.set_progress(done, done + told.left)

        archiving = ArchiveRun(
            url,
            read_side_options(**given).source,
            place,
            topics,
            Description(given["table"], given["partition_by"], None, given["catalog"], given["name"]),
            engine,
            begin,
            given["step_offsets"],
            given["piece_offsets"],
            given["file_bytes"],
            given["throttle"],
            given["allow_loss"],
            stop,
            on_step,
        )
        if given["dry_run"]:
            tell(archiving.plan(), given["report"])
            return
        with (
            interruptible(stop),  # a step that has begun is finished
            reported(url, archiving.options, "archive", f"{', '.join(topics)} to {place}", meter.progress),
        ):
            if given["follow"]:
                told = archiving.follow(Patience(given["step_offsets"], int(given["step_seconds"] * 1000)))
            else:
                told = archiving.available_now()
        tell({"archive": place, "from": url, **told.as_json()}, given["report"])


@command.command("status")
@click.argument("place")
@click.option("--from", "url", metavar="URL", help="Node to compare with: show how far the archive lags behind it.")
@side_options
@report_option
def status(place: str, url: str | None, report: Path | None, **given: Any) -> None:
    """Show the archive's content and progress."""
    from spark_pipeline.endpoints.base import endpoint
    from spark_pipeline.jobs.archive import upkeep as archive_upkeep
    from spark_pipeline.lake.archive import Archive

    with failures(), ExitStack() as stack:
        source = None if url is None else stack.enter_context(closing(endpoint(url, read_side_options(**given).source)))
        tell(archive_upkeep.status(Archive.open(place), source), report)


@command.command("compact")
@click.argument("place")
@click.option("--file-bytes", type=Size(), default="128MiB", show_default=True, help="Target size of a file.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@engine_options
@report_option
def compact(place: str, file_bytes: int, dry_run: bool, report: Path | None, **given: Any) -> None:
    """Merge many small files into few large ones; archiving may go on meanwhile."""
    with job(given, "groups of files") as (engine, meter):
        from spark_pipeline.jobs.archive import upkeep as archive_upkeep
        from spark_pipeline.lake.archive import Archive

        archive = Archive.open(place)
        if not dry_run:
            archive.make_tables()
        total = len(archive_upkeep.plan(archive, file_bytes))
        done = archive_upkeep.compact(
            archive, engine, file_bytes, dry_run=dry_run, on_group=lambda now: meter.set_progress(now.groups, total)
        )
        tell({"archive": place, "dry_run": dry_run, **asdict(done)}, report)


@command.command("expire")
@click.argument("place")
@click.option("--before", type=Moment(), help="Remove records older than this: a time, or an age such as 90d.")
@click.option(
    "--vacuum", type=Moment(), help="Delete files that no table has needed since this time, or for an age such as 7d."
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@report_option
def expire(place: str, before: datetime | None, vacuum: datetime | None, dry_run: bool, report: Path | None) -> None:
    """Remove old records (whole time partitions), and delete files that no table needs any more."""
    from spark_pipeline.jobs.archive import upkeep as archive_upkeep
    from spark_pipeline.lake.archive import Archive

    if before is None and vacuum is None:
        raise click.UsageError("give --before, --vacuum, or both")
    with failures():
        done = archive_upkeep.expire(Archive.open(place), before=before, vacuum_before=vacuum, dry_run=dry_run)
    tell({"archive": place, "dry_run": dry_run, **asdict(done)}, report)


@command.command("verify")
@click.argument("place")
@click.option("--from", "url", required=True, metavar="URL", help="Node that was archived: anabranch://host:8090.")
@click.option("--topics", multiple=True, metavar="NAME", help="Topics to verify (default: all in the archive).")
@click.option("--level", type=click.IntRange(0, 3), default=3, show_default=True)
@job_options
def verify(
    place: str,
    url: str,
    topics: tuple[str, ...],
    level: int,
    report: Path | None,
    **given: Any,
) -> None:
    """Compare the archive with the log, record by record: exit code 2 if anything is missing, doubled or different.

    Values that an earlier version decoded are only checked for presence; keys, headers and times are compared in full.
    """
    with job(given) as (engine, meter):
        from spark_pipeline.jobs.archive.verify import verify as compare

        given_options = read_side_options(**given).source
        with reported(url, given_options, "audit", f"verify {place}", meter.progress):
            found = compare(place, url, given_options, topics, level, engine, meter.set_progress)
            tell(found, report)
            if not found["equal"]:
                raise FoundDifferences(f"{place} is not what {url} has: the report of the command says where")
