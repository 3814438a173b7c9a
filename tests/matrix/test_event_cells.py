"""Every event by every writer by every reader: one client writes, something happens, it writes on, and another client
reads everything; content, order, offsets and times are what they should be.

`make matrix` reads all cells; some of each event, each writer and each reader are in every run of the tests. All of
them join late, when everything has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import pytest

from tests.matrix.cells import READERS, WRITERS, marks
from tests.matrix.conftest import LISTEN, Clients
from tests.matrix.world import (
    SETTINGS,
    OneWriter,
    World,
    a_kill,
    a_scale_and_a_merge,
    a_split,
    a_transaction_aborted,
    a_transaction_committed,
    a_transaction_open,
    compaction,
    made_anew,
    partitions_added,
    retention,
    truncation,
    truncation_by_pravega,
)
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Event = Callable[[Any], None]
EVENTS: tuple[Event, ...] = (
    *(a_scale_and_a_merge, partitions_added, a_split, truncation, truncation_by_pravega, retention, compaction),
    *(a_transaction_open, a_transaction_aborted, a_transaction_committed, made_anew, a_kill),
)
TRANSACTIONS = (a_transaction_open, a_transaction_aborted, a_transaction_committed)
SPARK = ("spark", "spark-stream")
"""They start for half a minute, so `make matrix` alone has them."""


def always() -> Iterator[tuple[Event, str, str]]:
    """Cells of every run: each event, each writer and each reader is in one of them at least."""
    writers, readers = ([name for name in names if name not in SPARK] for names in (WRITERS, READERS))
    for place in range(max(len(EVENTS), len(writers), len(readers))):
        # Steps of three go through all readers, and through protocols that are not the writer's.
        yield EVENTS[place % len(EVENTS)], writers[place % len(writers)], readers[(4 + 3 * place) % len(readers)]


ALWAYS = frozenset(always())
# Spark reads the topics of all writers with one query, when to all of them the same has happened.
CELLS = [
    pytest.param(event, writer, reader, marks=marks(writer, reader, seldom=(event, writer, reader) not in ALWAYS))
    for event in EVENTS
    for last in (False, True)
    for writer in WRITERS
    for reader in READERS
    if reader.startswith("spark") is last
]


def name_of(one: Event | str) -> str:
    return one if isinstance(one, str) else str(attrgetter("__name__")(one)).replace("_", "-")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("events") / "data", settings=SETTINGS, listen=LISTEN)
    with process.lent():
        yield process


@pytest.fixture(scope="module")
def clients(node: NodeProcess, request: pytest.FixtureRequest) -> Iterator[Clients]:
    found = Clients(node, request)
    yield found
    found.close()


@pytest.fixture(scope="module")
def happened(node: NodeProcess, clients: Clients) -> Callable[[Event, str], OneWriter]:
    """Has a writer write before and after an event, once."""
    done: dict[tuple[Event, str], OneWriter | Exception] = {}

    def happen(event: Event, name: str) -> OneWriter:
        if (event, name) not in done:
            try:
                done[event, name] = world = OneWriter(node, topic_of(event, name), clients.writer(name))
                world.write(0)
                event(world)
                world.check()
            except Exception as error:  # noqa: BLE001
                done[event, name] = error  # of all cells of this writer
        found = done[event, name]
        if isinstance(found, Exception):
            raise found
        return found

    return happen


def topic_of(event: Event, writer: str = "") -> str:
    return f"{name_of(event)}--{writer.replace('.', '-')}"


@pytest.mark.parametrize(("event", "writer", "reader"), CELLS, ids=name_of)
def test_event_cell(
    event: Event, writer: str, reader: str, happened: Callable[[Event, str], OneWriter], clients: Clients
) -> None:
    world = happened(event, writer)
    assert "\n".join(world.differences(clients.reader(reader, topic_of(event)))) == ""


STAY = tuple(name for name in READERS if name not in (*SPARK, "tail", "ydb-grpc"))
UNCOMMITTED = ("kafka-python", "java-new")
"""Their groups are given what is not committed, as nobody has told them otherwise."""


def goes(event: Event, reader: str) -> bool:
    """Whether a reader who was there has something to go on with."""
    # Their groups remember segments that are gone, and are not told of those that came beside theirs (docs/pravega.md).
    if event in (made_anew, partitions_added) and reader.startswith("pravega"):
        return False
    return not (event in TRANSACTIONS and reader in UNCOMMITTED)


@pytest.mark.parametrize(
    ("event", "reader"),
    [
        pytest.param(event, reader, marks=marks(reader, seldom=place % len(STAY) != other))
        for place, event in enumerate(one for one in EVENTS if one is not compaction)
        for other, reader in enumerate(STAY)
        if goes(event, reader)
    ],
    ids=name_of,
)
def test_who_was_there_goes_on(event: Event, reader: str, node: NodeProcess, clients: Clients) -> None:
    """A group or consumer has read what three protocols wrote, before something happened: it is given the rest, in its
    order, each record once."""
    world = World(node, f"there-{name_of(event)}-{reader}")
    world.write(0)
    before = clients.reader(reader).go_on(world.topic, 6)
    assert before == world.written[0]
    event(world)
    rest = {number: [value for value in some if value not in before] for number, some in world.left().items()}
    count = sum(map(len, rest.values()))
    found = clients.reader(reader).go_on(world.topic, count) if count else []
    for values in rest.values():
        assert [value for value in found if value in values] == values
    assert len(found) == count


def test_each_event_writer_and_reader_is_in_every_run() -> None:
    for place, names in enumerate((EVENTS, WRITERS, READERS)):
        assert {one[place] for one in ALWAYS} == set(names) - set(SPARK)
