"""Makes the plan of a migration: the source's topics, their size, and what of them cannot be carried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from anabranch_kit.run.clock import now_ms
from bridges.catalog.topics.names import InvalidTopicName, check_topic_name
from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import TopicInfo
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.endpoints.migration import migration_source
from spark_pipeline.jobs.migrate.plan import NotCarried, Plan, PlannedPartition, PlannedTopic
from spark_pipeline.jobs.migrate.terms import terms_of
from spark_pipeline.jobs.topics import match_names


def make_plan(
    source_url: str,
    source_options: Mapping[str, str],
    target_url: str,
    topics: Sequence[str],
    exclude: Sequence[str],
    migration: str,
    target_options: Mapping[str, str] | None = None,
) -> Plan:
    """Make a plan from the source's topics and the target's defaults.

    ``topics`` and ``exclude`` are regular expressions that match whole names. Raises OptionError when nothing matches,
    or a name is invalid at the target; EndpointUnavailable.
    """
    terms = terms_of(source_url)
    given = target_options or {}
    with closing(Importer(target_url, given, migration)) as target:
        defaults = target.defaults()
    with closing(migration_source(source_url, source_options)) as source:
        found = source.topics()
        wanted = [found[name] for name in chosen(found, topics, exclude)]
        if not wanted:
            raise OptionError(f"no topic of {source_url} is called {' or '.join(topics)}")
        parts = [TopicPartition(topic.name, number) for topic in wanted for number in topic.partitions]
        positions = source.positions(parts)
        not_carried: list[NotCarried] = []
        planned: list[PlannedTopic] = []
        for topic in wanted:
            _check_name_and_partitions(topic)
            config, left = terms.topic(topic, given, defaults)
            not_carried += left
            planned.append(
                PlannedTopic(
                    topic.name,
                    config,
                    tuple(
                        PlannedPartition(number, at.start, at.stable, at.high_watermark)
                        for number in topic.partitions
                        if (at := positions[TopicPartition(topic.name, number)]) is not None
                    ),
                    topic.identity,
                )
            )
        names = {topic.name for topic in wanted}
        groups = source.group_positions()
        of_topics = sorted(group for group, at in groups.items() if any(part.topic in names for part in at))
        not_carried += terms.always(source, given)
    now = now_ms()
    return Plan(migration, source_url, target_url, now, tuple(planned), tuple(of_topics), tuple(not_carried))


def chosen(found: Mapping[str, TopicInfo], topics: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Return, sorted, the names of users' topics that match ``topics`` and not ``exclude``. Raises OptionError."""
    listed = [name for name, topic in found.items() if not topic.internal]

    wanted, unwanted = ({name for one in some for name in match_names(one, (), listed)} for some in (topics, exclude))
    return sorted(wanted - unwanted)


def _check_name_and_partitions(topic: TopicInfo) -> None:
    try:
        check_topic_name(topic.name)
    except InvalidTopicName as error:
        raise OptionError(f"topic {topic.name!r} cannot be carried: {error}") from error
    if topic.partitions != tuple(range(len(topic.partitions))):
        raise OptionError(f"topic {topic.name!r} has partitions {topic.partitions}, not 0 to {len(topic.partitions)}")
