"""Parser and validator of a StreamWrite client's messages (docs/protocols/ydb.md, "WriteRequest").

The messages of a WriteRequest are stored as received, so most of this only reads. It goes over all of them once, for
their numbers, times and metadata, and keeps no object per message. A request of more than a mebibyte is processed in
slices (:mod:`anabranch_kit.run.sliced`), and split where it would not fit into one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from anabranch_kit.run.sliced import Sliced, advance
from bridges.errors import BatchInvalid
from bridges.formats.protobuf import length, put_bytes, skip, varint
from bridges.formats.records import Buffer
from bridges.formats.ydb import created_ms, next_message
from bridges.net.grpc_schema import Messages
from ydb_topic_front.session import alike
from ydb_topic_front.wire.messages import MessageData, StreamWriteFromClient, TransactionIdentity, WriteRequest
from ydb_topic_front.wire.statuses import YdbError, bad_request

MAX_METADATA_BYTES = 4096
"""Most bytes of keys and values in one message's metadata items."""
MAX_ITEMS = 4096
"""Most metadata items of one message. Items without key and value have no bytes that would count."""
MAX_BATCH_BYTES = 8 * 1024**2
"""Largest batch. A larger request becomes several batches; a larger message gets a batch of its own."""
MAX_MESSAGE_BYTES = 64_000_000 - 64 * 1024
"""Largest message. Readers' clients accept 64,000,000 bytes (docs/protocols/ydb.md, "Connections"), which includes the
message's producer, twice, the session's metadata, offset and lengths."""

AT_ONCE_BYTES = 1024**2 + 128 * 1024
"""Largest request that is processed without slices, if it does not have very many messages."""
UNCOUNTED_BYTES = 16 * 1024
_SMALL_BYTES = 64 * 1024
SLICE_BYTES = 512 * 1024
SLICE_MESSAGES = 2_000
_AT_ONCE_MESSAGES = 4_000
_AT_ONCE_ITEMS = 2_000
"""Metadata items checked in one slice."""
_STEPS_OF_A_MESSAGE = 4
"""Metadata items that take as much time as one message."""
FEW = 64
"""Fewer messages than this are parsed one by one just as fast."""
_FIELD_BYTES = 8
_BESIDES_BYTES = 64 * 1024
"""Most bytes besides its data in a message longer than this, each field counted as eight bytes more than it has, since
every reader goes over each field. Metadata of :data:`MAX_METADATA_BYTES` takes less, as long as its items have keys."""
_MESSAGE_TAG = 0x0A
_DATA_TAG = 0x1A
_WRITE_TAG = 0x12

# The fields to check in every message. Metadata is mostly absent; declaring its field as not repeated halves the cost
# of finding that out.
_LOOK = Messages(
    {
        "Anabranch.Look": """
        message FromClient
          2 write_request WriteRequest
        message WriteRequest
          1 messages repeated MessageData
          2 codec int32
          3 tx bytes optional
        message MessageData
          1 seq_no int64
          2 created_at google.protobuf.Timestamp
          7 metadata_item bytes optional
        message Items
          7 metadata_items repeated bytes
        message Counted
          2 write_request Counted.Messages
        message Counted.Messages
          1 messages repeated bytes
        """
    }
)
_LookFromClient = _LOOK["Anabranch.Look.FromClient"]
_Counted = _LOOK["Anabranch.Look.Counted"]
_Items = _LOOK["Anabranch.Look.Items"]
_LookWriteRequest = _LOOK["Anabranch.Look.WriteRequest"]


class Part(NamedTuple):
    """Messages that become one batch: their bytes, numbers, and highest creation time (ms, -1: none)."""

    messages: Buffer
    seq_nos: Sequence[int]
    max_created_ms: int


class WriteParts(NamedTuple):
    """Valid WriteRequest; ``parts`` are in its order. ``transaction`` is its session and id, if it names one."""

    codec: int
    parts: list[Part]
    transaction: tuple[str, str] | None = None


