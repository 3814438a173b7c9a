"""Connection to the segment store: decodes frames, runs their commands, and sends the answers as they come.

Answers do not wait for one another: a read may be parked for hours while appends and other reads go on over the same
connection. Only the answers to one writer keep the order of its appends.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Awaitable
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import structlog

from anabranch_kit.memory.budget import Kind
from anabranch_kit.net.address import Address
from anabranch_kit.net.outbox import joined
from anabranch_kit.net.sockets import hung_up
from anabranch_kit.net.turn import FRAME_WORK
from bridges.auth.sessions import ENDED, Session
from bridges.clients import Description
from bridges.errors import LogError, NotOwner
from bridges.net import connection as net
from pravega_front.access import Refused
from pravega_front.names import is_text
from pravega_front.service.appends import Protest
from pravega_front.service.reads import BeyondEnd, Found
from pravega_front.session.appends import BLOCK, BLOCK_END, Appends
from pravega_front.session.reads import Reads
from pravega_front.wire import commands as wire
from pravega_front.wire.fields import Buffer, WireError
from pravega_front.wire.frames import HEAD, code_of, decode, encode, segment_read

if TYPE_CHECKING:
    from pravega_front.server import SegmentStore

log = structlog.get_logger(__name__)

#: Frames up to this size are decoded on the event loop, longer ones in a thread, except commands that are mostly data.
_SHORT_BYTES = 32 * 1024
_BYTES_ONLY = frozenset((wire.ConditionalAppend.code, wire.ConditionalBlockEnd.code))
#: The same limit for commands with lists, which take longer per byte.
_SHORT_LIST_BYTES = 4 * 1024
_LISTS = frozenset(
    one.code
    for one in (
        wire.UpdateTableEntries,
        wire.RemoveTableKeys,
        wire.ReadTable,
        wire.MergeSegments,
        wire.MergeSegmentsBatch,
    )
)
#: List length up to which an answer is encoded on the event loop.
_SHORT_LIST = 250

#: Most commands of one connection that run at the same time; later ones wait.
_RUNNING = 64
_UUID_BYTES = 16
_COMMAND_BYTES = 2048
"""Memory of a running command besides its frame."""
_COMMAND_WORK = 31 * FRAME_WORK
"""Share of the event loop's turn that a command spends besides its frame: a task of two steps, 0.1 ms together."""
_CLOSE_S = 10.0
_RETRIABLE_CLOSE_S = 0.5
"""Longest delay before a close because of a segment: for permanent errors, and for retriable ones."""
#: Size of unsent answers in bytes above which they are sent at once, not at the end of the loop's turn.
_AT_ONCE = 64 * 1024

#: Commands that need the right to read only. Table updates need the right to write, though readers of groups send them.
_READING: frozenset[type[wire.Command]] = frozenset(
    {
        wire.GetStreamSegmentInfo,
        wire.GetSegmentAttribute,
        wire.LocateOffset,
        wire.GetTableSegmentInfo,
        wire.ReadTable,
        wire.ReadTableKeys,
        wire.ReadTableEntries,
        wire.ReadTableEntriesDelta,
    }
)
_READS = frozenset(one.code for one in _READING) | {wire.ReadSegment.code}


class Encoded(NamedTuple):
    """Encoded answer."""

    parts: list[Buffer]


#: Most segments that one command merges, and most attributes that it updates.
_SOURCES = 100


def _segments_of(command: Any) -> list[str]:
    """Return the segments that a command names. Raises Protest if there are none, or too many."""
    found = [getattr(command, name) for name in ("segment", "parent", "target", "source") if hasattr(command, name)]
    sources = getattr(command, "sources", ())
    if not found or len(sources) > _SOURCES or len(getattr(command, "updates", ())) > _SOURCES:
        raise Protest("the command names no segment, or too many segments or attributes")
    return [*found, *sources]


