"""The topics of a job, by name or by pattern."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from spark_pipeline.core.errors import OptionError, UnknownTopic
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import Endpoint


def matching(source: Endpoint, topics: Sequence[str], *, absent: set[str] | None = None) -> list[TopicPartition]:
    """Return, in order, the partitions of every topic that equals one of ``topics``, or matches it as a whole-name
    pattern.

    Internal topics are matched by name only. Entries that match nothing are added to ``absent``; without it raises
    UnknownTopic. Raises OptionError for an entry that is neither a name nor a pattern.
    """
    known = source.topics()
    found: set[TopicPartition] = set()
    for wanted in topics:
        names = match_names(wanted, known, (name for name, one in known.items() if not one.internal))
        if not names:
            if absent is None:
                raise unknown(wanted)
            absent.add(wanted)
        found.update(TopicPartition(name, number) for name in names for number in known[name].partitions)
    return sorted(found)


def match_names(wanted: str, names: Container[str], listed: Iterable[str]) -> list[str]:
    """Return ``wanted`` if it is in ``names``, else those of ``listed`` that match it. Raises OptionError."""
    if wanted in names:
        return [wanted]
    try:
        pattern = re.compile(wanted)
    except re.error as error:
        raise OptionError(f"{wanted!r} is no topic, and no pattern: {error}") from error
    return [name for name in listed if pattern.fullmatch(name)]


def unknown(wanted: str) -> UnknownTopic:
    """Return the error for a name or pattern that matches nothing."""
    return UnknownTopic(f"no topic is called {wanted!r}, nor matches it")
