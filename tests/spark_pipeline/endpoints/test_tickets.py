"""Reading straight from range servers that demand tickets: who gets one, what it is good for, and how it is renewed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bridges.auth.tickets
import sbp_back.transport.serving
from bridges.auth import Operation, Principal, Resource
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.tickets import MOST_STREAMS, TicketOffice
from bridges.auth.users import User, change
from sbp_back.client.client import Client
from sbp_back.errors import SbpError
from sbp_back.transport.gate import Gate
from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions, tcp_connector
from sbp_back.transport.tickets import GivenTickets
from spark_pipeline.core.client.node_client import NodeClient, NodeError
from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.anabranch.endpoint import AnabranchEndpoint
from spark_pipeline.endpoints.anabranch.sbp_reader import SbpReader
from spark_pipeline.endpoints.base import endpoint
from tests.spark_pipeline.node.pipeline_lab import Lab, client_of, node_of

VALUES = Columns(("offset", "value"))
ALICE = {"user": "alice", "password": "alice"}
ALLOWED = {("t", Operation.DESCRIBE), ("t", Operation.READ), ("secret", Operation.DESCRIBE)}


class Doorman:
    """Alice may read ``t`` and see ``secret``; nobody else anything."""

    def __init__(self) -> None:
        self.allowed = set(ALLOWED)

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return principal.name == "alice" and (resource.name, operation) in self.allowed

    def allows_any(self, principal: Principal, operation: Operation, kind: object) -> bool:
        return False

    def stand_in(self, principal: Principal) -> Principal | None:
        return principal


def edit(users: dict[str, User]) -> None:
    for name in ("alice", "eve"):
        users[name] = User(name, PasswordHash.from_password(name, Cost(16, 1, 1)), {})


async def strict_lab(path: Path, **flags: str) -> Lab:
    """A node with users whose listeners of SBP demand tickets; nobody has said that these are to be opened."""
    (path / "data").mkdir()
    change(path / "data" / "users.json", edit)
    node = node_of(path, **{"auth.required": "true", "sbp.tickets": "true", **flags})
    node.authorizer = Doorman()
    await node.start()
    lab = Lab(node, client_of(node, **ALICE))
    for name in ("t", "secret"):
        await node.catalog.create_topic(name, 1)
        await lab.append(name, [b"a", b"b"])
    return lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = await strict_lab(tmp_path)
    yield made
    await made.close()


def opened(lab: Lab, **options: str) -> AnabranchEndpoint:
    made = endpoint(f"anabranch://{lab.node.addresses['pipeline']}", {"patienceMs": "2000", **options})
    assert isinstance(made, AnabranchEndpoint)
    return made


def rows_of(reader: AnabranchEndpoint, topic: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    for batch in reader.read(OffsetRange(topic, 0, start, end), VALUES, batch_bytes=1):
        yield from ((row["offset"], row["value"]) for row in batch.to_pylist())


async def read(lab: Lab, reader: AnabranchEndpoint, topic: str, end: int = 2) -> list[tuple[int, bytes]]:
    return await lab.ask(lambda: list(rows_of(reader, topic, 0, end)))


def asked(client: NodeClient, *topics: str) -> Any:
    return client.post("/v1/positions", {"partitions": [[name, 0] for name in topics], "tickets": True})


async def ticket_of(lab: Lab, *topics: str) -> str:
    return str((await lab.ask(asked, lab.client, *topics))["ticket"])


def backend_client(lab: Lab, *tickets: str) -> Client:
    """Of somebody who has only tickets, and comes to the listeners with them."""
    given = GivenTickets()
    for number, ticket in enumerate(tickets):
        given.give(number, ticket, 60)
    tcp = TcpOptions(backoff_first=0.001, tickets=given)
    pd = lab.node.addresses["sbp-pd"]
    return Client(TcpCarrier(pd.host, pd.port, options=tcp), tcp_connector(tcp))


async def test_with_users_records_come_straight_from_range_servers_and_of_topics_that_may_be_read(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    alice, stranger, eve = opened(lab, **ALICE), opened(lab), opened(lab, user="eve", password="eve")
    assert await read(lab, alice, "t") == [(0, b"a"), (1, b"b")]
    assert isinstance(alice.reader, SbpReader)
    assert not [one for one in caplog.messages if "publishes no range servers" in one]
    assert lab.node.metrics.front("pipeline").topic("t").records_out == 0, "it did not pass through the node"
    with pytest.raises(PipelineError, match="you may not read topic 'secret'"):
        await read(lab, alice, "secret")
    with pytest.raises(PipelineError, match="say who you are"):
        await read(lab, stranger, "t")
    with pytest.raises(PipelineError, match="you may not"):
        await read(lab, eve, "t")
    for one in (alice, stranger, eve):
        await lab.ask(one.close)


async def test_a_ticket_is_for_those_of_the_partitions_that_may_be_read(lab: Lab) -> None:
    told = await lab.ask(asked, lab.client, "t", "secret", "nowhere")
    t, secret, nowhere = told["partitions"]
    assert t["stream_id"] == lab.log("t").stream_id
    assert (secret["status"], nowhere["status"]) == (403, 403)
    assert "stream_id" not in secret
    assert told["seconds"] == 600
    tickets = lab.node.floors.ground.tickets
    assert tickets is not None
    assert tickets.check(told["ticket"]).streams == frozenset({lab.log("t").stream_id})
    assert (await lab.ask(asked, lab.client, "secret"))["ticket"] is None
    plain = await lab.ask(lab.client.post, "/v1/positions", {"partitions": [["t", 0], ["secret", 0]]})
    assert "ticket" not in plain
    assert [one["high_watermark"] for one in plain["partitions"]] == [2, 2]
    with pytest.raises(NodeError, match=f"above the limit of {MOST_STREAMS}"):
        await lab.ask(asked, lab.client, *["t"] * (MOST_STREAMS + 1))


async def test_who_was_removed_or_may_not_any_more_gets_no_new_one(lab: Lab) -> None:
    assert await ticket_of(lab, "t")
    doorman = lab.node.authorizer
    assert isinstance(doorman, Doorman)
    doorman.allowed.discard(("t", Operation.READ))
    assert (await lab.ask(asked, lab.client, "t"))["ticket"] is None
    doorman.allowed.add(("t", Operation.READ))
    assert await ticket_of(lab, "t")

    def remove(users: dict[str, User]) -> None:
        del users["alice"]

    await lab.node.authenticator.alter(remove)
    with pytest.raises(NodeError) as caught:
        await lab.ask(asked, lab.client, "t")
    assert caught.value.status == 401


async def test_what_can_be_done_with_a_ticket_at_the_backends_listeners(lab: Lab) -> None:
    mine, other = lab.log("t").stream_id, lab.log("secret").stream_id
    client = backend_client(lab, await ticket_of(lab, "t"))
    assert len(await client.fetch_entries(mine, 0, 1 << 20, limit=2)) == 1
    for attempt in (
        lambda: client.fetch_entries(other, 0, 1 << 20, limit=2),
        lambda: client.open(mine, 1_000),
        lambda: client.seal(mine, 1_000),
        lambda: client.trim(mine, 1),
        lambda: client.delete_stream(mine),
        lambda: client.create_stream(),
    ):
        with pytest.raises(SbpError, match="1403 FORBIDDEN"):
            await attempt()
    await client.close()
    await lab.append("t", [b"c"])  # its owner goes on
    head, content, signature = (await ticket_of(lab, "t")).split(".")
    for wrong in (
        [],
        [f"{head}.{content}.{signature[::-1]}"],
        [head],
        [lab.node.authenticator.issue(Principal("User", "alice"), 60, "pipeline", {"everything": True})],
    ):
        client = backend_client(lab, *wrong)
        with pytest.raises(SbpError, match="1401 UNAUTHORIZED"):
            await client.fetch_entries(mine, 0, 1 << 20, limit=2)
        await client.close()


async def test_tickets_of_a_node_are_good_when_it_was_started_again(lab: Lab, tmp_path: Path) -> None:
    ticket, stream = await ticket_of(lab, "t"), lab.log("t").stream_id
    addresses = {f"listen.{name}": str(address) for name, address in lab.node.addresses.items()}
    await lab.node.stop()
    again = node_of(tmp_path, **{"auth.required": "true", "sbp.tickets": "true", **addresses})
    await again.start()
    client = backend_client(Lab(again, lab.client), ticket)
    assert len(await client.fetch_entries(stream, 0, 1 << 20, limit=2)) == 1
    await client.close()
    await again.stop()


@pytest.mark.parametrize("noticed_by", ["the reader's clock", "the server's refusal"])
async def test_a_reader_whose_ticket_ends_while_it_reads_goes_on_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noticed_by: str
) -> None:
    now = [time.time()]
    clock = lambda: now[0]  # noqa: E731
    monkeypatch.setattr(bridges.auth.tickets, "TicketOffice", partial(TicketOffice, clock=clock))
    monkeypatch.setattr(sbp_back.transport.serving, "Gate", partial(Gate, clock=clock))
    lab = await strict_lab(tmp_path)
    for number in range(20):
        await lab.append("t", [bytes([number]) * 1000])
    reader = opened(lab, **ALICE, **{"fetch.bytes": "2000"})
    if noticed_by == "the reader's clock":
        monkeypatch.setattr("spark_pipeline.endpoints.anabranch.sbp_reader.GivenTickets", partial(GivenTickets, clock))
    given: list[float] = []
    ask = AnabranchEndpoint._ticket

    def counted(self: AnabranchEndpoint, range: OffsetRange) -> Any:
        given.append(now[0])
        return ask(self, range)

    monkeypatch.setattr(AnabranchEndpoint, "_ticket", counted)
    found = rows_of(reader, "t", 0, 22)
    offsets = [(await lab.ask(next, found))[0] for _ in range(3)]
    assert len(given) == 1
    now[0] += 601
    offsets += await lab.ask(lambda: [offset for offset, _ in found])
    assert offsets == list(range(22))
    assert given[1:] == [now[0]]
    await lab.ask(reader.close)
    await lab.close()


async def test_without_users_a_node_may_demand_tickets_which_whoever_may_read_gets(tmp_path: Path) -> None:
    node = node_of(tmp_path, **{"sbp.tickets": "true"})
    await node.start()
    lab = Lab(node, client_of(node))
    await node.catalog.create_topic("t", 1)
    await lab.append("t", [b"a"])
    reader = opened(lab)
    assert await read(lab, reader, "t", 1) == [(0, b"a")]
    assert isinstance(reader.reader, SbpReader)
    await lab.ask(reader.close)
    client = backend_client(lab)
    with pytest.raises(SbpError, match="1401"):
        await client.create_stream()
    await client.close()
    await lab.close()
