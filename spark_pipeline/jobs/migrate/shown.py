"""A plan as people read it: what is carried, what is other at the target, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from bridges.commands.common import NOTHING, escape, print_facts, print_table
from spark_pipeline.jobs.migrate.plan import NotCarried, Plan


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan for programs."""
    return {
        "sha256": plan.digest,
        "migration": plan.migration,
        "topics": {topic.name: len(topic.partitions) for topic in plan.topics},
        "offsets": plan.offsets,
        "settings": {topic.name: dict(topic.config) for topic in plan.topics},
        "groups": list(plan.groups),
        "not_carried": [asdict(one) for one in plan.not_carried],
    }


def show(plan: Plan, path: str) -> None:
    """Print the plan, and the command that comes next."""
    print_facts(
        [
            ("migration", plan.migration),
            ("from", plan.source),
            ("to", plan.target),
            ("topics", f"{len(plan.topics)} with {len(plan.partitions)} partitions and {plan.offsets:,} offsets"),
            ("groups", ", ".join(map(escape, plan.groups)) or NOTHING),
        ]
    )
    click.echo("\nCarried, with their records, offsets and the positions of the groups:")
    print_table(
        ["TOPIC", "PARTITIONS", "OFFSETS", "SETTINGS"],
        (
            [
                escape(topic.name),
                len(topic.partitions),
                sum(one.end - one.start for one in topic.partitions),
                ", ".join(f"{key}={escape(value)}" for key, value in sorted(topic.config.items())) or NOTHING,
            ]
            for topic in plan.topics
        ),
    )
    _show_notes("Changed", [one for one in plan.not_carried if one.changed])
    _show_notes("Left", [one for one in plan.not_carried if not one.changed])
    click.echo(f"\nNothing was copied yet. Next: anabranch migrate run {path}")


def _show_notes(title: str, notes: Sequence[NotCarried]) -> None:
    if notes:
        click.echo(f"\n{title}:")
        print_table(["TOPIC", "WHAT", "WHY"], ([escape(one.topic), escape(one.what), one.why] for one in notes))
