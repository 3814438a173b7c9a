"""What a node tells readers: topics, streams, positions, aborted transactions; within bounds, to who may know it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bridges.auth import Operation, Principal, Resource
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.users import User, change
from bridges.catalog.topics.lineage import WHOLE, KeyRange
from bridges.catalog.topics.topic import ChangeKind
from bridges.errors import PeerUnreachable
from spark_pipeline.core.client.node_answers import AbortedTransaction
from spark_pipeline.core.client.node_client import NodeClient, NodeError, NodeOptions, NodeUnavailable
from spark_pipeline.node import describe
from tests.certificates import Authority
from tests.spark_pipeline.node.pipeline_lab import Lab, client_of, node_of, open_lab


async def test_who_the_node_is_and_where_its_streams_are_read(lab: Lab) -> None:
    facts = await lab.ask(lab.topics.node)
    assert facts.cluster_id == lab.node.catalog.cluster_id
    assert facts.sbp.pd == (str(lab.node.addresses["sbp-pd"]),)
    assert (facts.sbp.dialect, facts.sbp.flavor, facts.sbp.tls) == ("0.2", "anabranch", False)
    assert lab.node.floors.storage.embedded is not None
    assert facts.sbp.identity == lab.node.floors.storage.embedded.placement_driver.identity


async def test_a_backend_that_is_closed_to_others_is_not_told(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path, listen__sbp_pd="off")
    assert (await lab.ask(lab.topics.node)).sbp.pd == ()
    await lab.close()


async def test_an_address_of_every_interface_is_told_as_the_client_reached_it(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path, listen__sbp_pd="0.0.0.0:0")
    port = lab.node.addresses["sbp-pd"].port
    assert (await lab.ask(lab.topics.node)).sbp.pd == (f"127.0.0.1:{port}",)
    await lab.close()


async def test_what_topics_have_by_themselves(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path, **{"topic_defaults.retention.ms": "5000"})
    await lab.node.catalog.set_node_config({"message.max.bytes": "2000"})
    told = await lab.ask(lab.client.get, "/v1/defaults")
    config = told["config"]
    assert (config["retention.ms"], config["max.message.bytes"], config["cleanup.policy"]) == ("5000", "2000", "delete")
    assert {"retention.ms", "max.message.bytes"} <= set(told["configured"]), "and not what Kafka has by itself"
    assert "message.timestamp.after.max.ms" not in told["configured"]
    await lab.close()


async def test_names_by_pattern_and_in_pages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "NAMES", 2)
    names = ["a.one", "a.two", "b.one", "c", "a.three"]
    for name in names:
        await lab.node.catalog.create_topic(name, 1)
    assert await lab.ask(lab.topics.names) == sorted(names)
    assert await lab.ask(lab.topics.names, r"a\..*") == ["a.one", "a.three", "a.two"]
    assert await lab.ask(lab.topics.names, "a") == []  # a pattern matches whole names, as Spark's do
    await lab.node.catalog.delete_topic("a.two")
    assert await lab.ask(lab.topics.names, r"a\..*") == ["a.one", "a.three"]
    with pytest.raises(ValueError, match="no regular expression"):
        await lab.ask(lab.topics.names, "a(")


async def test_topics_with_streams_configuration_and_lineage(lab: Lab) -> None:
    catalog = lab.node.catalog
    await catalog.create_topic("wide", 3, {"retention.ms": "-1"})
    await catalog.create_topic("tree", 1, {"anabranch.partitions.split": "true"})
    half = WHOLE.high // 2
    sealed = asyncio.Event()
    catalog.on_change.append(lambda change: sealed.set() if change.kind is ChangeKind.SEALED else None)
    await catalog.change_partitions("tree", [0], [KeyRange(0, half), KeyRange(half, WHOLE.high)])
    await sealed.wait()
    found = await lab.ask(lab.topics.topics, ["wide", "tree"])
    wide, tree = found["wide"], found["tree"]
    assert [one.stream_id for one in wide.partitions] == [one.stream_id for one in catalog.topic("wide").partitions]
    assert wide.overrides == {"retention.ms": "-1"}
    assert wide.config["retention.ms"] == -1
    assert wide.config["cleanup.policy"] == ["delete"]
    assert [one.state for one in tree.partitions] == ["sealed", "active", "active"]
    assert [one.partition for one in tree.active] == [1, 2]
    first, left, right = tree.partitions
    assert (first.children, left.parents, right.parents) == ((1, 2), (0,), (0,))
    assert [int(bound, 16) for bound in (*left.keys, *right.keys)] == [0, half, half, WHOLE.high]
    assert (first.end, left.end) == (0, None)


async def test_a_topic_of_many_partitions_comes_in_pages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "PARTITIONS", 4)
    monkeypatch.setattr(describe, "TOPICS", 2)
    sizes = {"a": 1, "b": 9, "c": 1, "d": 2, "e": 4, "f": 3}
    for name, partitions in sizes.items():
        await lab.node.catalog.create_topic(name, partitions)
    found = await lab.ask(lab.topics.topics, sizes)
    assert {name: [one.partition for one in topic.partitions] for name, topic in found.items()} == {
        name: list(range(partitions)) for name, partitions in sizes.items()
    }


async def test_positions_of_whole_topics_come_in_pages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "PARTITIONS", 4)
    monkeypatch.setattr(describe, "TOPICS_LOOKED_AT", 2)
    sizes = {"a": 1, "b": 9, "c": 1, "d": 2, "e": 4, "f": 3}
    for name, partitions in sizes.items():
        await lab.node.catalog.create_topic(name, partitions)
    await lab.append("b", [b"a", b"b"], partition=8)
    found = await lab.ask(lab.topics.topic_positions, sizes)
    assert sorted(found) == [(name, number) for name, partitions in sizes.items() for number in range(partitions)]
    assert [place for place, one in found.items() if one.stable] == [("b", 8)]
    assert found["b", 8] == (await lab.ask(lab.topics.positions, [("b", 8)]))["b", 8]
    assert await lab.ask(lab.topics.topic_positions, []) == {}
    with pytest.raises(NodeError, match="nowhere") as caught:
        await lab.ask(lab.topics.topic_positions, ["a", "nowhere"])
    assert (caught.value.kind, caught.value.status) == ("TopicNotFound", 404)


async def test_a_topic_that_is_not_there(lab: Lab) -> None:
    with pytest.raises(NodeError, match="nowhere") as caught:
        await lab.ask(lab.topics.topics, ["nowhere"])
    assert caught.value.kind == "TopicNotFound"
    await lab.node.catalog.create_topic("one", 1)
    with pytest.raises(NodeError, match="no partition 1"):
        await lab.ask(lab.topics.positions, [("one", 0), ("one", 1)])


async def test_positions_and_timestamps(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t", 2)
    await lab.append("t", [b"a", b"b"], 1_000)
    await lab.append("t", [b"c"], 5_000)
    await lab.log("t").trim(1)
    found = await lab.ask(lab.topics.positions, [("t", 1), ("t", 0)])
    one = found["t", 0]
    assert (one.start, one.stable, one.high_watermark) == (1, 3, 3)
    assert one.stream_id == lab.log("t").stream_id
    assert (found["t", 1].start, found["t", 1].high_watermark) == (0, 0)
    asked = {("t", 0): 1_001, ("t", 1): 0}
    assert await lab.ask(lab.topics.find_timestamp, asked) == {("t", 0): 2, ("t", 1): None}
    assert await lab.ask(lab.topics.find_timestamp, {("t", 0): 5_001}) == {("t", 0): None}


class Away:
    """Logs at a node that does not answer."""

    is_open = True
    is_current = False

    def get(self, topic: str, partition: int, stream_id: int) -> Any:
        return self

    async def refresh(self) -> None:
        raise PeerUnreachable("node 3 cannot be asked: it is away")

    async def find_timestamp(self, timestamp: int) -> None:
        await self.refresh()

    async def close(self) -> None:
        pass


async def test_a_node_that_does_not_answer_is_named_and_asked_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told without its partitions; whoever repeats the request is told all when it answers."""
    await lab.node.catalog.create_topic("t", 2)
    monkeypatch.setattr(lab.node.logs, "elsewhere", Away())
    monkeypatch.setattr(lab.node.logs, "owns", lambda topic, partition: partition == 0)
    sentence = "1 of 2 partitions do not answer: node 3 cannot be asked"
    for path, partitions in (("positions", [["t", 0], ["t", 1]]), ("timestamps", [["t", 0, 1], ["t", 1, 1]])):
        with pytest.raises(NodeUnavailable, match=sentence):
            await lab.ask(lab.client.post, f"/v1/{path}", {"partitions": partitions}, patience=0.01)
    asking = asyncio.create_task(lab.ask(lab.topics.positions, [("t", 0), ("t", 1)]))
    await asyncio.wait([asking], timeout=0.2)
    monkeypatch.undo()
    assert len(await asking) == 2


