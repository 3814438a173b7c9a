"""Where Pravega's clients come to the wrong node they are led to the right one: each place that asks is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.turn import Turn
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from bridges.clients import Clients, Description
from bridges.errors import LogError, NotOwner
from pravega_front.controller import core, dispatch
from pravega_front.service import appends, operations, segments
from pravega_front.service.transactions import merging, transactions
from pravega_front.session import appends as session_appends
from pravega_front.session import reads as session_reads
from pravega_front.wire import commands as wire
from tests.left_out import Scenario, is_noticed, without
from tests.pravega_front.service.test_owners import PATIENCE_S, Cluster, lab

NAME = "scope/stream/3.#epoch.0"
WRITER = bytes(16)


class Log:
    """Of a partition that another node owns: it says nothing of that."""

    is_deleted = False
    is_open = True
    last_stable_offset = log_start_offset = high_watermark = 0

    async def ready(self) -> None:
        pass

    def last(self, kind: int, key: bytes) -> None:
        return None

    def add_waiter(self, waiter: object) -> None:
        pass

    def remove_waiter(self, waiter: object) -> None:
        pass


class Segment:
    """In partition 3 of a topic, with ten bytes."""

    name, topic, partition = NAME, "scope.stream", 3
    loose = loose_sealed = sealed = ended = False
    is_counted = True
    most_events = 100

    def __init__(self) -> None:
        self.log = Log()
        self.error: Exception | None = None

    async def start(self) -> int:
        return 0

    async def length(self) -> int:
        return 10

    async def read(self, position: int, most: int) -> list[memoryview]:
        return [memoryview(bytes(most))]

    async def truncate(self, position: int) -> None:
        pass

    def append(self, parts: Any, size: int, stamp: Any, expected: Any, done: Any, *, claims: Any) -> None:
        done(size, self.error)


class Changes:
    """What others have changed is known once it was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    async def catch_up(self) -> None:
        self.asked += 1

    async def latest(self) -> None:
        self.asked += 1


# --- the segment of a name --------------------------------------------------------------------------------------------


def segments_of(made: ModuleType, has: int) -> tuple[Any, Cluster, dict[str, Segment], Changes]:
    owners, cluster, _ = lab(_owners(), has)
    found, changes = {NAME: Segment()}, Changes()
    some = made.Segments.__new__(made.Segments)
    some.owners, some._node = owners, SimpleNamespace(db=SimpleNamespace(changes=changes))
    some.find, some.marked = found.get, lambda name: None
    return some, cluster, found, changes


def _owners() -> ModuleType:
    from pravega_front.service import owners

    return owners


async def anothers_is_not_here(made: ModuleType) -> None:
    some, *_ = segments_of(made, 2)
    with pytest.raises(NotOwner) as refused:
        await some.here(NAME)
    assert refused.value.node_id == 2
    some, *_ = segments_of(made, 1)
    assert isinstance(await some.here(NAME), Segment)


async def what_was_made_a_moment_ago_is_found(made: ModuleType) -> None:
    some, _, found, changes = segments_of(made, 1)
    segment = found.pop(NAME)

    async def catch_up() -> None:
        found[NAME] = segment

    changes.catch_up = catch_up  # type: ignore[method-assign]
    assert await some.here(NAME) is segment
    assert await some.here("scope/none/0.#epoch.0") is None


async def watermarks_that_are_to_come_are_their_streams_owners(made: ModuleType) -> None:
    some, _, found, _ = segments_of(made, 2)
    found.clear()
    some.marked = lambda name: SimpleNamespace(name="scope.stream")
    with pytest.raises(NotOwner):
        await some.here("scope/_MARKstream/0.#epoch.0")


async def what_was_made_anew_meanwhile_is_another(made: ModuleType) -> None:
    some, cluster, found, _ = segments_of(made, 0)
    cluster.moves(1)

    def anew() -> None:
        found[NAME].log.is_deleted = True
        found[NAME] = Segment()

    cluster.later(anew)
    async with asyncio.timeout(PATIENCE_S):
        assert await some.here(NAME) is found[NAME]
        assert not found[NAME].log.is_deleted


SEGMENTS: Sequence[Scenario] = [
    anothers_is_not_here,
    what_was_made_a_moment_ago_is_found,
    watermarks_that_are_to_come_are_their_streams_owners,
    what_was_made_anew_meanwhile_is_another,
]

