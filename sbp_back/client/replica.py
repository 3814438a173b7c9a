"""Appends in flight to range servers: a writer's range as the client sees it.

A :class:`Channel` leads to one range server and is shared by all writers that write there: what they append in one turn
of the event loop leaves in as few APPEND requests as frames allow. A :class:`Replica` is one range on one server: it
sends the range's entries in order, repeats those that may have been lost, and knows how far they are durable. Rules:
docs/protocols/sbp.md, "Append window" and "Writers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from anabranch_kit.run.barrier import Barrier
from sbp_back.errors import NO_SPACE_DETAIL, ConnectionLost, ErrorCode
from sbp_back.transport.carrier import Answer, Carrier, InProcessCarrier
from sbp_back.wire.frame import MAX_FRAME_LENGTH
from sbp_back.wire.model import OK, AppendRequest, AppendResponse, CreateRangeRequest, Entry, RangeInfo, Status

if TYPE_CHECKING:
    from sbp_back.client.stream_writer import StreamWriter

MAX_ENTRY_PAYLOAD = MAX_FRAME_LENGTH - 64 * 1024
"""Largest payload of an entry, in bytes: alone in a frame it must leave room for headers, also on the way back."""

_MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""A request takes no further entry beyond this (a larger entry has one of its own). With more than one request in
flight the server stores the next while this side handles the answers to the last. That made writers that wait for each
other's group three times as fast as with frames as long as the protocol allows.
"""
_MAX_REQUEST_ENTRIES = 4096

_MAX_TOLD = 2000
"""Ranges in one request that tells what is confirmed: 40 KB."""

_COMMITTED: int = ErrorCode.APPEND_TO_COMMITTED_OFFSET
_STORED = frozenset({OK, _COMMITTED})
_PENDING: int = ErrorCode.APPEND_TO_PENDING_OFFSET

FENCED_CODES = frozenset({int(ErrorCode.RANGE_ALREADY_SEALED), int(ErrorCode.EXPIRED_RANGE_EPOCH)})
"""Another writer has taken the range away."""

HOPELESS_CODES = frozenset(
    int(code)
    for code in (
        ErrorCode.ENCODE,
        ErrorCode.DECODE,
        ErrorCode.BAD_REQUEST,
        ErrorCode.UNAUTHORIZED,
        ErrorCode.FORBIDDEN,
        ErrorCode.NOT_FOUND,
        ErrorCode.METHOD_NOT_ALLOWED,
        ErrorCode.PRECONDITION_FAILED,
        ErrorCode.PAYLOAD_TOO_LARGE,
        ErrorCode.HEADER_FIELDS_TOO_LARGE,
        ErrorCode.OFFSET_OVERFLOW,
        ErrorCode.UNSUPPORTED_OPERATION,
        ErrorCode.UNKNOWN_OPERATION,
        ErrorCode.RS_NOT_IMPLEMENTED,
    )
)
"""Repeating the request, or asking another server, would give the same answer."""


class RetryOptions(Struct):
    """Limits of repetition. ``tries``: failures in a row, without any progress between, after which a replica is given
    up. ``pending_tries``: the same for entries the server says it is still writing. ``delay_first``, ``delay_limit``:
    pause before a repetition in seconds, doubled each time. ``append_timeout``: seconds. ``patience``: seconds without
    any progress after which a failure is final, however few tries there were: a silent server uses up a whole
    ``append_timeout`` with each.
    """

    tries: int = 5
    pending_tries: int = 60
    delay_first: float = 0.01
    delay_limit: float = 0.5
    append_timeout: float = 20.0
    patience: float = 30.0


class TellOptions(Struct):
    """Times, in seconds, at which the client tells a range server what is confirmed, beyond what travels with the
    entries. ``delay``: after the answer to the last append; ``again``: after a message that was not answered.
    ``tells``: whether the client tells anything (servers of elastic-stream do not know the message).
    """

    tells: bool = True
    delay: float = 0.005
    again: float = 0.5


