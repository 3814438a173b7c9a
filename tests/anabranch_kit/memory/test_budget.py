"""The memory budget: nothing is lost, no few accounts hold everything, and whoever waits is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_kit.memory.budget import Account, Kind, MemoryBudget

MIB = 1024 * 1024


@dataclass
class Later:
    """Stands in for a loop: what is deferred runs when told to."""

    calls: deque[Callable[[], None]] = field(default_factory=deque)

    def __call__(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> bool:
        """Run what is due; False when there is nothing."""
        due = len(self.calls)
        for _ in range(due):
            self.calls.popleft()()
        return due > 0

    def settle(self) -> None:
        for _ in range(10_000):
            if not self.turn():
                return
        raise AssertionError("it never comes to rest")


@pytest.fixture
def later() -> Later:
    return Later()


def nothing() -> None:
    pass


def hog(budget: MemoryBudget, kind: Kind, size: int) -> Account:
    """An account that takes pieces of ``size`` as long as it is given any."""
    account = budget.account(nothing)
    for _ in range(100_000):
        if not account.admit(kind, size):
            return account
    raise AssertionError("there is no bound")


@pytest.mark.parametrize("size", [64 * 1024, 300_000, 3 * MIB])
def test_few_accounts_cannot_keep_another_from_its_share_and_more(later: Later, size: int) -> None:
    budget = MemoryBudget(256 * MIB, later)
    for _ in range(9):
        hog(budget, Kind.REQUESTS, size)
    assert budget.held < budget.total - budget.reserve
    # Not only its share: what one account may hold beyond it shrinks, but nine leave plenty.
    assert budget.account(nothing).admit(Kind.REQUESTS, 4 * MIB)


def test_shares_are_there_whatever_large_requests_hold(later: Later) -> None:
    budget = MemoryBudget(256 * MIB, later)
    for _ in range(200):
        hog(budget, Kind.RESPONSES, MIB)
    for _ in range(500):
        budget.account(nothing).admit(Kind.REQUESTS, 100 * MIB)
    for _ in range(500):
        assert budget.account(nothing).admit(Kind.REQUESTS, budget.share)
    assert budget.held <= budget.total


def test_a_single_large_request_fits_into_a_calm_budget_of_any_size(later: Later) -> None:
    for total in (2000, 10 * MIB, 256 * MIB):
        budget = MemoryBudget(total, later)
        small = budget.account(nothing)
        assert small.admit(Kind.REQUESTS, 10)
        large = budget.account(nothing)
        assert large.admit(Kind.REQUESTS, 100 * MIB)
        assert small.admit(Kind.REQUESTS, 10)  # others go on
        assert not budget.account(nothing).admit(Kind.REQUESTS, 100 * MIB)
        large.give(Kind.REQUESTS, 100 * MIB)
        assert budget.account(nothing).admit(Kind.REQUESTS, 100 * MIB)


def test_a_large_request_gets_its_turn_although_others_never_stop(later: Later) -> None:
    budget = MemoryBudget(64 * MIB, later)
    told: list[str] = []
    busy = deque(budget.account(nothing) for _ in range(200))
    for account in busy:
        account.admit(Kind.REQUESTS, MIB)
    large = budget.account(lambda: told.append("large"))
    assert not large.admit(Kind.REQUESTS, 20 * MIB)
    large.wait(20 * MIB)
    rounds = 0
    while not told:
        rounds += 1
        assert rounds < 1000
        account = busy.popleft()
        busy.append(account)
        account.give(Kind.REQUESTS, account.held)
        for other in busy:  # whatever is free is taken by the others at once, as far as they are let
            if not other.held:
                other.admit(Kind.REQUESTS, MIB)
        later.settle()
    assert large.admit(Kind.REQUESTS, 20 * MIB)


def test_large_requests_that_wait_get_their_turns_one_after_the_other(later: Later) -> None:
    budget = MemoryBudget(64 * MIB, later)
    order: list[int] = []

    def on_room(number: int) -> None:
        assert accounts[number].admit(Kind.REQUESTS, 30 * MIB, 200_000)
        order.append(number)

    accounts = [budget.account(lambda n=n: on_room(n)) for n in range(5)]  # type: ignore[misc]
    for account in accounts:  # each has received the beginning of its request before it was refused
        account.take(Kind.REQUESTS, 200_000)
    first = budget.account(nothing)
    assert first.admit(Kind.REQUESTS, 30 * MIB)
    for account in accounts:
        assert not account.admit(Kind.REQUESTS, 30 * MIB, 200_000)
        account.wait(30 * MIB, 200_000)
    later.settle()
    assert order == []
    first.give(Kind.REQUESTS, 30 * MIB)
    for number, account in enumerate(accounts):
        later.settle()
        assert order == list(range(number + 1))
        account.give(Kind.REQUESTS, 30 * MIB)
    assert budget.held == 0


def test_those_who_ask_in_a_later_turn_get_their_turns_as_well(later: Later) -> None:
    """As tasks do: what tells them wakes them up, and they run when the loop comes to them."""
    budget = MemoryBudget(32 * MIB, later)
    size, asked, served = 6 * MIB, 0, 0
    holders = [hog(budget, Kind.READS, MIB // 2) for _ in range(40)]

    class Asking:
        def __init__(self) -> None:
            self.account = budget.account(lambda: later(self.ask))

        def ask(self) -> None:
            nonlocal asked, served
            asked += 1
            if not self.account.admit(Kind.READS, size):
                self.account.wait(size)
                return
            served += 1
            later(lambda: self.account.give(Kind.READS, size))

    for one in [Asking() for _ in range(50)]:
        one.ask()
    assert not served
    for holder in holders:
        holder.give(Kind.READS, holder.held)
    later.settle()
    assert served == 50
    assert asked < 5 * served, "hardly anybody is told in vain"
    assert budget.held == 0


def test_a_large_request_that_waits_does_not_stop_the_others(later: Later) -> None:
    budget = MemoryBudget(256 * MIB, later)
    first, second = budget.account(nothing), budget.account(nothing)
    assert first.admit(Kind.REQUESTS, 100 * MIB)
    assert not second.admit(Kind.REQUESTS, 100 * MIB)
    second.wait(100 * MIB)
    assert budget.account(nothing).admit(Kind.REQUESTS, 4 * MIB)


def test_those_who_need_least_are_told_first_and_a_bounded_number_at_a_time(later: Later) -> None:
    budget = MemoryBudget(64 * MIB, later)
    full = [hog(budget, Kind.REQUESTS, 16 * 1024) for _ in range(2000)]
    told: list[int] = []
    waiting = [budget.account(lambda n=n: told.append(n)) for n in range(300)]  # type: ignore[misc]
    for number, account in enumerate(waiting):
        account.wait(2000 if number % 2 else 20_000)
    later.settle()
    assert told == []
    for account in full:
        account.give(Kind.REQUESTS, account.held)
    assert told == []  # nobody is called from within give()
    later.turn()
    assert 0 < len(told) <= 64
    later.settle()
    assert told == [*range(1, 300, 2), *range(0, 300, 2)]
    assert budget.waiting == 0


def test_a_callback_that_gives_and_waits_again_does_not_recurse(later: Later) -> None:
    budget = MemoryBudget(MIB, later)
    blocker = hog(budget, Kind.REQUESTS, 1000)
    depth = deepest = calls = 0

    def on_room() -> None:
        nonlocal depth, deepest, calls
        depth += 1
        calls += 1
        deepest = max(deepest, depth)
        if account.admit(Kind.REQUESTS, 1000):
            account.give(Kind.REQUESTS, 1000)
        if calls < 5000:
            account.wait(1000)
        depth -= 1

    account = budget.account(on_room)
    account.wait(1000)
    blocker.give(Kind.REQUESTS, blocker.held)
    later.settle()
    assert calls == 5000
    assert deepest == 1


def test_a_closed_account_counts_until_its_bytes_are_given(later: Later) -> None:
    budget = MemoryBudget(MIB, later)
    account = budget.account(nothing)
    account.take(Kind.REQUESTS, 500_000)
    account.wait()
    account.close()
    account.close()
    assert (budget.accounts, budget.waiting, budget.held) == (0, 0, 500_000)
    account.wait()
    assert budget.waiting == 0
    account.move(Kind.REQUESTS, Kind.RESPONSES, 500_000)
    assert budget.by_kind == [0, 500_000, 0, 0, 0, 0]
    account.give(Kind.RESPONSES, 500_000)
    assert budget.held == 0


def test_a_grant_takes_less_when_there_is_less(later: Later) -> None:
    budget = MemoryBudget(64 * MIB, later)
    assert budget.account(nothing).grant(Kind.READS, 2 * MIB, 1000) == 2 * MIB
    granted = [budget.account(nothing).grant(Kind.READS, 2 * MIB, 1000) for _ in range(200)]
    assert all(one >= 1000 for one in granted)
    assert granted == sorted(granted, reverse=True)
    assert granted[-1] < 2 * MIB
    assert budget.held <= budget.total


steps = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.sampled_from(["admit", "grant", "take", "give", "give all", "wait", "stop", "turn"]),
        st.one_of(st.integers(1, 300), st.integers(1, 200_000)),
        st.sampled_from(list(Kind)),
    ),
    max_size=120,
)


@settings(max_examples=300)
@given(steps, st.integers(200, 200_000))
def test_whatever_happens_bytes_are_counted_once_and_whoever_waits_is_told(
    sequence: list[tuple[int, str, int, Kind]], total: int
) -> None:
    later = Later()
    budget = MemoryBudget(total, later)
    told = [0] * 12
    waits = [False] * 12

    def on_room(number: int) -> Callable[[], None]:
        def call() -> None:
            assert waits[number]
            waits[number] = False
            told[number] += 1

        return call

    accounts = [budget.account(on_room(number)) for number in range(12)]
    held: list[dict[Kind, int]] = [dict.fromkeys(Kind, 0) for _ in accounts]
    forced = 0
    largest = 0
    for which, action, size, kind in sequence:
        account = accounts[which]
        if action in ("admit", "grant"):
            before = account.held
            if action == "admit":
                got = size if account.admit(kind, size) else 0
            else:
                got = account.grant(kind, size, max(1, size // 7))
                assert got == 0 or size // 7 <= got <= size
            assert account.held == before + got
            held[which][kind] += got
            largest = max(largest, got)
        elif action == "take":
            account.take(kind, size)
            held[which][kind] += size
            forced += size
        elif action in ("give", "give all"):
            size = min(size, held[which][kind]) if action == "give" else held[which][kind]
            account.give(kind, size)
            held[which][kind] -= size
        elif action == "wait":
            account.wait(size)
            waits[which] = True
        elif action == "stop":
            account.stop_waiting()
            waits[which] = False
        else:
            later.turn()
        assert [account.held for account in accounts] == [sum(each.values()) for each in held]
        assert budget.by_kind == [sum(each[kind] for each in held) for kind in Kind]
        assert budget.held == sum(account.held for account in accounts)
        # One request alone may be larger than everything; what nobody asked for comes on top.
        assert budget.held - forced <= budget.total + largest
        assert budget.waiting == sum(waits)
    for number, account in enumerate(accounts):
        for kind in Kind:
            account.give(kind, held[number][kind])
    later.settle()
    assert not any(waits)
    assert (budget.held, budget.waiting, budget.by_kind) == (0, 0, [0] * len(Kind))


def test_what_tls_takes_makes_the_rest_smaller_and_leaves_a_part(later: Later) -> None:
    budget = MemoryBudget(16 * MIB, later)
    rest = budget.capacity
    assert rest == 12 * MIB
    told: list[int] = []
    account, other = budget.account(lambda: told.append(1)), budget.account(nothing)

    def granted() -> int:
        size = account.grant(Kind.READS, 4 * MIB, 1)
        account.give(Kind.READS, size)
        return size

    before = granted()
    budget.attach(8 * MIB)
    assert (budget.by_kind[Kind.TLS], budget.capacity) == (8 * MIB, 4 * MIB)
    assert 0 < granted() <= before // 2
    other.take(Kind.REQUESTS, 4 * MIB + budget.share)
    assert not account.admit(Kind.READS, 200_000), "nothing is left"
    account.wait(200_000)
    later.settle()
    assert not told
    budget.attach(MIB, Kind.HISTORY)
    assert (budget.by_kind[Kind.HISTORY], budget.capacity) == (MIB, 3 * MIB)
    budget.attach(-MIB, Kind.HISTORY)
    budget.attach(-8 * MIB)
    later.settle()
    assert told == [1]
    assert account.admit(Kind.READS, 200_000)
    account.give(Kind.READS, 200_000)
    other.give(Kind.REQUESTS, other.held)
    budget.attach(1000 * MIB)
    assert budget.capacity == rest // 4
    assert account.admit(Kind.REQUESTS, 10 * MIB), "one alone is never too large"
    account.give(Kind.REQUESTS, 10 * MIB)
    budget.attach(-1000 * MIB)
    assert (budget.capacity, sum(budget.by_kind), granted()) == (rest, 0, before)
