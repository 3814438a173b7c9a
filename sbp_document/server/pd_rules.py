"""Rules of the placement driver for clients of sbp-v0.1, as functions of one transaction.

In the document a stream has a range from the start, and sealing a range opens the next one (docs/protocols/sbp.md,
"Placement driver"). Ranges made here carry the mark ``document``: the server itself writes them, for clients that know
nothing of each other. They take the stream's latest epoch, so that a writer of sbp-0.2 needs no newer epoch than it
would among its own kind.
"""

from __future__ import annotations

from msgspec import Struct

from sbp_back.errors import ErrorCode
from sbp_back.placement_driver import rules
from sbp_back.placement_driver.state import RangeRow, StreamRow, Transaction
from sbp_back.wire.model import RangeInfo, SealRangeRequest, Status, StreamInfo, StreamResponse


class Tail(Struct):
    """A stream and its last range, as stored; both None when there is no such stream."""

    stream: StreamRow | None
    last: RangeRow | None


def tail(tx: Transaction, stream_id: int) -> Tail:
    stream = tx.get_stream(stream_id)
    if stream is None or stream.deleted:
        return Tail(None, None)
    return Tail(stream, tx.last_range(stream_id))


def create_stream(tx: Transaction, wanted: StreamInfo, server_id: int) -> tuple[StreamResponse, RangeRow | None]:
    """Create a stream with its first range, on ``server_id``."""
    response = rules.create_stream(tx, wanted)
    if response.stream is None:
        return response, None
    return response, _put(tx, response.stream.stream_id, None, server_id)


def next_range(tx: Transaction, stream_id: int, server_id: int) -> RangeRow | Status:
    """Create the range after the last one, which must be sealed, or the first one."""
    found = tail(tx, stream_id)
    if found.stream is None:
        return Status(ErrorCode.NOT_FOUND, f"there is no stream {stream_id}")
    if found.last is not None and found.last.is_open:
        message = f"range {found.last.index} of stream {stream_id} is still open"
        return Status(ErrorCode.CREATE_RANGE_BEFORE_SEAL, message)
    return _put(tx, stream_id, found.last, server_id)


def seal_and_next(tx: Transaction, sealed: RangeInfo, server_id: int) -> RangeRow | Status:
    """Seal the last range as ``sealed`` says and open the next one, both or neither."""
    response = rules.seal_range(tx, SealRangeRequest.decided(sealed))
    if not response.status.ok:
        return response.status
    return next_range(tx, sealed.stream_id, server_id)


def _put(tx: Transaction, stream_id: int, last: RangeRow | None, server_id: int) -> RangeRow:
    index, start, epoch = (0, 0, 0) if last is None else (last.index + 1, last.end, max(last.epoch, 0))
    row = RangeRow(stream_id, index, epoch, start, -1, 1, 1, [server_id], document=True)
    tx.put_range(row)
    return row
