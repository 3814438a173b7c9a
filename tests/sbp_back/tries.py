"""What a test remembers of the appends of a writer that others shut out."""

from __future__ import annotations

from sbp_back.client.client import StreamWriter
from sbp_back.errors import SbpError
from tests.kit.waiting import until


class Tries:
    """What became of the appends of one writer."""

    def __init__(self, writer: StreamWriter) -> None:
        self.writer = writer
        self.acked: dict[int, bytes] = {}
        self.errors: list[SbpError] = []
        self.open = 0

    def append(self, payload: bytes) -> None:
        self.open += 1

        def done(error: SbpError | None) -> None:
            self.open -= 1
            if error is None:
                self.acked[base] = payload
            else:
                self.errors.append(error)

        base = self.writer.append(payload, 1, 0, 5, done)

    async def settled(self) -> None:
        await until(lambda: not self.open)