async def test_transactions_hold_back_the_stable_offset_and_aborted_ones_are_told(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t", 1)
    await lab.append("t", [b"plain"])
    await lab.append_in_transaction("t", 7, 0, [b"a", b"b"])
    await lab.append_in_transaction("t", 8, 0, [b"c"])
    positions = (await lab.ask(lab.topics.positions, [("t", 0)]))["t", 0]
    assert (positions.stable, positions.high_watermark) == (1, 4)
    with pytest.raises(NodeError, match="not decided yet"):
        await lab.ask(lab.topics.aborted, "t", 0, 0, 4)
    await lab.end_transaction("t", 7, commit=False)
    await lab.end_transaction("t", 8, commit=True)
    positions = (await lab.ask(lab.topics.positions, [("t", 0)]))["t", 0]
    assert (positions.stable, positions.high_watermark) == (6, 6)
    assert await lab.ask(lab.topics.aborted, "t", 0, 0, 6) == [AbortedTransaction(7, 1, 4)]
    assert await lab.ask(lab.topics.aborted, "t", 0, 5, 6) == []
    await lab.log("t").trim(2)
    with pytest.raises(NodeError, match="starts at offset 2") as caught:
        await lab.ask(lab.topics.aborted, "t", 0, 1, 6)
    assert caught.value.status == 416


async def test_more_aborted_transactions_than_one_answer_holds(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t", 1)
    ends = []
    for producer in range(1_200):
        ends.append(asyncio.ensure_future(lab.append_in_transaction("t", producer, 0, [b"x"])))
        ends.append(asyncio.ensure_future(lab.end_transaction("t", producer, commit=False)))
    await asyncio.gather(*ends)
    found = await lab.ask(lab.topics.aborted, "t", 0, 0, 2_400)
    assert found == [AbortedTransaction(number, 2 * number, 2 * number + 1) for number in range(1_200)]


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("/v1/positions", {"partitions": [["t", 0]] * 1001}, "partitions has 1001 items, above the limit of 1000"),
        ("/v1/positions", {"partitions": [["t"]]}, "a list of 2 items"),
        ("/v1/positions", {"partitions": [["t", True]]}, "whole number"),
        ("/v1/positions", {"partitions": [["t", -1]]}, "whole number"),
        ("/v1/positions", {"partitions": "all"}, "not a list"),
        ("/v1/positions", [], "not a JSON object"),
        ("/v1/timestamps", {"partitions": [["t", 0, 0]] * 101}, "above the limit of 100"),
        ("/v1/timestamps", {"partitions": [["t", 0, 1.5]]}, "a timestamp is not a whole number"),
        ("/v1/describe", {"topics": ["t"], "partitions": 1}, "unknown field 'partitions'"),
        ("/v1/describe", {"topics": ["x" * 1001]}, "1 to 1000 characters"),
        ("/v1/aborted", {"topic": "t", "partition": 0, "start": 0}, "end is not a whole number"),
    ],
)
async def test_what_is_asked_wrongly_is_said(lab: Lab, path: str, body: object, complaint: str) -> None:
    with pytest.raises(NodeError, match=complaint) as caught:
        await lab.ask(lab.client.request, "POST", path, [json.dumps(body).encode()])
    assert caught.value.status == 400


