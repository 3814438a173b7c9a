"""A node's part in its cluster: sends heartbeats, follows the other members, and carries out what the keeper decides.

The transactions of :mod:`bridges.cluster.tables` talk to the database; the keeper draws the conclusions. Every step may
be repeated, so a failed step is retried at the next heartbeat.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from anabranch_kit.errors import StoreError
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.database.sql import Connection, Database, DatabaseClosed
from bridges.cluster import tables, wishes
from bridges.cluster.keeper import Keeper, News
from bridges.cluster.marks import EVERY_S, Mark, Marks, Totals, WentBackError, database_went_back
from bridges.cluster.members import Member, Patience, State
from bridges.cluster.ownership import SERVING, Gained, Gone, Lost, Outages
from bridges.cluster.slots import slot_of_key, slot_of_partition
from bridges.cluster.versions import Version
from bridges.errors import CannotMove, LogError, NotOwner
from sbp_back.errors import SbpError
from sbp_back.range_server.adoption import AdoptionRefused

_log = structlog.get_logger("anabranch.cluster")

_SLOTS_PER_TRANSACTION = 64
"""Most slots handed over in one transaction."""
_CLOSED_AT_ONCE = 32
"""Most open logs in the slots of one handover: these partitions have no owner until the last of them is closed."""
CHANNEL = "anabranch_cluster"
"""The database's channel of notices that members or slots have changed."""

MARKED_S = 1.0
"""Seconds that a look waits until its mark is written: a bucket that does not answer accepts no range either."""
_RETIRING_S = 0.05
"""Seconds between two checks whether another node has taken over."""

T = TypeVar("T")
Place = Callable[[str, int], tuple[bytes, int] | None]
Adopt = Callable[[int], Awaitable[None]]
Fenced = Callable[[], Awaitable[bool]]


