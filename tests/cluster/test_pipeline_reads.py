"""The pipeline's endpoint at any node: partitions of all nodes, records from range servers or through the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from tests.cluster.load import PARTITIONS, PATIENCE, TOPIC, await_leaders
from tests.cluster.together import together
from tests.conftest import NodeFactory
from tests.node_process import ANY
from tests.postgres import Postgres
from tests.soak.deployments import addresses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTS = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
WRITTEN_MS = 1_700_000_000_000
RECORDS = ("before", "aborted", "committed")
"""Of each partition, a millisecond apart; markers lie between them and behind."""


@pytest.fixture(params=["workers", "workers, range servers closed", "nodes", "nodes, range servers closed"])
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, dict[str, str]]]:
    """Addresses of the processes by listener."""
    deployment, _, closed = request.param.partition(", ")
    listeners = ["kafka", "console", "pipeline", "sbp-range-server"] + ([] if closed else ["sbp-pd"])
    settings = {"listen.sbp-pd": "off"} if closed else {}
    if deployment == "workers":
        factory = NodeFactory(tmp_path)
        settings |= {"node.workers": "2", "node.worker_port_step": "0"}
        nodes = [factory(settings=settings, listen=dict.fromkeys(listeners, ANY))]
        yield {name: addresses(nodes, name) for name in ("kafka", "pipeline")}
        factory.dispose()
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    with together(tmp_path, 2, postgres.made(), listeners, lambda _: settings) as nodes:
        yield {name: addresses(nodes, name) for name in ("kafka", "pipeline")}


def write(bootstrap: str) -> None:
    """One record of each kind to each partition."""
    options: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": "writer"}
    producer = Producer(options)
    producer.init_transactions(PATIENCE)
    for number, value in enumerate(RECORDS):
        producer.begin_transaction()
        for part in PARTS:
            producer.produce(TOPIC, value, partition=part.partition, timestamp=WRITTEN_MS + number)
        producer.flush(PATIENCE)
        (producer.abort_transaction if value == "aborted" else producer.commit_transaction)(PATIENCE)


def test_every_node_leads_to_the_records_of_all_partitions(found: dict[str, dict[str, str]]) -> None:
    bootstrap = ",".join(found["kafka"].values())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    await_leaders(admin, set(admin.list_topics(timeout=PATIENCE).brokers))
    write(bootstrap)
    assert len(found["pipeline"]) == 2
    for address in found["pipeline"].values():
        reader = endpoint(f"anabranch://{address}", {"patienceMs": "20000"})
        positions = reader.positions(PARTS)
        assert {(one.start, one.stable) for one in positions.values()} == {(0, 6)}
        assert set(reader.find_timestamp(dict.fromkeys(PARTS, WRITTEN_MS + 1)).values()) == {2}
        for part in PARTS:
            batches = reader.read(OffsetRange(TOPIC, part.partition, 0, 6), Columns(("offset", "value")))
            rows = [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]
            assert rows == [(0, b"before"), (4, b"committed")]
        reader.close()
