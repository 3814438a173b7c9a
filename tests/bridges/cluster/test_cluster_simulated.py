"""Nodes that own slots keep every promise while they are killed, paused and cut off; no safeguard is idle."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bridges.cluster import tables, wishes
from bridges.cluster.keeper import Keeper, News
from bridges.cluster.members import Member, State, Watch
from bridges.cluster.slots import Slot, sizes_of
from bridges.cluster.tables import Look
from tests.bridges.cluster.actors import Rules
from tests.bridges.cluster.postgres import FAULTS
from tests.bridges.cluster.simulate import Schedule, first_broken
from tests.depth import factor, timeout

schedules = pytest.mark.parametrize("schedules", [50, pytest.param(500, marks=pytest.mark.long)])
"""`make thorough` plays twenty times as many, `python -m tests.bridges.cluster.simulate` any number."""


@pytest.mark.slow
@pytest.mark.timeout(timeout(300))
@schedules
def test_every_promise_is_kept(schedules: int) -> None:
    assert first_broken(range(schedules * factor())) is None


@pytest.mark.slow
@pytest.mark.timeout(timeout(300))
@schedules
def test_every_promise_is_kept_among_workers(schedules: int) -> None:
    assert first_broken(range(schedules * factor()), Rules(workers=True)) is None


@pytest.mark.slow
@pytest.mark.timeout(timeout(300))
@schedules
def test_every_promise_is_kept_over_a_wire_to_postgresql_that_breaks(schedules: int) -> None:
    assert first_broken(range(schedules // 5 * factor()), Rules(postgres=True)) is None


@pytest.mark.parametrize("rules", [Rules(), Rules(postgres=True)], ids=["sqlite", "postgres"])
def test_the_same_seed_tells_the_same_story_twice(rules: Rules) -> None:
    first, again, other = (told(seed, rules) for seed in (7, 7, 8))
    assert first == again != other


def told(seed: int, rules: Rules) -> list[str]:
    schedule = Schedule(seed, rules)
    try:
        return schedule.run().world.story
    finally:
        schedule.cluster.close()


def test_schedules_do_what_they_are_for() -> None:
    """Faults that no schedule meets would prove nothing."""
    stories = "\n".join("\n".join(Schedule(seed).run().world.story) for seed in range(60))
    for happening in ("kill", "pause", "takes over", "it is no member", " gave [", "gave perhaps", "has left"):
        assert stories.count(happening) >= 3, happening


def test_every_message_to_postgresql_breaks_in_every_way() -> None:
    stories = "\n".join("\n".join(told(seed, Rules(postgres=True))) for seed in range(12))
    for fault in FAULTS:
        for statement in ("COMMIT", "INSERT"):
            assert f" {fault.value}: {statement}" in stories, (fault, statement)


class Forgetful(Keeper):
    """Believes an older answer."""

    def take_in(self, look: Look, asked: float, answered: float) -> News:
        if look.slots is not None:
            self.version = -1
            self.slots = [Slot()] * len(self.slots)
        return super().take_in(look, asked, answered)


class Hasty(Keeper):
    """Takes what it has perhaps given away for its own as soon as the database says so."""

    def begin_giving(self, slots: Iterable[int]) -> None:
        super().begin_giving(slots)
        self.giving.clear()


class Alone(Keeper):
    """Ends nobody whom another was ending."""

    def _is_abandoned(self, member: Member) -> bool:
        return False


class Deaf(Watch):
    """Suspects nobody."""

    def is_suspected(self, start: int) -> bool:
        return False


class Trusting(Keeper):
    """Never tries to go on without somebody."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._watch = Deaf(*arguments[1:])


def in_the_old_epoch(connection: sqlite3.Connection, start: int, by: int) -> bool:
    epochs = connection.execute("SELECT epoch, slot FROM cluster_slots WHERE owner = ?", (start,)).fetchall()
    done = tables.finish(connection, start, by)
    if done:
        connection.executemany("UPDATE cluster_slots SET epoch = ? WHERE slot = ?", epochs)
    return done