# --- commands ---------------------------------------------------------------------------------------------------------


class Elsewhere:
    """Segments that are all another node's, as ``here`` says, and nobody else."""

    def __init__(self) -> None:
        self.segment = Segment()
        self.state = SimpleNamespace(attribute=self._attribute, update=self._update)
        self.deleted: list[str] = []

    def find(self, name: str) -> Segment:
        return self.segment

    async def here(self, name: str) -> Segment:
        raise NotOwner(name, 2)

    def is_mark(self, name: str) -> bool:
        return False

    def marked(self, name: str) -> None:
        return None

    def beside(self, segment: Segment) -> None:
        return None

    async def seal(self, segment: Segment) -> None:
        pass

    async def delete(self, name: str) -> None:
        self.deleted.append(name)

    async def create(self, name: str, beside: object = None) -> None:
        pass

    async def _attribute(self, topic: str, partition: int, attribute: bytes) -> int:
        return 1

    async def _update(self, topic: str, partition: int, updates: object) -> None:
        pass


def connection_of(elsewhere: Elsewhere) -> Any:
    loop = asyncio.get_running_loop()
    budget = MemoryBudget(1 << 24, loop.call_soon)
    free = SimpleNamespace(in_force=False)
    settings = SimpleNamespace(writers_per_connection=9, parked_reads_per_connection=9, read_max_bytes=1000)
    topic = SimpleNamespace(fetched=lambda *counts: None)
    server = SimpleNamespace(
        quotas=SimpleNamespace(produce=free, fetch=free),
        segments=elsewhere,
        settings=settings,
        metrics=SimpleNamespace(topic=lambda name: topic),
        budget=budget,
        turn=Turn(loop, Barrier()),
    )
    return SimpleNamespace(
        server=server,
        closed=False,
        draining=False,
        unheard=False,
        write_paused=False,
        flush_much=lambda: None,
        account=budget.account(lambda: None),
        send=None,
        close=None,
        host_of=None,
        transient=set(),
        client=Clients(budget).enter("pravega", "pravega", ("", 0), Description, lambda reason: None),
    )


async def writers_are_not_set_up(made: ModuleType) -> None:
    writers = made.Appends(connection_of(Elsewhere()))
    with pytest.raises(NotOwner):
        await writers.set_up(wire.SetupAppend(1, WRITER, NAME, ""), None)


async def nothing_is_read(made: ModuleType) -> None:
    reads = made.Reads(connection_of(Elsewhere()))
    with pytest.raises(NotOwner):
        await reads.read(wire.ReadSegment(NAME, 0, 10, "", 1))


COMMANDS: Sequence[tuple[str, wire.Command]] = [
    ("seal", wire.SealSegment(1, NAME, "")),
    ("delete", wire.DeleteSegment(1, NAME, "")),
    ("truncate", wire.TruncateSegment(1, NAME, 5, "")),
    ("update_policy", wire.UpdateSegmentPolicy(1, NAME, 1, 0, "")),
    ("attribute", wire.GetSegmentAttribute(1, NAME, WRITER, "")),
    ("update_attribute", wire.UpdateSegmentAttribute(1, NAME, WRITER, 1, 2, "")),
    ("locate", wire.LocateOffset(1, NAME, 5, "")),
    ("create_transient", wire.CreateTransientSegment(1, WRITER, NAME, "")),
    ("merge", wire.MergeSegments(1, NAME, "source", "", [])),
    ("merge_batch", wire.MergeSegmentsBatch(1, NAME, ["source"], "")),
]


async def merged(target: Segment, source: str, updates: object) -> int:
    return 10


async def no_command_is_carried_out(made: ModuleType) -> None:
    elsewhere = Elsewhere()
    store = SimpleNamespace(segments=elsewhere, merges=SimpleNamespace(merge=merged))
    for name, command in COMMANDS:
        with pytest.raises(NotOwner):
            await getattr(made.Operations(cast("Any", store)), name)(connection_of(elsewhere), command)
    assert not elsewhere.deleted


# --- appends that are under way as a segment moves --------------------------------------------------------------------


def appender(made: ModuleType, segment: Segment) -> tuple[Any, list[wire.Command], list[LogError]]:
    sent: list[wire.Command] = []
    broken: list[LogError] = []
    found = made.Appender(
        WRITER,
        segment,
        None,
        None,
        None,
        None,
        send=sent.append,
        begun=lambda append: None,
        over=lambda append: None,
        broken=broken.append,
        gone=lambda writer: None,
        host_of=lambda error: f"node{error.node_id}:1",
    )
    return found, sent, broken


