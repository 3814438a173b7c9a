"""Finding the leader among several placement drivers (docs/protocols/sbp.md, "Placement driver")."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sbp_back.client.leader import PdCarrier, decode_cluster, encode_cluster, pd_carrier
from sbp_back.errors import ConnectionLost, ErrorCode
from sbp_back.transport.carrier import Answer, Carrier, InProcessCarrier
from sbp_back.transport.handler import Reply
from sbp_back.transport.listener import Listener, ListenerOptions
from sbp_back.wire import model as m
from sbp_back.wire.v02 import DialectV02


class Node:
    """A placement driver that leads or names the leader."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.served = 0
        self.dead = False

    def handle(self, request: m.Request, reply: Reply) -> None:
        if self.cluster.leader == self.name:
            self.served += 1
            reply(m.StreamResponse(stream=m.StreamInfo(7)))
        else:
            reply(m.SystemErrorResponse(m.Status(ErrorCode.PD_NOT_LEADER, "follower", self.cluster.detail())))


class Cluster:
    def __init__(self, names: list[str], leader: str) -> None:
        self.names = names
        self.leader = leader
        self.nodes = {name: Node(self, name) for name in names}
        self.connected: list[str] = []

    def detail(self) -> bytes:
        return encode_cluster([m.PdNode(name, name, name == self.leader) for name in self.names])

    def connect(self, host: str, port: int) -> Carrier:
        address = f"{host}:{port}"
        self.connected.append(address)
        return Mortal(self.nodes[address])


class Mortal(InProcessCarrier):
    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node

    def submit(self, request: m.Request, reply: Any, timeout: float | None = None) -> None:
        if self.node.dead:
            reply(ConnectionLost("dead"))
        else:
            super().submit(request, reply, timeout)


NAMES = ["a:1", "b:2", "c:3"]


def test_the_detail_is_a_cluster_or_nothing() -> None:
    nodes = [m.PdNode("one", "a:1"), m.PdNode("two", "b:2", True)]
    assert decode_cluster(encode_cluster(nodes)) == nodes
    for damaged in (b"", b"x", b"deleted", encode_cluster(nodes)[:-9], bytes(64), b"\xff" * 64):
        assert decode_cluster(damaged) == []


async def test_requests_go_to_the_leader_a_follower_names() -> None:
    cluster = Cluster(NAMES, "b:2")
    carrier = PdCarrier(["a:1"], cluster.connect)
    for _ in range(3):
        assert isinstance(await carrier.call(m.DescribeStreamRequest(7)), m.StreamResponse)
    assert cluster.nodes["b:2"].served == 3
    assert cluster.connected == ["a:1", "b:2"]
    cluster.leader = "c:3"
    assert isinstance(await carrier.call(m.DescribeStreamRequest(7)), m.StreamResponse)
    assert carrier.current == "c:3"
    await carrier.close()


async def test_a_dead_node_loses_its_turn() -> None:
    cluster = Cluster(NAMES, "c:3")
    carrier = PdCarrier(["a:1", "b:2"], cluster.connect)
    cluster.nodes["a:1"].dead = True
    with pytest.raises(ConnectionLost):  # whether it was served is for the caller to think about
        await carrier.call(m.DescribeStreamRequest(7))
    assert isinstance(await carrier.call(m.DescribeStreamRequest(7)), m.StreamResponse)
    # The leader dies; its successor is found through those that are left.
    cluster.nodes["c:3"].dead = True
    cluster.leader = "b:2"
    answers: list[Answer] = []
    for _ in range(3):
        carrier.submit(m.DescribeStreamRequest(7), answers.append)
    answers.clear()
    assert isinstance(await carrier.call(m.DescribeStreamRequest(7)), m.StreamResponse)
    await carrier.close()


async def test_without_a_leader_the_refusal_is_passed_on() -> None:
    cluster = Cluster(NAMES, "")
    carrier = PdCarrier(NAMES, cluster.connect)
    for _ in range(6):
        response = await carrier.call(m.DescribeStreamRequest(7))
        assert response.status.code == ErrorCode.PD_NOT_LEADER
    assert set(cluster.connected) == set(NAMES), "all of them are asked in turn"
    await carrier.close()
    with pytest.raises(ConnectionLost):
        await carrier.call(m.DescribeStreamRequest(7))


async def test_nodes_that_point_at_each_other_end_in_a_refusal() -> None:
    cluster = Cluster(NAMES, "")
    nodes = {name: [m.PdNode(name, other, True)] for name, other in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True)}

    class Confused:
        def __init__(self, name: str) -> None:
            self.name = name

        def handle(self, request: m.Request, reply: Reply) -> None:
            reply(m.SystemErrorResponse(m.Status(ErrorCode.PD_NOT_LEADER, "ask him", encode_cluster(nodes[self.name]))))

    carrier = PdCarrier(NAMES, lambda host, port: InProcessCarrier(Confused(f"{host}:{port}")))
    response = await carrier.call(m.DescribeStreamRequest(7))
    assert response.status.code == ErrorCode.PD_NOT_LEADER
    await carrier.close()
    assert cluster.connected == []


def test_addresses_that_are_none() -> None:
    for text in ("", "nonsense", "a:1,b"):
        with pytest.raises(ValueError, match=r"address|host:port"):
            pd_carrier(text)


async def test_the_leader_is_found_over_tcp() -> None:
    cluster = Cluster([], "")
    listeners = []
    for _ in range(2):
        node = Node(cluster, "")
        listener = Listener(node, DialectV02(), "127.0.0.1", 0, ListenerOptions.placement_driver())
        await listener.start()
        node.name = "{}:{}".format(*listener.address)
        cluster.names.append(node.name)
        cluster.nodes[node.name] = node
        listeners.append(listener)
    cluster.leader = cluster.names[1]
    carrier = pd_carrier(f" {cluster.names[0]}, ")
    response = await carrier.call(m.DescribeStreamRequest(7), timeout=10)
    assert isinstance(response, m.StreamResponse)
    assert carrier.current == cluster.names[1]
    closing = asyncio.gather(*(listener.close() for listener in listeners))
    await carrier.close()
    await closing
