"""The SBP frame: a length, a fixed head, an extended header, a payload and the payload's CRC-32. Sans-IO.

The frame is the same in every dialect (docs/protocols/sbp.md, "Frame"). On the wire, big-endian::

    u32 length of what follows | u8 magic 23 | u16 opcode | u8 flags | u32 stream id
    u8 header format | u24 header length | header | payload | u32 CRC-32 of the payload

The CRC of an empty payload is written as 0 and not looked at when read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from anabranch_kit.memory.buffers import Buffer, fresh
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
_HEAD_BYTES = 16
_FORMAT_UNKNOWN = 0
_FORMAT_FLATBUFFERS = 1
_HEAD = Struct(">IBHBII")
_CRC = Struct(">I")
_NO_CRC = bytes(4)

_RECEIVE_BYTES = 128 * 1024
_OWN_BUFFER_BYTES = 64 * 1024  # an unfinished frame this long leaves the receive buffer
_FIRST_OWN_BYTES = 256 * 1024  # its first buffer; the next one holds the whole frame, so only this is ever copied


def receive_buffer() -> bytearray:
    """Return a buffer that readers of one event loop may share."""
    return bytearray(_RECEIVE_BYTES)


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
    head = _HEAD.pack(length, _MAGIC, opcode, flags, stream_id, _FORMAT_FLATBUFFERS << 24 | header_length)
    if not payload_length:
        return [b"".join((head, header, _NO_CRC))]
    if crc < 0:
        crc = 0
        for part in payload:
            crc = crc32(part, crc)
    return [head + header, *payload, _CRC.pack(crc)]


_TLS = 0x1603
"""Length field that the head of a TLS handshake would make (RFC 8446, section 5.1)."""


def _check_head(head: tuple[int, int, int, int, int, int], limit: int) -> None:
    length, magic, _, _, _, header_word = head
    if magic != _MAGIC:
        if length >> 16 == _TLS:
            raise DecodeError("a TLS client at a listener without TLS")
        raise DecodeError(f"frame magic is {magic}, not {_MAGIC}")
    if not _MIN_LENGTH <= length <= limit:
        raise DecodeError(f"frame length {length} is outside {_MIN_LENGTH}..{limit}")
    header_format, header_length = header_word >> 24, header_word & 0xFFFFFF
    if header_length > length - _MIN_LENGTH:
        raise DecodeError(f"header of {header_length} bytes does not fit a frame of length {length}")
    if header_format != _FORMAT_FLATBUFFERS and (header_length or header_format != _FORMAT_UNKNOWN):
        raise DecodeError(f"header format {header_format} is not FlatBuffers")


def _frame(head: tuple[int, int, int, int, int, int], body: memoryview) -> Frame:
    """``body`` is what follows the 16 head bytes, CRC included; it must not be reused by the caller."""
    _, _, opcode, flags, stream_id, header_word = head
    header_length = header_word & 0xFFFFFF
    payload_end = len(body) - 4
    if header_length == payload_end:
        return Frame(opcode, flags, stream_id, bytes(body[:header_length]), b"", 0)
    payload = body[header_length:payload_end]
    (crc,) = _CRC.unpack_from(body, payload_end)
    if crc32(payload) != crc:
        raise DecodeError("payload CRC does not match")
    return Frame(opcode, flags, stream_id, bytes(body[:header_length]), payload, crc)


class FrameReader:
    """Cuts a byte stream into frames; made for ``asyncio.BufferedProtocol`` (get_buffer / buffer_updated).

    Small frames are copied out of the receive buffer, so that a slice that is kept does not keep the whole buffer. A
    long frame gets a buffer of its own, into which the rest of it is received directly. That buffer grows with the
    bytes that arrive: a peer that only announces a long frame gets no memory for it. ``whole`` is for expected frames,
    answers to one's own requests: the buffer has its length from the start, which saves the copies of growing.

    ``limit`` is the largest acceptable length field, in bytes. With ``skip_foreign`` a frame of another magic number is
    discarded by its length, as the specification document wants it; otherwise it is an error like any other. ``buffer``
    may be shared by all readers of one event loop (:func:`receive_buffer`), which then keep only the bytes of
    unfinished frames; without it a reader has its own. ``admit`` is asked whether a long frame of so many bytes on the
    wire may be received; when it may not, :attr:`refused` has these bytes and nothing may be received until
    :meth:`retry`.
    """

    __slots__ = (
        "_admit",
        "_buffer",
        "_end",
        "_filled",
        "_head",
        "_lent",
        "_limit",
        "_long",
        "_rest",
        "_shared",
        "_skip",
        "_skip_foreign",
        "_view",
        "_whole",
        "refused",
    )

    def __init__(
        self,
        limit: int = MAX_FRAME_LENGTH,
        *,
        skip_foreign: bool = False,
        buffer: bytearray | None = None,
        admit: Callable[[int], bool] | None = None,
        whole: bool = False,
    ) -> None:
        self._limit = limit
        self._whole = whole
        self._skip_foreign = skip_foreign
        self._skip = 0  # bytes still to come of a frame that is discarded
        self._shared = buffer is not None
        self._buffer = receive_buffer() if buffer is None else buffer
        self._view = memoryview(self._buffer)
        self._filled = 0  # bytes at the head of the receive buffer that wait for the rest of their frame
        self._rest = b""  # those bytes, between two calls, when the buffer is shared
        self._long: bytearray | None = None  # own buffer of the long frame that is being received (without its head)
        self._head: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
        self._end = 0  # bytes of the long frame received so far
        self._lent: memoryview | None = None
        self._admit = admit
        self.refused = 0

    @property
    def buffered(self) -> int:
        """Return the bytes held for a frame that is not complete yet."""
        return self._end if self._long is not None else self._filled

    @property
    def stashed(self) -> int:
        """Return the bytes held for a frame that is not complete yet and was not admitted."""
        return 0 if self._long is not None else self._filled

    @property
    def receiving(self) -> int:
        """Return the bytes on the wire of the admitted long frame that is being received; 0 when there is none."""
        return 0 if self._long is None else self._head[0] + 4

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Return the buffer for the next bytes of the stream; at least one byte long."""
        if self._long is None:
            if self._rest:
                self._view[: self._filled] = self._rest
            self._lent = self._view[self._filled :]
            return self._lent
        body_length = self._head[0] - 12
        if self._end == len(self._long):
            grown = fresh(min(body_length, _FIRST_OWN_BYTES) if self._end < _FIRST_OWN_BYTES else body_length)
            grown[: self._end] = self._long
            self._long = grown
        self._lent = memoryview(self._long)[self._end :]
        return self._lent

    def received(self, count: int) -> list[Frame]:
        """Take ``count`` bytes that were written to the buffer given last; return the frames they complete, in order.

        Raises ``DecodeError`` when the bytes are not a frame; the connection is then of no further use.
        """
        if self._lent is not None:
            self._lent.release()  # or the bytearray below could not grow
            self._lent = None
        if self._long is not None:
            self._end += count
            if self._end < self._head[0] - 12:
                return []
            frame = _frame(self._head, memoryview(self._long))
            self._long = None
            return [frame]
        return self._cut(self._filled + count)

    def retry(self) -> bool:
        """Ask ``admit`` once more whether the refused frame may be received."""
        if not self.refused:
            return True
        if self._admit is not None and not self._admit(self.refused):
            return False
        self.refused = 0
        kept = self._rest if self._shared else self._view[: self._filled]
        self._receive_long(_HEAD.unpack_from(kept), kept[_HEAD_BYTES:])
        self._rest = b""
        self._filled = 0
        return True

    def close(self) -> None:
        """Stop reading: drop an unfinished frame, and call ``admit`` no more."""
        self._lent = self._long = self._admit = None
        self._rest = b""
        self._filled = self.refused = 0

    def _receive_long(self, head: tuple[int, int, int, int, int, int], body: Buffer) -> None:
        self._head = head
        self._end = len(body)
        if self._whole:
            self._long = fresh(head[0] - 12)
            self._long[: self._end] = body
        else:
            self._long = bytearray(body)

    def feed(self, data: Buffer) -> list[Frame]:
        """Take bytes that are in another buffer already; otherwise like :meth:`received`."""
        frames: list[Frame] = []
        view = memoryview(data)
        while len(view):
            target = self.get_buffer()
            count = min(len(target), len(view))
            target[:count] = view[:count]
            view = view[count:]
            frames += self.received(count)
        return frames

    def _cut(self, filled: int) -> list[Frame]:
        frames: list[Frame] = []
        view = self._view
        at = min(self._skip, filled)
        self._skip -= at
        while filled - at >= _HEAD_BYTES:
            head = _HEAD.unpack_from(view, at)
            if head[1] != _MAGIC and self._skip_foreign and _MIN_LENGTH <= head[0] <= self._limit:
                end = at + 4 + head[0]
                self._skip = max(0, end - filled)
                at = min(end, filled)
                continue
            _check_head(head, self._limit)
            end = at + 4 + head[0]
            if end > filled:
                if head[0] >= _OWN_BUFFER_BYTES:
                    if self._admit is None or self._admit(head[0] + 4):
                        self._receive_long(head, view[at + _HEAD_BYTES : filled])
                        at = filled
                    else:
                        self.refused = head[0] + 4
                break
            frames.append(_frame(head, memoryview(bytes(view[at + _HEAD_BYTES : end]))))
            at = end
        rest = self._filled = filled - at
        if self._shared:
            self._rest = bytes(view[at:filled]) if rest else b""
        elif at and rest:
            self._buffer[:rest] = self._buffer[at:filled]
        return frames