class Channel:
    """All appends of this client to one range server, and the messages that tell the server which of them are
    confirmed: readers are shown only what their writer knows to be durable (docs/sbp.md, "What readers see").
    """

    __slots__ = (
        "_direct",
        "_queue",
        "_reminder",
        "_replicas",
        "_scheduled",
        "_tell_options",
        "_tell_timer",
        "_untold",
        "barrier",
        "carrier",
        "framed",
        "loop",
        "timeout",
    )

    def __init__(
        self,
        carrier: Carrier,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        barrier: Barrier,
        tell: TellOptions | None = None,
    ) -> None:
        self.carrier = carrier
        self.barrier = barrier
        self.timeout = timeout
        self._direct = carrier if isinstance(carrier, InProcessCarrier) else None
        self.framed = self._direct is None
        """Whether appends pass through frames, which bounds their length."""
        self.loop = loop
        self._queue: list[tuple[Replica, Entry]] = []
        self._scheduled = False
        self._tell_options = tell if tell is not None else TellOptions()
        # Each with its ``confirm`` at the last look. A replica that still grows tells the server with its own entries.
        self._untold: dict[Replica, int] = {}
        self._tell_timer: asyncio.TimerHandle | None = None

    def push(self, replica: Replica, entry: Entry) -> None:
        """Send ``entry`` at the end of this turn of the loop; ``replica`` gets the result."""
        self._queue.append((replica, entry))
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        queue, self._queue = self._queue, []
        size = 0
        first = 0
        for position, (_, entry) in enumerate(queue):
            more = len(entry.prefix) + len(entry.payload)
            full = size + more > _MAX_REQUEST_BYTES or position - first == _MAX_REQUEST_ENTRIES
            if full and position > first:
                self._submit(queue[first:position])
                first, size = position, 0
            size += more
        self._submit(queue[first:] if first else queue)

    def _submit(self, items: list[tuple[Replica, Entry]]) -> None:
        request = AppendRequest(int(self.timeout * 1000), [entry for _, entry in items], framed=self.framed)
        self.carrier.submit(request, lambda answer: answered(items, answer), self.timeout)

    # --- what is confirmed ------------------------------------------------------------------------------------------

    def closed(self, replica: Replica) -> None:
        """Forget the replica: nobody needs to hear what it has confirmed since its writer last heard of it."""
        self._untold.pop(replica, None)

    def confirmed(self, replicas: Iterable[Replica]) -> None:
        """Note that ``confirm`` of these replicas may have grown, before their writers hear of it."""
        options = self._tell_options
        if not options.tells:
            return
        if not self.framed:
            self.tell(replicas)
            return
        for replica in replicas:
            if replica.confirm > replica.told and not replica.ended:
                self._untold.setdefault(replica, replica.confirm)
        self._wait_to_tell(options.delay)

    def tell(self, replicas: Iterable[Replica]) -> None:
        """Tell the server now what the replicas have confirmed, ahead of whatever is sent after this."""
        if not self._tell_options.tells:
            return
        behind = [replica for replica in replicas if replica.confirm > replica.told and not replica.ended]
        if self._direct is None:
            self._tell(behind)
        elif behind:
            for replica in behind:
                replica.told = replica.confirm
            self._direct.tell(_telling(behind))

    async def tell_confirmed(self) -> None:
        """Wait until the server knows everything that is confirmed. Raises ``ConnectionLost``."""
        replicas = [replica for replica in self._untold if not replica.ended]
        for first in range(0, len(replicas), _MAX_TOLD):
            part = replicas[first : first + _MAX_TOLD]
            await self.carrier.call(_telling(part), self.timeout)

    def _tell(self, replicas: list[Replica]) -> None:
        for first in range(0, len(replicas), _MAX_TOLD):
            part = replicas[first : first + _MAX_TOLD]
            before = [replica.told for replica in part]
            for replica in part:
                replica.told = replica.confirm
            self.carrier.submit(_telling(part), partial(self._tell_answered, part, before), self.timeout)

    def _tell_answered(self, replicas: list[Replica], before: list[int], answer: Answer) -> None:
        if not isinstance(answer, ConnectionLost):
            return  # a server that refuses would do so again
        for replica, told in zip(replicas, before, strict=True):
            if not replica.ended:
                replica.told = min(replica.told, told)
                self._untold.setdefault(replica, replica.confirm)
        self._wait_to_tell(self._tell_options.again)

    def _wait_to_tell(self, delay: float) -> None:
        if self._untold and self._tell_timer is None:
            self._tell_timer = self.loop.call_later(delay, self._tell_the_quiet)

    def _tell_the_quiet(self) -> None:
        """Tell the server what is confirmed in replicas that have not grown since the last look. The entries of the
        others carry it themselves.
        """
        self._tell_timer = None
        looked_at, self._untold = self._untold, {}
        quiet: list[Replica] = []
        for replica, confirm in looked_at.items():
            if replica.confirm == confirm and confirm > replica.told:
                quiet.append(replica)
            elif replica.confirm > replica.told:
                self._untold[replica] = replica.confirm
        self._tell(quiet)
        self._wait_to_tell(self._tell_options.delay)


