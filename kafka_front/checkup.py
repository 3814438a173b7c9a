"""The checks of ``anabranch doctor`` on the tables of the Kafka front."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bridges.node.finding import Finding, fine, warning
from kafka_front.service.transactions import tables
from kafka_front.settings import KafkaSettings

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.node.front import NodeFacts

_ABOUT = "transactional ids"


def transactional_ids(db: Connection, facts: NodeFacts) -> Iterator[Finding]:
    """Count the stored transactional ids, and warn if they come close to ``kafka.transactional_ids``."""
    count = tables.count(db)
    assert isinstance(facts.settings, KafkaSettings)
    most = facts.settings.transactional_ids
    if count < most * tables.MANY:
        yield fine(_ABOUT, f"there are {count}, and memory may have {most} (kafka.transactional_ids)")
        return
    yield warning(
        _ABOUT,
        f"there are {count}, and memory may have {most} (kafka.transactional_ids): those beyond are read when used",
        "have producers use names again, or forget some with 'anabranch transaction forget'",
    )
