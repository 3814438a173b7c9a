"""A topic is split under an open transaction while nodes come and go: all readers see it whole."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pravega_front.wire.controller import TxnState, TxnStatus
from tests.cluster.conftest import three
from tests.cluster.load import PARTITIONS, PATIENCE, TOPIC, await_leaders
from tests.node_process import NodeProcess
from tests.postgres import Postgres
from tests.pravega_front.test_transactions_over_scales import WHOLE, Stream, in_order
from tests.split_clients import (
    LISTENERS,
    LONG_MS,
    Readers,
    Transactional,
    add_consumers,
    controller_of,
    end,
    judge,
    made,
    plainly,
    split,
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    directory = tmp_path_factory.mktemp("split")
    with three(directory, postgres, LISTENERS) as found:
        admin = AdminClient({"bootstrap.servers": found[0].kafka})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
        await_leaders(admin, {1, 2, 3})
        yield found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [pytest.param("kill, commit", marks=pytest.mark.long), "kill, abort", "leave, commit"])
def test_a_transaction_over_a_split_is_whole_whoever_has_its_parts(nodes: list[NodeProcess], how: str) -> None:
    topic = f"over-{uuid4().hex[:8]}"
    first = nodes[0]
    made(first, topic)
    controller = controller_of(first)
    plainly(first, topic, 0, "before")
    with Readers(first, topic, 3) as readers:
        readers.until(lambda one: one.values == ["before"])
        transaction = Transactional(first, topic, LONG_MS)
        assert not transaction.write(topic, 0, "t0", "t1")
        plainly(first, topic, 0, "behind")
        split(controller, topic)
        plainly(first, topic, 1, "child")
        assert not transaction.write(topic, 2, "t2"), "it goes on in a part"
        # The coordinator, the owners of all three partitions, and those that the readers are connected to.
        for node in nodes:
            if how.startswith("kill"):
                node.kill()
            else:
                assert node.terminate() == 0
            node.start()
        readers.until(lambda one: one.name != "kafka" or "child" in one.values)
        readers.see_nothing_of_it()
        end(readers, transaction, how)
        controller.close()
    judge(readers, how)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_transaction_of_pravegas_over_scales_is_whole_whoever_has_its_parts(nodes: list[NodeProcess]) -> None:
    name = f"scales-{uuid4().hex[:8]}"
    found = Stream(nodes[0], name, 2)
    add_consumers(nodes[0], name)
    parents, txn = found.current(), found.begin()
    for number, parent in enumerate(parents):
        plainly(nodes[0], name, number, f"a{number}")
        found.write(txn, parent, f"t{number}")
    with Readers(nodes[0], name, 6) as readers:
        found.at(nodes[1]).scale(WHOLE)
        plainly(nodes[0], name, 2, "b2")
        readers.until(lambda one: sorted(one.values) == ["a0", "a1", "b2"])
        for node in nodes[1:]:
            node.kill()
            node.start()
        assert found.at(nodes[2]).commit(txn) is TxnStatus.SUCCESS
        nodes[2].kill()  # whatever it has carried out by now
        nodes[2].start()
        assert found.at(nodes[1]).ended(txn) is TxnState.COMMITTED
        plainly(nodes[0], name, 5, "z5")
        readers.until(lambda one: len(one.values) >= 6)
    for reading in readers.readings.values():
        assert sorted(reading.values) == ["a0", "a1", "b2", "t0", "t1", "z5"], reading
        assert reading.name == "kafka" or in_order(reading.values, "a", "b", "t", "z"), reading
