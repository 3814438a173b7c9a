"""Encoder of stored batches for readers: copies the messages' bytes as written, with other field tags.

A written and a read message have the same fields under other numbers: field 1 (``seq_no``) becomes field 2, and so on.
All of these tags take one byte, so a message is copied with some bytes changed, behind its offset and the message
group, which a reader gets with every message. No message becomes a Python object.
"""

from __future__ import annotations

from typing import NamedTuple

from bridges.errors import BatchInvalid
from bridges.formats.protobuf import put_bytes, put_varint, skip, varint
from bridges.formats.records import Buffer
from bridges.formats.ydb import DELTA_TAG, Head, next_message, parse_head
from ydb_topic_front.session.alike import find

_MESSAGE = 0x0A
_PRODUCER_ID = 0x12
_CODEC = 0x20
_WRITTEN_AT = 0x2A
_GROUP = 0x3A

FEW = 16
"""Fewer messages than this are copied one by one just as fast."""
_EASIER = 4
"""Messages copied in a run that cost as much time as one copied by itself."""
AT_ONCE = 256
"""Most messages copied in one run: each pass goes over all of them, so they should stay in the CPU's cache."""
_FRONT_BYTES = 16
"""Most bytes in front of a message besides its group: tags, lengths and the offset."""
_ITEM_BYTES = 32
"""Bytes of short metadata items that take as much time as one message."""
LARGE_BYTES = 64 * 1024
"""Fields longer than this are not copied until the whole response is joined."""

_SEQ_NO, _CREATED_AT, _DATA, _SIZE, _ITEM = 0x08, 0x12, 0x1A, 0x20, 0x3A
_TAGS = {_SEQ_NO: 0x10, _CREATED_AT: 0x1A, _DATA: 0x2A, _SIZE: 0x30, _ITEM: 0x42}
"""Tag of a field in a written message: tag in a read one."""


class Place(NamedTuple):
    """Position of a reader: continue at ``offset``. Its message lies in the batch at ``base``, ``position`` bytes in,
    behind ``number`` others. ``position`` is -1 before anything of the batch was read."""

    offset: int
    base: int = -1
    position: int = -1
    number: int = 0


