"""Anabranch backend: Streaming Batch Protocol codec, client, range server and placement driver.

What other packages use is named here; servers and their stores are in the packages of the same name.
"""

from sbp_back.carrier import Carrier, InProcessCarrier, TcpCarrier, TcpOptions, parse_address, tcp_connector
from sbp_back.client import Client, ClientOptions, StreamWriter
from sbp_back.dialects import DIALECTS, Dialect
from sbp_back.errors import ConnectionLost, DecodeError, ErrorCode, FencedError, NoSpace, SbpError
from sbp_back.handler import Handler
from sbp_back.model import Entry, RangeInfo, RangeServerInfo, StreamInfo

__all__ = [
    "DIALECTS",
    "Carrier",
    "Client",
    "ClientOptions",
    "ConnectionLost",
    "DecodeError",
    "Dialect",
    "Entry",
    "ErrorCode",
    "FencedError",
    "Handler",
    "InProcessCarrier",
    "NoSpace",
    "RangeInfo",
    "RangeServerInfo",
    "SbpError",
    "StreamInfo",
    "StreamWriter",
    "TcpCarrier",
    "TcpOptions",
    "parse_address",
    "tcp_connector",
]