def _telling(replicas: list[Replica]) -> AppendRequest:
    return AppendRequest(0, [], [(replica.info.stream_id, replica.info.index, replica.confirm) for replica in replicas])


def answered(items: list[tuple[Replica, Entry]], answer: Answer) -> None:
    """Give each replica the results of the entries that it sent in this request, then have it act on them."""
    touched: dict[Replica, None] = {}
    if type(answer) is AppendResponse and answer.status.code == OK and len(answer.results) == len(items):
        for (replica, entry), result in zip(items, answer.results, strict=True):
            replica.outstanding -= 1
            code = result.status.code
            if code in _STORED:
                # The server acknowledges in order of offset, so all before this entry is durable as well.
                end = entry.base_offset + entry.count
                if end > replica.confirm:
                    replica.confirm = end
            else:
                replica.refused(entry.base_offset, result.status)
            touched[replica] = None
    else:
        if isinstance(answer, ConnectionLost):
            status = Status(answer.code, answer.message)
        elif answer.status.ok:
            status = Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "the answer does not fit the append")
        else:
            status = answer.status
        unknown = isinstance(answer, ConnectionLost) or answer.status.ok
        for replica, entry in items:
            replica.outstanding -= 1
            replica.refused(entry.base_offset, status)
            replica.uncertain = replica.uncertain or unknown
            touched[replica] = None
    if touched:
        # Before the writers hear of it, so that a client whose batch is acknowledged can also read it.
        items[0][0].channel.confirmed(touched)
    settle(touched)


def settle(replicas: Iterable[Replica]) -> None:
    """Have each replica act on the results of its entries; an exception in one does not stop the others."""
    for replica in replicas:
        try:
            replica.settle()
        except Exception as error:  # noqa: BLE001 - logged and counted there
            replica.channel.barrier.caught("settling an append", error)


class LocalServer(Protocol):
    """A range server of this process, as its writers see it."""

    def push(self, replica: Replica, entry: Entry) -> None:
        """Take ``entry`` for the end of this cycle of the event loop; ``replica`` gets its result, never before this
        returns. Entries are taken in the order in which they are pushed.
        """

    def confirmed(self, replicas: Iterable[Replica]) -> None:
        """Show readers everything that these replicas have confirmed."""


class LocalChannel:
    """Counterpart of :class:`Channel` for a range server of this process: entries are handed over as they are.

    There are no messages, nothing can be lost, and the server learns what is confirmed at the same moment as the
    writer. Requests that change ranges still go through the carrier.
    """

    __slots__ = ("barrier", "carrier", "confirmed", "loop", "push", "timeout")

    framed = False

    def __init__(
        self,
        server: LocalServer,
        carrier: Carrier,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        barrier: Barrier,
    ) -> None:
        self.carrier = carrier
        self.loop = loop
        self.timeout = timeout
        self.barrier = barrier
        self.push = server.push
        self.confirmed = server.confirmed

    def tell(self, replicas: Iterable[Replica]) -> None:
        """Do nothing: the server already knows."""

    async def tell_confirmed(self) -> None:
        """Return at once: the server already knows."""

    def closed(self, replica: Replica) -> None:
        """Do nothing: this channel keeps nothing of a replica."""


Way = Channel | LocalChannel