class Cluster:
    """The ownership of a node in a cluster (see :class:`bridges.cluster.ownership.Ownership`).

    Opens and closes ``db``. ``place`` returns the topic's id and the number by which a partition is owned. ``adopt``
    takes over the log of a dead range server. ``on_ended`` is called with a sentence when other members have ended this
    node: it must stop, and may come again.
    """

    def __init__(
        self,
        db: Database,
        node_id: int,
        patience: Patience,
        barrier: Barrier,
        on_ended: Callable[[str], None],
        version: Version,
    ) -> None:
        self.node_id = node_id
        self.on_lost: list[Lost] = []
        self.on_gained: list[Gained] = []
        self.on_gone: list[Gone] = []
        self.place: Place = lambda topic, partition: None
        self.open_logs: Callable[[int], int] = lambda slot: 0
        """Returns how many logs of a slot have to be closed before it is handed over."""
        self.adopt: Adopt | None = None
        self.fenced: Fenced | None = None
        """Asks the log's storage whether this node's log was taken over (OSError: unknown); None if no node can take it
        over.
        """
        self.is_past: Callable[[Member], Awaitable[bool]] | None = None
        """Finds out whether a member's process has ended; None: wait until the member is suspected."""
        self.marks: Marks | None = None
        """The marks of the database's progress; None if the database is a file beside all data."""
        self.taken_over = 0
        """Number of members whose log this node has taken over."""
        self.given = 0
        """Number of slots that this node has handed over."""
        self._db = db
        self._patience = patience
        self._barrier = barrier
        self._on_ended = on_ended
        self._version = version
        self._keeper: Keeper | None = None
        self._server_id = -1
        self._nodes: tuple[Member, ...] = ()
        self._ending: set[int] = set()
        self._looking: set[int] = set()
        self._tasks = TaskSet()
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._retired = False
        # The monotonic time until which no member can suspect this node; and the time of the last check with the log's
        # storage that no node had taken over.
        self._sure_until = -math.inf
        self._unfenced_at = -math.inf
        self._asking: asyncio.Task[None] | None = None
        self._known = asyncio.Event()
        # The largest totals that the database has shown, and how many heartbeats of this start it has accepted. If it
        # ever shows less, it has gone back.
        self.totals = Totals()
        self.beats = 0
        self.marked = Totals()
        self.mark_at = -math.inf
        self._marking: asyncio.Task[None] | None = None

    # --- life ---------------------------------------------------------------------------------------------------

    async def enter(self, workers: Collection[int] = (), server_id: int = -1) -> None:
        """Become a member that owns nothing yet, and start the heartbeats.

        ``server_id``: the range server whose log this node is about to open; -1: none. If a former start of this node,
        or another node with that log, has not ended properly, wait for a lease. One of ``workers`` knows that its
        former start has ended and that there are no other nodes than the workers: it gets back at once what it had.

        Raises StoreError if another live process has this node's id or its log, if other members' versions are too far
        away, or if the database or the bucket has gone back; and errors of the database.
        """
        await self._db.open()
        if self.marks is not None:
            # Check before anything is changed: a database that is changed often enough is not behind any mark any more.
            try:
                await self.marks.begin(self._db)
            except OSError as error:
                if not workers:
                    raise StoreError(str(error)) from error
                # Workers serve what is on their disk while the bucket is away.
                _log.warning("the bucket is not checked yet", error=str(error))
        await self._db.surely(partial(tables.make, version=self._version))
        if workers:
            await self._begin(
                await self._db.surely(
                    partial(tables.succeed, node_id=self.node_id, workers=workers, version=self._version)
                )
            )
            return
        enter = partial(tables.enter, node_id=self.node_id, version=self._version, server_id=server_id)
        seen: tuple[int, int] | None = None
        since = 0.0
        while True:
            found = await self._db.surely(enter)
            if isinstance(found, int):
                break
            now = time.monotonic()
            if seen is None:
                seen, since = (found.start, found.beats), now
                _log.info("waiting for who had this node's id or log to be past", node_id=found.node_id)
            elif seen != (found.start, found.beats):
                if found.node_id != self.node_id:
                    raise StoreError(
                        f"node {found.node_id} of this cluster (it serves at {_places(found)}) has the log that this "
                        f"node {self.node_id} is to open: give each a sbp.object_log of its own"
                    )
                raise StoreError(
                    f"another process is node {self.node_id} of this cluster (it serves at {_places(found)}): give "
                    "each a node.id of its own"
                )
            elif now - since >= self._patience.lease:
                await self._db.surely(partial(tables.claim, start=found.start, beats=found.beats, by=0))
            await asyncio.sleep(self._patience.heartbeat / 2)
        await self._begin(found)

    async def _begin(self, start: int) -> None:
        self._keeper = Keeper(start, self._patience)
        # Clients that connect before this node serves should learn of the other members. What this node owns it learns
        # only when its callbacks are in place.
        look = await self._db.surely(partial(tables.read_cluster, known=-1))
        self._nodes = _serving(look.members)
        self.totals = look.totals
        await self._mark()
        if self.marks is not None:
            await asyncio.to_thread(self.marks.forget, [member.start for member in look.members])
        self._tasks.spawn(self._beat(), "heartbeats")

    async def join(self, server_id: int, addresses: Mapping[str, str], rack: str) -> None:
        """Serve: become UP, and get a share of the slots. Raises StoreError if this node was ended meanwhile."""
        keeper = self._member
        self._server_id = server_id
        join = partial(tables.join, start=keeper.start, server_id=server_id, addresses=addresses, rack=rack)
        if not await self._db.surely(self._telling(join)):
            raise StoreError(f"node {self.node_id} was taken for dead while it started")
        self._tasks.spawn(self._watch(), "cluster")
        if self._db.engine.notice:
            self._tasks.spawn(self._listen(), "notices of the cluster")

    async def await_owners(self, seconds: float) -> None:
        """Return when each slot has an owner that acts for it, or after ``seconds``.

        Before, clients would be told that a partition has no leader, and some of them do not retry.
        """
        keeper = self._member

        def is_vacant(slot: int) -> bool:
            owner = self.owner(slot)
            return owner is None or owner.state not in SERVING or (owner.start == self.start and not self.is_mine(slot))

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not keeper.slots or any(map(is_vacant, range(len(keeper.slots)))):
                    self._settled.clear()
                    await self._settled.wait()
        self._known.set()

    async def leave(self, seconds: float) -> None:
        """Hand over all slots, for at most ``seconds``."""
        keeper = self._keeper
        if keeper is None or keeper.ended or not self._tasks:
            return
        try:
            await self._tell_all(partial(tables.leave, start=keeper.start))
            async with asyncio.timeout(seconds):
                while keeper.acting and any(one.start != keeper.start for one in self._nodes if one.state is State.UP):
                    self._settled.clear()
                    self._wake.set()
                    await self._settled.wait()
        except TimeoutError:
            _log.warning("not everything was handed over", slots=len(keeper.acting), after_seconds=seconds)
        except LogError as error:
            _log.warning("nothing could be handed over", error=str(error))

    async def drain(self, node_id: int) -> None:
        """Have a node hand over all its slots, and serve without owning anything until undrained, also after restarts.

        Returns when that is stored. Raises CannotMove, and errors of the database.
        """
        if not any(one.node_id == node_id for one in self._nodes):
            raise CannotMove(f"the cluster has no node {node_id}")
        if not await self._wish(partial(wishes.drain, node_id=node_id)):
            raise CannotMove(f"there is no other node that could take over from node {node_id}")

    async def undrain(self, node_id: int) -> None:
        """Have a node, whether it is there or not, own its share again. Raises as :meth:`drain` does."""
        if not await self._wish(partial(wishes.undrain, node_id=node_id)):
            raise CannotMove(f"node {node_id} is not drained")

    async def move(self, slots: Collection[int], node_id: int) -> None:
        """Pin slots to a node: it owns them now and whenever it comes back, until they are unpinned. Raises as
        :meth:`drain`.
        """
        if not await self._wish(partial(wishes.pin, slots=slots, node_id=node_id)):
            raise CannotMove(f"node {node_id} does not serve, or is drained: nothing can be moved to it")

    async def unpin(self, slots: Collection[int] | None = None, node_id: int | None = None) -> None:
        """Remove the pins of these slots, of a node, or of all, so that balancing decides again. Raises as
        :meth:`drain` does.
        """
        await self._wish(partial(wishes.unpin, slots=slots, node_id=node_id))

    async def _wish(self, work: Callable[[Connection], bool]) -> bool:
        """Carry out an operator's transaction; return False if it refused.

        Waits until this node, which may be asked next, has seen the change.
        """
        keeper = self._member
        version = await self._tell_all(lambda connection: work(connection) and tables.version(connection))
        if version is False:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience.lease):
                while keeper.version < version and not keeper.ended:
                    self._settled.clear()
                    self._wake.set()
                    await self._settled.wait()
        return True

    async def retire(self, seconds: float) -> None:
        """Have another node take over this node's range server, once its logs are closed; return when it has.

        Returns after ``seconds`` at the latest; 0: wait for no node, as there is nothing to keep. Until then this node
        goes on serving reads.
        """
        await self._tasks.close()
        keeper = self._keeper
        if keeper is None or keeper.ended or self._retired:
            return
        self._retired = True
        began = time.monotonic()
        try:
            await self._tell_all(partial(tables.mark_stopped, start=keeper.start))
            if not seconds:
                return
            async with asyncio.timeout(seconds):
                over = partial(_is_over_for, start=keeper.start)
                # Poll the database: the task that receives notices has ended.
                while not await self._db.run(over):  # noqa: ASYNC110
                    await asyncio.sleep(_RETIRING_S)
            _log.info(
                "another node has taken over this node's partitions and groups",
                seconds=round(time.monotonic() - began, 3),
            )
        except TimeoutError:
            _log.warning("no node has taken over this node's partitions and groups yet", after_seconds=seconds)
        except LogError as error:
            _log.warning("could not tell the other nodes that this one has stopped", error=str(error))

    async def close(self) -> None:
        """Stop the heartbeats, and close the database."""
        await self._tasks.close()
        if self._keeper is not None:
            await self._mark()
        await self._db.close()

    def _telling(self, work: Callable[[Connection], T]) -> Callable[[Connection], T]:
        """Return ``work`` with a notice to all nodes if it changes something, so that no node has to wait for its next
        look.
        """
        notice = self._db.engine.notice

        def change(connection: Connection) -> T:
            changed = work(connection)
            if changed and notice:
                connection.execute(notice, (CHANNEL,))
            return changed

        return change

    async def _tell_all(self, work: Callable[[Connection], T]) -> T:
        return await self._db.run(self._telling(work))

    # --- what others ask ----------------------------------------------------------------------------------------

    @property
    def _member(self) -> Keeper:
        assert self._keeper is not None, "entered before"
        return self._keeper

    @property
    def start(self) -> int:
        """The number of this start of the node."""
        return self._member.start

    @property
    def keeper(self) -> Keeper:
        """The state of the cluster as this node knows it."""
        return self._member

    @property
    def nodes(self) -> Sequence[Member]:
        return self._nodes

    def outages(self) -> Outages:
        keeper, now = self._member, time.monotonic()
        members = sorted(keeper.members.values(), key=lambda one: one.start)
        silent = {one.node_id: keeper.still(one.start) for one in members if one.node_id != self.node_id}
        gone = {node_id: now - since for node_id, since in keeper.missing.items()}
        return Outages(silent | gone, self.taken_over, keeper.unowned)

    async def await_known(self) -> None:
        await self._known.wait()

    def slot_of(self, topic: str, partition: int) -> int:
        place = self.place(topic, partition)
        slots = self._member.slots
        return -1 if place is None or not slots else slot_of_partition(*place, len(slots))

    def slot_of_key(self, kind: str, key: str) -> int:
        slots = self._member.slots
        return slot_of_key(kind, key, len(slots)) if slots else -1

    def owner(self, slot: int) -> Member | None:
        return self._member.owner(slot) if slot >= 0 else None

    def is_mine(self, slot: int) -> bool:
        return slot in self._member.acting

    @property
    def mine(self) -> Collection[int]:
        return list(self._member.acting)

    @property
    def is_sure(self) -> bool:
        return self.fenced is None or time.monotonic() < self._sure_until

    async def sure(self) -> None:
        asked = time.monotonic()
        while not self.is_sure and self._unfenced_at < asked:
            if self._member.ended or time.monotonic() - asked > self._patience.lease:
                raise NotOwner("what this node may own no more", -1)
            await asyncio.wait({self._begin_asking()}, timeout=_RETIRING_S)

    def _begin_asking(self) -> asyncio.Task[None]:
        if self._asking is None:
            self._asking = self._tasks.spawn(self._ask_fenced(), "whether the log is this node's still")
        return self._asking

    async def _ask_fenced(self) -> None:
        began = time.monotonic()
        try:
            assert self.fenced is not None, "asked where it may be"
            if not await self.fenced():
                self._unfenced_at = began
            elif not self._member.ended:
                await self._ended(self._member.end())
        except OSError as error:
            _log.warning("whether the log is this node's still is not known", error=str(error))
            await asyncio.sleep(_RETIRING_S)
        except Exception as error:  # noqa: BLE001 - logged and counted: it is asked again
            self._barrier.caught("whether the log is this node's still", error)
            await asyncio.sleep(_RETIRING_S)
        finally:
            self._asking = None

    def epoch(self, slot: int) -> int:
        slots = self._member.slots
        return slots[slot].epoch if 0 <= slot < len(slots) else -1

    async def raise_epoch(self, slot: int) -> int:
        keeper = self._member
        epoch = None
        if slot in keeper.acting:
            epoch = await self._db.run(partial(tables.raise_epoch, slot=slot, start=keeper.start))
        if epoch is None or keeper.ended:
            owner = self.owner(slot)
            raise NotOwner(f"slot {slot}", -1 if owner is None or owner.start == keeper.start else owner.node_id)
        self.totals = self.totals.joined(Totals(epoch=epoch + 1))
        await self._marked_soon()
        # Open logs go on: the epoch of their ranges is the highest that was ever given out.
        keeper.raised(slot, epoch)
        return epoch

    def holding(self, slot: int) -> Callable[[Connection], None]:
        return partial(_hold, slot=slot, start=self.start)

    # --- chores -------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        keeper = self._member
        while not keeper.ended:
            began = time.monotonic()
            try:
                if not await self._db.run(partial(tables.beat, start=keeper.start)):
                    totals, beats = self.totals, self.beats
                    look = await self._db.run(partial(tables.read_cluster, known=keeper.version))
                    await self._ended(keeper.end(), self._gone_back(look, totals, beats))
                    return
                self.beats += 1
                self._sure_until = began + self._unsuspected
            except DatabaseClosed:
                return
            except LogError as error:
                _log.warning("no heartbeat", error=str(error))
                # A client may ask only this node for the leader of a partition. Cut off from the database, the node
                # would name itself for ever, although another node has taken over.
                if not self.is_sure:
                    self._begin_asking()
            await asyncio.sleep(max(0.01, self._patience.heartbeat - (time.monotonic() - began)))

    async def _watch(self) -> None:
        keeper = self._member
        while not keeper.ended:
            self._wake.clear()  # a notice from here on causes another look
            moved = 0
            try:
                await self._follow()
                moved = await self._act()
            except DatabaseClosed:
                return
            except (LogError, SbpError) as error:
                _log.warning("could not read the cluster's members; trying again", error=str(error))
            except Exception as error:  # noqa: BLE001 - logged and counted: it is tried again
                self._barrier.caught("cluster", error)
            self._settled.set()
            if moved and keeper.to_give():
                continue  # hand over the next ones without a pause
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience.heartbeat / 2):
                    await self._wake.wait()

    async def _listen(self) -> None:
        async for _ in self._db.engine.listen(CHANNEL):
            self._wake.set()

    async def _follow(self) -> None:
        keeper = self._member
        before = keeper.members.keys()
        asked, totals, beats = time.monotonic(), self.totals, self.beats
        look = await self._db.run(partial(tables.read_cluster, known=keeper.version))
        answered = time.monotonic()
        if gone_back := self._gone_back(look, totals, beats):
            await self._ended(keeper.end(), gone_back)
            return
        self.totals = self.totals.joined(look.totals)
        if any(one.owner == keeper.start and one.epoch >= self.marked.epoch for one in look.slots or ()):
            await self._marked_soon()
        elif look.beats_of(keeper.start) is not None and (self.totals != self.marked or answered >= self.mark_at):
            self.begin_marking()
        news = keeper.take_in(look, asked, answered)
        self._nodes = _serving(keeper.members.values())
        await self._tell(news)
        if before - keeper.members.keys():
            for gone in self.on_gone:
                self._barrier.call("members gone", gone)
        if keeper.ended:
            await self._ended(News())

    def _gone_back(self, look: tables.Look, totals: Totals, beats: int) -> str:
        """Return why the database has gone back, empty if it has not.

        ``look`` is its state; ``totals`` and ``beats`` are what it had shown before it was asked.
        """
        own = look.beats_of(self.start)
        if look.totals.is_behind(totals) or (own is not None and own < beats):
            return database_went_back(look.totals, totals)
        return ""

    def begin_marking(self) -> asyncio.Task[None]:
        if self._marking is None:
            self._marking = self._tasks.spawn(self._mark(), "how far the database is")
        return self._marking

    async def _marked_soon(self) -> None:
        """Wait, though not long, until the state on which this node is about to act is in a mark."""
        wanted = self.totals
        for _ in range(2):  # the mark being written may be older
            if self.marks is not None and self.marked.is_behind(wanted):
                await asyncio.wait({self.begin_marking()}, timeout=MARKED_S)

    async def _mark(self) -> None:
        if self.marks is None:
            return
        mark = Mark(self.start, self.beats, self.totals)
        try:
            if self.marks.others is None:
                await self.marks.begin(self._db)
            await self.marks.keep(mark)
            self.marked, self.mark_at = mark.totals, time.monotonic() + EVERY_S
        except WentBackError as error:
            if not self._member.ended:
                await self._ended(self._member.end(), str(error))
        except OSError as error:
            _log.warning("how far the database is could not be written down", error=str(error))
            await asyncio.sleep(self._patience.heartbeat)
        finally:
            self._marking = None

    async def _tell(self, news: News) -> None:
        if news.lost:
            for lost in self.on_lost:
                await lost(news.lost, False)
        if news.gained:
            for gained in self.on_gained:
                self._barrier.call("slots gained", gained, news.gained)

    async def _ended(self, news: News, why: str = "") -> None:
        await self._tell(news)
        self._on_ended(
            why or f"node {self.node_id} was taken for dead by the others, who go on without it: it has to start again"
        )

    async def _act(self) -> int:
        """Carry out the keeper's decisions, and return the number of slots handed over."""
        keeper = self._member
        if keeper.ended:
            return 0
        if self.is_past is not None:
            for member in keeper.doubtful():
                if member.start not in self._looking:
                    self._looking.add(member.start)
                    self._tasks.spawn(self._look_for(member), f"looking for node {member.node_id}")
        for member in keeper.to_end():
            if member.start not in self._ending:
                self._ending.add(member.start)
                task = self._tasks.spawn(self._end(member), f"end of node {member.node_id}")
                task.add_done_callback(partial(self._is_over, member.start))
        for slot in keeper.unsettled():
            epoch = await self._db.run(partial(tables.raise_epoch, slot=slot, start=keeper.start))
            await self._tell(keeper.raised(slot, epoch))
        moves = keeper.to_give()
        if not moves:
            return 0
        to = moves[0].to
        return await self._give(self._first([move.slot for move in moves if move.to == to]), to)

    @property
    def _unsuspected(self) -> float:
        """The seconds after one of its heartbeats for which no member suspects this node."""
        patience = self._patience
        return patience.lease - patience.heartbeat if self.is_past is None else patience.doubt

    async def _look_for(self, member: Member) -> None:
        try:
            if self.is_past is not None and await self.is_past(member):
                _log.warning("a node's process has ended", node_id=member.node_id, start=member.start)
                self._member.past(member)
                self._wake.set()
        except Exception as error:  # noqa: BLE001 - logged and counted: it is suspected in time
            self._barrier.caught("looking for a node", error)
        finally:
            self._looking.discard(member.start)

    def _first(self, slots: Sequence[int]) -> list[int]:
        """Return the slots to be handed over next, at least one."""
        first: list[int] = []
        logs = 0
        for slot in slots[:_SLOTS_PER_TRANSACTION]:
            logs += self.open_logs(slot)
            if first and logs > _CLOSED_AT_ONCE:
                break
            first.append(slot)
        return first

    def _is_over(self, start: int, task: asyncio.Task[None]) -> None:
        self._ending.discard(start)

    async def _give(self, slots: Collection[int], to: int) -> int:
        keeper = self._member
        given = [(slot, keeper.acting[slot]) for slot in slots]
        keeper.begin_giving(slots)
        # Nothing of these slots may be in flight when another member gets them.
        for lost in self.on_lost:
            await lost(slots, True)
        give = partial(tables.give, given=given, start=keeper.start, to=to)
        moved = await self._tell_all(give)
        self.given += len(moved)
        # The next look, and a raised epoch, settle slots that were not handed over.
        await self._follow()
        return len(moved)

    async def _end(self, member: Member) -> None:
        keeper = self._member
        began = time.monotonic()
        try:
            claim = partial(tables.claim, start=member.start, beats=member.beats, by=keeper.start)
            if not await self._tell_all(claim):
                return
            _log.warning("taking over from a node that has stopped", node_id=member.node_id, start=member.start)
            if member.server_id not in (-1, self._server_id) and self.adopt is not None:
                try:
                    await self.adopt(member.server_id)
                except AdoptionRefused as error:
                    # Another node had begun to take over the member, has its log, and was stopped.
                    to = keeper.instead(error.adopted_by)
                    _log.warning("another node takes over", node_id=member.node_id, error=str(error), start=to)
                    if to != keeper.start:
                        hand_on = partial(tables.hand_on, start=member.start, by=keeper.start, to=to)
                        await self._tell_all(hand_on)
                    return
            finish: Callable[[Any], bool] = partial(tables.finish, start=member.start, by=keeper.start)
            if await self._tell_all(finish):
                self.taken_over += 1
                seconds = round(time.monotonic() - began, 3)
                _log.warning("taken over", node_id=member.node_id, start=member.start, seconds=seconds)
            self._wake.set()
        except (LogError, SbpError) as error:
            _log.warning("taking over failed, and is tried again", node_id=member.node_id, error=str(error))
        except Exception as error:  # noqa: BLE001 - logged and counted: it is tried again
            self._barrier.caught("taking over", error)


def _hold(connection: Connection, slot: int, start: int) -> None:
    owner = tables.hold(connection, slot, start)
    if owner is not None:
        raise NotOwner(f"slot {slot}", owner)


def _serving(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted((one for one in members if one.state in SERVING), key=lambda one: one.node_id))


def _is_over_for(connection: Connection, start: int) -> bool:
    """Return whether a member was taken over from, or no member is UP that could do it."""
    up = "SELECT 1 FROM cluster_nodes WHERE state = 'up' LIMIT 1"
    return tables.state_of(connection, start) is None or connection.execute(up).fetchone() is None


def _places(member: Member) -> str:
    return ", ".join(sorted(member.addresses.values())) or "no address yet"