async def writers_are_led_on_and_set_up_anew(made: ModuleType) -> None:
    segment = Segment()
    segment.error = NotOwner(NAME, 2)
    writer, sent, broken = appender(made, segment)
    writer.append([b"x"], 1, 1, 7, 1, 0.0)
    writer.flush()
    assert sent == [wire.WrongHost(7, NAME, "node2:1")]
    assert not broken
    segment.error = None
    with pytest.raises(made.Protest):  # what follows was sent before its client knew
        writer.append([b"y"], 2, 1, 8, 1, 0.0)
    assert len(sent) == 1


# --- the controller ---------------------------------------------------------------------------------------------------


def controller_of(made: ModuleType, has: int) -> tuple[Any, Cluster]:
    owners, cluster, peers = lab(_owners(), has)
    peers.answers.update({1: _same, 2: _same, 3: _same})
    found = made.Controller.__new__(made.Controller)
    found.segments = SimpleNamespace(owners=owners, slot_of_name=lambda name: 3)
    found.addresses = {"pravega": ("node1", 9090), "pravega-segmentstore": ("node1", 12345)}
    return found, cluster


def _same(message: Any) -> Any:
    return message


async def clients_are_led_to_the_owner(made: ModuleType) -> None:
    found, cluster = controller_of(made, 2)
    assert await found.place_of(NAME, "pravega") == ("node2", 12345)
    cluster.has, cluster.acts = 1, True
    assert await found.place_of(NAME, "pravega") == ("node1", 12345)
    cluster.has = 0
    cluster.moves(3)
    async with asyncio.timeout(PATIENCE_S):
        assert await found.place_of(NAME, "pravega") == ("node3", 12345)


async def calls_know_what_others_have_changed(made: ModuleType) -> None:
    changes, calls = Changes(), []
    access = SimpleNamespace(caller=_caller, allow=lambda *what: None, topic=lambda *names: None)
    registry = made.Registry(cast("Any", access), cast("Any", changes))

    async def answer(request: Any, caller: Any) -> Any:
        calls.append(changes.asked)
        return request

    registry.call("getCurrentSegments", answer)
    server: dict[str, Any] = {}
    registry.fill(SimpleNamespace(add_call=lambda service, name, handler: server.update({name: handler})))
    call = SimpleNamespace(room=Room, admits=lambda size: True)
    await server["getCurrentSegments"](b"", call)
    assert calls == [1]


async def _caller(call: Any) -> Any:
    return None


class Room:
    def __init__(self, size: int) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


# --- what is carried out by owners ------------------------------------------------------------------------------------


def transactions_of(made: ModuleType, mine: set[int]) -> Any:
    found = made.Transactions.__new__(made.Transactions)
    found._owners = SimpleNamespace(is_mine=lambda topic, partition: partition in mine)
    return found


async def owners_append_their_own_segments_once(made: ModuleType) -> None:
    transaction: Any = SimpleNamespace(hidden="txn", parents=[0, 1, 2, 3], merged={3})
    assert transactions_of(made, {1, 2, 3})._own_places(transaction) == [1, 2]
    assert transactions_of(made, {0}).ends(transaction)
    assert not transactions_of(made, {1}).ends(transaction), "the owner of the first one does"


class Running:
    def get(self, name: str) -> None:
        return None


def merges_of(made: ModuleType, has: int) -> tuple[Any, list[str]]:
    owners, _, _ = lab(_owners(), has)
    source = Segment()
    source.loose = True
    begun: list[str] = []
    found = made.Merges.__new__(made.Merges)
    found._running = Running()
    found._segments = SimpleNamespace(owners=owners, find=lambda name: source, is_kept=lambda name: False)
    found._state = SimpleNamespace(merges=_no_merges)
    found._tasks = TaskSet()
    found._delete = _deleting(begun)
    found._start = lambda name, target, work: begun.append(name)
    return found, begun


async def _no_merges() -> dict[str, Any]:
    return {}


def _deleting(begun: list[str]) -> Any:
    async def delete(names: list[str]) -> None:
        begun.extend(names)

    return delete


async def what_lies_elsewhere_is_not_merged_here(made: ModuleType) -> None:
    found, begun = merges_of(made, 2)
    with pytest.raises(segments.NotPossible):
        await found.merge(Segment(), "source")
    assert not begun


