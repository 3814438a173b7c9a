"""Anabranch backend: Streaming Batch Protocol codec, client, range server and placement driver.

What other packages use is named here; servers and their stores are in the packages of the same name.
"""

from sbp_back.client.client import Client, ClientOptions, StreamWriter
from sbp_back.client.foreign import ForeignClient
from sbp_back.document.batch import DocumentRecord, RecordBatch, encode_batch
from sbp_back.document.client import Appended, Created, DocumentClient, Fetched, Trimmed, Wanted
from sbp_back.document.codes import DocumentCode
from sbp_back.document.errors import DocumentError
from sbp_back.document.messages import DocumentRange, DocumentStream
from sbp_back.errors import ConnectionLost, DecodeError, ErrorCode, FencedError, NoSpace, SbpError
from sbp_back.transport.carrier import Carrier, InProcessCarrier
from sbp_back.transport.dialects import DIALECTS, Dialect
from sbp_back.transport.handler import Handler
from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions, parse_address, tcp_connector
from sbp_back.wire.model import Entry, RangeInfo, RangeServerInfo, StreamInfo

__all__ = [
    "DIALECTS",
    "Appended",
    "Carrier",
    "Client",
    "ClientOptions",
    "ConnectionLost",
    "Created",
    "DecodeError",
    "Dialect",
    "DocumentClient",
    "DocumentCode",
    "DocumentError",
    "DocumentRange",
    "DocumentRecord",
    "DocumentStream",
    "Entry",
    "ErrorCode",
    "FencedError",
    "Fetched",
    "ForeignClient",
    "Handler",
    "InProcessCarrier",
    "NoSpace",
    "RangeInfo",
    "RangeServerInfo",
    "RecordBatch",
    "SbpError",
    "StreamInfo",
    "StreamWriter",
    "TcpCarrier",
    "TcpOptions",
    "Trimmed",
    "Wanted",
    "encode_batch",
    "parse_address",
    "tcp_connector",
]
