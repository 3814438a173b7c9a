"""Who Pravega's clients are led to, and what controllers ask of other nodes: each safeguard is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from bridges.cluster.members import Member, State
from bridges.cluster.slots import slot_of_key, slot_of_partition
from bridges.errors import NotOwner, PeerUnreachable
from pravega_front.server import SegmentStore
from pravega_front.service import asking, owners
from pravega_front.service.segment import Truncated
from pravega_front.service.segments import SegmentMissing
from tests.left_out import Scenario, is_noticed, without

SLOTS = 64
NEXT_S = 0.1
PATIENCE_S = 5.0


class Cluster:
    """What node 1 knows of who owns what; everything is one node's, but for what is in ``by_slot``."""

    def __init__(self, has: int) -> None:
        self.node_id = 1
        self.has = has
        self.acts = has == 1
        self.states = dict.fromkeys((1, 2, 3), State.UP)

    def member(self, number: int) -> Member:
        addresses = {"cluster": f"node{number}:1", "pravega-segmentstore": f"node{number}:12345"}
        return Member(number, number, self.states[number], addresses=addresses)

    @property
    def nodes(self) -> list[Member]:
        return [self.member(number) for number in self.states]

    def slot_of(self, topic: str, partition: int) -> int:
        return partition

    def slot_of_key(self, kind: str, key: str) -> int:
        return slot_of_key(kind, key, SLOTS)

    def owner(self, slot: int) -> Member | None:
        return self.member(self.has) if self.has else None

    def is_mine(self, slot: int) -> bool:
        return self.has == 1 and self.acts

    def later(self, change: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_later(NEXT_S, change)

    def moves(self, to: int) -> None:
        def move() -> None:
            self.has, self.acts = to, True

        self.later(move)


class Peers:
    """Other nodes: ``answers`` by their numbers."""

    def __init__(self) -> None:
        self.answers: dict[int, Callable[[Any], Any]] = {}
        self.served: dict[str, Callable[[Any], Any]] = {}
        self.asked: list[tuple[int, str]] = []
        self.sizes: list[int] = []

    def serve(self, kind: str, message: type, answer: Callable[[Any], Any]) -> None:
        self.served[kind] = answer

    async def ask(self, member: Member, kind: str, message: Any, answer: type, patience_s: float = 10) -> Any:
        self.asked.append((member.node_id, kind))
        self.sizes.append(len(getattr(message, "names", ())))
        if member.node_id not in self.answers:
            raise PeerUnreachable(f"node {member.node_id}")
        found = self.answers[member.node_id](message)
        if isinstance(found, Exception):
            raise found
        return found


def lab(made: ModuleType, has: int) -> tuple[Any, Cluster, Peers]:
    cluster, peers = Cluster(has), Peers()
    return made.Owners(cluster, 1, cast("Any", peers)), cluster, peers


async def number(found: Any) -> int | None:
    async with asyncio.timeout(PATIENCE_S):
        member = await found
    return None if member is None else int(member.node_id)


async def somebody_is_waited_for(made: ModuleType) -> None:
    found, cluster, peers = lab(made, 0)
    peers.answers[2] = lambda message: message
    cluster.moves(2)
    assert await number(found.find_reachable(3)) == 2


async def what_this_node_is_about_to_have_is_waited_for(made: ModuleType) -> None:
    found, cluster, _ = lab(made, 1)
    cluster.acts = False
    cluster.moves(1)
    async with asyncio.timeout(PATIENCE_S):
        await found.require(3, "it")


async def what_another_has_is_refused_with_its_name(made: ModuleType) -> None:
    found, _, _ = lab(made, 2)
    with pytest.raises(NotOwner) as refused:
        await found.require(3, "it")
    assert refused.value.node_id == 2
    assert found.find(2, "pravega-segmentstore") == ("node2", 12345)
    assert found.find(1, "pravega-segmentstore") is None


async def of_what_is_gone_nobody_is_waited_for(made: ModuleType) -> None:
    found, _, _ = lab(made, 0)
    async with asyncio.timeout(NEXT_S):
        assert await found.find_reachable(-1) is None
        with pytest.raises(NotOwner):
            await found.require(-1, "it")


async def clients_are_led_to_who_answers(made: ModuleType) -> None:
    found, cluster, peers = lab(made, 2)
    peers.answers[3] = lambda message: message
    cluster.moves(3)
    assert await number(found.find_reachable(3)) == 3
    assert (2, "pravega are you there") in peers.asked
    cluster.moves(1)
    await asyncio.sleep(2 * NEXT_S)  # until the answer before is too old
    assert await number(found.find_reachable(3)) is None, "nobody has to ask this node"


async def nobody_is_led_to_who_does_not_answer(made: ModuleType) -> None:
    """The wheel would try there for as long as that node is away, however soon the segment has another owner."""
    found, cluster, _ = lab(made, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "PATIENCE_S", NEXT_S)
        with pytest.raises(PeerUnreachable):
            await found.find_reachable(3)
        cluster.has = 0
        with pytest.raises(NotOwner):
            await found.find_reachable(3)


async def nobody_is_led_to_who_is_about_to_stop(made: ModuleType) -> None:
    """A node that stops hands over its slots, closes its listeners, and answers other nodes until its end."""
    found, cluster, peers = lab(made, 2)
    peers.answers[2] = lambda message: message if message.slot == 3 else NotOwner("another", -1)
    assert await number(found.find_reachable(3)) == 2
    stops, cluster, peers = lab(made, 1)
    (probed,) = peers.served.values()
    for question in (made.Alive(3), made.Alive()):
        assert await probed(question) == question
    cluster.acts = False
    assert await probed(made.Alive()) == made.Alive(), "a former release asks of no slot"
    with pytest.raises(NotOwner):
        await probed(made.Alive(3))
    cluster.acts = stops.is_stopping = True
    with pytest.raises(NotOwner):
        await probed(made.Alive(3))


async def what_lies_beside_is_this_nodes(made: ModuleType) -> None:
    found, cluster, _ = lab(made, 1)
    mine = {3, 17}
    cluster.is_mine = lambda slot: slot in mine  # type: ignore[method-assign]
    for _ in range(5):
        beside = found.beside_own()
        assert beside is not None
        assert slot_of_partition(beside.topic_id, beside.partitions[0], SLOTS) in mine
    mine.clear()
    assert found.beside_own() is None


OWNERS: list[Scenario] = [
    somebody_is_waited_for,
    what_this_node_is_about_to_have_is_waited_for,
    what_another_has_is_refused_with_its_name,
    of_what_is_gone_nobody_is_waited_for,
    clients_are_led_to_who_answers,
    nobody_is_led_to_who_does_not_answer,
    nobody_is_led_to_who_is_about_to_stop,
    what_lies_beside_is_this_nodes,
]
WITHOUT = {
    "which other": ("raise NotOwner(what, owner.node_id)", "raise NotOwner(what, -1)"),
    "whose it is": ("if owner is not None:", "if False:"),
    "what is gone": ("if slot < 0:", "if False:"),
    "what is gone here": ("PATIENCE_S if slot >= 0 else 0", "PATIENCE_S"),
    "who answers": ("await self._peers.ask(owner, _ALIVE, Alive(slot), Alive, _ANSWER_S)", "pass"),
    "for which slot": ("Alive(slot)", "Alive()"),
    "who still acts": ("not self._owners.is_mine(question.slot)", "False"),
    "of former releases": ("question.slot >= 0 and not ...", "not self._owners.is_mine(question.slot)"),
    "who stops": ("self.is_stopping or ...", "question.slot >= 0 and not self._owners.is_mine(question.slot)"),
    "it is this node's": ("self._owners.is_mine(self._owners.slot_of_key(_NAMED, key))", "True"),
    "the same slot": ('f"{_NAMED}\\0{key}"', 'f"{_NAMED}{key}"'),
    "this node is no other": (
        "None if member.node_id == self._node_id else ...",
        "member.address(listener, socket.gethostname())",
    ),
}


@pytest.mark.parametrize("scenario", OWNERS, ids=lambda one: one.__name__)
async def test_owners_keep_a_promise(scenario: Scenario) -> None:
    await scenario(owners)


@pytest.mark.parametrize("safeguard", WITHOUT)
async def test_a_safeguard_of_owners_that_is_left_out_is_noticed(safeguard: str) -> None:
    assert await is_noticed(without(owners, *WITHOUT[safeguard]), OWNERS)


def test_a_segment_store_that_stops_listening_has_nobody_led_to_it() -> None:
    found, _, _ = lab(owners, 1)
    store = SegmentStore.__new__(SegmentStore)
    store._servers, store.segments = [], cast("Any", SimpleNamespace(owners=found))
    store._stop_listening()
    assert found.is_stopping


class Segment:
    """From 5 to 9, and sealed as its length is asked for."""

    def __init__(self) -> None:
        self.ended = False
        self.cut: list[int] = []

    async def start(self) -> int:
        return 5

    async def start_at(self, timestamp: int) -> int:
        return 5

    async def length(self) -> int:
        length, self.ended = 9, True
        return length

    async def truncate(self, position: int) -> None:
        if position > 9:
            raise Truncated(9)
        self.cut.append(position)


class Segments:
    """Of node 1; what has no slot there is not."""

    def __init__(self, found: Any) -> None:
        self.owners = found
        self.segment = Segment()

    def slot_of_name(self, name: str) -> int:
        return -1 if name.startswith("none") else 3

    async def here(self, name: str) -> Segment | None:
        return None if name.startswith("none") else self.segment


def anywhere(made: ModuleType, has: int) -> tuple[Any, Cluster, Peers, Segment]:
    found, cluster, peers = lab(owners, has)
    segments = Segments(found)
    if made is not asking:
        vars(made)["PATIENCE_S"] = 1.0  # some safeguards are missed by waiting in vain
    node = SimpleNamespace(peers=peers, owners=cluster)
    return made.SegmentsAnywhere(cast("Any", node), cast("Any", segments)), cluster, peers, segments.segment


def known(made: ModuleType, at: int) -> Callable[[Any], Any]:
    return lambda message: made.Found([made.Known(at, at, at) for _ in message.names])


def _said(answer: Any, message: Any) -> Any:
    return answer


async def whoever_has_it_by_now_is_asked(made: ModuleType) -> None:
    for failing in (None, NotOwner("it", 3)):
        found, cluster, peers, _ = anywhere(made, 2)
        peers.answers[3] = known(made, 30)
        if failing is not None:
            peers.answers[2] = partial(_said, failing)
        cluster.moves(3)
        async with asyncio.timeout(PATIENCE_S):
            assert (await found.look_up(["a"]))["a"].length == 30
        peers.answers[3] = lambda message: made.Done()
        cluster.has = 2
        cluster.moves(3)
        async with asyncio.timeout(PATIENCE_S):
            await found.truncate("a", 7)


async def what_is_here_is_not_asked_for(made: ModuleType) -> None:
    found, _, peers, segment = anywhere(made, 1)
    one = (await found.look_up(["a"]))["a"]
    assert (one.start, one.length) == (5, 9)
    assert not one.ended, "an end that was told before the last length is not final"
    for position, wanted in ((7, [7]), (5, []), (None, [9])):
        segment.cut.clear()
        await found.truncate("a", position)
        assert segment.cut == wanted
    with pytest.raises(Truncated):
        await found.truncate("a", 10)
    assert peers.asked == []


async def what_is_missing_is_told(made: ModuleType) -> None:
    found, _, peers, _ = anywhere(made, 2)
    peers.answers[2] = known(made, 20)
    for call in (partial(found.look_up, ["a", "none"]), partial(found.truncate, "none")):
        with pytest.raises(SegmentMissing):
            await call()
    peers.answers[2] = lambda message: made.Done(missing=True)
    with pytest.raises(SegmentMissing):
        await found.truncate("a")
    peers.answers[2] = lambda message: made.Done(start=9)
    with pytest.raises(Truncated):
        await found.truncate("a", 12)


async def many_are_asked_for_in_parts(made: ModuleType) -> None:
    found, _, peers, _ = anywhere(made, 2)
    peers.answers[2] = known(made, 20)
    names = [f"s{one}" for one in range(1200)]
    assert list(await found.look_up(names)) == names
    assert peers.sizes == [500, 500, 200]


async def an_owner_that_nobody_is_is_no_segment_of_this_node(made: ModuleType) -> None:
    found, *_ = anywhere(made, 0)
    vars(made)["PATIENCE_S"] = 0.0
    with pytest.raises(NotOwner):
        await found.look_up(["a"])


ASKING: Sequence[Scenario] = [
    whoever_has_it_by_now_is_asked,
    what_is_here_is_not_asked_for,
    what_is_missing_is_told,
    many_are_asked_for_in_parts,
    an_owner_that_nobody_is_is_no_segment_of_this_node,
]
WITHOUT_ASKING = {
    "another is asked for positions": ("await patiently(look_at_rest, PATIENCE_S)", "await look_at_rest()"),
    "what is missing": ("if one.missing:", "if False:"),
    "what is missing there": ("        if done.missing:", "        if False:"),
    "where it starts": ("        if done.start is not None:", "        if False:"),
    "parts are bounded": ("some[first : first + _SEGMENTS_PER_MESSAGE]", "some[first:]"),
    "of what is gone nobody": ("if self._slot(name) < 0:", "if False:", "truncate"),
    "of what is gone nobody is asked": ("self._slot(name) >= 0", "True"),
    "nothing is given back": ("            if position > await segment.start():", "            if True:"),
    "final before how long": (
        "    ended = segment.ended  # before the end is asked for, which does not move any more then\n"
        "    return Known(start, at, await segment.length(), ended)",
        "    length = await segment.length()\n    return Known(start, at, length, segment.ended)",
    ),
}


@pytest.mark.parametrize("scenario", ASKING, ids=lambda one: one.__name__)
async def test_asking_keeps_a_promise(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PATIENCE_S", PATIENCE_S)
    await scenario(asking)


@pytest.mark.parametrize("safeguard", WITHOUT_ASKING)
async def test_a_safeguard_of_asking_that_is_left_out_is_noticed(safeguard: str) -> None:
    assert await is_noticed(without(asking, *WITHOUT_ASKING[safeguard]), ASKING)
