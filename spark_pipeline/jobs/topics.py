"""Topics of a job, by name or by pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spark_pipeline.core.errors import OptionError, UnknownTopic
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import Endpoint


def matching(source: Endpoint, topics: Sequence[str]) -> list[TopicPartition]:
    """The partitions, in order, of every topic that is called as one of ``topics``, or matches it as a regular
    expression does that has to match the whole name; internal topics are found by name alone.

    Raises UnknownTopic for one that finds nothing, and OptionError for one that is neither.
    """
    known = source.topics()
    found: set[TopicPartition] = set()
    for wanted in topics:
        names = [wanted] if wanted in known else []
        if not names:
            try:
                pattern = re.compile(wanted)
            except re.error as error:
                raise OptionError(f"{wanted!r} is no topic, and no pattern: {error}") from error
            names = [name for name, one in known.items() if pattern.fullmatch(name) and not one.internal]
        if not names:
            raise UnknownTopic(f"no topic is called {wanted!r}, nor matches it")
        found.update(TopicPartition(name, number) for name in names for number in known[name].partitions)
    return sorted(found)
