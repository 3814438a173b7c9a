"""Servers of a backend that demand tickets: nodes and servers make their own, readers read, others get nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from bridges.auth.tokens import load_keys
from sbp_back.client.client import Client
from sbp_back.client.leader import pd_carrier
from sbp_back.errors import ConnectionLost, SbpError
from sbp_back.transport.tcp_carrier import TcpOptions, tcp_connector
from sbp_back.transport.tickets import OwnTickets
from sbp_back.wire import model as m
from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.anabranch.endpoint import AnabranchEndpoint
from spark_pipeline.endpoints.anabranch.node_reader import NodeReader
from spark_pipeline.endpoints.anabranch.sbp_reader import SbpReader
from spark_pipeline.endpoints.base import endpoint
from tests.external.cluster import PATIENCE, SERVER_SETTINGS, Server
from tests.external.ticket_place import MONTH_S, TicketPlace
from tests.kit.waiting import wait_until
from tests.node_process import ANY, NodeFailed, NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

VALUES = Columns(("value",))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TicketPlace]:
    made = TicketPlace(tmp_path_factory.mktemp("tickets"))
    try:
        made.start()
        made.create("t", readers=["alice"])
        yield made
        for process in (made.node, made.server, made.pd):
            assert process.terminate() == 0
            assert "Traceback" not in process.log.read_text()
    finally:
        made.dispose()


def opened(place: TicketPlace, user: str) -> AnabranchEndpoint:
    made = endpoint(place.pipeline, {"user": user, "password": user, "patienceMs": "20000"})
    assert isinstance(made, AnabranchEndpoint)
    return made


def values(reader: AnabranchEndpoint, topic: str, start: int, end: int) -> list[bytes]:
    batches = reader.read(OffsetRange(topic, 0, start, end), VALUES)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def client_of(place: TicketPlace, ticket: str) -> Client:
    tcp = TcpOptions(tickets=OwnTickets(lambda: ticket) if ticket else None)
    return Client(pd_carrier(place.pd.address, options=tcp), tcp_connector(tcp))


def test_records_go_in_and_out_also_after_servers_and_the_node_were_killed(place: TicketPlace) -> None:
    place.create("killed", readers=["alice"])
    place.write("killed", [b"0"])
    place.server.restart(kill=True)
    place.write("killed", [b"1"])
    place.pd.restart(kill=True)
    place.node.restart(kill=True)
    place.write("killed", [b"2"])
    consumer = Consumer({**place.login("root"), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["killed"])
    got: list[bytes | None] = []

    def more() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            got.append(message.value())
        return len(got) >= 3

    wait_until(more, "all records read")
    consumer.close()
    assert got == [b"0", b"1", b"2"]


def test_who_may_read_a_topic_reads_it_at_the_range_server(
    place: TicketPlace, caplog: pytest.LogCaptureFixture
) -> None:
    place.create("secret")
    for topic in ("t", "secret"):
        place.write(topic, [b"one", b"two"])
    with caplog.at_level(logging.WARNING):
        alice, eve = opened(place, "alice"), opened(place, "eve")
        end = sum(one.high_watermark for one in alice._positions([OffsetRange("t", 0, 0, 0).part]).values())
        assert values(alice, "t", 0, end)[-2:] == [b"one", b"two"]
        assert isinstance(alice.reader, SbpReader)
        with pytest.raises(PipelineError, match="you may not"):
            values(alice, "secret", 0, 2)
        with pytest.raises(PipelineError, match="you may not"):
            values(eve, "t", 0, 2)
    assert not [one for one in caplog.messages if "publishes no range servers" in one]
    alice.close()
    eve.close()


@pytest.mark.parametrize("kind", ["none", "forged"])
async def test_without_a_good_ticket_nothing_is_got_from_any_of_them(place: TicketPlace, kind: str) -> None:
    good = place.office.for_process()
    head, content, signature = good.split(".")
    client = client_of(place, {"none": "", "forged": f"{head}.{content}.{signature[::-1]}"}[kind])
    with pytest.raises(SbpError, match="1401 UNAUTHORIZED"):
        await client.create_stream()
    await client.close()
    server = tcp_connector()(m.RangeServerInfo(0, place.server.address))
    with pytest.raises(ConnectionLost, match="wants a ticket"):
        await server.call(m.ListRangeRequest(stream_id=0))
    await server.close()
    client = client_of(place, good)
    await client.create_stream()
    await client.close()


async def test_keys_that_changed_are_known_without_a_restart(place: TicketPlace) -> None:
    before = place.keys.read_bytes()
    load_keys(place.keys, int(time.time()), 0, MONTH_S)  # as a node does when the last one is old enough
    assert place.keys.read_bytes() != before
    ticket = place.office.for_process()

    async def known(address: str) -> bool:
        carrier = pd_carrier(address, options=TcpOptions(tickets=OwnTickets(lambda: ticket)))
        try:
            return (await carrier.call(m.DescribePdRequest(), PATIENCE)).status.ok
        finally:
            await carrier.close()

    deadline = time.monotonic() + PATIENCE
    for process in (place.pd, place.server):
        while not await known(process.address):
            assert time.monotonic() < deadline
    place.server.restart(kill=True)
    place.write("t", [b"with new keys"])


def test_a_node_that_shows_no_tickets_is_refused(place: TicketPlace, tmp_path: Path) -> None:
    node = NodeProcess(
        tmp_path / "stranger",
        settings={"sbp.mode": "external", "sbp.pd": place.pd.address, "sbp.timeout_ms": "1000"},
        listen={"kafka": ANY, "console": "off"},
    )
    with node.lent():
        wait_until(lambda: "this listener wants a ticket" in node.log.read_text(), "it is told why")


def test_where_servers_demand_no_tickets_nobody_is_led_there_and_records_come_through_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = TicketPlace(tmp_path)
    place.pd = Server("pd", tmp_path / "pd", [], SERVER_SETTINGS)
    place.server = Server("range-server", tmp_path / "rs", [], SERVER_SETTINGS)
    try:
        place.start()
        place.create("t", readers=["alice"])
        place.write("t", [b"a"])
        alice = opened(place, "alice")
        with caplog.at_level(logging.WARNING):
            assert values(alice, "t", 0, 1) == [b"a"]
        assert isinstance(alice.reader, NodeReader)
        assert [one for one in caplog.messages if "publishes no range servers" in one]
        alice.close()
    finally:
        place.dispose()


@pytest.mark.parametrize("kind", ["pd", "range-server"])
def test_a_server_without_the_nodes_keys_ends_its_start_in_a_sentence(tmp_path: Path, kind: str) -> None:
    server = Server(kind, tmp_path / kind, ["--pd", "127.0.0.1:1"] if kind != "pd" else [], {"sbp.tickets": "true"})
    with pytest.raises(NodeFailed, match="ended with 2") as failed:
        server.start()
    assert "auth.keys_file leads to the keys of the nodes" in str(failed.value)
    assert "Traceback" not in str(failed.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sbp.mode": "external", "sbp.pd": "a:1", "sbp.dialect": "v0.1"}, "others know no tickets"),
        ({"sbp.mode": "external", "sbp.pd": "a:1", "sbp.flavor": "elastic-stream"}, "others know no tickets"),
        ({"listen.sbp-v0.1": ANY}, "listener sbp-v0.1 cannot demand tickets"),
    ],
)
def test_what_cannot_demand_tickets_ends_the_start(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    node = NodeProcess(tmp_path / "node", settings={"sbp.tickets": "true", **settings}, listen={"console": "off"})
    with pytest.raises(NodeFailed, match="ended with 2") as failed:
        node.start()
    assert says in str(failed.value)
