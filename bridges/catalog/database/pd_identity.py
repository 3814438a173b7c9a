"""The identity of the placement driver that has the streams of a node's topics; the node refuses any other.

Stream ids are small numbers, and those of two placement drivers overlap. A node that was pointed at another placement
driver would read from, and write to, other people's streams.
"""

from __future__ import annotations

import structlog

from anabranch_kit.errors import StoreError
from bridges.catalog.database.sql import Connection, Database
from bridges.errors import LogError
from sbp_back.wire.identity import Call, ask_who

_log = structlog.get_logger("anabranch.backend")

_STRANGER = (
    "this is a placement driver that does not say which one it is, so it is none of Anabranch's, and believing what "
    "others and their range servers answer would lose acknowledged data: lead the node to its own (sbp.pd), or set "
    "sbp.flavor=elastic-stream if it is one of elastic-stream's"
)


class StreamHome:
    """A comparison of a placement driver with the one that the node's database names.

    A node without streams accepts any placement driver. A node whose streams are older than identities accepts the
    first that has one. ``strangers``: whether a placement driver that is not Anabranch's may be used, because the
    client is made for it. ``refusal``: why the last placement driver was refused. ``identity``: that of the accepted
    placement driver; empty until one was accepted, or if it has none.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.strangers = False
        self.refusal: str | None = None
        self.identity = ""

    async def introduce(self, call: Call) -> str | None:
        """Return why the placement driver behind ``call`` must not be used, or None (see
        ``sbp_back.transport.tcp_carrier.Introduce``). Raises ``SbpError`` when it does not say who it is."""
        who = await ask_who(call)
        if not who.ours and not self.strangers:
            refusal: str | None = _STRANGER
        else:
            try:
                refusal = await self._check(who.identity)
            except LogError as error:
                return f"which placement driver the topics are in cannot be told: {error}"
        if refusal is not None and refusal != self.refusal:
            _log.error(
                "another placement driver answers than this node belongs to: partitions are unavailable", reason=refusal
            )
        self.refusal = refusal
        return refusal

    async def require(self, identity: str) -> None:
        """Check a placement driver whose identity is known without asking (empty: it has none). Raises StoreError, or
        an error of the database."""
        refusal = await self._check(identity)
        if refusal is not None:
            raise StoreError(refusal)

    async def _check(self, identity: str) -> str | None:
        known = await self._db.run(lambda connection: _settle(connection, identity))
        if known == identity:
            self.identity = identity
            return None
        who = f"placement driver {identity}" if identity else "a placement driver that does not say which one it is"
        return (
            f"this is {who}, but the topics of this node are in placement driver {known}: streams of the same numbers "
            "are other data there; lead the node back to its own (sbp.mode, sbp.pd), or give it an empty directory"
        )


def _settle(connection: Connection, identity: str) -> str:
    """Return the placement driver of the node's streams. If none was known, or the node has no streams, this becomes
    ``identity``."""
    row = connection.execute("SELECT identity FROM placement_driver").fetchone()
    known = "" if row is None else str(row[0])
    if known == identity or (known and _has_streams(connection)):
        return known
    # These tables are keyed by stream id, too. Without a known placement driver, their rows are the node's own.
    if known:
        for table in ("partition_snapshots", "aborted_blocks", "log_starts", "left_streams"):
            connection.execute(f"DELETE FROM {table}")
    connection.execute("DELETE FROM placement_driver")
    if identity:
        connection.execute("INSERT INTO placement_driver VALUES (1, ?)", (identity,))
    return identity


def _has_streams(connection: Connection) -> bool:
    """Return whether the database names a stream, or one is being made."""
    tables = ("partitions", "doomed_streams", "stream_intents")
    return any(connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in tables)