class BatchReader:
    """Takes messages out of one stored batch, some at a time, for a ``Batch`` of a ``ReadResponse``."""

    __slots__ = (
        "_base",
        "_group",
        "_head",
        "_number",
        "_payload",
        "_position",
        "_start",
        "_tail",
        "ended",
        "full",
        "offset",
        "taken",
    )

    def __init__(
        self, payload: Buffer, base: int, end: int, written_ms: int, place: Place, producer_id: str | None = None
    ) -> None:
        """Parse the head of a batch in YDB's stored format that spans ``[base, end)``. ``producer_id``, if given, is
        shown to the reader instead of the batch's own. Raises BatchInvalid."""
        head = self._head = parse_head(payload)
        if not head.sparse and head.messages != end - base:
            raise BatchInvalid(f"{head.messages} YDB messages take {end - base} offsets")
        self._payload = payload
        self._base = base
        self._start = place.offset
        same = place.base == base and place.position >= 0
        self._position = place.position if same else head.body
        self._number = place.number if same else 0
        producer = head.producer_id if producer_id is None else producer_id.encode()
        group = bytearray()
        if producer:
            put_bytes(group, _GROUP, producer)
        self._group = bytes(group)
        self._tail = _tail(head, producer, written_ms)
        self.offset = max(base, place.offset)
        """Next offset to read."""
        self.ended = False
        """Whether all messages of the batch were taken."""
        self.full = False
        """Whether the last :meth:`take` stopped at a message for which there was no room."""
        self.taken = 0
        """Messages taken so far."""

    @property
    def place(self) -> Place:
        """Return the place to continue from later."""
        return Place(self.offset, self._base, self._position, self._number)

    @property
    def max_created_ms(self) -> int:
        """Return the highest creation time of the batch's messages in ms, -1 for none."""
        return self._head.max_created_ms

    @property
    def tail(self) -> bytes:
        """Return the encoded fields of the ``Batch`` that follow its messages."""
        return self._tail

    def take(self, parts: list[Buffer], max_bytes: int, max_messages: int, first: bool = True) -> int:
        """Append the next messages to ``parts``, as fields of a ``Batch``, and return their bytes.

        Examines at most ``max_messages`` and takes at most ``max_bytes``; only with ``first`` the first message is
        taken even if it alone is larger. Raises BatchInvalid.
        """
        payload, messages, base, start = self._payload, self._head.messages, self._base, self._start
        group, sparse = self._group, self._head.sparse
        # Cache of the bytes in front of a message, by its length: many messages are equally long.
        lengths: dict[int, bytes] = {}
        end = len(payload)
        position, number, size = self._position, self._number, 0
        page, high = -1, b""
        try:
            looked, look = 0, number
            while looked < max_messages:
                if number >= messages:
                    self.ended = True
                    break
                # Fast path: most messages have a length of two bytes.
                if payload[position] == 0x0A and (low := payload[position + 1]) >= 0x80 > payload[position + 2]:
                    begin = position + 3
                    stop = begin + (low & 0x7F | payload[position + 2] << 7)
                    if stop > end:
                        raise BatchInvalid("a field is longer than its message")
                else:
                    found = next_message(payload, position, end)
                    if found is None:
                        raise BatchInvalid(f"a batch of YDB messages has fewer than {messages}")
                    begin, stop = found
                offset = base + number
                if sparse:
                    delta, begin = _delta(payload, begin, stop)
                    offset = base + delta
                if offset >= start:
                    if number >= look and not sparse:
                        most = min(messages - number, (max_messages - looked) * _EASIER)
                        alike = self._take_alike(parts, position, stop, offset, most, max_bytes - size)
                        if alike is not None:
                            count, took = alike
                            position += count * (stop - position)
                            number += count
                            looked += 1 + count // _EASIER
                            size += took
                            continue
                        look = number + FEW  # copy the messages before it one by one
                    if (size or not first) and size + stop - begin > max_bytes:
                        self.full = True
                        break
                    bodies: list[Buffer] | None = None
                    if stop - begin > LARGE_BYTES:
                        bodies = _in_pieces(payload, begin, stop)
                        whole = sum(map(len, bodies))
                    else:
                        body, items = _message(payload, begin, stop)
                        whole = len(body)
                        looked += items // _ITEM_BYTES
                    # The offset's higher bytes are nearly always those of the previous one.
                    if offset >> 7 != page:
                        page = offset >> 7
                        high = _encoded(page) + group if page else group
                    front = len(high) + 2 + whole
                    length = lengths.get(front)
                    if length is None:
                        length = lengths[front] = b"\x0a" + _encoded(front) + b"\x08"
                    parts.append(length + (_HIGH if page else _LOW)[offset & 0x7F] + high)
                    if bodies is None:
                        parts.append(body)
                    else:
                        parts += bodies
                    self.taken += 1
                    size += len(length) - 1 + front
                    self.offset = offset + 1
                position = stop
                number += 1
                looked += 1
        except IndexError as error:
            raise BatchInvalid("a YDB message ends within a field") from error
        self._position, self._number = position, number
        return size

    def _take_alike(
        self, parts: list[Buffer], position: int, stop: int, offset: int, most: int, max_bytes: int
    ) -> tuple[int, int] | None:
        """Append at most ``most`` messages from ``position`` on that have the same layout; return their number and
        bytes. None if they are too few."""
        size, group = stop - position, self._group
        most = min(most, AT_ONCE, max_bytes // (size + len(group) + _FRONT_BYTES))
        if most < FEW:
            return None
        window = bytearray(memoryview(self._payload)[position : position + most * size])
        found = find(window, 0, len(window), most, FEW)
        if found is None:
            return None
        count = found.number
        for at, tag in found.tags:
            window[at : count * size : size] = _ONES[_TAGS[tag]] * count
        view, head = memoryview(window), found.head
        both: list[Buffer] = [b""] * (2 * count)
        both[1::2] = [view[at : at + size - head] for at in range(head, count * size, size)]
        done = took = 0
        while done < count:
            # Up to where the higher bytes of the offset change.
            page, low = offset >> 7, offset & 0x7F
            these = min(count - done, 0x80 - low)
            high = _encoded(page) + group if page else group
            front = len(high) + 2 + size - head
            lead = b"\x0a" + _encoded(front) + b"\x08"
            digits = _HIGH if page else _LOW
            both[2 * done : 2 * (done + these) : 2] = [lead + digit + high for digit in digits[low : low + these]]
            done += these
            offset += these
            took += these * (len(lead) - 1 + front)
        parts += both
        self.taken += count
        self.offset = offset
        return count, took


def _encoded(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


_LOW = [bytes((digit,)) for digit in range(128)]
_ONES = [bytes((tag,)) for tag in range(0x80)]
_HIGH = [bytes((digit | 0x80,)) for digit in range(128)]
"""_LOW: encoded numbers below 128. _HIGH: first bytes of larger numbers."""


def _message(payload: Buffer, begin: int, end: int) -> tuple[bytearray, int]:
    """Convert a written message to a read one, without its offset and group. Also return how many of its bytes follow
    the fields that occur once. This path expects the usual fields in the usual order."""
    body = bytearray(payload[begin:end])
    size = end - begin
    position = 0
    if body[0] == _SEQ_NO:
        body[0] = 0x10
        position = 1
        while body[position] >= 0x80:
            position += 1
        position += 1
        if position < size and body[position] == _CREATED_AT and body[position + 1] < 0x80:
            body[position] = 0x1A
            position += 2 + body[position + 1]
        if position < size and body[position] == _DATA:
            body[position] = 0x2A
            taken = body[position + 1]
            if taken < 0x80:
                position += 2 + taken
            else:
                taken, position = varint(body, position + 1)
                position += taken
        if position < size and body[position] == _SIZE:
            body[position] = 0x30
            position += 1
            while body[position] >= 0x80:
                position += 1
            position += 1
        begin_items = position
        while position < size and body[position] == _ITEM:
            body[position] = 0x42
            taken, position = varint(body, position + 1)
            position += taken
        if position == size:
            return body, size - begin_items
    return _other_message(payload, begin, end), size


def _other_message(payload: Buffer, begin: int, end: int) -> bytearray:
    """Convert a message with any fields, like :func:`_message`; fields unknown to readers are left out."""
    body = bytearray()
    position = begin
    while position < end:
        tag, start = varint(payload, position)
        position = skip(payload, tag, start, end)
        if tag in _TAGS:
            body.append(_TAGS[tag])
            body += payload[start:position]
    return body


def _in_pieces(payload: Buffer, begin: int, end: int) -> list[Buffer]:
    """Convert a message like :func:`_other_message`, leaving long fields uncopied."""
    view = memoryview(payload)
    body = bytearray()
    pieces: list[Buffer] = [body]
    position = begin
    while position < end:
        tag, start = varint(payload, position)
        position = skip(payload, tag, start, end)
        if tag not in _TAGS:
            continue
        body.append(_TAGS[tag])
        if position - start > LARGE_BYTES:
            body = bytearray()
            pieces += [view[start:position], body]
        else:
            body += view[start:position]
    return pieces


def _delta(payload: Buffer, begin: int, end: int) -> tuple[int, int]:
    """Return a message's distance from the batch's first offset, and where its other fields begin: the node writes the
    delta first. Raises BatchInvalid."""
    position = begin
    while position < end:
        tag, position = varint(payload, position)
        if tag == DELTA_TAG:
            delta, after = varint(payload, position)
            return delta, after if position == begin + 1 else begin
        position = skip(payload, tag, position, end)
    raise BatchInvalid("a message of a batch with gaps does not say where it lies")


def _tail(head: Head, producer: bytes, written_ms: int) -> bytes:
    tail = bytearray()
    if producer:
        put_bytes(tail, _PRODUCER_ID, producer)
    tail += head.session_meta
    tail.append(_CODEC)
    put_varint(tail, head.codec)
    if written_ms >= 0:
        stamp = bytearray(b"\x08")
        put_varint(stamp, written_ms // 1000)
        stamp.append(0x10)
        put_varint(stamp, written_ms % 1000 * 1_000_000)
        put_bytes(tail, _WRITTEN_AT, stamp)
    return bytes(tail)
