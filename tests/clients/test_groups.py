"""Consumer groups with every library: reading on from committed offsets, sharing partitions, passing groups on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from tests.clients.api import Client, Got, Rec
from tests.clients.client_remote import RemoteClient
from tests.clients.registry import ABILITIES, REFERENCE, Opener, clients, marks
from tests.clients.sharing import await_topic, group_members_left
from tests.conftest import NodeFactory

# The first use of a driver builds it. Positions are the node's own wherever its data is.
pytestmark = pytest.mark.timeout(600)

PARTITIONS = 4
PER_PARTITION = 10
TOTAL = PARTITIONS * PER_PARTITION
CONSUMER_GROUP_HEARTBEAT = 68
IN_GROUPS = [name for name, abilities in ABILITIES.items() if abilities.group]


@pytest.fixture(scope="module")
def topic(reference: Client, make_topic: Callable[..., str]) -> str:
    """Forty records in four partitions, read by every group of this module."""
    name = make_topic("groups", PARTITIONS)
    for partition in range(PARTITIONS):
        reference.produce(name, partition, [Rec(f"{partition}/{number}".encode()) for number in range(PER_PARTITION)])
    return name


@pytest.fixture
def new_protocol(needs_api: Callable[..., None]) -> str:
    """The name of the group protocol of KIP-848, if the broker offers it."""
    needs_api("KIP-848", CONSUMER_GROUP_HEARTBEAT)
    return "consumer"


def assert_read_exactly_once(parts: list[list[Got]]) -> None:
    seen = [(record.partition, record.offset) for part in parts for record in part]
    assert len(seen) == len(set(seen)), "a committed record was delivered again"
    assert set(seen) == {(partition, offset) for partition in range(PARTITIONS) for offset in range(PER_PARTITION)}
    for part in parts:
        for record in part:
            assert record.value == f"{record.partition}/{record.offset}".encode()


def read_in_two_goes(
    first: Client, second: Client, reference: Client, group: str, topic: str, protocol: str = "classic"
) -> None:
    begun = first.consume_group(group, topic, TOTAL - 15, protocol=protocol)
    assert len(begun) == TOTAL - 15
    group_members_left(reference, group)
    rest = second.consume_group(group, topic, 15, protocol=protocol)
    assert_read_exactly_once([begun, rest])
    assert [reference.committed(group, topic, partition) for partition in range(PARTITIONS)] == [PER_PARTITION] * 4


@pytest.mark.parametrize("name", clients(lambda abilities: abilities.group))
def test_a_group_goes_on_where_it_stopped(
    name: str, open_client: Opener, reference: Client, topic: str, fresh_name: Callable[[str], str]
) -> None:
    client = open_client(name)
    read_in_two_goes(client, client, reference, fresh_name("resume"), topic)


@pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(*pair, marks=marks(*pair)) for pair in pairwise([*IN_GROUPS, IN_GROUPS[0]])],
)
def test_another_library_takes_a_group_over(
    first: str, second: str, open_client: Opener, reference: Client, topic: str, fresh_name: Callable[[str], str]
) -> None:
    read_in_two_goes(open_client(first), open_client(second), reference, fresh_name("takeover"), topic)


@pytest.mark.parametrize("name", clients(lambda abilities: abilities.group and abilities.shares))
def test_two_members_share_and_one_leaves(
    name: str, open_client: Opener, topic: str, fresh_name: Callable[[str], str]
) -> None:
    shares = open_client(name).share(fresh_name("share"), topic, PARTITIONS)
    assert len(shares.first) == len(shares.second) == 2
    assert shares.first | shares.second == shares.after == frozenset(range(PARTITIONS))


@pytest.mark.parametrize("name", clients(lambda abilities: abilities.new_group_protocol))
def test_the_new_group_protocol_resumes(
    name: str,
    open_client: Opener,
    reference: Client,
    topic: str,
    fresh_name: Callable[[str], str],
    new_protocol: str,
) -> None:
    client = open_client(name)
    read_in_two_goes(client, client, reference, fresh_name("kip848"), topic, protocol=new_protocol)


@pytest.mark.parametrize(("first", "second"), [("consumer", "consumer"), ("classic", "consumer")])
def test_java_members_of_either_protocol_read_together_over_a_kill_of_the_node(
    first: str, second: str, node_factory: NodeFactory, open_client: Opener
) -> None:
    node = node_factory(settings={"kafka.group.consumer_heartbeat_interval_ms": "500"})
    admin = open_client.at(REFERENCE, node.kafka)
    admin.create_topic("together", PARTITIONS)
    await_topic(admin, "together", PARTITIONS)

    def write(begin: int) -> None:
        for partition in range(PARTITIONS):
            records = [Rec(f"{partition}/{begin + number}".encode()) for number in range(PER_PARTITION)]
            admin.produce("together", partition, records)

    write(0)
    java = open_client.at("java-new", node.kafka)
    assert isinstance(java, RemoteClient)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(java.read_together, "g", "together", 2 * TOTAL, first, second, ("one", "two"))
        until = time.monotonic() + 60
        while sum(admin.committed("g", "together", partition) for partition in range(PARTITIONS)) < TOTAL:
            assert time.monotonic() < until
            assert not reading.done(), reading.result()
            time.sleep(0.1)
        node.kill()
        node.start()
        write(PER_PARTITION)
        got = reading.result(120)
    assert len(got) == 2 * TOTAL, "read twice, although everything was committed"
    assert {record.value for record in got} == {
        f"{partition}/{number}".encode() for partition in range(PARTITIONS) for number in range(2 * PER_PARTITION)
    }


@pytest.mark.parametrize("name", clients(lambda abilities: abilities.new_group_protocol))
def test_the_new_group_protocol_shares(
    name: str, open_client: Opener, topic: str, fresh_name: Callable[[str], str], new_protocol: str
) -> None:
    shares = open_client(name).share(fresh_name("kip848"), topic, PARTITIONS, protocol=new_protocol)
    assert len(shares.first) == len(shares.second) == 2
    assert shares.first | shares.second == shares.after == frozenset(range(PARTITIONS))