def whoever_has_it(connection: sqlite3.Connection, given: Iterable[tuple[int, int]], start: int, to: int) -> list[int]:
    now = dict(connection.execute("SELECT slot, epoch FROM cluster_slots WHERE owner = ?", (start,)).fetchall())
    return tables.give(connection, [(slot, now.get(slot, -1)) for slot, _ in given], start, to)


def without_asking(connection: sqlite3.Connection, slot: int, start: int) -> int:
    epoch = tables.next_epoch(connection)
    connection.execute("UPDATE cluster_slots SET epoch = ? WHERE slot = ?", (epoch, slot))
    return epoch


def whatever_it_counts(connection: sqlite3.Connection, start: int, beats: int, by: int) -> bool:
    row = connection.execute("SELECT beats FROM cluster_nodes WHERE start = ?", (start,)).fetchone()
    return row is not None and tables.claim(connection, start, row[0], by)


def never_counting(connection: sqlite3.Connection, start: int) -> bool:
    return connection.execute("SELECT 1 FROM cluster_nodes WHERE start = ?", (start,)).fetchone() is not None


class Even(Keeper):
    """Looks at the shares only, whatever operators wish."""

    def pins(self) -> dict[int, int]:
        return {}


class Passive(Keeper):
    """Leaves the end of its former self to others where it was drained."""

    @property
    def is_drained(self) -> bool:
        return False


def forgetting_its_pins(connection: sqlite3.Connection, start: int, by: int) -> bool:
    row = connection.execute("SELECT node_id FROM cluster_nodes WHERE start = ?", (start,)).fetchone()
    done = tables.finish(connection, start, by)
    if done:
        wishes.unpin(connection, node_id=row[0])
    return done


def whoever_it_was(
    connection: sqlite3.Connection, start: int, server_id: int, addresses: Mapping[str, str], rack: str
) -> bool:
    """Comes as if nobody had drained it."""
    drained = connection.execute("SELECT node_id FROM cluster_drained").fetchall()
    connection.execute("DELETE FROM cluster_drained")
    joined = tables.join(connection, start, server_id, addresses, rack)
    connection.executemany("INSERT INTO cluster_drained VALUES (?)", drained)
    return joined


def also_who_stops(connection: sqlite3.Connection, node_id: int) -> bool:
    connection.execute("UPDATE cluster_nodes SET drained = 1 WHERE node_id = ? AND state = 'leaving'", (node_id,))
    return wishes.undrain(connection, node_id)


def by_shares_only(connection: sqlite3.Connection, given: Iterable[tuple[int, int]], start: int, to: int) -> list[int]:
    """Gives what is pinned to the taker only where the shares become more alike."""
    sizes = sizes_of(owner for (owner,) in connection.execute("SELECT owner FROM cluster_slots"))
    leaves = tables.state_of(connection, start) is State.LEAVING
    return tables.give(connection, given, start, to) if leaves or sizes[start] - sizes[to] >= 2 else []


WITHOUT: dict[str, Mapping[str, Any]] = {
    "older answers change nothing": {"keeper": Forgetful},
    "what was perhaps given away is acted for in a higher epoch": {"keeper": Hasty},
    "what a dead one was ending is ended by others": {"keeper": Alone},
    "who stands still is suspected": {"keeper": Trusting},
    "a slot that is taken has a higher epoch": {"finish": in_the_old_epoch},
    "a late giving finds another epoch": {"give": whoever_has_it},
    "an epoch is raised by its slot's owner": {"raise_epoch": without_asking},
    "who lives counts": {"beat": never_counting},
    "the log is taken over before the slots": {"adopt_first": False},
    "what is in flight is decided before a slot is given": {"close_first": False},
    "a node that was ended comes again": {"come_again": False},
    "who has counted since is not ended": {"claim": whatever_it_counts},
    "what is pinned is given to whom it is pinned": {"keeper": Even},
    "what is pinned is given whatever the shares are": {"give": by_shares_only},
    "a pin outlives the node's start": {"finish": forgetting_its_pins},
    "who was drained is so when it comes again": {"join": whoever_it_was},
    "who was drained ends its former self": {"keeper": Passive},
    "who stops is not undrained": {"undrain": also_who_stops},
}


