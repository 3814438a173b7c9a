"""Connections and clients of topics over HTTP: rights, filters, pages, bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from bridges.auth import Operation, ResourceKind
from bridges.clients import Client, Description
from bridges.console.clients import everywhere
from tests.bridges.console.rights.test_console_access import Lab, open_lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = await open_lab(tmp_path, **{"auth.required": "true"})
    yield made
    await made.session.close()
    await made.node.stop()


def enter(lab: Lab, name: str, user: str = "", front: str = "kafka", port: int = 5000, ends: Any = None) -> Client:
    clients = lab.node.floors.host.clients
    description = Description(name, "librdkafka 2.6", user)
    return clients.enter(front, front, ("10.1.2.3", port), lambda: description, ends or (lambda reason: None))


async def listed(lab: Lab, query: str = "") -> list[dict[str, Any]]:
    status, told = await lab.ask("GET", f"/api/connections?{query}")
    assert status == 200, told
    return list(told["connections"])


async def test_who_may_not_describe_a_topic_does_not_see_its_clients(lab: Lab) -> None:
    client = enter(lab, "both")
    for topic in ("open", "shut"):
        client.wrote(topic, 0, 1, 10)
        client.read(topic, 0)
    (row,) = await listed(lab)
    assert (row["writes"], row["reads"]) == (["open"], ["open"])
    assert "shut" not in str((await lab.ask("GET", "/api/topics/open/clients"))[1])
    for path in ("/api/topics/shut/clients", "/api/connections?topic=shut"):
        assert (await lab.ask("GET", path))[0] == 403
    assert (await lab.ask("GET", "/api/topics/none/clients"))[0] == 404
    lab.doorman.denied = {(Operation.DESCRIBE, ResourceKind.NODE)}
    assert (await lab.ask("GET", "/api/connections"))[0] == 403
    assert (await lab.ask("GET", "/api/topics/open/clients"))[0] == 200
    lab.doorman.denied = {(Operation.DESCRIBE, ResourceKind.TOPIC)}
    assert (await lab.ask("GET", "/api/topics/open/clients"))[0] == 403


async def test_a_connection_is_ended_by_who_may_once_and_its_log_says_by_whom(lab: Lab) -> None:
    reasons: list[str] = []
    client, other = enter(lab, "app", ends=reasons.append), enter(lab, "other", ends=reasons.append)
    (name,) = [one["id"] for one in await listed(lab) if one["client"] == "app"]
    lab.doorman.denied = {(Operation.ALTER, ResourceKind.NODE)}
    assert (await lab.ask("DELETE", f"/api/connections/{name}"))[0] == 403
    assert not reasons
    lab.doorman.denied = set()
    with capture_logs() as logs:
        assert await lab.ask("DELETE", f"/api/connections/{name}") == (200, {"ended": name})
    assert reasons == ["an operator has ended the connection (User:alice)"]
    (told,) = [one for one in logs if one["event"] == "a connection was ended by an operator"]
    assert (told["client"], told["user"], told["peer"]) == ("app", "User:alice", "10.1.2.3:5000")
    lab.node.floors.host.clients.leave(client)
    for gone in (name, "0-1", "9-1", "x", "0-", "-1", "0-²"):
        status, answer = await lab.ask("DELETE", f"/api/connections/{gone}")
        assert (status, "there is no connection" in answer["error"]) == (404, True), gone
    assert [one["client"] for one in await listed(lab)] == ["other"]
    assert other.is_open


async def test_connections_are_searched_and_cut_into_pages_the_busiest_first(lab: Lab) -> None:
    for number in range(30):
        client = enter(
            lab, f"app-{number:02}", "ann" if number % 2 else "", "ydb" if number < 10 else "kafka", 5000 + number
        )
        client.wrote("open", number % 3, 1, number)
    assert [one["client"] for one in await listed(lab, "limit=3")] == ["app-29", "app-28", "app-27"]
    assert len(await listed(lab)) == 30
    assert len(await listed(lab, "user=ann")) == 15
    assert len(await listed(lab, "protocol=ydb")) == 10
    assert [one["address"] for one in await listed(lab, "address=:5007")] == ["10.1.2.3:5007"]
    assert len(await listed(lab, "search=APP-1")) == 10
    assert len(await listed(lab, "topic=open&search=librdkafka&limit=500")) == 30
    status, page = await lab.ask("GET", "/api/topics/open/clients?limit=10&skip=20&direction=writes")
    assert (status, len(page["clients"]), page["total"], page["next"], page["more"]) == (200, 10, 30, None, 0)
    assert {one["direction"] for one in page["clients"]} == {"writes"}
    assert (await lab.ask("GET", "/api/topics/open/clients?direction=reads"))[1]["clients"] == []


async def test_an_answer_is_bounded_and_says_how_many_more_there_are(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everywhere, "ANSWER_BYTES", 20_000)
    for number in range(1000):
        enter(lab, f"{number}" + "x" * 5000, port=number).read("open", number % 1)
    found = await lab.node.floors.host.clients_everywhere.answer(everywhere.Choice("open"))
    assert len(found.clients) + found.more == 1000
    assert len(found.clients) < 100
    assert max(len(one.name) for one in found.clients) == 256
    assert len(msgspec.msgpack.encode(found)) < 25_000
    # The node that is asked lists all of its own.
    assert len((await lab.ask("GET", "/api/topics/open/clients"))[1]["clients"]) == 1000


async def test_of_very_many_connections_those_up_to_the_page_are_described_and_sent_the_busiest_first(lab: Lab) -> None:
    described: list[int] = []
    clients = lab.node.floors.host.clients
    for number in range(3_000):

        def describe(number: int = number) -> Description:
            described.append(number)
            return Description(f"app-{number:04}")

        clients.enter("kafka", "kafka", ("10.1.2.3", 1), describe, lambda reason: None)
    for number, client in enumerate(clients):
        if number >= 2_900:
            client.wrote("open", 0, 1, number)
    status, page = await lab.ask("GET", "/api/connections?limit=50&skip=40")
    assert (status, page["total"], page["next"], page["more"]) == (200, 3_000, 90, 0)
    assert [one["client"] for one in page["connections"]] == [f"app-{2_959 - number:04}" for number in range(50)]
    assert len(described) == 90
    described.clear()
    status, page = await lab.ask("GET", "/api/topics/open/clients?limit=50&direction=writes")
    assert (page["total"], page["next"], len(described)) == (100, 50, 50)
    # So does a node that another one asks: what it sends are its busiest.
    found = await lab.node.floors.host.clients_everywhere.answer(everywhere.Choice(most=5))
    assert [one.name for one in found.clients] == [f"app-{2_999 - number:04}" for number in range(5)]
    assert (found.total, found.more) == (3_000, 0)