def write_body(raw: bytes) -> memoryview | None:
    """Return the bytes of the WriteRequest that a client's message consists of; None if it is, or contains, anything
    else."""
    if not raw or raw[0] != _WRITE_TAG:
        return None
    try:
        size, start = varint(raw, 1)
    except (IndexError, BatchInvalid):
        return None
    return memoryview(raw)[start:] if start + size == len(raw) else None


def parse_other(raw: bytes) -> Any:
    """Parse a client's message for which :func:`write_body` returns None. All messages but writes are short. Raises
    YdbError."""
    if len(raw) > _SMALL_BYTES:
        raise bad_request(f"a message of {len(raw)} bytes that is more than a write_request is too long")
    try:
        return StreamWriteFromClient.FromString(raw)
    except DecodeError:
        raise bad_request("the bytes are no StreamWrite message") from None


def parts_at_once(raw: bytes, body: memoryview, most_records: int) -> WriteParts | None:
    """Parse and check a WriteRequest, ``body`` of the message ``raw``; parts have at most ``most_records`` messages.

    Returns None for a request that is too long to be processed without slices: see :func:`parts_in_slices`. Raises
    YdbError for a request that violates the protocol.
    """
    size = len(raw)
    if size > AT_ONCE_BYTES:
        return None
    try:
        found = _alike(raw, size - len(body), most_records)
        if found is not None:
            return found
        if size > UNCOUNTED_BYTES and _count(raw) > _AT_ONCE_MESSAGES:
            return None
        request = _LookFromClient.FromString(raw).write_request
        messages = list(request.messages)
        if len(messages) > most_records:
            return None
        _check_head(request)
        seq_nos, created = _check(messages, 0)
        whole = _messages(body)
        if len(whole) > _BESIDES_BYTES:
            _check_large(memoryview(whole))
        if _has_metadata(messages) and not advance(_check_metadata(whole))[0]:
            return None
        return WriteParts(request.codec, [Part(whole, seq_nos, created)], _transaction(request))
    except (DecodeError, BatchInvalid, IndexError):
        raise bad_request("the bytes are no write_request") from None


def _alike(raw: bytes, start: int, most_records: int) -> WriteParts | None:
    """Parse a WriteRequest at ``start`` whose messages, at least :data:`FEW`, have the same layout, or nearly so; None
    for any other. Raises YdbError, DecodeError, BatchInvalid, IndexError."""
    most = min(most_records, _AT_ONCE_MESSAGES)
    end = len(raw)
    if start == end or raw[start] != _MESSAGE_TAG or (length(raw, start + 1, end)[1] - start) * FEW > end - start:
        return None  # there are fewer
    run = alike.find(raw, start, end, most, FEW)
    if run is None:
        return None
    runs = [run]
    count = run.number
    # A new run begins where the encoded numbers get longer.
    while run.end < end and raw[run.end] == _MESSAGE_TAG:
        run = alike.find(raw, run.end, end, most - count, 1) if len(runs) <= count // FEW and count < most else None
        if run is None:
            return None
        runs.append(run)
        count += run.number
    if end - run.end > _SMALL_BYTES:
        return None
    rest = _LookWriteRequest.FromString(raw[run.end :])
    if rest.messages:
        return None
    rest.messages.add()  # the head is checked as that of a whole request
    _check_head(rest)
    numbers = [run.numbers(raw) for run in runs]
    if len(runs) == 1:
        seq_nos: Sequence[int] = numbers[0]
    elif numbers[-1][-1] - numbers[0][0] == count - 1:
        seq_nos = range(numbers[0][0], numbers[-1][-1] + 1)
        last = seq_nos[0] - 1
        for these in numbers:
            if not isinstance(these, range) or these[0] != last + 1:
                raise bad_request("the seq_nos of a write_request must rise")
            last = these[-1]
    else:
        seq_nos = [number for these in numbers for number in these]
    _check_rising(seq_nos)
    latest = max(run.latest(raw) for run in runs)
    created = created_ms(*latest)
    if created < 0 <= latest[0]:
        return None  # an invalid time, which must not hide the valid ones: the general parser skips it
    part = Part(memoryview(raw)[start : run.end], seq_nos, max(-1, created))
    return WriteParts(rest.codec, [part], _transaction(rest))


