"""The clients of a node: rates, clients that left, and the bound that names of clients do not exceed."""

from __future__ import annotations

from itertools import count

import pytest

from anabranch_kit.memory.budget import Kind, MemoryBudget
from bridges import clients as module
from bridges.clients import Client, Clients, Description, Flow


class Clock:
    """The monotonic clock of the registry."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(8 << 20, lambda call: None)


@pytest.fixture
def clients(budget: MemoryBudget, clock: Clock) -> Clients:
    return Clients(budget)


def enter(clients: Clients, name: str = "app", host: str = "10.0.0.1") -> Client:
    return clients.enter(
        "kafka", "kafka", (host, 5000), lambda: Description(name, "lib 1.0", "ann"), lambda reason: None
    )


def only(flows: dict[str, Flow]) -> Flow:
    (flow,) = flows.values()
    return flow


def test_a_rate_is_that_of_the_last_seconds_and_zero_after_silence(clients: Clients, clock: Clock) -> None:
    client = enter(clients)
    for _ in range(40):
        client.wrote("t", 0, 10, 1000)
        clock.now += 0.5
    flow = only(client.writes)
    assert flow.rates().records == pytest.approx(20, rel=0.15)
    assert flow.rates().bytes == pytest.approx(2000, rel=0.15)
    clock.now += 11
    assert flow.rates() == (0, 0)
    assert (flow.records, flow.bytes) == (400, 40_000)
    # An hour of silence is not part of the rate of what comes next.
    clock.now += 3600
    for _ in range(10):
        client.wrote("t", 0, 10, 1000)
        clock.now += 0.5
    assert flow.rates().records == pytest.approx(20, rel=0.15)


def test_a_reader_has_the_partitions_that_it_reads_now(clients: Clients) -> None:
    client = enter(clients)
    for partition in (0, 3, 2000, 7):
        client.read("t", partition)
    client.let_go("t", 3)
    client.let_go("other", 3)
    assert only(client.reads).numbers() == [0, 7]
    client.read("t", 7)
    client.let_go("t", 7)
    client.read("t", 7)
    assert only(client.reads).numbers() == [0, 7]


def test_clients_of_one_description_are_one_after_they_left(
    clients: Clients, clock: Clock, budget: MemoryBudget
) -> None:
    for _ in range(100):
        client = enter(clients)
        client.wrote("t", 1, 1, 10)
        clients.leave(client)
        clients.leave(client)
        clock.now += 1
    (left,) = clients
    assert not left.is_open
    assert left.end is None
    assert (only(left.writes).records, only(left.writes).numbers()) == (100, [1])
    assert only(left.writes).rates().records == pytest.approx(1, rel=0.2)
    client.wrote("t", 1, 1, 10)  # an append that was in flight when its connection ended
    client.wrote("other", 1, 1, 10)
    assert len(clients) == 1
    clock.now += 601
    assert not list(clients)
    assert budget.by_kind[Kind.HISTORY] == len(clients) == 0


def test_a_client_that_neither_wrote_nor_read_is_forgotten_when_it_leaves(clients: Clients) -> None:
    clients.leave(enter(clients))
    assert not list(clients)


def test_names_of_clients_fill_no_memory(clients: Clients, clock: Clock, budget: MemoryBudget) -> None:
    """100,000 named clients: those that left longest ago go first, and the number of the others is told."""
    quiet = enter(clients, "quiet")
    quiet.read("t", 0)
    most = 0
    for number in range(100_000):
        client = enter(clients, f"id-{number}" + "x" * 5000)
        client.wrote("t", 0, 1, 1)
        clients.leave(client)
        most = max(most, len(clients))
        clock.now += 0.001
    assert most <= clients.most
    assert budget.by_kind[Kind.HISTORY] <= clients.most * (module.FLOW_BYTES + module.CLIENT_BYTES)
    assert only(quiet.reads).numbers() == [0]  # who is connected is not forgotten for those who left
    shown = list(clients)
    assert shown[0] is quiet
    assert shown[1].describe().name.startswith("id-99999x")
    assert all(len(one.describe().name) <= 256 for one in shown[1:])
    assert len(shown) - 1 + clients.forgotten == 100_000
    clock.now += 601
    list(clients)
    assert clients.forgotten == 0


def test_the_quietest_flows_of_open_clients_go_first_and_come_back(clients: Clients, clock: Clock) -> None:
    busy, quiet = enter(clients, "busy"), enter(clients, "quiet")
    busy.wrote("t", 0, 1, 1)
    quiet.wrote("t", 0, 1, 1)
    for _ in range(clients.most + 100):
        clock.now += 1
        busy.wrote("t", 0, 1, 1)
        enter(clients).read("t", 0)
    assert len(clients) == clients.most
    assert only(busy.writes).records > clients.most
    assert not quiet.writes
    assert clients.forgotten > 0
    quiet.wrote("t", 0, 1, 1)
    assert only(quiet.writes).records == 1
    assert len(clients) == clients.most


def test_one_client_has_a_bounded_number_of_topics(clock: Clock) -> None:
    client = enter(Clients(MemoryBudget(64 << 20, lambda call: None)))
    for number in range(3000):
        client.wrote(f"t{number}", 0, 1, 1)
    assert len(client.writes) == module.MOST_TOPICS
    assert "t2999" in client.writes


def test_numbers_do_not_name_connections_of_an_earlier_start(
    budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = count(1_700_000_000_000, 1000)
    monkeypatch.setattr(module, "now_ms", lambda: next(times))
    first, second = Clients(budget), Clients(budget)
    numbers = {enter(first).number for _ in range(100)}
    assert not numbers & {enter(second).number for _ in range(100)}
    number = max(numbers)
    assert first.find(number) is not None
    assert second.find(number) is None