class Connection(net.Connection):
    """A client's connection to the segment store."""

    server: SegmentStore

    def __init__(self, server: SegmentStore, listener: str, advertised: tuple[str, int] | None) -> None:
        super().__init__(server, listener, advertised, server.framing)
        self.transient: set[str] = set()
        """Segments for large events that were created on this connection and not merged yet."""
        self.appends = Appends(self)
        self.reads = Reads(self)
        self._running = 0
        self._lost = False
        # The scheduled close after an error of a segment (close_slowly).
        self._late: TimerHandle | None = None
        self._unheard = False
        self.writer_id = b""
        """The writer that was set up last."""
        # Login sessions of the principals whose tokens were used, by name.
        self._sessions: dict[str, Session] = {}

    def describe(self) -> Description:
        writer = str(UUID(bytes=self.writer_id)) if len(self.writer_id) == _UUID_BYTES else self.writer_id.hex()
        return super().describe()._replace(name=writer)

    # --- requests --------------------------------------------------------------------------------------------------

    def _may_start(self, frame: bytes | bytearray | None) -> bool:
        running = self._running
        # While memory is short, one at a time: memory of a running command cannot be reclaimed.
        return not running or (running < _RUNNING and not self.account.crowded)

    def _outlives(self, slot: net.Slot) -> bool:
        # A running command outlives the connection; its bytes stay counted until it has ended.
        return slot._retained

    def _begun_bytes(self) -> int:
        return self.appends.block_bytes

    def _start(self, frame: bytes | bytearray, arrived: float) -> None:
        code = code_of(frame)
        turn = self.server.turn
        turn.spend(len(frame) + FRAME_WORK)
        # A client with one request at a time needs no rest: it waits for each answer anyway.
        if turn.is_over and self._waiting:
            self._rest()
        if code in (BLOCK, BLOCK_END):
            self.appends.start(code, frame, arrived)
            return
        if self.appends.gathering:
            self.appends.flush()  # this command comes after them
        if self._unheard and code in _READS:
            self._release(len(frame))
            return
        slot = self.slot(len(frame), arrived)
        if len(frame) > (_SHORT_LIST_BYTES if code in _LISTS else _SHORT_BYTES) and code not in _BYTES_ONLY:
            self._running += 1
            slot._retained = True
            self.server.spawn(self._start_long(slot, frame))
            return
        try:
            command = decode(frame)
        except WireError as error:
            self._malformed(slot, frame, str(error))
            return
        self._handle(slot, command, frame)

    def _rested(self) -> None:
        unread = self.unread_socket
        if unread >= 0 and not self._unheard and hung_up((unread,)):
            self.hung_up()
        super()._rested()

    def hung_up(self) -> None:
        self._unheard = True
        self.reads.unheard()

    def _work(self) -> None:
        try:
            super()._work()
        finally:
            if self.appends.gathering:
                self.appends.flush()
        since = self.appends.block_since
        if since is not None:
            # An unfinished block holds memory, like an incomplete frame, so the same timeout applies.
            self.receiving_since = min(self.receiving_since, since)

    def slot(self, size: int, arrived: float, *, retained: bool = False) -> net.Slot:
        """Register a request in progress, which holds ``size`` bytes since ``arrived`` (monotonic clock). ``retained``:
        it outlives the connection."""
        slot = net.Slot(size, arrived)
        slot._retained = retained
        self._slots.append(slot)
        return slot

    def release(self, size: int) -> None:
        """Return bytes of requests to the budget."""
        self._release(size)

    async def _start_long(self, slot: net.Slot, frame: bytes | bytearray) -> None:
        try:
            command = await self.server.off_loop(decode, frame)
            if self._closing:
                self.finish(slot)
            else:
                self._handle(slot, command, frame)
        except WireError as error:
            self._malformed(slot, frame, str(error))
        except Exception:  # the log gets a traceback, and the client an end
            log.exception("command failed", bytes=len(frame))
            self._malformed(slot, frame, "an unexpected error")
        finally:
            self._ran()

    def _malformed(self, slot: net.Slot, frame: bytes | bytearray, reason: str) -> None:
        self.finish(slot)
        self.close(reason, command=HEAD.unpack_from(frame)[0], bytes=len(frame))

    def _handle(self, slot: net.Slot, command: wire.Command, frame: bytes | bytearray) -> None:
        try:
            match command:
                case wire.ConditionalAppend():
                    self.appends.conditional(slot, command, command.event)
                case wire.ConditionalBlockEnd():
                    self.appends.conditional(slot, command, command.data)
                case wire.Padding():
                    self.finish(slot)
                case wire.KeepAlive():
                    self.finish(slot, [frame])
                case wire.Hello():
                    self._hello(slot, command)
                case wire.SetupAppend():
                    until = self._check(command, command.segment, update=True)
                    self.carry_out(slot, command, self.appends.set_up(command, until))
                case wire.ReadSegment():
                    self._check(command, command.segment, update=False)
                    self.carry_out(slot, command, self.reads.read(command))
                case _:
                    handler = self.server.handlers.get(type(command))
                    if handler is None:
                        raise Protest("the command is not served")
                    segments = _segments_of(command)
                    if not all(map(is_text, segments)):
                        number = getattr(command, "request_id", wire.NO_ID)
                        self.finish(slot, encode(wire.ErrorMessage(number, segments[0], "the name is not UTF-8", 0)))
                        return
                    for segment in segments:
                        self._check(command, segment, update=type(command) not in _READING)
                    self.carry_out(slot, command, handler(self, command))
        except (Protest, WireError) as error:
            self.finish(slot)
            self.protest(error, command=type(command).__name__)
        except Refused as error:
            self.refuse(getattr(command, "request_id", wire.NO_ID), error, type(command).__name__)
            self.finish(slot)

    def _check(self, command: Any, segment: str, *, update: bool) -> float | None:
        """Check the command's token; return when it expires. Raises Refused."""
        checked = self.server.access.check(self.listener, self.peer[0], command.token, segment, update)
        self.principal, until = checked
        if until is not None and not self._lost and self.principal.name not in self._sessions:
            begin = self.server.access.sessions.begin
            self._sessions[self.principal.name] = begin(self.principal, lambda: self.close(ENDED))
        return until

    def refuse(self, request_id: int, error: Refused, kind: str) -> None:
        """Tell the client that its token does not allow a command of this kind."""
        self.server.observer.error_told(kind, "AuthTokenCheckFailed")
        self.send(wire.AuthTokenCheckFailed(request_id, "", 1 if error.expired else 0))
        if error.expired:
            self.close(str(error), command=kind)

    def carry_out(self, slot: net.Slot, command: wire.Command, work: Awaitable[Any]) -> None:
        """Run ``work``, which returns the answer to a command, as a task."""
        self._running += 1
        slot._retained = True
        self.account.take(Kind.REQUESTS, _COMMAND_BYTES)
        self.server.turn.spend(_COMMAND_WORK)
        self.server.spawn(self._run(slot, command, work))

    async def _run(self, slot: net.Slot, command: wire.Command, work: Awaitable[Any]) -> None:
        kind = type(command).__name__
        try:
            answer = await work
            size = 0
            if isinstance(answer, Found):
                size = self.emit_found(answer)
            elif isinstance(answer, Encoded):
                size = self._emit(answer.parts)
            elif answer is not None:
                size = self._emit((await self.encoded(answer)).parts)
                if type(answer).__name__ in self.server.errors:
                    self.server.observer.error_told(kind, type(answer).__name__)
            self.server.observer.request_done(kind, monotonic() - slot.arrived, slot._size, size)
        except (Protest, WireError, BeyondEnd) as error:
            self.close(str(error), command=kind)
        except NotOwner as error:
            self.server.observer.error_told(kind, "WrongHost")
            name = next(iter(_segments_of(command)), "")
            self.send(wire.WrongHost(getattr(command, "request_id", wire.NO_ID), name, self.host_of(error)))
        except LogError as error:
            # Clients reconnect and repeat the command.
            self.server.observer.error_told(kind, type(error).__name__)
            self.close_slowly(error, next(iter(_segments_of(command)), ""), command=kind)
        except Exception:  # the log gets a traceback, and the client an end
            log.exception("command failed", command=kind)
            self.server.observer.error_told(kind, "unexpected exception")
            self.close("an unexpected error", command=kind)
        finally:
            self.account.give(Kind.REQUESTS, _COMMAND_BYTES)
            self.finish(slot)
            self._ran()

    def _ran(self) -> None:
        """Let a waiting command run after one has ended."""
        self._running -= 1
        if self._lost:
            self._untie()
        elif self._waiting or not self.reading:
            self._schedule()

    def maybe_resume(self) -> None:
        super().maybe_resume()
        if self.reading and self.appends.block_since is not None:
            # Reading resumes: restart the timeout of the unfinished block, whose end may never come.
            self.receiving_since = min(self.receiving_since, monotonic())

    def shed(self, since: float) -> None:
        """Cut a client that has taken nothing of its answers for long while memory is short. Answers cannot be dropped
        and read again later; the client reconnects when it wants more."""
        super().shed(since)
        patience = self.server.settings.reader_patience_ms / 1000
        if not self._closing and self.stalled_since < monotonic() - patience:
            self._tell_closed("nothing is taken of what was asked for, while memory is short", {})
            self.abort()

    # --- answers ---------------------------------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """Return whether the node stops, so that no request waits any more."""
        return self._draining

    @property
    def unheard(self) -> bool:
        """Return whether the client takes no answers any more: it has closed its side, or the connection has ended."""
        return self._unheard or self._closing

    def flush_much(self) -> None:
        """Send the answers gathered in this turn of the event loop if they are many: they count as unsent from then
        on."""
        if self._output_bytes > self.server.limits.write_buffer_bytes:
            self._flush()

    def _check_unsent(self) -> None:
        super()._check_unsent()
        if not self.write_paused and not self._lost:
            self.reads.go_on()

    def send(self, command: wire.Command) -> None:
        """Send a command, together with others of this turn of the event loop."""
        self._emit(encode(command))

    def host_of(self, error: NotOwner) -> str:
        """Return another node's address for clients of this listener as "host:port"; empty if unknown."""
        found = self.server.segments.owners.find(error.node_id, self.listener)
        return "" if found is None else str(Address(*found))

    async def encoded(self, answer: wire.Command) -> Encoded:
        """Encode an answer, in a thread if it has a long list."""
        many = max(len(getattr(answer, name, ())) for name in ("entries", "keys", "versions"))
        if many <= _SHORT_LIST:
            return Encoded(encode(answer))
        return Encoded(await self.server.off_loop(_encode_in_few, answer))

    def _emit(self, parts: list[Buffer]) -> int:
        if self._closing:
            return 0
        size = sum(map(len, parts))
        self._output += parts
        self._output_bytes += size
        if not self._busy:
            if self._output_bytes > _AT_ONCE:
                self._flush()  # count it as unsent before the next read
            else:
                self._schedule()
        return size

    def emit_found(self, found: Found) -> int:
        """Send the answer to a read; return its size in bytes."""
        if found.data is None or not isinstance(found.answer, wire.SegmentRead):
            return self._emit(encode(found.answer))
        return self._emit(segment_read(found.answer, list(found.data)))

    def finish(self, slot: net.Slot, output: list[Buffer] | None = None) -> None:
        """End a request and release its memory. Its answer, if any, was sent or is ``output``."""
        if slot._done:
            return
        slot._done = True
        if output:
            self._emit(output)
        # A finished slot stays only because of the slots before it.
        slot._retained = False
        self._fill(slot, [], 0)

    def _fill(self, slot: net.Slot, output: list[Buffer], sent: int) -> None:
        super()._fill(slot, output, sent)
        # Drop finished slots at the end: the slots before them may take long.
        slots = self._slots
        while slots and slots[-1]._done:
            slots.pop()

    def _hello(self, slot: net.Slot, hello: wire.Hello) -> None:
        self.software = f"wire version {hello.high}"
        self.finish(slot, encode(wire.Hello(wire.WIRE_VERSION, wire.OLDEST_COMPATIBLE)))
        if hello.low > wire.WIRE_VERSION or hello.high < wire.OLDEST_COMPATIBLE:
            self.close(f"the client speaks versions {hello.low} to {hello.high}")

    # --- the end ---------------------------------------------------------------------------------------------------

    def close_slowly(self, error: LogError, segment: str, **told: object) -> None:
        """Close after an error of a segment, with a delay that grows each time
        (:class:`pravega_front.server.SlowCloses`)."""
        most = _RETRIABLE_CLOSE_S if error.retriable else _CLOSE_S
        delay = self.server.slow_closes.delay(segment, most, monotonic())
        if not delay:
            self.close(str(error), **told)
        elif self._late is None and not self._lost:
            self._late = self.server.loop.call_later(delay, lambda: self.close(str(error), **told))

    def protest(self, error: Protest | WireError, **told: object) -> None:
        """Close because of an invalid request, unless a delayed close is due: the client may then not know yet which of
        its requests have failed. Malformed frames close at once."""
        if self._late is None or isinstance(error, WireError):
            self.close(str(error), **told)

    def drain(self) -> None:
        self.reads.stop()
        super().drain()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self.server.turn.forget(self)
        self.reads.forget()
        self.appends.end()
        super().connection_lost(exc)
        for session in self._sessions.values():
            self.server.access.sessions.end(session)
        self._sessions.clear()
        self.reads.end()
        self._lost = True
        self._untie()
        transient, self.transient = self.transient, set()
        for name in transient:
            self.server.spawn(self.server.forget_transient(name))

    def _untie(self) -> None:
        """Drop the connection's parts after its end, which form reference cycles with it, as soon as no command is
        running: appends under way need theirs until then."""
        if not self._running:
            del self.appends, self.reads


def _encode_in_few(answer: wire.Command) -> list[Buffer]:
    return joined(encode(answer))
