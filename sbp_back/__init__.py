"""Anabranch backend: Streaming Batch Protocol codec, client, range server and placement driver.

This module names what other packages use, and imports it on first use; servers and their stores are in the packages of
the same name.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbp_back.client.client import Client, ClientOptions, StreamWriter
    from sbp_back.errors import ConnectionLost, DecodeError, ErrorCode, FencedError, NoSpace, SbpError
    from sbp_back.transport.carrier import Carrier, InProcessCarrier
    from sbp_back.transport.handler import Handler
    from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions, parse_address, tcp_connector
    from sbp_back.wire.base import Dialect
    from sbp_back.wire.model import Entry, RangeInfo, RangeServerInfo, StreamInfo

__all__ = [
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

_WHERE = {
    "client.client": "Client ClientOptions StreamWriter",
    "errors": "ConnectionLost DecodeError ErrorCode FencedError NoSpace SbpError",
    "transport.carrier": "Carrier InProcessCarrier",
    "transport.handler": "Handler",
    "transport.tcp_carrier": "TcpCarrier TcpOptions parse_address tcp_connector",
    "wire.base": "Dialect",
    "wire.model": "Entry RangeInfo RangeServerInfo StreamInfo",
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
