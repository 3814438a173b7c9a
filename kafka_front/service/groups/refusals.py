"""Log lines of members that groups refuse for good.

Most clients tell their users a bare error code, and answers to JoinGroup have no room for a reason. So the node's log
names the group, the client, the reason and the remedy. A client that tries again and again is logged once in a while,
and clients with ever new names fill neither memory (``MOST`` hashes) nor the log (bridges/node/process/log_limit.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from kafka_front.wire.errors import ErrorCode

if TYPE_CHECKING:
    from kafka_front.context import Context

_log = structlog.get_logger("anabranch.kafka.groups")

_FINAL = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
    }
)
"""Errors that clients report to their users. After all others, members join again by themselves."""
_AGAIN_S = 3600.0
MOST = 1000


class Refusals:
    """The refusals logged in the last hour, as hashes: a name may be as long as a frame."""

    def __init__(self) -> None:
        self.logged: dict[int, float] = {}

    def note(self, ctx: Context, group_id: str, code: int, reason: str | None) -> None:
        """Log the refusal of a member, unless it was logged lately or the member joins again by itself."""
        if code not in _FINAL:
            return
        client, host = ctx.client_id or "", ctx.connection.peer[0]
        key, now = hash((group_id, client, host, code)), time.monotonic()
        if now - self.logged.pop(key, -_AGAIN_S) < _AGAIN_S:
            self.logged[key] = now
            return
        if len(self.logged) >= MOST:
            del self.logged[next(iter(self.logged))]
        self.logged[key] = now
        error = ErrorCode(code).name
        _log.warning("a member is refused", group=group_id, client=client, host=host, error=error, reason=reason)
