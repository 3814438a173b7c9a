"""Judges a history (:mod:`history`): what a log with transactions and groups must never show its clients.

The anomalies are those of Jepsen's workload for Kafka and, of
S2's model of a log, that its end never lies before what was acknowledged; what two protocols show of one offset is
compared like what two clients of one do.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec import Struct, field

from tests.history.history import (
    Begin,
    Commit,
    Committed,
    End,
    Outcome,
    Partition,
    Poll,
    Send,
    Tail,
    Told,
)

FEW = 5
"""Examples of each anomaly that are told."""


class Anomaly(Struct, frozen=True):
    """``kind`` is a key of :data:`CHECKS`."""

    kind: str
    sentence: str


class Seen(Struct, frozen=True):
    """That somebody was given a value at an offset."""

    value: str
    by: str


class Facts(Struct):
    """A history, arranged for the checks. ``compacted``: partitions in which a record may go once a later one has its
    key."""

    compacted: frozenset[Partition] = frozenset()
    sends: dict[str, Send] = field(default_factory=dict)
    """By value."""
    polls: list[Poll] = field(default_factory=list)
    ends: dict[str, End] = field(default_factory=dict)
    commits: dict[tuple[str, Partition], list[Commit]] = field(default_factory=lambda: defaultdict(list))
    committed: list[Committed] = field(default_factory=list)
    tails: dict[Partition, list[Tail]] = field(default_factory=lambda: defaultdict(list))
    begins: dict[Partition, int] = field(default_factory=lambda: defaultdict(int))
    at: dict[Partition, dict[int, list[Seen]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    """What was seen or told to lie where."""
    where: dict[tuple[Partition, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    """Of a value, at which offsets."""
    whole: dict[Partition, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Values that readers of all of a partition were given, for whom everything was decided."""
    wholly_read: set[Partition] = field(default_factory=set)
    twice: list[str] = field(default_factory=list)

    def fate(self, transaction: str | None) -> Outcome:
        """Whether what belongs to a transaction is to be shown; of none: yes."""
        if transaction is None:
            return Outcome.DONE
        end = self.ends.get(transaction)
        if end is None or end.outcome is Outcome.UNKNOWN:
            return Outcome.UNKNOWN
        done = end.commit if end.outcome is Outcome.DONE else not end.commit
        return Outcome.DONE if done else Outcome.NOT_DONE

    def place(self, send: Send) -> int | None:
        """Where a sent record lies, if that is known."""
        if send.partition is None:
            return None
        found = self.where.get((send.partition, send.value))
        return min(found) if found else None


def arrange(events: Iterable[Told], compacted: Collection[Partition] = (), wholly: Collection[Partition] = ()) -> Facts:
    """``wholly``: partitions that were read whole although nothing was found in them."""
    facts = Facts(frozenset(compacted), wholly_read=set(wholly))
    for event in events:
        match event:
            case Send():
                if event.value in facts.sends:
                    facts.twice.append(event.value)
                facts.sends[event.value] = event
                if event.offset is not None and event.partition is not None and event.outcome is Outcome.DONE:
                    _saw(facts, event.partition, event.offset, event.value, f"the acknowledgement of {event.client}")
            case Poll():
                facts.polls.append(event)
                for partition, offset, value in event.records:
                    _saw(facts, partition, offset, value, f"{event.client} ({event.protocol})")
                    if event.whole:
                        facts.wholly_read.add(partition)
                        facts.whole[partition].add(value)
            case End():
                known = facts.ends.get(event.transaction)
                if known is None or known.outcome is Outcome.UNKNOWN:
                    facts.ends[event.transaction] = event
            case Commit():
                facts.commits[event.group, event.partition].append(event)
            case Committed():
                facts.committed.append(event)
            case Tail():
                facts.tails[event.partition].append(event)
            case Begin():
                facts.begins[event.partition] = max(facts.begins[event.partition], event.offset)
    return facts


def _saw(facts: Facts, partition: Partition, offset: int, value: str, by: str) -> None:
    seen = facts.at[partition][offset]
    if not any(one.value == value for one in seen):
        seen.append(Seen(value, by))
    facts.where[partition, value].add(offset)


# --- the checks -------------------------------------------------------------------------------------------------------


def divergent(facts: Facts) -> Iterator[str]:
    """One offset, two values: to two clients, two protocols, or at two times."""
    for partition, offsets in facts.at.items():
        for offset, seen in sorted(offsets.items()):
            if len(seen) > 1:
                yield f"{partition} at {offset}: " + ", ".join(f"{one.value} by {one.by}" for one in seen)


def duplicate(facts: Facts) -> Iterator[str]:
    """One value, two offsets."""
    for (partition, value), offsets in facts.where.items():
        if len(offsets) > 1:
            yield f"{value} lies in {partition} at {sorted(offsets)}"


def misplaced(facts: Facts) -> Iterator[str]:
    """A value in another partition than that which it was written to."""
    for partition, value in facts.where:
        send = facts.sends.get(value)
        if send is not None and send.partition not in (None, partition):
            yield f"{value} was written to {send.partition} and lies in {partition}"


