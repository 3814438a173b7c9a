"""Interface of a dialect, and the facts about it that listeners and carriers must know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import ErrorCode
from sbp_back.wire.model import Request, Response


class Manners(Struct, frozen=True):
    """Differences between dialects outside of their tables.

    ``several_frames``: an answer may come in several frames, the last of which has the flag END; without it every
    response is complete, whatever its flags (docs/protocols/sbp.md, "Frame"). ``ignores_unknown``: a frame of an
    unknown opcode is discarded, not answered. ``skips_foreign_magic``: a frame with another magic number is discarded
    too; otherwise the connection is cut. ``signed_stream_ids``: ids from 2**31 on are negative and not allowed.
    ``malformed`` is the code for bytes that are no request of the dialect. ``opcodes`` are those that are known to the
    dialect. ``answers_as``: (opcode of a request, another opcode that its answer may have).
    """

    several_frames: bool = False
    ignores_unknown: bool = False
    skips_foreign_magic: bool = False
    signed_stream_ids: bool = False
    malformed: int = ErrorCode.BAD_REQUEST
    opcodes: frozenset[int] = frozenset()
    answers_as: frozenset[tuple[int, int]] = frozenset()

    def discards(self, opcode: int) -> bool:
        """Return whether a frame of ``opcode`` must be ignored."""
        return self.ignores_unknown and opcode not in self.opcodes

    def answers(self, asked: int, opcode: int) -> bool:
        """Return whether a frame of ``opcode``, not a system error, may be the answer to a request of ``asked``."""
        return opcode == asked or (asked, opcode) in self.answers_as


class Dialect(Protocol):
    """Translation between messages and what a frame carries. Stateless and sans-IO."""

    @property
    def name(self) -> str:
        """Name in configuration and logs."""

    @property
    def manners(self) -> Manners: ...

    def encode_request(self, request: Request) -> tuple[int, bytes, Sequence[Buffer]]:
        """Return opcode, header and payload parts. Raises ``SbpError`` 1498 if the dialect cannot express the
        request.
        """

    def decode_request(self, opcode: int, header: Buffer, payload: Buffer, crc: int = -1) -> Request:
        """Decode the request in a frame; ``crc`` is the frame's verified payload CRC, if the caller has it.

        Raises ``DecodeError`` for malformed bytes, ``SbpError`` 1498 (known, not served) or 1499 (unknown) for an
        opcode this dialect has no request for: to be answered as a system error, the connection stays good.
        """

    def encode_response(self, opcode: int, response: Response) -> tuple[int, bytes, Sequence[Buffer]]:
        """Return flags, header and payload parts of the answer to a request of ``opcode``."""

    def decode_response(self, opcode: int, flags: int, header: Buffer, payload: Buffer, crc: int = -1) -> Response:
        """Decode the response in a frame. Raises ``DecodeError``."""

    def payload_crc(self, message: Request | Response) -> int:
        """Return the CRC-32 of the payload that ``message`` is encoded with if it is already known, else -1."""
