"""Topics of a job, by name or by pattern."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from spark_pipeline.core.errors import OptionError, UnknownTopic
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import Endpoint


def matching(source: Endpoint, topics: Sequence[str], *, absent: set[str] | None = None) -> list[TopicPartition]:
    """The partitions, in order, of every topic that is called as one of ``topics``, or matches it as a regular
    expression does that has to match the whole name; internal topics are found by name alone.

    Raises UnknownTopic for one that finds nothing, unless it is to be added to ``absent``, and OptionError for one that
    is neither.
    """
    known = source.topics()
    found: set[TopicPartition] = set()
    for wanted in topics:
        names = named(wanted, known, (name for name, one in known.items() if not one.internal))
        if not names:
            if absent is None:
                raise unknown(wanted)
            absent.add(wanted)
        found.update(TopicPartition(name, number) for name in names for number in known[name].partitions)
    return sorted(found)


def named(wanted: str, names: Container[str], listed: Iterable[str]) -> list[str]:
    """Which of ``names`` is ``wanted``, or which of ``listed`` match it. Raises OptionError for what is no pattern."""
    if wanted in names:
        return [wanted]
    try:
        pattern = re.compile(wanted)
    except re.error as error:
        raise OptionError(f"{wanted!r} is no topic, and no pattern: {error}") from error
    return [name for name in listed if pattern.fullmatch(name)]


def unknown(wanted: str) -> UnknownTopic:
    """For a name, or a pattern, that finds nothing."""
    return UnknownTopic(f"no topic is called {wanted!r}, nor matches it")
