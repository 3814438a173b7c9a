"""Servers that lose messages and die inside the process of a test, and what another process would find of them."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from pathlib import Path

from sbp_back.errors import ConnectionLost
from sbp_back.transport.carrier import AnswerTo
from sbp_back.transport.handler import Handler
from sbp_back.wire.model import DocumentResponse, GoAway, Request, Response

LOST = ConnectionLost("lost")


class Place:
    """Where a server is, or was: requests and answers are lost here as told, and all of them when it dies. An answer
    in parts is lost with its first. One that is late arrives when nobody waits for it any more, behind a later one, as
    over a connection that was given up. Requests of the kinds ``spared`` always arrive."""

    def __init__(self, spared: tuple[type, ...] = ()) -> None:
        self.handler: Handler | None = None
        self.fates: deque[str] = deque()
        self._spared = spared
        self._waiting: dict[int, AnswerTo] = {}
        self._last = 0
        self._late: list[Request] = []

    def submit(self, request: Request, reply: AnswerTo) -> None:
        fate = "arrives"
        if self.fates and not isinstance(request, self._spared):
            fate = self.fates.popleft()
        if self.handler is None or fate in ("request lost", "request late"):
            if self.handler is not None and fate == "request late":
                self._late.append(request)
            if not isinstance(request, GoAway):
                asyncio.get_running_loop().call_soon(reply, LOST)
            return
        self._last = number = self._last + 1
        self._waiting[number] = reply

        def answered(response: Response) -> None:
            waiting = self._waiting.get(number)
            if waiting is None:
                return
            lost = fate == "answer lost"
            if lost or not isinstance(response, DocumentResponse) or response.last:
                del self._waiting[number]
            waiting(LOST if lost else response)

        late, self._late = self._late, []
        self.handler.handle(request, answered)
        for one in late:
            if self.handler is not None:
                self.handler.handle(one, lambda response: None)

    def die(self) -> None:
        self.handler = None
        self._late.clear()
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            reply(LOST)


def copy_log(source: Path, target: Path) -> None:
    """The store's log and checkpoints as they are; its background thread must not be changing them."""
    for name in ("wal", "ckpt"):
        (target / name).mkdir(parents=True)
        for path in (source / name).iterdir():
            if path.is_file() and path.suffix != ".tmp":  # half made, and renamed by another thread at any moment
                shutil.copyfile(path, target / name / path.name)
