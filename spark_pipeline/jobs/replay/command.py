"""``anabranch replay``: records of an archive back into topics."""

from __future__ import annotations

from typing import Any

import click

from spark_pipeline.jobs.command_options import (
    Moment,
    job,
    job_options,
    pairs,
    read_side_options,
    reported,
    tell,
    throttle_option,
    topics_option,
)


@click.command("replay", short_help="Copy records of an archive into topics, at their original offsets.")
@click.option(
    "--from", "source", required=True, metavar="URL", help="Archive: archive:///path or archive+s3://bucket/prefix."
)
@click.option("--to", "target", required=True, metavar="URL", help="Node to write to: anabranch://host:8090.")
@topics_option
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="New name of a topic; it must not exist.")
@click.option("--since", type=Moment(), help="Replay only records from this time on.")
@click.option("--until", type=Moment(), help="Replay only records before this time.")
@click.option("--from-offset", type=click.IntRange(0), help="First offset to replay, in every partition.")
@click.option("--to-offset", type=click.IntRange(0), help="Offset to stop before, in every partition.")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Configuration of the created topics. May be repeated.",
)
@click.option(
    "--codec", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="zstd", show_default=True
)
@click.option("--name", default="replay", show_default=True, help="Name of the replay. The same name resumes it.")
@click.option("--keep-closed", is_flag=True, help="Leave the topics read-only. A later run hands them over.")
@throttle_option
@click.option("--dry-run", is_flag=True, help="Show what would be replayed, and change nothing.")
@job_options
def command(source: str, target: str, topics: tuple[str, ...], **given: Any) -> None:
    """Replay records of an archive (or of another system) into topics that are created for it.

    Records keep their offsets and timestamps; an offset without a record is a gap. Until all records are there, nobody
    else can write to the topics.
    """
    with job(given) as (engine, meter):
        from spark_pipeline.jobs.replay.replay import Replay

        def micros(name: str) -> int | None:
            return None if given[name] is None else round(given[name].timestamp() * 1_000_000)

        sides = read_side_options(**given)
        replay = Replay(
            source,
            sides.source,
            target,
            sides.target,
            topics,
            engine,
            given["name"],
            pairs(given["rename"], "--rename"),
            (given["from_offset"], given["to_offset"]),
            micros("since"),
            micros("until"),
            given["codec"],
            pairs(given["configs"], "--config"),
            not given["keep_closed"],
            given["throttle"],
            given["parallel"],
            meter.set_progress,
        )
        if given["dry_run"]:
            tell(replay.plan(), given["report"])
            return
        with reported(target, replay.target_options, "replay", f"{', '.join(topics)} from {source}", meter.progress):
            report = replay.run()
        tell(report, given["report"])
