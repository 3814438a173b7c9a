"""The logs in one bucket: each server has one below a name of its own, and begins another one after an adoption of its
log.

| object | content |
|---|---|
| ``logs/NAME/G/…`` | the log of generation G of the server that calls itself NAME |
| ``logs/NAME/G/incarnations/N`` | the claim of number N of it (:mod:`.claims`) |
| ``servers/ID`` | ``NAME/G``: the log of range server ID |
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from anabranch_kit.errors import StoreCorrupt, StoreError, StoreVersionError
from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log.objects.bucket import PATIENCE, Bucket, again
from sbp_back.range_server.object_log.objects.content import UNIQUE_BYTES
from sbp_back.range_server.object_log.ownership.chain import ENTRIES, Chain, Entry
from sbp_back.range_server.object_log.ownership.claims import Claim, Closing

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
SERVER_ID = "identity/server_id"


class AdoptedElsewhereError(StoreError):
    """Another range server has adopted a log, or is about to. ``server_id``: its number, -1 if it has none. ``closed``:
    its own log was closed since, so this log goes to the adopter of that one.
    """

    def __init__(self, what: str, by: str, server_id: int, closed: bool) -> None:
        super().__init__(f"{what} was adopted by range server {server_id} (log {by})")
        self.server_id = server_id
        self.closed = closed


class Logs:
    """All logs below the bucket ``root``. Calls block. All raise ``OSError`` when the store does not answer."""

    def __init__(self, root: Bucket) -> None:
        self.root = root
        self._known: dict[str, Bucket] = {}

    def log(self, name: str) -> Bucket:
        return self._known.setdefault(name, self.root.below(f"logs/{name}"))

    def claim(self, name: str) -> Claim:
        """Claim the next number of a log, and return the claim; the log may turn out to be closed instead."""
        log = self.log(name)
        claim = Claim(os.urandom(UNIQUE_BYTES), self._claims(name))
        while not claim.answered(log.write_once(_claim(claim.number), claim.content, PATIENCE)):
            pass
        return claim

    def _claims(self, name: str) -> list[int]:
        return [int(key.rpartition("/")[2], 16) for key in self.log(name).list_again("incarnations/", PATIENCE)]

    def open(self, name: str) -> tuple[str, int]:
        """Open the newest log of the server that calls itself ``name``; return its name and the number of this
        incarnation.
        """
        generation = self._newest(name)
        while True:
            full = f"{name}/{generation:08x}"
            claim = self.claim(full)
            if not claim.closed:
                return full, claim.number
            generation += 1

    def _newest(self, name: str) -> int:
        if not _NAME.fullmatch(name):
            raise StoreVersionError(f"{name!r} is no name of a log: letters, digits, '.', '_' and '-', at most 63")
        there = again(lambda: self.root.directories(f"logs/{name}/"), PATIENCE)
        return max((int(one, 16) for one in there), default=0)

    def opened_by(self, name: str) -> int:
        """Return the range server whose log :meth:`open` would open; -1: it has no number yet. Claims nothing."""
        newest = f"{name}/{self._newest(name):08x}"
        return -1 if self.last_claim(newest).by else self.server_of(newest)

    def of_server(self, server_id: int) -> str | None:
        """Return the name of the log of a range server; None: it has none here."""
        there = self.root.read_once(f"servers/{server_id}")
        return None if there is None else there.decode()

    def server_of(self, name: str) -> int:
        """Return the range server of a log; -1: it has no number yet."""
        there = self.log(name).read_once(SERVER_ID)
        return -1 if there is None else int(there)

    def close(self, name: str, adopter: str, has: Callable[[str, int], bool]) -> int:
        """Close a log for ``adopter``, which has not adopted it; return the number of the closing claim.

        ``has`` is called with a log and the count of its claimed numbers; it fences that log and returns whether it
        records the adoption of this one. Raises ``AdoptedElsewhereError``.
        """
        log = self.log(name)
        closing = Closing(os.urandom(UNIQUE_BYTES), self._claims(name), adopter)
        while True:
            while not closing.take_claim(log.read_once(_claim(closing.number))):
                pass
            if closing.is_closed:
                return closing.number
            if closing.by:
                other = self.last_claim(closing.by)
                if not other.by or has(closing.by, other.number):
                    server_id = self.server_of(closing.by)
                    raise AdoptedElsewhereError(f"log {name}", closing.by, server_id, bool(other.by))
            if closing.put(log.write_once(_claim(closing.number), closing.content, PATIENCE)):
                return closing.number

    def last_claim(self, name: str) -> Closing:
        """Return the state of a log's claims. ``by``: the log that has closed it; ``number``: the first free one."""
        log = self.log(name)
        last = Closing(bytes(UNIQUE_BYTES), self._claims(name), "-")
        while not last.take_claim(log.read_once(_claim(last.number))):
            pass
        return last

    # --- chains of indexes

    def chain(self, name: str, writer: int) -> Chain:
        """Return the chain of a log, read to its end."""
        chain = Chain(
            writer, [int(key.rpartition("/")[2], 16) for key in self.log(name).list_again("chain/", PATIENCE)]
        )
        self.read_on(name, chain)
        return chain

    def read_on(self, name: str, chain: Chain) -> bool:
        """Read on in the chain; return whether there were new entries. Raises ``StoreCorrupt``."""
        before = chain.number
        while not chain.take_entry(self._entry(name, chain.number)):
            pass
        return chain.number != before

    def put(self, name: str, chain: Chain, entry: Entry) -> bool:
        """Put ``entry`` at the end of the chain; return whether it is the last one now."""
        key = f"chain/{chain.number:016x}"
        there = self.log(name).write_once(key, ENTRIES.encode(entry), PATIENCE)
        return chain.put(entry, self._decoded(key, there))

    def _entry(self, name: str, number: int) -> Entry | None:
        key = f"chain/{number:016x}"
        there = self.log(name).read_once(key)
        return None if there is None else self._decoded(key, there)

    @staticmethod
    def _decoded(key: str, data: bytes) -> Entry:
        try:
            return ENTRIES.decode(data)
        except DecodeError as error:
            raise StoreCorrupt(f"{key}: {error}") from error


def _claim(number: int) -> str:
    return f"incarnations/{number:016x}"
