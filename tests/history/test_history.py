"""The judge of histories finds each anomaly where it is planted, and none in histories of a log without faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.history.checks import CHECKS, FEW, Facts, arrange, judge, told
from tests.history.history import Begin, Commit, Committed, End, Outcome, Poll, Recorder, Send, Tail, Told, read
from tests.history.made import PARTITIONS, history

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_without_faults_shows_no_anomaly(seed: int) -> None:
    found = judge(arrange(history(seed), wholly=PARTITIONS))
    assert not found, told(found)


def done(events: list[Told]) -> list[int]:
    """Where sends are that happened, of no transaction."""
    return [
        place
        for place, one in enumerate(events)
        if isinstance(one, Send) and one.outcome is Outcome.DONE and one.transaction is None
    ]


def forget(events: list[Told], value: str) -> list[Told]:
    """Nobody was given ``value``."""
    return [
        replace(one, records=[record for record in one.records if record[2] != value]) if isinstance(one, Poll) else one
        for one in events
    ]


def whole_polls(events: list[Told]) -> list[int]:
    return [place for place, one in enumerate(events) if isinstance(one, Poll) and one.whole and len(one.records) > 5]


# Each takes a history without anomalies, and gives one with the anomaly of its name.


def plant_divergent(events: list[Told], rng: random.Random) -> list[Told]:
    place = rng.choice(whole_polls(events))
    poll = events[place]
    assert isinstance(poll, Poll)
    records = list(poll.records)
    at = rng.randrange(len(records) - 1)
    records[at] = (records[at][0], records[at][1], records[at + 1][2])
    events[place] = replace(poll, records=records)
    return events


def plant_duplicate(events: list[Told], rng: random.Random) -> list[Told]:
    place = rng.choice(whole_polls(events))
    poll = events[place]
    assert isinstance(poll, Poll)
    partition, _, value = rng.choice(poll.records)
    end = max(offset for one in events if isinstance(one, Poll) for _, offset, _ in one.records)
    events[place] = replace(poll, records=[*poll.records, (partition, end + 10, value)])
    return events


def plant_misplaced(events: list[Told], rng: random.Random) -> list[Told]:
    place = rng.choice(done(events))
    send = events[place]
    assert isinstance(send, Send)
    (other,) = set(PARTITIONS) - {send.partition}
    poll = Poll(client="p", invoked=0, told=0, protocol="ydb", session="1", records=[(other, 10_000, send.value)])
    return [*events, poll]


def plant_invented(events: list[Told], rng: random.Random) -> list[Told]:
    poll = Poll(client="p", invoked=0, told=0, protocol="ydb", session="1", records=[("t/0", 10_000, "of nobody")])
    return [*events, poll]


def plant_lost(events: list[Told], rng: random.Random) -> list[Told]:
    send = events[rng.choice(done(events))]
    assert isinstance(send, Send)
    return forget(events, send.value)


def plant_reordered(events: list[Told], rng: random.Random) -> list[Told]:
    line = [place for place in done(events) if getattr(events[place], "client", "") == "w0"]
    sends = [events[place] for place in line]
    first, second = next(
        (a, b)
        for a, one in enumerate(sends)
        for b, other in enumerate(sends)
        if a < b and isinstance(one, Send) and isinstance(other, Send) and one.partition == other.partition
    )
    one, other = sends[first], sends[second]
    assert isinstance(one, Send)
    assert isinstance(other, Send)
    events[line[first]], events[line[second]] = replace(one, order=other.order), replace(other, order=one.order)
    return events


def plant_late(events: list[Told], rng: random.Random) -> list[Told]:
    line = sorted(
        (place for place in done(events) if getattr(events[place], "partition", "") == "t/0"),
        key=lambda place: getattr(events[place], "offset", 0),
    )
    send = events[line[0]]
    assert isinstance(send, Send)
    last = max(one.told for one in events)
    events[line[0]] = replace(send, invoked=last + 1, told=last + 2)
    return events


def plant_aborted_read(events: list[Told], rng: random.Random) -> list[Told]:
    aborted = {
        one.transaction for one in events if isinstance(one, End) and not one.commit and one.outcome is Outcome.DONE
    }
    send = rng.choice(
        [one for one in events if isinstance(one, Send) and one.transaction in aborted and one.offset is not None]
    )
    record = (send.partition or "", send.offset or 0, send.value)
    last = max(one.told for one in events)
    return [*events, Poll(client="p", invoked=last, told=last, protocol="kafka", session="1", records=[record])]


def plant_refused_read(events: list[Told], rng: random.Random) -> list[Told]:
    place = rng.choice(done(events))
    send = events[place]
    assert isinstance(send, Send)
    events[place] = replace(send, outcome=Outcome.NOT_DONE, offset=None)
    return events


def plant_dirty_read(events: list[Told], rng: random.Random) -> list[Told]:
    committed = {one.transaction: one for one in events if isinstance(one, End) and one.commit}
    sends = [one for one in events if isinstance(one, Send) and one.transaction in committed and one.offset is not None]
    send = rng.choice(sends)
    before = committed[send.transaction or ""].invoked - 0.001
    record = (send.partition or "", send.offset or 0, send.value)
    return [*events, Poll(client="p", invoked=before, told=before, protocol="kafka", session="1", records=[record])]


def plant_torn(events: list[Told], rng: random.Random) -> list[Told]:
    committed = {
        one.transaction for one in events if isinstance(one, End) and one.commit and one.outcome is Outcome.DONE
    }
    parts: dict[str, list[Send]] = {}
    for one in events:
        if isinstance(one, Send) and one.transaction in committed and one.outcome is Outcome.DONE:
            parts.setdefault(one.transaction or "", []).append(one)
    sends = rng.choice([some for some in parts.values() if len(some) > 1])
    return forget(events, rng.choice(sends).value)


def plant_backwards(events: list[Told], rng: random.Random) -> list[Told]:
    place = rng.choice(whole_polls(events))
    poll = events[place]
    assert isinstance(poll, Poll)
    return [*events, replace(poll, whole=False, records=poll.records[:1])]


def plant_skipped(events: list[Told], rng: random.Random) -> list[Told]:
    place = rng.choice(whole_polls(events))
    poll = events[place]
    assert isinstance(poll, Poll)
    sends = {one.value: one for one in events if isinstance(one, Send)}
    certain = [
        at
        for at, (_, _, value) in enumerate(poll.records[1:-1], 1)
        if sends[value].transaction is None and sends[value].outcome is Outcome.DONE
    ]
    records = list(poll.records)
    del records[rng.choice(certain)]
    events[place] = replace(poll, records=records, whole=False)
    return events


def plant_lost_commit(events: list[Told], rng: random.Random) -> list[Told]:
    place, commit = rng.choice(
        [
            (place, one)
            for place, one in enumerate(events)
            if isinstance(one, Commit) and one.outcome is Outcome.DONE and one.offset > 0
        ]
    )
    asked = Committed(
        client="p",
        invoked=commit.told + 0.0001,
        told=commit.told + 0.0002,
        group=commit.group,
        partition=commit.partition,
        offset=rng.choice([None, 100_000]),
    )
    return [*events[: place + 1], asked, *events[place + 1 :]]


def plant_short_tail(events: list[Told], rng: random.Random) -> list[Told]:
    send = events[rng.choice(done(events))]
    assert isinstance(send, Send)
    after = send.told + 0.0001
    tail = Tail(client="p", invoked=after, told=after, partition=send.partition or "", end=send.offset or 0)
    return [*events, tail]


def plant_shrinking_tail(events: list[Told], rng: random.Random) -> list[Told]:
    last = max(one.told for one in events)
    times = [replace_tail(last + step, 1_000 - step) for step in (1, 2)]
    return [*events, *times]


def replace_tail(at: float, end: int) -> Tail:
    return Tail(client="p", invoked=at, told=at, partition="t/0", end=end)


def plant_written_twice(events: list[Told], rng: random.Random) -> list[Told]:
    return [*events, events[rng.choice(done(events))]]


PLANTED: list[tuple[str, Callable[[list[Told], random.Random], list[Told]]]] = [
    ("divergent value", plant_divergent),
    ("duplicate", plant_duplicate),
    ("misplaced", plant_misplaced),
    ("invented", plant_invented),
    ("lost write", plant_lost),
    ("reordered", plant_reordered),
    ("late write", plant_late),
    ("aborted read", plant_aborted_read),
    ("aborted read", plant_refused_read),
    ("dirty read", plant_dirty_read),
    ("torn transaction", plant_torn),
    ("non-monotonic poll", plant_backwards),
    ("skipped poll", plant_skipped),
    ("lost offset commit", plant_lost_commit),
    ("short tail", plant_short_tail),
    ("short tail", plant_shrinking_tail),
    ("written twice", plant_written_twice),
]


def test_each_check_has_something_planted_for_it() -> None:
    assert {kind for kind, _ in PLANTED} == set(CHECKS)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("kind", "plant"), PLANTED, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_planted_anomaly_is_found(
    kind: str, plant: Callable[[list[Told], random.Random], list[Told]], seed: int
) -> None:
    planted = plant(history(seed), random.Random(seed))
    found = {one.kind for one in judge(arrange(planted, wholly=PARTITIONS))}
    assert kind in found


def judged(*events: Told, compacted: tuple[str, ...] = ()) -> set[str]:
    facts: Facts = arrange(events, compacted, ["t/0"])
    return {one.kind for one in judge(facts)}


def sent(value: str, offset: int, key: str | None = None) -> Send:
    at = float(offset)
    return Send(
        client="w",
        invoked=at,
        told=at + 0.5,
        partition="t/0",
        value=value,
        outcome=Outcome.DONE,
        order=offset,
        offset=offset,
        key=key,
    )


def all_of(*records: tuple[int, str]) -> Poll:
    given = [("t/0", offset, value) for offset, value in records]
    return Poll(client="r", invoked=90, told=91, protocol="kafka", session="1", records=given, whole=True)


def test_what_retention_took_is_not_lost() -> None:
    begin = Begin(client="r", invoked=80, told=80, partition="t/0", offset=1)
    assert judged(sent("a", 0), sent("b", 1), all_of((1, "b"))) == {"lost write"}
    assert judged(sent("a", 0), sent("b", 1), all_of((1, "b")), begin) == set()
    assert judged(sent("a", 0), sent("b", 1), all_of((0, "a")), begin) == {"lost write"}


def test_compaction_may_take_what_has_a_later_record_of_its_key() -> None:
    events = (sent("a", 0, "k"), sent("b", 1, "j"), sent("c", 2, "k"))
    assert judged(*events, all_of((1, "b"), (2, "c")), compacted=("t/0",)) == set()
    assert judged(*events, all_of((0, "a"), (2, "c")), compacted=("t/0",)) == {"lost write"}


def test_a_client_that_seeks_begins_another_session() -> None:
    again = replace(all_of((0, "a")), session="2", whole=False)
    assert judged(sent("a", 0), sent("b", 1), all_of((0, "a"), (1, "b")), again) == set()
    assert judged(sent("a", 0), sent("b", 1), all_of((0, "a"), (1, "b")), replace(again, session="1")) == {
        "non-monotonic poll"
    }


def test_what_nobody_knows_the_outcome_of_may_be_there_or_not() -> None:
    unknown = replace(sent("b", 1), outcome=Outcome.UNKNOWN, offset=None)
    assert judged(sent("a", 0), unknown, all_of((0, "a"), (1, "b"))) == set()
    assert judged(sent("a", 0), unknown, all_of((0, "a"))) == set()
    refused = replace(unknown, outcome=Outcome.NOT_DONE)
    assert judged(sent("a", 0), refused, all_of((0, "a"), (1, "b"))) == {"aborted read"}


def test_a_history_on_disk_is_what_was_kept_up_to_the_death_of_its_writer(tmp_path: Path) -> None:
    events = history(3)
    path = tmp_path / "clients" / "one.jsonl"
    recorder = Recorder(path, "one")
    for event in events:
        recorder.keep(event)
    recorder.close()
    with path.open("ab") as file:
        file.write(b'{"kind":"send","cli')
    assert list(read([path])) == events


def test_few_examples_of_many_are_told() -> None:
    events = [sent(str(number), number) for number in range(20)]
    text = told(judge(arrange(events, wholly=["t/0"])))
    assert text.splitlines()[0] == "lost write: 20"
    assert len(text.splitlines()) == 1 + FEW