async def what_others_own_is_left_to_them(made: ModuleType) -> None:
    for has, wanted in ((2, []), (1, [f"{NAME}#transient.1"])):
        found, begun = merges_of(made, has)
        await found._take_up([(f"{NAME}#transient.1", Segment())])
        await asyncio.sleep(0)
        assert begun == wanted


WITHOUT: dict[str, tuple[Any, ...]] = {
    "whose a segment is": (
        segments,
        "        await self.owners.require(self.slot_of(segment), name)\n",
        "",
        SEGMENTS,
    ),
    "what others have made": (segments, "            await self._node.db.changes.catch_up()  # another", "#", SEGMENTS),
    "whose watermarks are": (
        segments,
        "                await self.owners.require(self.owners.slot_of(stream.name, 0), name)",
        "                pass",
        SEGMENTS,
    ),
    "deleted meanwhile": (
        segments,
        "return segment if not segment.log.is_deleted else self.find(name)",
        "return segment",
        SEGMENTS,
    ),
    "where writers are set up": (
        session_appends,
        "await server.segments.here(request.segment)",
        "server.segments.find(request.segment)",
        [writers_are_not_set_up],
    ),
    "where it is read": (
        session_reads,
        "await server.segments.here(request.segment)",
        "server.segments.find(request.segment)",
        [nothing_is_read],
    ),
    **{
        f"where to carry out a command, in {place}": (
            operations,
            f"await self._segments.here({name})",
            f"self._segments.find({name})",
            place,
            [no_command_is_carried_out],
        )
        for place, name in (("_here", "name"), ("delete", "request.segment"), ("attribute", "request.segment"))
    },
    "where to go on": (
        appends,
        "isinstance(error, NotOwner)",
        "False",
        [writers_are_led_on_and_set_up_anew],
    ),
    "set up anew": (appends, "        self.ended = True\n", "", [writers_are_led_on_and_set_up_anew]),
    "to whom the controller leads": (
        core,
        "        return own if owner is None else owners.address(owner, store) or own",
        "        return own",
        [clients_are_led_to_the_owner],
    ),
    "that it leads anywhere": (
        core,
        "owner = await owners.reached(...)",
        "return own",
        [clients_are_led_to_the_owner],
    ),
    "that owners are waited for": (
        core,
        "await owners.reached(self.segments.slot_of_name(segment))",
        "owners._owners.owner(3)",
        [clients_are_led_to_the_owner],
    ),
    "what was changed at another node": (
        dispatch,
        "            if name not in _EVERY_TIME:\n                await self._changes.latest()\n",
        "",
        [calls_know_what_others_have_changed],
    ),
    "whose a transaction's segments are": (
        transactions,
        "at not in transaction.merged and is_mine(transaction.hidden, at)",
        "at not in transaction.merged",
        [owners_append_their_own_segments_once],
    ),
    "what was appended": (
        transactions,
        "at not in transaction.merged and is_mine(transaction.hidden, at)",
        "is_mine(transaction.hidden, at)",
        [owners_append_their_own_segments_once],
    ),
    "who ends a lease": (
        transactions,
        "return self._owners.is_mine(transaction.hidden, 0)",
        "return True",
        [owners_append_their_own_segments_once],
    ),
    "on one node": (
        merging,
        "            if not self._segments.owners.is_mine(source.topic, source.partition):",
        "            if False:",
        [what_lies_elsewhere_is_not_merged_here],
    ),
    "whose merges are": (
        merging,
        "self._running.get(name) is not None or not self._segments.owners.is_mine(source.topic, source.partition)",
        "self._running.get(name) is not None",
        [what_others_own_is_left_to_them],
    ),
}

SCENARIOS = dict.fromkeys((module, scenario) for module, *_, scenarios in WITHOUT.values() for scenario in scenarios)


@pytest.mark.parametrize(("module", "scenario"), SCENARIOS, ids=lambda one: one.__name__.rpartition(".")[2])
async def test_it_is_asked_whose_it_is(module: ModuleType, scenario: Scenario) -> None:
    await scenario(module)


@pytest.mark.parametrize("safeguard", WITHOUT)
async def test_a_place_that_does_not_ask_is_noticed(safeguard: str) -> None:
    module, *change, scenarios = WITHOUT[safeguard]
    assert await is_noticed(without(module, *change), scenarios)
