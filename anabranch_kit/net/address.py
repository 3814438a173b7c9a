"""Addresses to listen at, or to connect to."""

from __future__ import annotations

from msgspec import Struct

WILDCARDS = frozenset({"", "0.0.0.0", "::"})
"""Hosts that listen on every interface of the machine."""


class Address(Struct, frozen=True):
    """A TCP address; port 0 asks for a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_host: str = "127.0.0.1") -> Address:
        """Parse ``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``. Raises ValueError."""
        host, colon, port = text.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: an IPv6 host goes in brackets, as in [::1]:9092")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host or default_host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
