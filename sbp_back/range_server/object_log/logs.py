"""The logs in one bucket: each server has one below a name of its own, and another one when that was adopted.

| object | content |
|---|---|
| ``logs/NAME/G/…`` | the log of generation G of the server that calls itself NAME |
| ``logs/NAME/G/incarnations/N`` | who has claimed number N of it (:mod:`.claims`) |
| ``servers/ID`` | ``NAME/G``: the log of range server ID |
"""

from __future__ import annotations

import os
import re

from sbp_back.errors import StoreError, StoreVersionError
from sbp_back.range_server.object_log.bucket import Bucket
from sbp_back.range_server.object_log.claims import Claim
from sbp_back.range_server.object_log.content import UNIQUE_BYTES

PATIENCE = 30.0
"""Seconds for which somebody who opens a log waits for a store that does not answer."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
SERVER_ID = "identity/server_id"


class AdoptedElsewhereError(StoreError):
    """Another range server has adopted a log; ``server_id``: which one, -1 if it has no number."""

    def __init__(self, what: str, by: str, server_id: int) -> None:
        super().__init__(f"{what} was adopted by range server {server_id} (log {by})")
        self.server_id = server_id


class Logs:
    """Those below ``root``. Calls block. All raise ``OSError`` when the store does not answer."""

    def __init__(self, root: Bucket) -> None:
        self.root = root
        self._known: dict[str, Bucket] = {}

    def log(self, name: str) -> Bucket:
        """The log ``NAME/G``."""
        return self._known.setdefault(name, self.root.below(f"logs/{name}"))

    def claim(self, name: str, adopter: str = "") -> Claim:
        """The ended claim of the next number of a log, or of its closing by somebody else."""
        log = self.log(name)
        listed = [int(key.rpartition("/")[2], 16) for key in log.list("incarnations/")]
        claim = Claim(os.urandom(UNIQUE_BYTES), listed, adopter)
        while not claim.answered(log.write_once(f"incarnations/{claim.number:016x}", claim.content, PATIENCE)):
            pass
        return claim

    def open(self, name: str) -> tuple[str, int]:
        """The newest log of the server that calls itself ``name``, and the number of this incarnation of it."""
        if not _NAME.fullmatch(name):
            raise StoreVersionError(f"{name!r} is no name of a log: letters, digits, '.', '_' and '-', at most 63")
        generation = max((int(one, 16) for one in self.root.directories(f"logs/{name}/")), default=0)
        while True:
            full = f"{name}/{generation:08x}"
            claim = self.claim(full)
            if not claim.adopted_by:
                return full, claim.number
            generation += 1

    def of_server(self, server_id: int) -> str | None:
        """The name of the log of a range server; None: it has none here."""
        there = self.root.read_once(f"servers/{server_id}")
        return None if there is None else there.decode()

    def server_of(self, name: str) -> int:
        """The range server of a log; -1: it was given no number yet."""
        there = self.log(name).read_once(SERVER_ID)
        return -1 if there is None else int(there)

    def close(self, name: str, adopter: str, adopted: set[str]) -> int:
        """Close a log for ``adopter``, which has adopted the logs ``adopted``; gives the number of the closing claim.

        One whose adopter has been adopted in turn belongs to whoever has that one. Raises ``AdoptedElsewhereError``.
        """
        claim = self.claim(name, adopter)
        holder = claim.adopted_by or adopter
        while holder != adopter and holder not in adopted:
            beyond = self._adopter_of(holder)
            if not beyond:
                raise AdoptedElsewhereError(f"log {name}", holder, self.server_of(holder))
            holder = beyond
        return claim.number

    def _adopter_of(self, name: str) -> str:
        """Who has adopted a log; empty: nobody has."""
        log = self.log(name)
        number = max((int(key.rpartition("/")[2], 16) for key in log.list("incarnations/")), default=0)
        by = ""
        while (there := log.read_once(f"incarnations/{number:016x}")) is not None:
            by = there[UNIQUE_BYTES:].decode()
            number += 1
        return by
