"""The judge of the torture run must see every kind of broken promise: a blind one would always be content."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tests.torture.torture_load import GroupMember, Promises, payload
from tests.torture.torture_pravega import TOPIC, PravegaMember, TransactionLoad, check_member, check_transactions
from tests.torture.torture_verdict import Verdict, check_consumers, check_offsets, check_producer

SEED = 5
NAME = "p"
PLACE = ("t", 0)


def honest() -> tuple[Promises, dict[tuple[str, int], dict[int, bytes]]]:
    """Ten acknowledged records and a log that holds them."""
    promises = Promises(NAME, "t", True)
    log = {PLACE: {number: payload(SEED, NAME, number) for number in range(10)}}
    for number in range(10):
        promises.keep(0, number, number)
    return promises, log


def judge(promises: Promises, log: dict[tuple[str, int], dict[int, bytes]]) -> list[str]:
    verdict = Verdict()
    check_producer(SEED, promises, log, verdict)
    check_offsets(log, verdict)
    return [violation.partition(":")[0] for violation in verdict.violations]


def test_kept_promises_are_no_violation() -> None:
    assert judge(*honest()) == []


def test_a_lost_record_is_seen() -> None:
    promises, log = honest()
    del log[PLACE][9]
    assert judge(promises, log) == ["lost"]


def test_changed_content_is_seen() -> None:
    promises, log = honest()
    value = bytearray(log[PLACE][4])
    value[-1] ^= 1
    log[PLACE][4] = bytes(value)
    assert set(judge(promises, log)) == {"lost"}


def test_a_record_at_another_offset_is_seen() -> None:
    promises, log = honest()
    log[PLACE][3], log[PLACE][4] = log[PLACE][4], log[PLACE][3]
    assert set(judge(promises, log)) == {"lost", "out of order"}


def test_a_doubled_record_is_seen_only_where_it_was_ruled_out() -> None:
    promises, log = honest()
    log[PLACE][10] = payload(SEED, NAME, 9)
    assert judge(promises, log) == ["doubled"]
    promises.exactly_once = False
    assert judge(promises, log) == []


def test_a_hole_is_seen() -> None:
    promises, log = honest()
    log[PLACE][12] = payload(SEED, NAME, 10)
    assert judge(promises, log) == ["holes"]


def test_a_record_that_an_idempotent_producer_gave_up_is_seen() -> None:
    promises, log = honest()
    promises.refuse(11, "timed out")
    assert judge(promises, log) == ["refused"]


@pytest.mark.parametrize("changed", [None, b"other"])
def test_a_record_that_was_read_and_vanished_is_seen(changed: bytes | None) -> None:
    import hashlib

    _, log = honest()
    member = GroupMember("unused", "t", "g", "m", threading.Event())
    member.seen[0, 3] = hashlib.blake2b(log[PLACE][3], digest_size=16).digest()
    verdict = Verdict()
    check_consumers([member], log, verdict)
    assert verdict.violations == []
    if changed is None:
        del log[PLACE][3]
    else:
        log[PLACE][3] = changed
    check_consumers([member], log, verdict)
    assert [violation.partition(":")[0] for violation in verdict.violations] == ["vanished"]


def of_pravega() -> tuple[TransactionLoad, PravegaMember, dict[tuple[str, int], dict[int, bytes]]]:
    """Four transactions of ten events, one of each fate; what must be stored of them; and a reader who read it."""
    finish = threading.Event()
    load = TransactionLoad((), "unused", SEED, NAME, 1, finish)
    log: dict[tuple[str, int], dict[int, bytes]] = {(TOPIC, 0): {}}
    member = PravegaMember((), "unused", "reader", [load], finish)
    for first, fate in ((0, "committed"), (10, "aborted"), (20, "open"), (30, "asked")):
        load.told(["open", str(first), str(first + 10)])
        load.told([fate, str(first), str(first + 10)])
    for number in range(10):
        log[TOPIC, 0][number] = payload(SEED, NAME, number)
        member.told(["read", NAME, str(number)])
    return load, member, log


def judge_pravega(
    load: TransactionLoad, member: PravegaMember, log: dict[tuple[str, int], dict[int, bytes]]
) -> set[str]:
    verdict = Verdict()
    check_transactions(NAME, load.transactions, log, verdict)
    check_member(member, log, verdict)
    return {violation.partition(":")[0] for violation in verdict.violations}


def test_transactions_that_ended_as_told_are_no_violation() -> None:
    load, member, log = of_pravega()
    assert judge_pravega(load, member, log) == set()
    for number in range(30, 40):  # it was not said that this one was committed, nor that it was not
        log[TOPIC, 0][number] = payload(SEED, NAME, number)
    assert judge_pravega(load, member, log) == set()


@pytest.mark.parametrize("number", [10, 20, 30])
def test_a_part_of_a_transaction_that_was_not_committed_is_seen(number: int) -> None:
    load, member, log = of_pravega()
    log[TOPIC, 0][10] = payload(SEED, NAME, number)
    assert judge_pravega(load, member, log) == {"transaction"}


def test_a_committed_transaction_with_a_hole_is_seen() -> None:
    load, member, log = of_pravega()
    del log[TOPIC, 0][5]
    assert judge_pravega(load, member, log) == {"transaction", "vanished"}


@pytest.mark.parametrize(
    ("events", "seen"),
    [
        (range(9), {"not read"}),
        ([*range(10), 3], {"read twice"}),
        ([5, 0, *range(1, 5), *range(6, 10)], {"read out of order"}),
        (range(11), {"vanished"}),
    ],
)
def test_a_reader_group_that_was_given_something_else_is_seen(events: Sequence[int], seen: set[str]) -> None:
    load, _, log = of_pravega()
    member = PravegaMember((), "unused", "reader", [load], threading.Event())
    for number in events:
        member.told(["read", NAME, str(number)])
    assert judge_pravega(load, member, log) == seen