async def test_a_body_is_bounded_and_must_be_json(lab: Lab) -> None:
    with pytest.raises(NodeError, match="above the limit of 1048576") as caught:
        await lab.ask(lab.client.request, "POST", "/v1/positions", [b" " * 1_048_577])
    assert caught.value.status == 413
    with pytest.raises(NodeError, match="not JSON"):
        await lab.ask(lab.client.request, "POST", "/v1/positions", [b"{"])
    with pytest.raises(NodeError, match="not JSON"):
        await lab.ask(lab.client.request, "POST", "/v1/positions", [b"[" * 100_000])
    assert lab.node.budget.held == 0


class Doorman:
    """Lets nobody see what is called ``shut``, nor read ``unread``."""

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return resource.name != "shut" and (resource.name, operation) != ("unread", Operation.READ)


async def test_the_authorizer_is_asked_of_each_topic(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    node.authorizer = Doorman()
    await node.start()
    lab = Lab(node, client_of(node))
    for name in ("open", "shut", "unread"):
        await node.catalog.create_topic(name, 1)
    assert await lab.ask(lab.topics.names) == ["open", "unread"]
    for ask in (
        lambda: lab.topics.topics(["open", "shut"]),
        lambda: lab.topics.positions([("open", 0), ("shut", 0)]),
        lambda: lab.topics.find_timestamp({("shut", 0): 1}),
        lambda: lab.topics.positions([("shut", 17)]),  # nor whether there is one
    ):
        with pytest.raises(NodeError, match="you may not describe topic 'shut'"):
            await lab.ask(ask)
    with pytest.raises(NodeError, match="you may not read topic 'unread'"):
        await lab.ask(lab.topics.aborted, "unread", 0, 0, 1)
    await lab.close()


async def test_users_tokens_and_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    cert, key = authority.issue("node")

    def edit(users: dict[str, User]) -> None:
        users["alice"] = User("alice", PasswordHash.from_password("wönder", Cost(16, 1, 1)), {})

    (tmp_path / "data").mkdir()
    change(tmp_path / "data" / "users.json", edit)
    flags = {"auth.required": "true", "tls.pipeline.cert": str(cert), "tls.pipeline.key": str(key)}
    node = node_of(tmp_path, **flags)
    await node.start()
    url = f"anabranch+tls://{node.addresses['pipeline']}"
    ca = {"tls.ca": str(authority.cert)}

    def asked(**options: str) -> object:
        return NodeClient(NodeOptions.parse(url, {**ca, **options})).get("/v1/topics")["topics"]

    login = {"user": "alice", "password": "wönder"}
    assert await asyncio.to_thread(asked, **login) == []
    for wrong in ({}, {**login, "password": "wonder"}, {"token": "nonsense"}):
        with pytest.raises(NodeError) as caught:
            await asyncio.to_thread(asked, **wrong)
        assert caught.value.status == 401
    alice = NodeClient(NodeOptions.parse(url, {**ca, **login}))
    token = (await asyncio.to_thread(alice.post, "/v1/token", {"seconds": 60}))["token"]
    assert await asyncio.to_thread(asked, token=token) == []
    bearer = NodeClient(NodeOptions.parse(url, {**ca, "token": token}))
    with pytest.raises(NodeError, match="password"):
        await asyncio.to_thread(bearer.post, "/v1/token", {"seconds": 60})
    with pytest.raises(NodeError, match="not trusted"):
        await asyncio.to_thread(NodeClient(NodeOptions.parse(url, login)).get, "/v1/topics")
    alice.close()
    bearer.close()
    await node.stop()


def test_addresses_and_options() -> None:
    assert NodeOptions.parse("anabranch://h") == NodeOptions("h", 8090)
    assert NodeOptions.parse("h:1") == NodeOptions("h", 1)
    assert NodeOptions.parse("anabranch+tls://h:2").tls
    assert NodeOptions.parse("h", {"TLS.CA": "x"}).tls
    assert NodeOptions.parse("h", {"timeoutMs": "1500"}).timeout == 1.5
    assert "secret" not in repr(NodeOptions.parse("h", {"user": "u", "password": "secret"}))
    for url, options, complaint in (
        ("http://h", {}, "no address"),
        ("anabranch://", {}, "no address"),
        ("anabranch://h/x", {}, "no address"),
        ("anabranch://u:p@h", {}, "given as options"),
        ("h", {"tls": "maybe"}, "neither true nor false"),
        ("h", {"user": "u"}, "given together"),
        ("h", {"timeoutMs": "0"}, "number of milliseconds"),
    ):
        with pytest.raises(ValueError, match=complaint):
            NodeOptions.parse(url, options)


async def test_a_client_survives_the_nodes_restart_and_gives_up_in_time(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path)
    await lab.node.catalog.create_topic("t", 1)
    assert await lab.ask(lab.topics.names) == ["t"]
    address = str(lab.node.addresses["pipeline"])
    await lab.node.stop()
    with pytest.raises(NodeUnavailable, match="cannot be reached"):
        await lab.ask(lab.client.request, "GET", "/v1/topics", [], 0.0)
    asking = asyncio.create_task(lab.ask(lab.topics.names))
    node = node_of(tmp_path, listen__pipeline=address)
    await node.start()
    assert await asking == ["t"]
    lab.client.close()
    await node.stop()
