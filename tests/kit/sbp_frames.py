"""Frames of SBP in bytes that a test has at hand."""

from __future__ import annotations

from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.net.framing import FrameError, ReceiveBuffer
from sbp_back.errors import DecodeError
from sbp_back.wire.frame import FRAMING, Frame, parse_frame


class Frames:
    """Cuts bytes into frames, as a connection does."""

    def __init__(self) -> None:
        self._framer = FRAMING.framer(ReceiveBuffer())

    @property
    def partial(self) -> int:
        """The bytes held of a frame that is not complete."""
        return self._framer.partial

    def feed(self, data: Buffer) -> list[Frame]:
        """The frames that ``data`` completes. Raises DecodeError."""
        frames: list[Frame] = []
        view = memoryview(data)
        while len(view):
            space = self._framer.space()
            count = min(len(space), len(view))
            space[:count] = view[:count]
            view = view[count:]
            try:
                frames += map(parse_frame, self._framer.received(count))
            except FrameError as error:
                raise DecodeError(str(error)) from None
            self._framer.retry()
        return frames