def invented(facts: Facts) -> Iterator[str]:
    """A value that nobody ever wrote."""
    for partition, value in facts.where:
        if value not in facts.sends:
            yield f"nobody wrote {value}, which lies in {partition}"


def lost(facts: Facts) -> Iterator[str]:
    """Acknowledged, and not there when everything was read."""
    newer = _newest_of_keys(facts)
    for send in facts.sends.values():
        if send.outcome is not Outcome.DONE or facts.fate(send.transaction) is not Outcome.DONE:
            continue
        if send.partition is None:
            gone = facts.wholly_read and not any(send.value in values for values in facts.whole.values())
        else:
            gone = send.partition in facts.wholly_read and send.value not in facts.whole[send.partition]
        if not gone:
            continue
        place = facts.place(send)
        if send.partition is not None and place is not None:
            if place < facts.begins.get(send.partition, 0):
                continue
            if send.partition in facts.compacted and newer.get((send.partition, send.key), -1) > place:
                continue
        yield f"{send.value} of {send.client}, acknowledged at {send.partition} {place}, is not there"


def _newest_of_keys(facts: Facts) -> dict[tuple[Partition, str | None], int]:
    newest: dict[tuple[Partition, str | None], int] = {}
    for send in facts.sends.values():
        if send.partition in facts.compacted and facts.fate(send.transaction) is not Outcome.NOT_DONE:
            place = facts.place(send)
            if place is not None:
                key = (send.partition, send.key)
                newest[key] = max(newest.get(key, -1), place)
    return newest


def reordered(facts: Facts) -> Iterator[str]:
    """Two records of one client in one partition, in another order than they were sent in."""
    lines: dict[tuple[str, Partition], list[tuple[int, int, str]]] = defaultdict(list)
    for send in facts.sends.values():
        place = facts.place(send)
        if place is not None and send.partition is not None:
            lines[send.client, send.partition].append((send.order, place, send.value))
    for (client, partition), line in lines.items():
        line.sort()
        for (_, before, first), (_, behind, second) in itertools.pairwise(line):
            if behind < before:
                yield f"{client} sent {first} before {second}; in {partition} they lie at {before} and {behind}"


def late(facts: Facts) -> Iterator[str]:
    """Acknowledged before another was sent, and behind it in the log all the same."""
    lines: dict[Partition, list[tuple[int, Send]]] = defaultdict(list)
    for send in facts.sends.values():
        place = facts.place(send)
        if place is not None and send.partition is not None:
            lines[send.partition].append((place, send))
    for partition, line in lines.items():
        line.sort(key=lambda one: -one[0])
        earliest: Send | None = None
        for _, send in line:  # from the end: ``earliest`` is who, of those behind, was acknowledged first
            if earliest is not None and send.invoked > earliest.told:
                yield f"{earliest.value} was acknowledged before {send.value} was sent, and is behind it in {partition}"
            if send.outcome is Outcome.DONE and (earliest is None or send.told < earliest.told):
                earliest = send


def aborted_read(facts: Facts) -> Iterator[str]:
    """Given to a reader of committed data, and never committed, or not even written."""
    for poll in facts.polls:
        for partition, offset, value in poll.records if poll.committed else ():
            send = facts.sends.get(value)
            if send is None:
                continue
            if facts.fate(send.transaction) is Outcome.NOT_DONE:
                yield f"{poll.client} was given {value} at {partition} {offset}, of the aborted {send.transaction}"
            elif send.outcome is Outcome.NOT_DONE:
                yield f"{poll.client} was given {value} at {partition} {offset}, which {send.client} was refused"


def dirty_read(facts: Facts) -> Iterator[str]:
    """Given to a reader of committed data before anybody asked to commit it."""
    for poll in facts.polls:
        for partition, offset, value in poll.records if poll.committed else ():
            send = facts.sends.get(value)
            end = facts.ends.get(send.transaction) if send is not None and send.transaction is not None else None
            if end is not None and poll.told < end.invoked:
                yield f"{poll.client} was given {value} at {partition} {offset} before {end.transaction} was ended"


def torn(facts: Facts) -> Iterator[str]:
    """Of a transaction some was shown when everything was read, and some not."""
    parts: dict[str, list[Send]] = defaultdict(list)
    for send in facts.sends.values():
        if send.transaction is not None and send.outcome is Outcome.DONE:
            parts[send.transaction].append(send)
    for transaction, sends in parts.items():
        judged = [
            send
            for send in sends
            if send.partition in facts.wholly_read
            and send.partition not in facts.compacted
            and (facts.place(send) is None or (facts.place(send) or 0) >= facts.begins.get(send.partition or "", 0))
        ]
        shown = [send.value for send in judged if send.value in facts.whole[send.partition or ""]]
        if shown and len(shown) < len(judged):
            hidden = sorted({send.value for send in judged} - set(shown))
            yield f"of {transaction} {sorted(shown)[:3]} were shown and {hidden[:3]} were not"


