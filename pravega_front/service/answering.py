"""Answers to commands that fail because of their segment or table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from bridges.errors import LogDeleted, LogError, PartitionSealed
from pravega_front.service.segments import SegmentExists, SegmentMissing
from pravega_front.service.state import ConditionFailed, TooManyAttributes
from pravega_front.service.tables.life import TableExists, TableMissing, TooManyTables
from pravega_front.service.tables.store import BadVersion, NoSuchKey, OtherLength, TableNotEmpty, TableRefused
from pravega_front.wire import commands as wire

if TYPE_CHECKING:
    from pravega_front.session.connection import Connection, Encoded

    Handler = Callable[[Connection, Any], Awaitable[wire.Command | Encoded | None]]

_ANSWERS: dict[type[LogError], Callable[[int, str], wire.Command]] = {
    SegmentMissing: wire.NoSuchSegment,
    LogDeleted: wire.NoSuchSegment,
    TableMissing: wire.NoSuchSegment,
    SegmentExists: wire.SegmentAlreadyExists,
    TableExists: wire.SegmentAlreadyExists,
    PartitionSealed: wire.SegmentIsSealed,
    TableNotEmpty: wire.TableSegmentNotEmpty,
    NoSuchKey: wire.TableKeyDoesNotExist,
    BadVersion: wire.TableKeyBadVersion,
}


def answering(handler: Handler, field: str = "segment") -> Handler:
    """Return a handler that answers the errors of ``handler`` for which there is an answer; it raises the others.
    ``field`` of the request has the segment's name."""

    async def answer(connection: Connection, request: Any) -> wire.Command | Encoded | None:
        number, name = request.request_id, getattr(request, field)
        try:
            return await handler(connection, request)
        except tuple(_ANSWERS) as error:
            return _ANSWERS[type(error)](number, name)
        except ConditionFailed:
            return wire.SegmentAttributeUpdated(number, False)
        except OtherLength as error:
            return wire.SegmentIsTruncated(number, name, error.length, "", request.table_offset)
        except (TooManyAttributes, TooManyTables) as error:
            return wire.ErrorMessage(number, name, str(error))
        except TableRefused as error:
            return wire.ErrorMessage(number, name, str(error), 0)

    return answer
