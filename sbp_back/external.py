"""A client of servers in other processes, whichever dialect they speak: the one place where that is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.barrier import Barrier
from sbp_back.client.client import Client, ClientOptions
from sbp_back.client.leader import PdCarrier, pd_carrier
from sbp_back.transport.dialects import DIALECTS
from sbp_back.transport.tcp_carrier import Introduce, TcpOptions, tcp_connector
from sbp_back.wire.identity import RangeServerCheck
from sbp_document.elastic_stream.client import ForeignClient

if TYPE_CHECKING:
    from sbp_document.client.streams import DocumentStreams


class Servers(Struct, frozen=True):
    """``addresses``: of placement drivers, "host:port", separated by commas. ``dialect``: "0.2", or "v0.1" for the
    specification document. ``flavor``: whose servers they are, "anabranch" or "elastic-stream"."""

    addresses: str
    dialect: str
    flavor: str

    @property
    def strangers(self) -> bool:
        """Whether range servers that tell no identity are taken: servers of the document may be anybody's, and what
        the document promises is all that is asked of them."""
        return self.flavor != "anabranch" or self.dialect == "v0.1"


class External(Struct):
    """``client`` asks ``pd``, and closes it; ``shared`` is ``client`` when other writers may append to the streams."""

    client: Client | DocumentStreams
    pd: PdCarrier
    shared: DocumentStreams | None = None


def external_client(
    servers: Servers,
    tcp: TcpOptions,
    introduce: Introduce | None,
    identity: Callable[[], str],
    options: ClientOptions,
    barrier: Barrier,
) -> External:
    """A client of ``servers``; ``introduce`` looks at each connection to a placement driver, and ``identity`` is what
    range servers must tell. Of ``options`` a client of the document takes the times. Raises ``ValueError`` for
    addresses that are none."""
    dialect = DIALECTS[f"sbp-{servers.dialect}"]
    pd = pd_carrier(servers.addresses, dialect, tcp, introduce, barrier)
    connect = tcp_connector(dialect, tcp, RangeServerCheck(strangers=servers.strangers, identity=identity), barrier)
    if servers.dialect != "v0.1":
        kind = ForeignClient if servers.flavor == "elastic-stream" else Client
        return External(kind(pd, connect, options, barrier), pd)
    from sbp_document.client.streams import DocumentStreams, StreamsOptions

    times = StreamsOptions(
        options.control,
        append_timeout=options.writer.retry.append_timeout,
        fetch_timeout=options.fetch_timeout,
        open_timeout=options.open_timeout,
        patience=options.writer.patience,
    )
    streams = DocumentStreams(pd, connect, times, barrier)
    return External(streams, pd, streams)