def _sessions(facts: Facts) -> Iterator[tuple[Poll, Partition, list[int]]]:
    """What each session was given of each partition, in the order in which it was."""
    lines: dict[tuple[str, str, Partition], tuple[Poll, list[int]]] = {}
    for poll in facts.polls:
        for partition, offset, _ in poll.records:
            lines.setdefault((poll.client, poll.session, partition), (poll, []))[1].append(offset)
    for (_, _, partition), (poll, offsets) in lines.items():
        yield poll, partition, offsets


def backwards(facts: Facts) -> Iterator[str]:
    """A session was given a record that lies before one it was given already."""
    for poll, partition, offsets in _sessions(facts):
        for before, behind in itertools.pairwise(offsets):
            if behind <= before:
                yield f"{poll.client} was given {partition} {behind} after {before}"


def skipped(facts: Facts) -> Iterator[str]:
    """A session was given what lies before and behind a record, and not the record."""
    known: dict[Partition, list[int]] = {}
    for partition, seen in facts.at.items():
        values = ((offset, facts.sends.get(one[0].value)) for offset, one in seen.items())
        known[partition] = sorted(
            offset
            for offset, send in values
            if send is not None
            and facts.fate(send.transaction) is Outcome.DONE
            and send.outcome is not Outcome.NOT_DONE
            and offset >= facts.begins.get(partition, 0)
        )
    for poll, partition, offsets in _sessions(facts):
        if partition in facts.compacted:
            continue
        line = known.get(partition, [])
        for before, behind in itertools.pairwise(offsets):
            between = line[bisect_right(line, before) : bisect_left(line, behind)]
            if between:
                yield f"{poll.client} was given {partition} {before} and then {behind}, not {between[0]}"


def lost_commit(facts: Facts) -> Iterator[str]:
    """A group's position is none of those that it could be: not what was stored last, nor what was being stored."""
    for asked in facts.committed:
        stored = [
            one for one in facts.commits.get((asked.group, asked.partition), []) if one.outcome is not Outcome.NOT_DONE
        ]
        before = [one.invoked for one in stored if one.outcome is Outcome.DONE and one.told < asked.invoked]
        latest = max(before, default=0.0)
        possible = {
            one.offset
            for one in stored
            if one.invoked < asked.told and not (one.outcome is Outcome.DONE and latest > one.told)
        }
        if asked.offset not in possible and (before or asked.offset is not None):
            yield (
                f"{asked.client} was told that {asked.group} is at {asked.offset} of {asked.partition}; "
                f"it could be at {sorted(possible)[-FEW:]}"
            )


def short_tail(facts: Facts) -> Iterator[str]:
    """A log ended before what was acknowledged, or before where it had ended."""
    for partition, tails in facts.tails.items():
        # What is known to be there at a time: (when it was told, the end that follows from it, who says so).
        told = [(tail.told, tail.end, f"{tail.client} was told so") for tail in tails]
        for send in facts.sends.values():
            if send.partition == partition and send.outcome is Outcome.DONE and send.offset is not None:
                told.append((send.told, send.offset + 1, f"{send.value} was acknowledged"))
        told.sort()
        times = [one[0] for one in told]
        highest: list[tuple[int, str]] = []
        for _, end, why in told:
            highest.append(max(highest[-1], (end, why)) if highest else (end, why))
        for tail in tails:
            place = bisect_left(times, tail.invoked)
            if place and highest[place - 1][0] > tail.end:
                end, why = highest[place - 1]
                yield f"{tail.client} was told that {partition} ends at {tail.end}, not at {end}: {why} before"


def written_twice(facts: Facts) -> Iterator[str]:
    """The history itself is of no use: a value has two writers."""
    for value in facts.twice:
        yield f"{value} was written twice by whoever made this history"


CHECKS: Mapping[str, Callable[[Facts], Iterator[str]]] = {
    "written twice": written_twice,
    "divergent value": divergent,
    "duplicate": duplicate,
    "misplaced": misplaced,
    "invented": invented,
    "lost write": lost,
    "reordered": reordered,
    "late write": late,
    "aborted read": aborted_read,
    "dirty read": dirty_read,
    "torn transaction": torn,
    "non-monotonic poll": backwards,
    "skipped poll": skipped,
    "lost offset commit": lost_commit,
    "short tail": short_tail,
}


def judge(facts: Facts, allowed: Collection[str] = ()) -> list[Anomaly]:
    """All that is wrong. ``allowed``: kinds that are ordinary where a history comes from, as duplicates of a producer
    without sequence numbers, or skips of members of groups that are rebalanced."""
    return [
        Anomaly(kind, sentence) for kind, check in CHECKS.items() if kind not in allowed for sentence in check(facts)
    ]


def told(anomalies: Collection[Anomaly]) -> str:
    """The number of each kind, with a few examples."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for one in anomalies:
        kinds[one.kind].append(one.sentence)
    return "\n".join(
        f"{kind}: {len(sentences)}" + "".join(f"\n    {sentence}" for sentence in sentences[:FEW])
        for kind, sentences in kinds.items()
    )
