"""Entry points of a node: backends that speak the document's dialect sbp-v0.1, and servers of elastic-stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.backends import Backend, Connecting, External, Inside, Limit, Served, Servers

if TYPE_CHECKING:
    from sbp_back.client.client import Client


class DocumentBackend(Backend):
    """Backend of servers that speak sbp-v0.1; also offers listeners that do."""

    speaks = ("anabranch", "v0.1")
    appends_move = False
    limits = (
        Limit(
            "sbp.dialect is v0.1, which has no epochs: a second writer of a partition's stream is not fenced, whether "
            "another node or any client of the document; its records stand between ours",
            chosen=True,
        ),
        Limit(
            "sbp.dialect is v0.1, in which a batch sent again cannot be told from a new one: one whose request was "
            "given up before the server had read it may be stored twice",
            chosen=True,
        ),
        Limit("sbp.dialect is v0.1: what another writer appends is seen some seconds later", chosen=True),
    )
    listeners = {"sbp-v0.1": 12379, "sbp-v0.1-range-server": 10912, "sbp-v0.1-april": 12380}  # noqa: RUF012

    def connect(self, servers: Servers, connecting: Connecting) -> External:
        from sbp_document.client.streams import connect_streams

        streams, pd = connect_streams(servers.addresses, connecting)

        return External(streams, pd, streams.attach)

    def adapt(self, client: Client) -> None:
        from sbp_document.client.opening import OpeningFetch

        client.fetch_kind = OpeningFetch

    async def serve(self, node: Inside) -> Served:
        from sbp_document.partition_owners import PartitionOwners
        from sbp_document.server.document_service import start_document

        inside = node.embedded
        owners = PartitionOwners(node.catalog, node.logs)
        return await start_document(
            inside.client, inside.placement_driver, inside.range_server, node.listen, owners.find
        )


class ElasticStreamBackend(Backend):
    """Backend of elastic-stream's servers, whose known faults the client works around."""

    speaks = ("elastic-stream", "0.2")
    limits = tuple(
        Limit(sentence, chosen=True)
        for sentence in (
            "elastic-stream's servers may acknowledge before the disk has the data (segments opened later lack "
            "O_DSYNC)",
            "elastic-stream's servers keep seals in memory only: a former owner of a partition may append to a range "
            "server that was restarted, until the placement driver's seal has reached it",
            "elastic-stream's servers cut their log at the first damaged record without saying so",
            "elastic-stream's servers neither trim nor delete streams: retention, DeleteRecords and the deletion of "
            "topics hide data and free nothing there",
            "elastic-stream's range servers drop the oldest data of any topic when their log is full, whatever its own "
            "retention: a topic then begins later",
            "elastic-stream's range servers may acknowledge a batch that arrives while its range is sealed for another "
            "owner, and that is no part of the stream then: run one node on them at a time",
        )
    )

    def connect(self, servers: Servers, connecting: Connecting) -> External:
        from sbp_back.client.leader import pd_carrier
        from sbp_back.transport.tcp_carrier import tcp_connector
        from sbp_back.wire.identity import RangeServerCheck
        from sbp_document.elastic_stream.client import ForeignClient

        tcp, barrier = connecting.tcp, connecting.barrier
        pd = pd_carrier(servers.addresses, None, tcp, connecting.introduce, barrier)
        check = RangeServerCheck(strangers=True, identity=connecting.identity)
        return External(ForeignClient(pd, tcp_connector(tcp, check, barrier), connecting.options, barrier), pd)
