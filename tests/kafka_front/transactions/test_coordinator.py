"""The transaction coordinator alone: its rules, and random lives of it with faults between everything durable."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from bridges.errors import LogError
from kafka_front.service.transactions.coordinator import (
    CONCURRENT,
    FENCED,
    NOT_AVAILABLE,
    NOT_MAPPED,
    WRONG_STATE,
    Coordinator,
    Limits,
    Now,
    Save,
)
from kafka_front.service.transactions.transaction import DECIDED, LAST_EPOCH, Row, Transaction, TxnState
from kafka_front.wire.errors import ErrorCode, KafkaError

NONE = int(ErrorCode.NONE)
LIMITS = Limits(60_000, ids=10, places=100)
A, B = ("a", 0), ("b", 1)


class Producer(NamedTuple):
    """An answer: the code of a refusal, or a producer's id and epoch."""

    error: int
    producer_id: int = -1
    epoch: int = -1


class Codes(Coordinator):
    """A coordinator whose refusals are answers with their codes."""

    def init(self, *asked: Any) -> None:
        self._answer(super().init, asked[-1], *asked[:-1])

    def add(self, *asked: Any) -> None:
        def reply(answer: Producer) -> None:
            asked[-1](answer.error)

        self._answer(super().add, reply, *asked[:-1])

    def end(self, *asked: Any, reply: Callable[[Any], None], **options: Any) -> None:
        self._answer(lambda *given: super(Codes, self).end(*given[:-1], reply=given[-1], **options), reply, *asked)

    def check(self, *asked: Any, **options: Any) -> int:  # type: ignore[override]
        try:
            super().check(*asked, **options)
        except KafkaError as refused:
            return refused.code
        return NONE

    @staticmethod
    def _answer(call: Callable[..., None], reply: Callable[[Producer], None], *asked: Any) -> None:
        def settle(answer: Any, error: Exception | None = None) -> None:
            refused = error or answer
            reply(Producer(refused.code) if isinstance(refused, KafkaError) else Producer(NONE, *(answer or ())))

        try:
            call(*asked, settle)
        except KafkaError as refused:
            settle(refused)


