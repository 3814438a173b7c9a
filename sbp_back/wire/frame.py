"""The SBP frame: a length, a fixed head, an extended header, a payload and the payload's CRC-32. Sans-IO.

The frame is the same in every dialect (docs/protocols/sbp.md, "Frame"). On the wire, big-endian::

    u32 length of what follows | u8 magic 23 | u16 opcode | u8 flags | u32 stream id
    u8 header format | u24 header length | header | payload | u32 CRC-32 of the payload

The CRC of an empty payload is written as 0 and not looked at when read.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.net.framing import Framing
from sbp_back.errors import DecodeError, ErrorCode, SbpError

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:  # no wheel for this platform: same polynomial, a tenth of the speed
    from zlib import crc32 as crc32

FLAG_RESPONSE = 0x01
FLAG_END = 0x02
FLAG_SYSTEM_ERROR = 0x04
RESPONSE_FLAGS = FLAG_RESPONSE | FLAG_END
SYSTEM_ERROR_FLAGS = RESPONSE_FLAGS | FLAG_SYSTEM_ERROR

# A GOAWAY uses the flags byte for its reason, so MAINTENANCE has the bit of RESPONSE.
GOAWAY_IDLE = 0x00
GOAWAY_MAINTENANCE = 0x01

MAX_FRAME_LENGTH = 16 * 1024 * 1024
"""Largest value of the length field, in bytes; both directions."""

FRAME_OVERHEAD = 20
"""Bytes of a frame on the wire besides its header and payload."""

_MAGIC = 23
_MIN_LENGTH = 16
_HEAD_BYTES = 12
_FORMAT_UNKNOWN = 0
_FORMAT_FLATBUFFERS = 1
_WHOLE_HEAD = Struct(">IBHBII")
_HEAD = Struct(">BHBII")
_CRC = Struct(">I")
_NO_CRC = bytes(4)

FRAMING = Framing(Struct(">I"), _MIN_LENGTH, MAX_FRAME_LENGTH)
"""Cuts a byte stream into what :func:`parse_frame` takes."""


class Frame:
    """One received frame; ``payload`` shares memory with the frame's own bytes, ``crc`` is verified (0 when empty)."""

    __slots__ = ("crc", "flags", "header", "opcode", "payload", "stream_id")

    def __init__(self, opcode: int, flags: int, stream_id: int, header: bytes, payload: Buffer, crc: int) -> None:
        self.opcode = opcode
        self.flags = flags
        self.stream_id = stream_id
        self.header = header
        self.payload = payload
        self.crc = crc

    def __repr__(self) -> str:
        return (
            f"Frame(opcode={self.opcode:#06x}, flags={self.flags:#x}, stream={self.stream_id}, "
            f"header={len(self.header)}, payload={len(self.payload)})"
        )


def encode_frame(
    opcode: int,
    flags: int,
    stream_id: int,
    header: Buffer = b"",
    payload: Sequence[Buffer] = (),
    crc: int = -1,
) -> list[Buffer]:
    """Return the bytes of a frame as a list of parts to be written in order; payload parts are passed through uncopied.

    ``crc`` is the CRC-32 of the whole payload when the caller knows it (0..2**32-1), or -1 to have it computed. Raises
    ``SbpError`` 1413 when the frame would be longer than the protocol allows.
    """
    header_length = len(header)
    payload_length = 0
    for part in payload:
        payload_length += len(part)
    length = _MIN_LENGTH + header_length + payload_length
    if length > MAX_FRAME_LENGTH:
        raise SbpError(ErrorCode.PAYLOAD_TOO_LARGE, f"a frame of {length} bytes exceeds {MAX_FRAME_LENGTH}")
    head = _WHOLE_HEAD.pack(length, _MAGIC, opcode, flags, stream_id, _FORMAT_FLATBUFFERS << 24 | header_length)
    if not payload_length:
        return [b"".join((head, header, _NO_CRC))]
    if crc < 0:
        crc = 0
        for part in payload:
            crc = crc32(part, crc)
    return [head + header, *payload, _CRC.pack(crc)]


def is_foreign(data: Buffer) -> bool:
    """Return whether a frame has another magic number, which a dialect may have discarded."""
    return data[0] != _MAGIC


def parse_frame(data: bytes | bytearray) -> Frame:
    """Return the frame in ``data``, which is what follows its length and must not be changed any more. Raises
    ``DecodeError``.
    """
    magic, opcode, flags, stream_id, header_word = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise DecodeError(f"frame magic is {magic}, not {_MAGIC}")
    header_format, header_length = header_word >> 24, header_word & 0xFFFFFF
    start, end = _HEAD_BYTES + header_length, len(data) - _CRC.size
    if start > end:
        raise DecodeError(f"header of {header_length} bytes does not fit a frame of length {len(data)}")
    if header_format != _FORMAT_FLATBUFFERS and (header_length or header_format != _FORMAT_UNKNOWN):
        raise DecodeError(f"header format {header_format} is not FlatBuffers")
    header = bytes(data[_HEAD_BYTES:start])
    if start == end:
        return Frame(opcode, flags, stream_id, header, b"", 0)
    payload = memoryview(data)[start:end]
    (crc,) = _CRC.unpack_from(data, end)
    if crc32(payload) != crc:
        raise DecodeError("payload CRC does not match")
    return Frame(opcode, flags, stream_id, header, payload, crc)
