"""Spark's source where everybody must say who he is, and range servers of their own demand tickets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.external.ticket_place import TicketPlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = [b"%d" % number for number in range(500)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TicketPlace]:
    made = TicketPlace(tmp_path_factory.mktemp("tickets"))
    try:
        made.start()
        for name, readers in (("t", ["alice"]), ("secret", [])):
            made.create(name, readers=readers)
            made.write(name, ROWS)
        yield made
    finally:
        made.dispose()


@pytest.fixture
def load(spark: SparkSession, place: TicketPlace) -> Callable[[str, str], DataFrame]:
    def load(user: str, topic: str) -> DataFrame:
        options = {"endpoint": place.pipeline, "subscribe": topic, "user": user, "password": user, "minPartitions": "3"}
        return spark.read.format("anabranch").options(**options).load()

    return load


def test_rows_come_from_range_servers_to_who_may_read_them(
    load: Callable[[str, str], DataFrame], place: TicketPlace
) -> None:
    assert sorted(bytes(row["value"]) for row in load("alice", "t").collect()) == sorted(ROWS)
    for user, topic in (("alice", "secret"), ("eve", "t")):
        with pytest.raises(Exception, match="you may not"):
            load(user, topic).collect()


def test_a_stream_reads_with_tickets(spark: SparkSession, place: TicketPlace, checkpoint: str) -> None:
    options = {"endpoint": place.pipeline, "subscribe": "t", "user": "alice", "password": "alice"}
    rows = spark.readStream.format("anabranch").options(**options).option("startingOffsets", "earliest").load()
    query = (
        rows.writeStream.format("memory")
        .queryName("with_tickets")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert spark.sql("select count(distinct offset) from with_tickets").first() == (len(ROWS),)


def test_without_the_range_server_there_is_nothing_since_nothing_comes_through_the_node(
    spark: SparkSession, place: TicketPlace
) -> None:
    """The last test of this file: the range server is gone then. The node, which has the rows in memory, would have
    given them."""
    place.server.kill()
    options = {"endpoint": place.pipeline, "subscribe": "t", "user": "alice", "password": "alice"}
    rows = spark.read.format("anabranch").options(**options, patienceMs="2000", timeoutMs="2000").load()
    with pytest.raises(Exception, match="range servers of t-0 do not answer"):
        rows.collect()
