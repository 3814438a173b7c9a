"""The rules of a placement driver: its answers, as functions of one transaction.

The checks, their order and their codes: docs/protocols/sbp.md, "Placement driver". Each function runs inside one atomic
transaction, so a check holds until the change that rests on it is made.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sbp_back.errors import ErrorCode
from sbp_back.placement_driver.servers import addressed
from sbp_back.placement_driver.state import RangeRow, StreamRow, Transaction
from sbp_back.wire import model as m

SERVER_IDS = 1 << 30
"""Ids of range servers are below this: so a server that reports a made-up id leaves enough ids to assign."""

_MAX_INT8 = 127
_MAX_INT64 = (1 << 63) - 1


def bad_request(message: str) -> m.Status:
    return m.Status(ErrorCode.BAD_REQUEST, message)


def _range_refused(code: ErrorCode, message: str, known: m.RangeInfo | None = None) -> m.RangeResponse:
    return m.RangeResponse(m.Status(code, message), known)


def _replication_error(stream: m.StreamInfo) -> m.Status | None:
    if not 1 <= stream.ack_count <= stream.replica <= _MAX_INT8:
        return bad_request(
            f"replica {stream.replica} and ack count {stream.ack_count}: need {_MAX_INT8} >= replica >= ack count >= 1"
        )
    if stream.retention_ms < 0:
        return bad_request(f"negative retention {stream.retention_ms} ms")
    return None


def _stream_info(row: StreamRow) -> m.StreamInfo:
    return m.StreamInfo(row.stream_id, row.replica, row.ack_count, row.retention_ms, row.inside)


def _not_found(stream_id: int, row: StreamRow | None) -> m.Status:
    if row is None:
        return m.Status(ErrorCode.NOT_FOUND, f"there is no stream {stream_id}")
    return m.Status(ErrorCode.NOT_FOUND, f"stream {stream_id} was deleted", m.DELETED_DETAIL)


def _range_info(row: RangeRow, trim_offset: int, servers: dict[int, m.RangeServerInfo]) -> m.RangeInfo:
    """Return the range as clients see it: without what was trimmed away."""
    start = max(row.start, trim_offset)
    if not row.is_open:
        start = min(start, row.end)
    return m.RangeInfo(
        row.stream_id,
        row.epoch,
        row.index,
        start,
        row.end,
        addressed(row.server_ids, servers),
        row.replica_count,
        row.ack_count,
    )


def server_id_error(server_id: int) -> m.Status | None:
    """Return the error in the id that a range server reports; None if the id is valid."""
    if server_id < 0:
        return bad_request("a range server needs an id from ALLOCATE_ID before it reports")
    if server_id >= SERVER_IDS:
        return bad_request(f"{server_id} is no id of a range server: they are below {SERVER_IDS}")
    return None


def allocate_id(tx: Transaction) -> m.AllocateIdResponse:
    """Return a range server id that was never given before."""
    server_id = tx.next_server_id()
    if server_id >= SERVER_IDS:
        return m.AllocateIdResponse(m.Status(ErrorCode.PD_INTERNAL_SERVER_ERROR, "no ids of range servers are left"))
    return m.AllocateIdResponse(id=server_id)


def create_stream(tx: Transaction, wanted: m.StreamInfo) -> m.StreamResponse:
    """Create a stream without ranges; the id in the request is ignored."""
    error = _replication_error(wanted)
    if error is not None:
        return m.StreamResponse(error)
    row = StreamRow(tx.next_stream_id(), wanted.replica, wanted.ack_count, wanted.retention_ms, inside=wanted.inside)
    tx.put_stream(row)
    return m.StreamResponse(stream=_stream_info(row))


def describe_stream(tx: Transaction, stream_id: int) -> m.StreamResponse:
    row = tx.get_stream(stream_id)
    if row is None or row.deleted:
        return m.StreamResponse(_not_found(stream_id, row))
    return m.StreamResponse(stream=_stream_info(row))


def update_stream(tx: Transaction, wanted: m.StreamInfo) -> m.StreamResponse:
    """Change a stream. Changes apply to ranges created afterwards: a range keeps the counts it was created with."""
    row = tx.get_stream(wanted.stream_id)
    if row is None or row.deleted:
        return m.StreamResponse(_not_found(wanted.stream_id, row))
    error = _replication_error(wanted)
    if error is not None:
        return m.StreamResponse(error)
    row.replica, row.ack_count, row.retention_ms = wanted.replica, wanted.ack_count, wanted.retention_ms
    tx.put_stream(row)
    return m.StreamResponse(stream=_stream_info(row))


def delete_stream(tx: Transaction, stream_id: int) -> m.StreamResponse:
    """Mark the stream, forget its ranges and queue their deletion on every server that has one."""
    row = tx.get_stream(stream_id)
    if row is None or row.deleted:
        return m.StreamResponse(_not_found(stream_id, row))
    for kept in tx.ranges_of_stream(stream_id):
        for server_id in kept.server_ids:
            tx.add_deletion(server_id, stream_id)
    tx.drop_ranges(stream_id, None)
    tx.drop_objects(stream_id, None)
    row.deleted = True
    tx.put_stream(row)
    return m.StreamResponse(stream=_stream_info(row))


class Reached(Struct):
    """The end of the data that the servers of an open range report to have; ``end`` is an offset."""

    index: int
    end: int


class Trimmed(Struct):
    """Result of :func:`trim_stream`. ``ask``: the open range, with its servers, that contains the offset. Only they
    know how far it goes: the trim so far ends where that range begins, and is to be repeated with their answer.
    """

    response: m.StreamResponse
    ask: m.RangeInfo | None = None


def trim_stream(tx: Transaction, stream_id: int, min_offset: int, reached: Reached | None = None) -> Trimmed:
    """Drop the ranges that end at or below ``min_offset`` and cut the one that contains it.

    The last range is never dropped, even when nothing of it is left: the next range continues its index, end and epoch.
    Trimming to a lower offset than before changes nothing. An open range is cut no further than its servers have
    ``reached``: what is appended to it later must stay readable.
    """
    row = tx.get_stream(stream_id)
    if row is None or row.deleted:
        return Trimmed(m.StreamResponse(_not_found(stream_id, row)))
    if min_offset < 0:
        return Trimmed(m.StreamResponse(bad_request(f"negative trim offset {min_offset}")))
    ranges = tx.ranges_of_stream(stream_id)
    if not ranges and min_offset > 0:
        message = f"stream {stream_id} has no range yet: nothing to trim to {min_offset}"
        return Trimmed(m.StreamResponse(bad_request(message)))
    if not ranges:
        return Trimmed(m.StreamResponse(stream=_stream_info(row)))
    servers = tx.get_servers()
    last = ranges[-1]
    ask = None
    if last.is_open:
        known = reached is not None and reached.index == last.index
        if min_offset > max(last.start, row.trim_offset) and not known:
            ask = _range_info(last, row.trim_offset, servers)
        limit = max(last.start, reached.end) if known and reached is not None else last.start
    else:
        limit = last.end
    min_offset = min(min_offset, limit)
    first = next((kept for kept in ranges if kept.is_open or kept.end > min_offset), last)
    if first is not ranges[0]:
        tx.drop_ranges(stream_id, first.index)
    if min_offset > row.trim_offset:
        row.trim_offset = min_offset
        tx.put_stream(row)
        tx.drop_objects(stream_id, min_offset)
        concerned = {one for kept in ranges if kept.start < min_offset for one in kept.server_ids}
        for server_id in concerned.difference(last.server_ids if reached is not None else ()):  # those have trimmed
            tx.add_news(server_id, stream_id, -1)
    return Trimmed(m.StreamResponse(stream=_stream_info(row), range=_range_info(first, row.trim_offset, servers)), ask)


def create_range(tx: Transaction, request: m.CreateRangeRequest, candidates: list[int] | None) -> m.RangeResponse:
    """Create a range on the first R of ``candidates``, living servers with the best first. Servers in the request are
    ignored.
    """
    wanted = request.range
    stream = tx.get_stream(wanted.stream_id)
    if stream is None or stream.deleted:
        return m.RangeResponse(_not_found(wanted.stream_id, stream))
    last = tx.last_range(wanted.stream_id)
    if last is not None and last.is_open and last.document:
        # A writer may take an open range for the result of its own lost request. It must not take this one.
        message = f"range {last.index} of stream {last.stream_id} is open and written through sbp-v0.1: seal it first"
        return _range_refused(ErrorCode.EXPIRED_RANGE_EPOCH, message)
    if last is not None and last.is_open:
        message = f"range {last.index} of stream {last.stream_id} is still open"
        known = _range_info(last, stream.trim_offset, tx.get_servers())
        return _range_refused(ErrorCode.CREATE_RANGE_BEFORE_SEAL, message, known)
    index, start, epoch = (0, 0, -1) if last is None else (last.index + 1, last.end, last.epoch)
    if wanted.index != index:
        message = f"the next range of stream {wanted.stream_id} is {index}, not {wanted.index}"
        return _range_refused(ErrorCode.BAD_REQUEST, message)
    if wanted.start != start:
        message = f"range {index} of stream {wanted.stream_id} starts at {start}, not at {wanted.start}"
        return _range_refused(ErrorCode.BAD_REQUEST, message)
    if wanted.epoch < epoch:
        message = f"epoch {wanted.epoch} is older than the stream's {epoch}"
        return _range_refused(ErrorCode.EXPIRED_RANGE_EPOCH, message)
    adopted = tx.adopted_servers()
    living = [server_id for server_id in candidates or () if server_id not in adopted]
    if len(living) < stream.replica:
        message = f"{stream.replica} range servers are needed, {len(living)} are alive and have room"
        return _range_refused(ErrorCode.PD_NO_AVAILABLE_RS, message)
    chosen = living[: stream.replica]
    row = RangeRow(wanted.stream_id, index, wanted.epoch, start, -1, stream.replica, stream.ack_count, chosen)
    tx.put_range(row)
    return m.RangeResponse(range=_range_info(row, stream.trim_offset, tx.get_servers()))


def seal_range(tx: Transaction, request: m.SealRangeRequest) -> m.RangeResponse:
    """Give the last range its end and raise its epoch to the sealer's: older writers are fenced from here on.

    A range with a promise of a higher end (``SealKind.AT_LEAST``) ends there. Its servers are to be told.
    """
    wanted = request.range
    if request.kind != m.SealKind.PLACEMENT_DRIVER:
        return m.RangeResponse(bad_request(f"seal kind {request.kind} is not for a placement driver"))
    last = tx.last_range(wanted.stream_id)
    if last is None or wanted.index > last.index:
        return _range_refused(ErrorCode.RANGE_NOT_FOUND, f"stream {wanted.stream_id} has no range {wanted.index}")
    stream = tx.get_stream(wanted.stream_id)
    trim_offset = 0 if stream is None else stream.trim_offset
    if wanted.index < last.index or not last.is_open:
        sealed = last if wanted.index == last.index else tx.get_range(wanted.stream_id, wanted.index)
        known = None if sealed is None else _range_info(sealed, trim_offset, tx.get_servers())
        message = f"range {wanted.index} of stream {wanted.stream_id} is already sealed"
        return _range_refused(ErrorCode.RANGE_ALREADY_SEALED, message, known)
    # The end is compared with where the range began, not with a trim offset: a stream may have been trimmed past
    # what a lost writer really appended, and must not stay unsealable for that.
    if not last.start <= wanted.end <= _MAX_INT64:
        return m.RangeResponse(bad_request(f"range {last.index} starts at {last.start}, it cannot end at {wanted.end}"))
    if wanted.epoch < last.epoch:
        message = f"epoch {wanted.epoch} is older than the range's {last.epoch}"
        return _range_refused(ErrorCode.EXPIRED_RANGE_EPOCH, message)
    last.end = max(wanted.end, last.floor)
    last.epoch = wanted.epoch
    tx.put_range(last)
    for server_id in last.server_ids:
        tx.add_news(server_id, last.stream_id, last.index)
    if stream is not None and trim_offset > last.end:
        stream.trim_offset = trim_offset = last.end
        tx.put_stream(stream)
    return m.RangeResponse(range=_range_info(last, trim_offset, tx.get_servers()))


def adopt_server(tx: Transaction, request: m.AdoptServerRequest) -> m.AdoptServerResponse:
    """Give the ranges of another server to ``by``, which has fenced its log and read it to the end.

    Open ranges end where the log does, or where a promise says; ranges without a trace in the log never had data. A
    range that has an end keeps it. Refused, with the number of the adopter, when another server has adopted either of
    the two.
    """
    server_id, by = request.server_id, request.by
    error = server_id_error(server_id) or server_id_error(by)
    if error is None and server_id == by:
        error = bad_request(f"range server {by} cannot adopt itself")
    if error is not None:
        return m.AdoptServerResponse(error)
    adopted = tx.adopted_servers()
    if by in adopted:
        message = f"range server {by} was itself adopted by range server {adopted[by]}"
        return m.AdoptServerResponse(bad_request(message), adopted[by])
    if adopted.get(server_id, by) != by:
        message = f"range server {server_id} was adopted by range server {adopted[server_id]}"
        return m.AdoptServerResponse(bad_request(message), adopted[server_id])
    ends: dict[tuple[int, int], int] = {}
    for stream_id, index, end in request.ends:
        if end <= _MAX_INT64:
            ends.setdefault((stream_id, index), end)
    if ends:
        there = tx.ranges_of_server(server_id, min(ends)[0], max(ends)[0], only_open=True)
        _end_adopted(tx, [(row, ends[row.stream_id, row.index]) for row in there if (row.stream_id, row.index) in ends])
    if request.last:
        _end_adopted(tx, [(row, row.start) for row in tx.ranges_of_server(server_id, only_open=True)])
        tx.adopt_server(server_id, by)
    return m.AdoptServerResponse(server_id=by)


def _end_adopted(tx: Transaction, ended: Sequence[tuple[RangeRow, int]]) -> None:
    for row, end in ended:
        row.end = max(row.start, row.floor, end)
    tx.end_ranges([row for row, _ in ended])


def promise(tx: Transaction, wanted: m.RangeInfo, *, held: bool) -> m.RangeResponse | m.RangeInfo:
    """Promise that an open range will not end below ``wanted.end``, where its server has durable data.

    ``held``: one of its servers has said so itself. Otherwise return the range with the servers to ask. Anybody may ask
    for a promise, and a range promised up to the largest offset could never be written to again.
    """
    last = tx.last_range(wanted.stream_id)
    row = last if last is None or last.index == wanted.index else tx.get_range(wanted.stream_id, wanted.index)
    if last is None or row is None:
        return _range_refused(ErrorCode.RANGE_NOT_FOUND, f"stream {wanted.stream_id} has no range {wanted.index}")
    stream = tx.get_stream(wanted.stream_id)
    told = _range_info(row, 0 if stream is None else stream.trim_offset, tx.get_servers())
    if not row.is_open:
        message = f"range {wanted.index} of stream {wanted.stream_id} is already sealed"
        return _range_refused(ErrorCode.RANGE_ALREADY_SEALED, message, told)
    if not row.start <= wanted.end <= _MAX_INT64:
        return m.RangeResponse(bad_request(f"range {row.index} starts at {row.start}, it cannot end at {wanted.end}"))
    if wanted.end > max(row.start, row.floor):
        if not held:
            return told
        row.floor = wanted.end
        tx.put_range(row)
    return m.RangeResponse(range=told)


def commit_object(tx: Transaction, wanted: m.ObjectInfo) -> m.CommitObjectResponse:
    """Remember that entries of a range are in an object. It replaces known objects of its offsets; repeating it changes
    nothing. What is trimmed away meanwhile is not remembered.

    Nothing depends on it: readers ask the range's server which objects there are.
    """
    stream = tx.get_stream(wanted.stream_id)
    if stream is None or stream.deleted:
        return m.CommitObjectResponse(_not_found(wanted.stream_id, stream))
    row = tx.get_range(wanted.stream_id, wanted.index)
    end = wanted.start + wanted.count
    if row is None:
        # The range was trimmed away, or never existed.
        message = f"stream {wanted.stream_id} has no range {wanted.index}"
        return m.CommitObjectResponse(m.Status(ErrorCode.RANGE_NOT_FOUND, message))
    if wanted.count < 1 or wanted.size < 1 or wanted.start < row.start or (not row.is_open and end > row.end):
        message = f"offsets {wanted.start} to {end} in {wanted.size} bytes are no object of range {wanted.index}"
        return m.CommitObjectResponse(bad_request(message))
    if end > stream.trim_offset:
        tx.put_object(wanted)
    return m.CommitObjectResponse()


def news(tx: Transaction, server_id: int, limit: int) -> list[m.SealRangeRequest | m.TrimStreamRequest]:
    """Return what a range server has not confirmed to know yet, as requests that tell it; at most ``limit``.

    Entries that no longer concern the server are dropped: the deletion of a stream covers all else about it.
    """
    requests: list[m.SealRangeRequest | m.TrimStreamRequest] = []
    queued = tx.news_of_server(server_id, limit)
    tx.load_streams({stream_id for stream_id, _ in queued})
    for stream_id, index in queued:
        stream = tx.get_stream(stream_id)
        row = None if index < 0 else tx.get_range(stream_id, index)
        if stream is None or stream.deleted or (index >= 0 and (row is None or row.is_open)):
            tx.drop_news(server_id, stream_id, index)
        elif row is None:
            requests.append(m.TrimStreamRequest(stream_id, stream.trim_offset))
        else:
            # With the range's original start: a trim, sent separately, may have gone beyond the server's data.
            decided = m.RangeInfo(stream_id, row.epoch, row.index, row.start, row.end)
            requests.append(m.SealRangeRequest.decided(decided))
    return requests


def list_ranges(tx: Transaction, request: m.ListRangeRequest) -> m.ListRangeResponse:
    """List ranges by stream, by server or by both; by neither there are none."""
    if request.stream_id >= 0:
        rows = tx.ranges_of_stream(request.stream_id)
        if request.server_id >= 0:
            rows = [row for row in rows if request.server_id in row.server_ids]
    elif request.server_id >= 0:
        rows = tx.ranges_of_server(request.server_id)
    else:
        rows = []
    servers = tx.get_servers()
    tx.load_streams({row.stream_id for row in rows})
    streams = {row.stream_id: tx.get_stream(row.stream_id) for row in rows}
    starts = {stream_id: 0 if stream is None else stream.trim_offset for stream_id, stream in streams.items()}
    return m.ListRangeResponse(ranges=[_range_info(row, starts[row.stream_id], servers) for row in rows])
