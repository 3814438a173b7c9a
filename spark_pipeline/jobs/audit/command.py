"""``anabranch audit``: check, digest, diff, gaps, cross."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_pipeline.jobs.command_options import (
    EXIT_DIFFERENT,
    Given,
    Moment,
    job,
    job_options,
    read_side_options,
    tell,
    topics_option,
)

if TYPE_CHECKING:
    from spark_pipeline.jobs.audit.audit import Audit, Side

FIELDS = ("key", "value", "headers", "timestamp")


@click.group("audit", short_help="Check records for damage, and compare two systems.")
def command() -> None:
    """Check that a system's records are undamaged, and that two systems hold the same records.

    Systems are anabranch://host:8090, kafka://host:9092 and archive:///path. Exit code 0: nothing is wrong; 2:
    something is, and the report says where; 1: the audit could not be done.
    """


def _compared_options(function: Any) -> Any:
    function = click.option("--since", type=Moment(), help="Compare only records from this time on: a time, or 7d.")(
        function
    )
    return click.option(
        "--fields",
        default=",".join(FIELDS),
        show_default=True,
        help="Fields of a record to compare, separated by commas.",
    )(function)


def _fields(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or any(name not in FIELDS for name in names):
        raise click.BadParameter(f"{text!r}: some of {', '.join(FIELDS)}", param_hint="--fields")
    return names


@contextmanager
def _audit(given: dict[str, Any], fields: tuple[str, ...] = FIELDS) -> Iterator[tuple[Audit, Given]]:
    """Yield an audit by the options of a command, and the options of both sides."""
    since = given.get("since")
    with job(given) as (engine, meter):
        from spark_pipeline.jobs.audit.audit import Audit

        since_us = None if since is None else round(since.timestamp() * 1_000_000)
        yield Audit(engine, fields, since_us, meter.set_progress), read_side_options(**given)


def side_of(url: str, options: Mapping[str, str]) -> Side:
    """Return one system of an audit."""
    from spark_pipeline.jobs.audit.audit import Side

    return Side(url, options)


def _end(report: dict[str, Any], path: Path | None) -> None:
    tell(report, path)
    if not report.get("equal", True) or report.get("damaged"):
        raise SystemExit(EXIT_DIFFERENT)


@command.command("check")
@click.argument("url")
@topics_option
@click.option("--level", type=click.IntRange(0, 3), default=3, show_default=True)
@job_options
def check(url: str, topics: tuple[str, ...], level: int, **given: Any) -> None:
    """Check one system.

    Level 0: positions and numbers of records; 1: the checksum of every stored batch; 2: every record is read; 3: gaps,
    repeated offsets, order of offsets, numbers of producers.
    """
    with _audit(given) as (audit, sides):
        report = audit.whole(side_of(url, sides.source), topics, level)
    _end(report, given["report"])


@command.command("gaps")
@click.argument("url")
@topics_option
@job_options
def gaps(url: str, topics: tuple[str, ...], **given: Any) -> None:
    """Find offsets that have no record, come twice or are out of order: level 3 without checksums."""
    with _audit(given, ()) as (audit, sides):
        report = audit.whole(side_of(url, sides.source), topics, 3, checksums=False)
    _end(report, given["report"])


@command.command("digest")
@click.argument("url")
@topics_option
@_compared_options
@job_options
def digest(url: str, topics: tuple[str, ...], fields: str, **given: Any) -> None:
    """Make digests of all blocks of 65,536 offsets, for later comparisons: audit diff FILE URL."""
    with _audit(given, _fields(fields)) as (audit, sides):
        report = audit.digests(side_of(url, sides.source), topics)
    _end(report, given["report"])


@command.command("diff")
@click.argument("left")
@click.argument("right")
@click.option("--topics", multiple=True, metavar="NAME", help="Names of topics, or patterns that match whole names.")
@click.option("--level", type=click.IntRange(0, 3), default=2, show_default=True)
@click.option("--common", is_flag=True, help="Compare only the offsets that both sides have.")
@_compared_options
@job_options
def diff(left: str, right: str, topics: tuple[str, ...], level: int, common: bool, fields: str, **given: Any) -> None:
    """Compare two systems, or a system with digests in a file (LEFT), and find the first bad offset of each block."""
    with _audit(given, _fields(fields)) as (audit, sides):
        from spark_pipeline.core.errors import OptionError
        from spark_pipeline.jobs.audit.audit import against_digests

        if "://" not in left:
            report = against_digests(audit, side_of(right, {**sides.source, **sides.target}), Path(left), topics)
        else:
            if not topics:
                raise OptionError("--topics has to be given")
            report = audit.diff(
                side_of(left, sides.source), side_of(right, sides.target), topics, level, same_ends=not common
            )
    _end(report, given["report"])


@command.command("cross")
@click.argument("url")
@click.option("--topic", required=True, metavar="NAME", help="Name of the topic.")
@click.option("--kafka", default="", metavar="HOST:PORT", help="Address of the node's Kafka listener.")
@click.option(
    "--ydb", default="", metavar="HOST:PORT", help="Address of the node's YDB listener; needs the package ydb."
)
@click.option("--pravega", default="", metavar="HOST:PORT", help="Address of the node's Pravega controller.")
@job_options
def cross(url: str, topic: str, kafka: str, ydb: str, pravega: str, **given: Any) -> None:
    """Read a topic through every protocol of a node (level 4), and compare with the records of its range servers.

    Through Pravega's protocol only values are compared, since its events have nothing else. Committed positions are
    compared between the node's answer and Kafka's protocol.
    """
    with _audit(given) as (audit, sides):
        from spark_pipeline.core.errors import OptionError
        from spark_pipeline.jobs.audit.cross import Listeners
        from spark_pipeline.jobs.audit.cross import cross as compare

        if not (kafka or ydb or pravega):
            raise OptionError("give at least one of --kafka, --ydb, --pravega")
        report = compare(audit, side_of(url, sides.source), topic, Listeners(kafka, ydb, pravega))
    _end(report, given["report"])