class Disk:
    """What is durable, and what is on its way there: each part settles when, and as, the test says."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.places: dict[str, set[tuple[str, int]]] = {}
        self.groups: dict[str, set[str]] = {}
        self.waiting: list[tuple[Save, Callable[[Now, bool], None]]] = []

    def save(self, save: Save, done: Callable[[Now, bool], None]) -> None:
        assert all(one.row.transactional_id != save.row.transactional_id for one, _ in self.waiting), "one at a time"
        self.waiting.append((save, done))

    def write(self, save: Save) -> None:
        name = save.row.transactional_id
        self.rows[name] = save.row
        if save.anew:
            self.places[name], self.groups[name] = set(), set()
        self.places.setdefault(name, set()).update(save.places)
        self.groups.setdefault(name, set()).update(save.groups)


class Lab:
    """A coordinator that can be killed and started anew over what was durable."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.disk = Disk()
        self.limits = limits
        self.time = 0
        self.next_id = 100
        self.start()

    @property
    def now(self) -> Now:
        return Now(self.time, 1_000_000 + self.time)

    def start(self) -> None:
        self.disk.waiting.clear()
        self.ending: list[Transaction] = []
        self.coordinator = Codes(self.limits, self.disk, self.ending.append)
        for name, row in self.disk.rows.items():
            found = self.coordinator.restore(
                self.now, row, self.disk.places.get(name, ()), self.disk.groups.get(name, ())
            )
            if found.state in DECIDED:
                self.ending.append(found)

    def settle(self, durable: bool = True) -> None:
        waiting, self.disk.waiting = self.disk.waiting, []
        for save, done in waiting:
            if durable:
                self.disk.write(save)
            done(self.now, durable)

    def fresh(self) -> int:
        self.next_id += 1
        return self.next_id

    def init(self, expected: tuple[int, int] | None = None, name: str = "t", timeout: int = 1000) -> Producer:
        told: list[Producer] = []
        self.coordinator.init(self.now, name, timeout, expected, self.fresh(), told.append)
        self.settle()
        return told[0]

    def add(self, producer: Producer, *places: tuple[str, int], groups: tuple[str, ...] = ()) -> int:
        told: list[int] = []
        self.coordinator.add(self.now, "t", producer.producer_id, producer.epoch, places, groups, told.append)
        self.settle()
        return told[0]

    def end(self, producer: Producer, commit: bool, *, bumps: bool = True) -> Producer:
        told: list[Producer] = []
        self.coordinator.end(
            self.now,
            "t",
            producer.producer_id,
            producer.epoch,
            commit,
            bumps=bumps,
            fresh_id=self.fresh(),
            reply=told.append,
        )
        self.settle()
        return told[0]

    def carry_out(self) -> None:
        ending, self.ending[:] = list(self.ending), []
        for one in ending:
            self.coordinator.ended(self.now, one)

    def row(self) -> Row:
        return self.coordinator.transactions["t"].row

    def at(self, **fields: Any) -> Producer:
        """The id with another row."""
        self.init()
        self.disk.rows["t"] = self.disk.rows["t"]._replace(**fields)
        self.start()
        return Producer(NONE, self.row().producer_id, self.row().epoch)


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.mark.parametrize("bumps", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_transaction_from_its_beginning_to_its_end(lab: Lab, bumps: bool, commit: bool) -> None:
    producer = lab.init()
    assert (producer.error, producer.epoch) == (NONE, 0)
    assert lab.coordinator.check("t", *producer[1:], A) == WRONG_STATE
    assert lab.add(producer, A) == NONE
    assert lab.coordinator.check("t", *producer[1:], A) == NONE
    assert lab.coordinator.check("t", *producer[1:], B) == WRONG_STATE
    told = lab.end(producer, commit, bumps=bumps)
    assert told == Producer(NONE, producer.producer_id, int(bumps))
    assert [one.commits for one in lab.ending] == [commit]
    assert lab.ending[0].marker_epoch == told.epoch, "with version 2 what comes late is refused by the logs"
    assert lab.add(told, A) == CONCURRENT
    assert lab.end(producer, commit, bumps=bumps).error == CONCURRENT
    lab.carry_out()
    assert lab.end(producer, commit, bumps=bumps) == told, "who has not heard the answer asks again"
    assert lab.end(producer, not commit, bumps=bumps).error == WRONG_STATE
    assert lab.add(told, B) == NONE
    assert not lab.coordinator.transactions["t"].writes_to(A)


def test_nothing_is_answered_before_it_is_durable(lab: Lab) -> None:
    told: list[Any] = []
    lab.coordinator.init(lab.now, "t", 1000, None, 7, told.append)
    assert not told
    lab.settle()
    lab.coordinator.add(lab.now, "t", 7, 0, [A], [], told.append)
    assert lab.coordinator.check("t", 7, 0, A) == WRONG_STATE
    lab.coordinator.add(lab.now, "t", 7, 0, [B], ["g"], told.append)
    assert len(told) == 1
    lab.settle()
    assert (told[1:], lab.disk.places["t"]) == ([NONE], {A})
    lab.settle()
    assert (told[1:], lab.disk.places["t"], lab.disk.groups["t"]) == ([NONE, NONE], {A, B}, {"g"})
    lab.coordinator.end(lab.now, "t", 7, 0, True, bumps=True, fresh_id=None, reply=told.append)
    assert not lab.ending
    assert lab.coordinator.check("t", 7, 0, A) == CONCURRENT
    lab.settle()
    assert (told[3], len(lab.ending)) == (Producer(NONE, 7, 1), 1)


def test_what_cannot_be_made_durable_has_not_happened(lab: Lab) -> None:
    told: list[Any] = []
    lab.coordinator.init(lab.now, "t", 1000, None, 7, told.append)
    lab.settle(durable=False)
    assert (told, lab.coordinator.transactions) == ([Producer(NOT_AVAILABLE)], {})
    producer = lab.init()
    for place in (A, A, B):
        lab.coordinator.add(lab.now, "t", *producer[1:], [place], [], told.append)
    lab.settle(durable=False)
    assert told[1:] == [NOT_AVAILABLE] * 3, "whoever waits behind it must not overtake"
    assert lab.row().state == TxnState.EMPTY
    assert lab.add(producer, A) == NONE
    lab.coordinator.end(lab.now, "t", *producer[1:], True, bumps=False, fresh_id=None, reply=told.append)
    lab.settle(durable=False)
    assert (told[-1].error, lab.ending, lab.row().state) == (NOT_AVAILABLE, [], TxnState.ONGOING)
    assert lab.end(producer, False).error == NONE


def test_the_next_producer_fences_the_last_and_aborts_what_it_left(lab: Lab) -> None:
    first = lab.init()
    lab.add(first, A)
    assert lab.init().error == CONCURRENT
    assert (lab.ending[0].commits, lab.ending[0].marker_epoch) == (False, 1)
    assert lab.add(first, A) == FENCED
    lab.carry_out()
    second = lab.init()
    assert (second.producer_id, second.epoch) == (first.producer_id, 2)
    assert lab.end(first, True, bumps=False).error == FENCED
    assert lab.coordinator.check("t", first.producer_id, 0, A) == FENCED
    assert lab.coordinator.check("t", 5, 0, A) == NOT_MAPPED
    assert lab.coordinator.check("unknown", 5, 0, A) == NOT_MAPPED
    assert lab.coordinator.check("t", first.producer_id, 3, A) == FENCED, "an epoch from the future"


def test_a_producer_that_says_who_it_is_gets_the_next_epoch_once(lab: Lab) -> None:
    first = lab.init()
    second = lab.init(first[1:])
    assert (second.producer_id, second.epoch) == (first.producer_id, 1)
    assert lab.init(first[1:]) == second, "it has not heard the answer"
    assert lab.init((first.producer_id, 7)).error == FENCED
    assert lab.init((first.producer_id + 5, 1)).error == FENCED
    third = lab.init()
    assert third.epoch == 2
    assert lab.init(first[1:]).error == FENCED


@pytest.mark.parametrize("commit", [False, True])
def test_when_epochs_run_out_there_is_a_new_producer(lab: Lab, commit: bool) -> None:
    last = lab.at(epoch=LAST_EPOCH - 1)
    lab.add(last, A)
    told = lab.end(last, commit)
    assert (told.error, told.epoch) == (NONE, 0)
    assert told.producer_id != last.producer_id
    assert (lab.ending[0].producer_id, lab.ending[0].marker_epoch) == (last.producer_id, LAST_EPOCH)
    lab.start()  # also after a restart
    lab.carry_out()
    assert lab.end(last, commit) == told
    assert lab.add(told, A) == NONE
    assert lab.add(last, A) == NOT_MAPPED


def test_initialising_when_epochs_run_out(lab: Lab) -> None:
    last = lab.at(epoch=LAST_EPOCH - 1)
    told = lab.init(last[1:])
    assert (told.error, told.epoch) == (NONE, 0)
    assert told.producer_id != last.producer_id
    assert lab.init(last[1:]) == told, "it has not heard the answer"


def test_a_transaction_that_is_aborted_raises_the_epoch_once(lab: Lab) -> None:
    """KAFKA-19367: its end by another producer, and that of the highest epoch, are no further raise."""
    producer = lab.at(epoch=LAST_EPOCH - 1)
    lab.add(producer, A)
    assert lab.init().error == CONCURRENT
    assert lab.ending[0].marker_epoch == LAST_EPOCH
    lab.carry_out()
    told = lab.init()
    assert (told.error, told.epoch) == (NONE, 0)


def test_time_ends_a_transaction(lab: Lab) -> None:
    producer = lab.init(timeout=1000)
    lab.add(producer, A)
    lab.time = 600
    lab.start()  # the time goes on over a restart
    lab.time = 999
    assert lab.coordinator.advance(lab.now) == 0
    lab.time = 1000
    assert lab.coordinator.next_deadline_ms == 1000
    lab.coordinator.advance(lab.now)
    lab.settle()
    assert (lab.coordinator.timed_out, lab.ending[0].commits, lab.ending[0].marker_epoch) == (1, False, 1)
    assert lab.end(producer, True, bumps=False).error == FENCED
    lab.carry_out()
    assert lab.coordinator.next_deadline_ms is None


def test_an_end_that_is_decided_is_not_ended_by_time(lab: Lab) -> None:
    producer = lab.init(timeout=1000)
    lab.add(producer, A)
    lab.coordinator.end(lab.now, "t", *producer[1:], True, bumps=False, fresh_id=None, reply=lambda _: None)
    lab.time = 1500
    lab.coordinator.advance(lab.now)
    lab.settle()
    assert [one.commits for one in lab.ending] == [True]


def test_timeouts_and_partitions_beyond_the_bounds_are_refused(lab: Lab) -> None:
    assert lab.init(timeout=60_001).error == 50
    assert lab.init(timeout=0).error == 50
    producer = lab.init()
    assert lab.add(producer, *[("a", number) for number in range(101)]) == NOT_AVAILABLE
    assert lab.add(producer, *[("a", number) for number in range(100)]) == NONE
    assert lab.add(producer, B) == NOT_AVAILABLE


def opened(lab: Lab, name: str) -> Producer:
    """A producer with an open transaction."""
    producer = lab.init(name=name)
    assert producer.error == NONE
    told: list[int] = []
    lab.coordinator.add(lab.now, name, *producer[1:], [A], [], told.append)
    lab.settle()
    assert told == [NONE]
    return producer


def test_ids_with_nothing_open_rest_where_others_need_their_room(lab: Lab) -> None:
    for number in range(25):
        assert lab.init(name=f"n{number}").error == NONE
    assert list(lab.coordinator.transactions) == [f"n{number}" for number in range(15, 25)]
    assert (lab.coordinator.rest, len(lab.disk.rows)) == (True, 25)


def test_what_is_open_or_not_stored_as_it_is_does_not_rest(lab: Lab) -> None:
    first, *_ = (opened(lab, f"n{number}") for number in range(10))
    assert lab.init().error == NOT_AVAILABLE
    lab.coordinator.end(lab.now, "n0", *first[1:], True, bumps=False, fresh_id=None, reply=lambda _: None)
    assert lab.init().error == NOT_AVAILABLE, "it is being ended"
    lab.settle()
    [ended] = lab.ending
    lab.coordinator.ended(lab.now, ended)
    assert lab.init().error == NOT_AVAILABLE, "the database does not know that it has ended"
    lab.coordinator.stored(ended.row)
    assert lab.init().error == NONE
    assert "n0" not in lab.coordinator.transactions


def test_a_batch_does_not_wait_for_the_save_of_another_partition(lab: Lab) -> None:
    """Its producer's next batch for the same partition would not, and overtake it."""
    producer = lab.init()
    appended: list[str] = []

    def add(name: str, place: tuple[str, int]) -> None:
        def reply(code: int) -> None:
            assert code == NONE
            appended.append(name)

        lab.coordinator.add(lab.now, "t", *producer[1:], [place], [], reply)

    add("a1", A)
    add("b1", B)
    add("a2", A)
    assert not appended
    lab.settle()
    assert appended == ["a1", "a2"], "a3 passes from now on"
    assert lab.coordinator.check("t", *producer[1:], A) == NONE
    assert lab.coordinator.check("t", *producer[1:], B) == WRONG_STATE
    lab.settle()
    assert appended == ["a1", "a2", "b1"]


def test_groups_need_room_like_partitions_until_the_end(lab: Lab) -> None:
    for restarts in (False, True):
        producer = lab.init()
        groups = tuple(f"g{number}" for number in range(60))
        assert lab.add(producer, groups=groups) == NONE
        assert lab.add(producer, groups=groups[:1]) == NONE, "it is there already"
        if restarts:
            lab.start()
        assert lab.add(producer, *[("a", number) for number in range(41)]) == NOT_AVAILABLE
        told: list[int] = []
        lab.coordinator.add(lab.now, "t", *producer[1:], [], ["lost"], told.append)
        lab.settle(durable=False)
        assert lab.add(producer, *[("a", number) for number in range(40)]) == NONE
        assert lab.add(producer, groups=("one more",)) == NOT_AVAILABLE
        assert lab.end(producer, True).error == NONE
        lab.carry_out()


def test_an_abort_without_a_transaction_raises_the_epoch_where_the_client_expects_it(lab: Lab) -> None:
    producer = lab.init()
    assert lab.end(producer, True).error == WRONG_STATE
    assert lab.end(producer, False, bumps=False).error == WRONG_STATE
    assert lab.end(producer, False) == Producer(NONE, producer.producer_id, 1)
    assert not lab.ending


class Logs:
    """The partitions' side: what each producer has open there, how it was ended; epochs fence as in the ledger."""

    def __init__(self) -> None:
        self.open: dict[tuple[tuple[str, int], int], list[int]] = {}
        self.epochs: dict[tuple[tuple[str, int], int], int] = {}
        self.ended: dict[int, set[bool]] = {}

    def append(self, place: tuple[str, int], producer: int, epoch: int, transaction: int) -> None:
        if epoch >= self.epochs.get((place, producer), -1):
            self.epochs[place, producer] = epoch
            self.open.setdefault((place, producer), []).append(transaction)

    def mark(self, place: tuple[str, int], producer: int, epoch: int, commit: bool) -> None:
        self.epochs[place, producer] = max(epoch, self.epochs.get((place, producer), -1))
        for transaction in self.open.pop((place, producer), []):
            self.ended.setdefault(transaction, set()).add(commit)


class Client:
    """A producer that does what Kafka's do, of whose requests and answers some are lost or come twice or late."""

    def __init__(self, world: World, bumps: bool) -> None:
        self.world, self.bumps = world, bumps
        self.producer: Producer | None = None
        self.transaction = -1
        self.added: set[tuple[str, int]] = set()
        self.ending: bool | None = None

    def step(self) -> None:
        world, lab, rng = self.world, self.world.lab, self.world.rng
        if self.producer is None:
            lab.coordinator.init(lab.now, "t", 1000, None, lab.fresh(), self._started)
            return
        choice = rng.random()
        who = self.producer[1:]
        if choice > 0.98:
            self.producer = None
        elif self.ending is not None:
            self._end(self.ending)  # nothing else before that is answered
        elif choice < 0.4:
            place = ("p", rng.randrange(4))
            lab.coordinator.add(lab.now, "t", *who, [place], [], lambda code: self._added(place, who, code))
        elif choice < 0.7 and self.added:
            place = rng.choice(sorted(self.added))
            if lab.coordinator.check("t", *who, place) == NONE:
                world.logs.append(place, *who, self.transaction)
                world.written.setdefault(self.transaction, set()).add(place)
        elif self.added:
            self._end(rng.random() < 0.7)

    def _end(self, commit: bool) -> None:
        lab, transaction = self.world.lab, self.transaction
        assert self.producer is not None
        self.ending = commit
        if commit:
            self.world.asked.add(transaction)
        lab.coordinator.end(
            lab.now,
            "t",
            *self.producer[1:],
            commit,
            bumps=self.bumps,
            fresh_id=lab.fresh(),
            reply=lambda told: self._ended(transaction, commit, told),
        )

    def _started(self, told: Producer) -> None:
        if not self.world.lost() and told.error == NONE:
            self.producer = told
            self._begin()

    def _begin(self) -> None:
        self.added, self.ending = set(), None
        self.world.transactions += 1
        self.transaction = self.world.transactions

    def _added(self, place: tuple[str, int], who: tuple[int, ...], code: int) -> None:
        if self.world.lost() or self.producer is None or self.producer[1:] != who:
            return
        if code == NONE:
            self.added.add(place)
        elif code in (FENCED, NOT_MAPPED):
            self.producer = None

    def _ended(self, transaction: int, commit: bool, told: Producer) -> None:
        if told.error == NONE and self.transaction == transaction:
            self.world.told.setdefault(transaction, commit)
        if self.world.lost() or self.transaction != transaction or self.producer is None:
            return
        if told.error == NONE:
            if self.bumps:
                self.producer = told
            self._begin()
        elif told.error in (FENCED, NOT_MAPPED, WRONG_STATE):
            self.producer = None


class World:
    """One coordinator, several clients of one transactional id, and the partitions."""

    def __init__(self, seed: int, bumps: bool) -> None:
        self.rng = random.Random(seed)
        self.lab = Lab()
        self.logs = Logs()
        self.written: dict[int, set[tuple[str, int]]] = {}
        self.told: dict[int, bool] = {}
        self.asked: set[int] = set()
        """Whose clients have asked for a commit."""
        self.transactions = 0
        self.clients = [Client(self, bumps) for _ in range(2)]

    def lost(self) -> bool:
        return self.rng.random() < 0.1

    def carry_out(self, *, whole: bool) -> None:
        for one in list(self.lab.ending):
            places = one.places_in_order()
            self.rng.shuffle(places)
            if not whole:
                places = places[: self.rng.randrange(len(places) + 1)]
            for place in places:
                if self.logs.open.get((place, one.producer_id)):
                    self.logs.mark(place, one.producer_id, one.marker_epoch, one.commits)
            if whole:
                self.lab.ending.remove(one)
                self.lab.coordinator.ended(self.lab.now, one)

    def step(self) -> None:
        choice = self.rng.random()
        lab = self.lab
        if choice < 0.5:
            self.clients[self.rng.random() < 0.1].step()
        elif choice < 0.75:
            lab.settle(durable=self.rng.random() < 0.9)
        elif choice < 0.9:
            self.carry_out(whole=self.rng.random() < 0.7)
        elif choice < 0.985:
            lab.time += self.rng.randrange(100)
            lab.coordinator.advance(lab.now)
        else:
            if lab.disk.waiting and self.rng.random() < 0.5:
                lab.disk.write(lab.disk.waiting[0][0])  # durable, and nobody has heard of it
            lab.start()

    def finish(self) -> None:
        for _ in range(20):
            self.lab.settle()
            self.carry_out(whole=True)
            self.lab.time += 2000
            self.lab.coordinator.advance(self.lab.now)

    def check(self) -> None:
        assert not any(self.logs.open.values()), "nothing hangs"
        for transaction, hows in self.logs.ended.items():
            assert len(hows) == 1, f"transaction {transaction} is torn"
            assert self.told.get(transaction) in (None, *hows), f"transaction {transaction} ended as nobody was told"
            assert hows == {False} or transaction in self.asked, f"nobody has committed transaction {transaction}"
        committed = {one for one, commit in self.told.items() if commit}
        assert committed <= {one for one, hows in self.logs.ended.items() if True in hows} | (
            committed - self.written.keys()
        )


@pytest.mark.parametrize("bumps", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_lives_with_faults_never_tear_a_transaction(seed: int, bumps: bool) -> None:
    world = World(seed, bumps)
    for _ in range(1500):
        world.step()
    world.finish()
    world.check()
    assert len(world.told) > 5, "the schedule does something"


@pytest.mark.parametrize("fault", ["answered early", "places forgotten", "no fence"])
def test_leaving_out_a_safeguard_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "answered early":
        monkeypatch.setattr(Disk, "save", lambda self, save, done: done(Now(0, 1_000_000), True))
    elif fault == "places forgotten":
        write = Disk.write
        monkeypatch.setattr(Disk, "write", lambda self, save: write(self, Save(save.row, (), save.groups, save.anew)))
    else:
        monkeypatch.setattr(
            Coordinator, "_require", lambda self, name, producer, epoch: self.transactions.get(name, 49)
        )
    found = 0
    for seed in range(30):
        world = World(seed, bumps=bool(seed % 2))
        try:
            for _ in range(1500):
                world.step()
            world.finish()
            world.check()
        except (AssertionError, LogError):
            found += 1
    assert found