def _count(raw: bytes) -> int:
    """Count the messages, which costs less than parsing them. Raises DecodeError."""
    return len(_Counted.FromString(raw).write_request.messages)


def _messages(body: memoryview) -> Buffer:
    """Return the bytes of the messages. If they come first, other fields of the request may follow: no reader looks at
    them. Raises YdbError."""
    if body[0] == _MESSAGE_TAG:
        return body
    if len(body) > _SMALL_BYTES:
        raise _out_of_order()
    messages_alone: bytes = WriteRequest(messages=WriteRequest.FromString(bytes(body)).messages).SerializeToString()
    return messages_alone


def _out_of_order() -> YdbError:
    return bad_request("the messages of a large write_request must come first in it")


def _transaction(request: Any) -> tuple[str, str] | None:
    """Return session and id of the transaction that a WriteRequest names. Raises DecodeError."""
    if not request.HasField("tx"):
        return None
    identity = TransactionIdentity.FromString(request.tx)
    return identity.session, identity.id


def _check_head(request: Any) -> None:
    if not request.messages:
        raise bad_request("the write_request has no messages")
    if request.codec <= 0:
        raise bad_request(f"codec {request.codec} is none")


def _check(found: list[Any], last: int) -> tuple[Sequence[int], int]:
    """Return numbers and highest creation time of messages that follow number ``last``, after checking them. Raises
    YdbError."""
    seq_nos: Sequence[int] = [message.seq_no for message in found]
    first = seq_nos[0]
    if first <= 0:
        raise bad_request(f"seq_no {first} is not positive")
    straight = range(first, first + len(seq_nos))
    if seq_nos == list(straight):
        seq_nos = straight
    elif not all(map(lt, seq_nos, seq_nos[1:])):
        raise bad_request("the seq_nos of a write_request must rise")
    if first <= last:
        raise bad_request("the seq_nos of a write_request must rise")
    latest = nanos = -1
    for message in found:
        created = message.created_at
        seconds = created.seconds
        if seconds > latest:
            latest, nanos = seconds, created.nanos
        elif seconds == latest and created.nanos > nanos:
            nanos = created.nanos
    highest = created_ms(latest, nanos)
    if latest <= 0 or highest < 0:  # 0 also means unset, and an invalid time must not hide the valid ones
        stamps = (one.created_at for one in found if one.HasField("created_at"))
        highest = max(-1, *(created_ms(stamp.seconds, stamp.nanos) for stamp in stamps), -1)
    return seq_nos, highest


def _check_rising(seq_nos: Sequence[int]) -> None:
    """Raise YdbError unless the numbers are positive and rise."""
    if seq_nos[0] <= 0:
        raise bad_request(f"seq_no {seq_nos[0]} is not positive")
    if not isinstance(seq_nos, range) and not all(map(lt, seq_nos, seq_nos[1:])):
        raise bad_request("the seq_nos of a write_request must rise")


def _has_metadata(found: list[Any]) -> bool:
    return True in [message.HasField("metadata_item") for message in found]


def _check_metadata(messages: Buffer) -> Sliced[None]:
    """Check the metadata of encoded messages. Raises YdbError, DecodeError, BatchInvalid, IndexError."""
    view = memoryview(messages)
    position, end, steps = 0, len(view), 0
    while (found := next_message(view, position, end)) is not None:
        start, position = found
        many = len(_Items.FromString(view[start:position]).metadata_items)
        if many > MAX_ITEMS:
            raise bad_request(f"a message has {many} metadata items, more than {MAX_ITEMS}")
        steps += many + _STEPS_OF_A_MESSAGE
        if steps > _AT_ONCE_ITEMS:
            steps = 0
            yield None
        if many:
            items = MessageData.FromString(view[start:position]).metadata_items
            size = sum(len(item.key.encode()) + len(item.value) for item in items)
            if size > MAX_METADATA_BYTES:
                raise bad_request(f"the metadata of a message is {size} bytes, more than {MAX_METADATA_BYTES}")


