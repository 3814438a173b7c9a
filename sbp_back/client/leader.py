"""The carrier to a placement driver of several nodes: requests go to the node that leads.

A node that does not lead answers 1503 with the cluster in the status detail (docs/protocols/sbp.md, "Placement
driver"); the carrier then sends the same request to the leader named there. After an unreachable node it tries the next
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from anabranch_kit.run.barrier import Barrier
from sbp_back.errors import ConnectionLost, DecodeError, ErrorCode
from sbp_back.transport.carrier import Answer, AnswerTo, Carrier
from sbp_back.transport.tcp_carrier import Introduce, TcpCarrier, TcpOptions, parse_address
from sbp_back.wire.base import Dialect
from sbp_back.wire.flat import Table, Tables
from sbp_back.wire.model import PdNode, Request
from sbp_back.wire.v02 import PD_NODE

_MAX_HOPS = 3
_MAX_ADDRESSES = 32
"""Most addresses that are learned from answers."""


class _Cluster(Struct):
    nodes: list[PdNode] = field(default_factory=list)


_CLUSTER = Table(_Cluster, Tables("nodes", PD_NODE, required=True))


def encode_cluster(nodes: Sequence[PdNode]) -> bytes:
    """Encode the status detail of a node that does not lead."""
    return _CLUSTER.write(_Cluster(list(nodes)))


def decode_cluster(detail: bytes) -> list[PdNode]:
    """Decode the nodes named in a status detail; none when it is no cluster."""
    try:
        cluster: _Cluster = _CLUSTER.read(detail)
    except DecodeError:
        return []
    return cluster.nodes


class PdCarrier(Carrier):
    """A :class:`~sbp_back.transport.carrier.Carrier` to the placement drivers at ``addresses`` ("host:port", at least
    one).

    ``connect`` makes the carrier to one address. Raises ``ValueError`` for an invalid address.
    """

    def __init__(self, addresses: Sequence[str], connect: Callable[[str, int], Carrier]) -> None:
        if not addresses:
            raise ValueError("no address of a placement driver")
        for address in addresses:
            parse_address(address)
        self._addresses = list(dict.fromkeys(addresses))
        self._connect = connect
        self._current = self._addresses[0]
        self._carriers: dict[str, Carrier] = {}
        self._closed = False

    @property
    def current(self) -> str:
        return self._current

    def submit(self, request: Request, reply: AnswerTo, timeout: float | None = None) -> None:
        if self._closed:
            reply(ConnectionLost("the carrier is closed"))
            return
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._send(request, reply, deadline, _MAX_HOPS)

    async def close(self) -> None:
        self._closed = True
        carriers, self._carriers = self._carriers, {}
        for carrier in carriers.values():
            await carrier.close()

    def _send(self, request: Request, reply: AnswerTo, deadline: float | None, hops: int) -> None:
        address = self._current

        def answered(answer: Answer) -> None:
            if isinstance(answer, ConnectionLost):
                # Whether the node served it is unknown: the caller decides to repeat it, and then meets the next node.
                self._leave(address)
            elif answer.status.code == ErrorCode.PD_NOT_LEADER:
                leader = self._leader(answer.status.detail)
                if leader is None or leader == address:
                    self._leave(address)
                else:
                    self._current = leader
                    if hops > 0 and not self._closed:
                        self._send(request, reply, deadline, hops - 1)
                        return
            reply(answer)

        carrier = self._carriers.get(address)
        if carrier is None:
            carrier = self._carriers[address] = self._connect(*parse_address(address))
        left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
        carrier.submit(request, answered, left)

    def _leave(self, address: str) -> None:
        if self._current == address:
            position = self._addresses.index(address) if address in self._addresses else -1
            self._current = self._addresses[(position + 1) % len(self._addresses)]

    def _leader(self, detail: bytes) -> str | None:
        """Return the leader named in ``detail``; remember the other nodes named there."""
        leader = None
        for node in decode_cluster(detail):
            try:
                parse_address(node.advertise_addr)
            except ValueError:
                continue
            if node.advertise_addr not in self._addresses:
                if len(self._addresses) >= _MAX_ADDRESSES:
                    continue
                self._addresses.append(node.advertise_addr)
            if node.is_leader:
                leader = node.advertise_addr
        return leader


def pd_carrier(
    addresses: str,
    dialect: Dialect | None = None,
    options: TcpOptions | None = None,
    introduce: Introduce | None = None,
    barrier: Barrier | None = None,
) -> PdCarrier:
    """Return a carrier over TCP to ``addresses``, separated by commas; a connection that ``introduce`` refuses counts
    as one that cannot be made. Raises ``ValueError``.
    """
    listed = [one.strip() for one in addresses.split(",") if one.strip()]
    return PdCarrier(listed, lambda host, port: TcpCarrier(host, port, dialect, options, introduce, barrier))