NOTICES = {
    "what was perhaps given away is acted for in a higher epoch": 166,
    "a late giving finds another epoch": 111,
    "who has counted since is not ended": 362,
    "what is pinned is given whatever the shares are": 20,
    "who was drained ends its former self": 54,
    "who stops is not undrained": 220,
    "a commit that is lost each time is told as failed": 23,
}
"""The first schedule that notices, where that takes long to find: it is played before all others."""

ENGINE_WITHOUT = {
    "a question's row is told from the transaction's": (
        "db.execute(_ASK, (lost.session, lost.number))",
        "db.execute(_ASK.replace('infinity', 'now'), (lost.session, lost.number))",
    ),
    "an error behind COMMIT proves nothing": (
        "            if mark is None:",
        "            if mark is None or not db.closed:",
    ),
    "a commit whose answer is lost is asked for": ("            raise mark from error", "            raise"),
    "to ask keeps a commit from happening later": (
        "db.execute(_ASK, (lost.session, lost.number))",
        "db.execute('SELECT count(*) FROM sql_commits WHERE session = %s AND number = %s',"
        " (lost.session, lost.number))",
    ),
    "a commit that is lost each time is told as failed": (
        "_fail(group, SqlFailed(f'its COMMIT was answered by an error {TRIES} times: {unknown.__cause__}'))",
        "pass",
    ),
    "a transaction has a row of its own": (
        "        mark = _Unknown(self._session, self._number)",
        "        return _Unknown(self._session, self._number)",
    ),
}
"""Lines of the engine for PostgreSQL, and what stands there instead."""


@pytest.mark.slow
@pytest.mark.timeout(timeout(300))
@pytest.mark.parametrize("safeguard", ENGINE_WITHOUT)
def test_a_safeguard_of_the_engine_for_postgresql_that_is_left_out_is_noticed(safeguard: str) -> None:
    rules = Rules(postgres=True, engine=ENGINE_WITHOUT[safeguard])
    assert first_broken([NOTICES.get(safeguard, 0), *range(200)], rules) is not None


def in_its_former_epoch(connection: sqlite3.Connection, node_id: int, workers: Collection[int]) -> int:
    query = (
        "SELECT cluster_slots.epoch, slot FROM cluster_slots JOIN cluster_nodes ON owner = start WHERE node_id = ? "
        "AND (SELECT count(*) FROM cluster_nodes) > 1"
    )
    epochs = connection.execute(query, (node_id,)).fetchall()
    start = tables.succeed(connection, node_id, workers)
    connection.executemany("UPDATE cluster_slots SET epoch = ? WHERE slot = ?", epochs)
    return start


def of_anybody(connection: sqlite3.Connection, node_id: int, workers: Collection[int]) -> int:
    """Whoever comes has what all others had."""
    start = tables.succeed(connection, node_id, workers)
    connection.execute("UPDATE cluster_slots SET owner = ?", (start,))
    return start


WORKERS_WITHOUT: dict[str, Mapping[str, Any]] = {
    "who comes back has what it had in a higher epoch": {"succeed": in_its_former_epoch},
    "who comes back has its own slots only": {"succeed": of_anybody},
    "what is in flight is decided before a slot is given": {"close_first": False},
    "a worker that was ended comes again": {"come_again": False},
    "a slot that is taken has a higher epoch": {"finish": in_the_old_epoch},
}


@pytest.mark.slow
@pytest.mark.timeout(timeout(300))
@pytest.mark.parametrize("safeguard", WORKERS_WITHOUT)
def test_a_safeguard_of_workers_that_is_left_out_is_noticed(safeguard: str) -> None:
    assert first_broken(range(1_000), replace(Rules(workers=True), **WORKERS_WITHOUT[safeguard])) is not None


@pytest.mark.slow
@pytest.mark.timeout(timeout(300))
@pytest.mark.parametrize("safeguard", WITHOUT)
def test_a_safeguard_that_is_left_out_is_noticed(safeguard: str) -> None:
    seeds = [NOTICES.get(safeguard, 0), *range(1_000)]
    assert first_broken(seeds, replace(Rules(), **WITHOUT[safeguard])) is not None
