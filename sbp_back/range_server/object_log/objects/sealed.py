"""Small values as objects and files hold them: a CRC-32 of all that follows, then version and value in msgpack."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.wire.frame import crc32

T = TypeVar("T")

_parts = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])


class Sealed(Generic[T]):
    """Codec of values of ``kind``, which errors call ``what``; versions up to ``newest`` are read."""

    __slots__ = ("_decoder", "_newest", "_what")

    def __init__(self, kind: type[T], what: str, newest: int = 1) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._what = what
        self._newest = newest

    def encode(self, value: T, version: int = 1) -> bytes:
        body = msgspec.msgpack.encode((version, value))
        return crc32(body).to_bytes(4, "big") + body

    def decode(self, data: Buffer) -> T:
        """Decode a value. Raises DecodeError."""
        view = memoryview(data)
        if len(view) < 4 or crc32(view[4:]) != int.from_bytes(view[:4], "big"):
            raise DecodeError(f"{self._what} is damaged")
        try:
            version, value = _parts.decode(view[4:])
            if 1 <= version <= self._newest:
                return self._decoder.decode(value)
        except msgspec.MsgspecError as error:
            raise DecodeError(f"{self._what} makes no sense: {error}") from error
        raise DecodeError(f"{self._what} is of version {version}, this release reads up to {self._newest}")