class Replica:
    """The open range ``info`` on one server.

    Below ``confirm`` everything is durable there. ``outstanding`` entries are sent and not answered. ``uncertain``:
    entries were sent that never got an answer, so they may still become durable behind our back; only sealing the range
    settles that. ``told``: the offset up to which the server knows, or is about to learn, what is confirmed. ``ended``:
    it is closed. ``place``: for a server in this process, what it keeps of the range.
    """

    __slots__ = (
        "_attempts",
        "_delay",
        "_failed_at",
        "_failure",
        "_moved_at",
        "_options",
        "_owner",
        "_push",
        "_stalls",
        "_timer",
        "channel",
        "confirm",
        "ended",
        "info",
        "outstanding",
        "place",
        "told",
        "uncertain",
    )

    def __init__(self, owner: StreamWriter, channel: Way, info: RangeInfo, options: RetryOptions) -> None:
        self._owner = owner
        self._options = options
        self.channel = channel
        self._push = channel.push
        self.info = info
        self.confirm = info.start
        self.outstanding = 0
        self.place: Any = None
        self.uncertain = False
        self.told = info.start
        self._moved_at = monotonic()  # when there was progress, or nothing to wait for
        self._failure: Status | None = None
        self._failed_at = 0
        self._attempts = 0
        self._stalls = 0
        self._delay = options.delay_first
        self._timer: asyncio.TimerHandle | None = None
        self.ended = False

    def send(self, entry: Entry) -> None:
        """Send the entry that follows the last one; while a repetition is due it goes with that."""
        if self._failure is None and self._timer is None and not self.ended:
            if not self.outstanding:
                self._moved_at = monotonic()
            self.outstanding += 1
            if entry.confirmed > self.told:
                self.told = entry.confirmed
            self._push(self, entry)

    def close(self) -> None:
        """Report nothing more. Idempotent."""
        self.ended = True
        self.channel.closed(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refused(self, base: int, status: Status) -> None:
        """Keep the refusal of the lowest offset: it is the cause of the others."""
        if base >= self.confirm and (self._failure is None or base < self._failed_at):
            self._failure = status
            self._failed_at = base

    def settle(self) -> None:
        """Act on the results of an answer, once all its entries are counted."""
        if self.ended:
            return
        if self.confirm > self._owner.confirm_offset:
            self._moved_at = now = monotonic()
            self._attempts = self._stalls = 0
            self._delay = self._options.delay_first
            self._owner.progressed(now)
        failure = self._failure
        if failure is not None and self._failed_at < self.confirm:
            failure = self._failure = None  # answered twice, and the good answer counts
        if failure is None or self.ended:
            return
        if failure.code in FENCED_CODES or failure.code in HOPELESS_CODES:
            self.close()
            self._owner.broken(self, failure)
            return
        # A repetition while entries are in flight could arrive between them.
        if self.outstanding or self._timer is not None:
            return
        if failure.detail == NO_SPACE_DETAIL and not self.uncertain:
            self._failure = None
            self._owner.out_of_space(self, failure)
            return
        if failure.code == _PENDING:
            self._stalls += 1
        else:
            self._attempts += 1
        options = self._options
        given_up = self._attempts >= options.tries or self._stalls >= options.pending_tries
        if given_up or monotonic() - self._moved_at >= options.patience:
            self.close()
            self._owner.broken(self, failure)
            return
        self._timer = self.channel.loop.call_later(self._delay, self._repeat)
        self._delay = min(2 * self._delay, options.delay_limit)

    def _repeat(self) -> None:
        failure = self._failure
        if failure is not None and failure.code == ErrorCode.RANGE_NOT_FOUND:
            # The request to create the range there got lost. It is repeatable, and the entries follow it.
            self._failure = None
            self.channel.carrier.submit(CreateRangeRequest(self.info), self._created, self.channel.timeout)
            return
        self._send_all()

    def _created(self, answer: Answer) -> None:
        if self.ended:
            return
        if isinstance(answer, ConnectionLost):
            self._failure = Status(answer.code, answer.message)
        elif not answer.status.ok and answer.status.code != ErrorCode.BAD_REQUEST:
            # 1400: the range exists, but has changed: another client may have sealed it. The append will show how.
            self._failure = answer.status
        if self._failure is not None:
            self._failed_at = self.confirm
            self._timer = None
            self.settle()
            return
        self._send_all()

    def _send_all(self) -> None:
        self._timer = None
        self._failure = None
        for entry in self._owner.unsent(self):
            self.outstanding += 1
            if entry.confirmed > self.told:
                self.told = entry.confirmed
            self._push(self, entry)