def _check_large(body: memoryview) -> None:
    """Check that large messages do not have too much besides their data. Raises YdbError, BatchInvalid, IndexError."""
    position, end = 0, len(body)
    while (found := next_message(body, position, end)) is not None:
        begin, position = found
        if position - begin > _BESIDES_BYTES:
            _besides_data(body, begin, position)


def _besides_data(body: memoryview, begin: int, end: int) -> bytearray:
    """Return a message's fields except its data. Raises YdbError, BatchInvalid, IndexError."""
    kept = bytearray()
    spent = 0
    position = begin
    while position < end:
        start = position
        tag, position = varint(body, position)
        position = skip(body, tag, position, end)
        spent += _FIELD_BYTES
        if tag != _DATA_TAG:
            spent += position - start
            if spent <= _BESIDES_BYTES:
                kept += body[start:position]
        if spent > _BESIDES_BYTES:
            raise bad_request(f"a message of {end - begin} bytes has too much besides its data")
    return kept


def _without_data(body: memoryview, start: int, end: int) -> bytes:
    """Return a copy of the request's one message between ``start`` and ``end``, without its data: a copy of the data
    would only cost time. Raises YdbError, BatchInvalid, IndexError."""
    begin, _ = length(body, start + 1, end)
    lean = bytearray()
    put_bytes(lean, _MESSAGE_TAG, _besides_data(body, begin, end))
    return bytes(lean)


class _Open:
    """Part under construction."""

    __slots__ = ("begin", "count", "created", "end", "numbers")

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.numbers: list[Sequence[int]] = []
        self.count = 0
        self.created = -1

    def seq_nos(self) -> Sequence[int]:
        first, last = self.numbers[0][0], self.numbers[-1][-1]
        if last - first == self.count - 1:
            return range(first, last + 1)
        return [number for numbers in self.numbers for number in numbers]


def parts_in_slices(body: memoryview, most_records: int) -> Sliced[WriteParts]:
    """Parse and check a WriteRequest of any length, in slices. Raises YdbError."""
    end = len(body)
    parts: list[Part] = []
    position = last = 0
    part = _Open(0)
    try:
        while position < end and body[position] == _MESSAGE_TAG:
            start = position
            count = 0
            while position < end and body[position] == _MESSAGE_TAG:
                size = body[position + 1]
                following = position + 2 + size if size < 0x80 else length(body, position + 1, end)[1]
                if following > end:
                    raise IndexError
                if count and (
                    following - start > SLICE_BYTES or count >= SLICE_MESSAGES or part.count + count >= most_records
                ):
                    break
                if following - position > _BESIDES_BYTES:
                    _besides_data(body, length(body, position + 1, end)[0], following)
                position = following
                count += 1
            if position - start > MAX_MESSAGE_BYTES:
                size = position - start
                raise bad_request(f"a message of {size} bytes is more than the {MAX_MESSAGE_BYTES} that readers take")
            large = position - start > SLICE_BYTES
            piece = _without_data(body, start, position) if large else body[start:position].tobytes()
            looked = list(_LookWriteRequest.FromString(piece).messages)
            seq_nos, created = _check(looked, last)
            last = seq_nos[-1]
            if _has_metadata(looked):
                yield from _check_metadata(piece)
            if part.count and (position - part.begin > MAX_BATCH_BYTES or part.count + count > most_records):
                parts.append(Part(body[part.begin : part.end], part.seq_nos(), part.created))
                part = _Open(start)
            part.numbers.append(seq_nos)
            part.count += count
            part.end = position
            part.created = max(part.created, created)
            yield None
        # All known clients write fields in the order of their numbers; others may send small requests.
        if end - position > _SMALL_BYTES:
            raise _out_of_order()
        rest = _LookWriteRequest.FromString(body[position:].tobytes())
        transaction = _transaction(rest)
    except (DecodeError, BatchInvalid, IndexError):
        raise bad_request("the bytes are no write_request") from None
    if rest.messages:
        raise _out_of_order()
    if part.count:
        rest.messages.add()  # the head is checked as that of a whole request
        parts.append(Part(body[part.begin : part.end], part.seq_nos(), part.created))
    _check_head(rest)
    return WriteParts(rest.codec, parts, transaction)
