"""Dialects: how messages look on the wire. A listener or carrier speaks one (reference/sbp.md, section 1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from sbp_back.dialects.v02 import DialectV02
from sbp_back.model import Buffer, Request, Response

__all__ = ["DIALECTS", "Dialect"]


class Dialect(Protocol):
    """Translation between messages and what a frame carries. Stateless and sans-IO."""

    @property
    def name(self) -> str:
        """Name in configuration and logs."""

    def encode_request(self, request: Request) -> tuple[int, bytes, Sequence[Buffer]]:
        """Opcode, header and payload parts. Raises ``SbpError`` 1498 for a request this dialect cannot express."""

    def decode_request(self, opcode: int, header: Buffer, payload: Buffer, crc: int = -1) -> Request:
        """The request in a frame; ``crc`` is the frame's verified payload CRC, if the caller has it.

        Raises ``DecodeError`` for malformed bytes, ``SbpError`` 1498 (known, not served) or 1499 (unknown) for an
        opcode this dialect has no request for: to be answered as a system error, the connection stays good.
        """

    def encode_response(self, opcode: int, response: Response) -> tuple[int, bytes, Sequence[Buffer]]:
        """Flags, header and payload parts of the answer to a request of ``opcode``."""

    def decode_response(self, opcode: int, flags: int, header: Buffer, payload: Buffer, crc: int = -1) -> Response:
        """The response in a frame. Raises ``DecodeError``."""

    def payload_crc(self, message: Request | Response) -> int:
        """CRC-32 of the payload ``message`` is encoded with when it is known for other reasons, else -1."""


DIALECTS: Mapping[str, Dialect] = MappingProxyType({"sbp-0.2": DialectV02()})
